#include <pagedkv/tier/file_tier.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

using namespace pagedkv;

namespace {

/// On the disk to measure: PAGEDKV_FILE, or a temporary one.
std::string path_of_file() {
  const auto* const given = std::getenv("PAGEDKV_FILE");
  return given != nullptr ? given : (std::filesystem::temp_directory_path() / "pagedkv_file_bench").string();
}

constexpr auto file_bytes = std::int64_t{1} << 30;
constexpr auto batch_bytes = std::size_t{128} << 20;

/// Moves records to or from random places. Arguments: bytes of a record, requests in flight.
template <class Engine, bool IsWrite>
void transfer(benchmark::State& state) {
  const auto record_bytes = static_cast<std::size_t>(state.range(0));
  auto format = record_format{"pagedkv record 1, of a benchmark", 0, 1, 16};
  format.layer_bytes = static_cast<std::int64_t>(record_bytes - format.header_bytes());
  const auto path = path_of_file();
  std::filesystem::remove(path);
  auto tier = basic_file_tier<Engine>::create({path}, file_bytes, format,
                                              {.queue_depth = static_cast<std::int32_t>(state.range(1))});
  if (!tier) {
    state.SkipWithError(tier.error().message().c_str());
    return;
  }
  const auto num_records = batch_bytes / record_bytes;
  auto memory = std::vector<std::byte>(batch_bytes, std::byte{1});
  auto batch = std::vector<record_transfer>(num_records);
  auto outcomes = std::vector<transfer_outcome>(num_records);
  auto places = std::vector<std::int64_t>(static_cast<std::size_t>(tier->num_places()));
  std::iota(places.begin(), places.end(), std::int64_t{0});
  const auto fill = [&](std::size_t first) {
    for (std::size_t i = 0; i < num_records; ++i) {
      batch[i] = {{}, places[(first + i) % places.size()], std::span{memory}.subspan(i * record_bytes, record_bytes)};
    }
  };
  for (std::size_t first = 0; first < places.size(); first += num_records) {
    fill(first);
    tier->write(batch, outcomes);
  }
  auto random = std::mt19937{1};
  std::ranges::shuffle(places, random);
  auto first = std::size_t{0};
  for (auto _ : state) {
    fill(first);
    first += num_records;
    if constexpr (IsWrite) {
      tier->write(batch, outcomes);
    } else {
      tier->read(batch, outcomes);
    }
    if (std::ranges::any_of(outcomes, [](auto outcome) { return outcome != transfer_outcome::done; })) {
      state.SkipWithError("a transfer failed");
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(num_records * record_bytes));
  state.SetLabel(tier->direct() ? "past the page cache" : "through the page cache");
}

void sizes_and_depths(benchmark::internal::Benchmark* benchmark) {
  for (const auto bytes : {std::int64_t{64} << 10, std::int64_t{256} << 10, std::int64_t{1} << 20}) {
    benchmark->Args({bytes, 32});
  }
  benchmark->Args({64 << 10, 1})->UseRealTime()->ArgNames({"bytes", "depth"});
}

BENCHMARK(transfer<uring_files, false>)->Name("read/io_uring")->Apply(sizes_and_depths);
BENCHMARK(transfer<uring_files, true>)->Name("write/io_uring")->Apply(sizes_and_depths);
BENCHMARK(transfer<thread_files, false>)->Name("read/threads")->Apply(sizes_and_depths);
BENCHMARK(transfer<thread_files, true>)->Name("write/threads")->Apply(sizes_and_depths);

}  // namespace
