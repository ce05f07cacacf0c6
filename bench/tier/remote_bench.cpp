#include <pagedkv/tier/redis_client.hpp>
#include <pagedkv/tier/remote_tier.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

using namespace pagedkv;

namespace {

/// The store to measure: PAGEDKV_STORE, or the default port.
const char* url_of_store() {
  const auto* const given = std::getenv("PAGEDKV_STORE");
  return given != nullptr ? given : "redis://127.0.0.1:6379";
}

struct alignas(record_alignment) unit {
  std::array<std::byte, record_alignment> bytes{};
};

constexpr auto num_keys = std::size_t{64};

/// Moves a batch of records of 64 keys to or from the store. Argument: bytes of a record.
template <bool IsWrite>
void transfer(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto config = parse_redis_url(url_of_store());
  if (!config) {
    state.SkipWithError(config.error().message().c_str());
    return;
  }
  auto client = redis_client{*config};
  if (client.num_connections() == 0) {
    state.SkipWithError(("no store answers: " + client.failure()).c_str());
    return;
  }
  const auto format = record_format{"pagedkv record 1, of a benchmark", static_cast<std::int64_t>(bytes), 1, 16};
  auto tier = remote_tier{std::move(client), format, {.timeout = std::chrono::seconds{60}}};
  const auto num_records = std::max((std::size_t{32} << 20) / bytes, num_keys);
  auto memory = std::vector<unit>(num_records * bytes / record_alignment);
  auto batch = std::vector<record_transfer>(num_records);
  auto outcomes = std::vector<transfer_outcome>(num_records);
  for (auto i = std::size_t{0}; i < num_records; ++i) {
    const auto all = std::as_writable_bytes(std::span{memory});
    batch[i] = {{i % num_keys, 0}, 0, all.subspan(i * bytes, bytes)};
  }
  tier.write(batch, outcomes);
  for (auto _ : state) {
    if constexpr (IsWrite) {
      tier.write(batch, outcomes);
    } else {
      tier.read(batch, outcomes);
    }
    if (std::ranges::any_of(outcomes, [](auto outcome) { return outcome != transfer_outcome::done; })) {
      state.SkipWithError("a transfer failed");
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(num_records));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(num_records * bytes));
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Arg(16 << 10)->Arg(128 << 10)->Arg(1 << 20)->UseRealTime()->ArgName("bytes");
}

BENCHMARK(transfer<true>)->Name("remote/set")->Apply(sizes);
BENCHMARK(transfer<false>)->Name("remote/get")->Apply(sizes);

}  // namespace
