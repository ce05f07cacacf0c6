// Two engines share the K/V of a prompt through a store:
//
//     remote_tier redis://127.0.0.1:6379
//     remote_tier redis://user:password@store/2
//     remote_tier redis://10.0.0.5:7000,10.0.0.6:7000        (nodes of one cluster)

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/redis_client.hpp>
#include <pagedkv/tier/remote_tier.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace pagedkv;
using cache_type = tiered_cache<float32, remote_tier<redis_client>>;

cache_type make_engine(const redis_config& store, const std::string& model) {
  auto config = cache_config{};
  config.num_blocks = 64;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  auto tiers = tier_config{};
  tiers.model = model;
  tiers.write = write_policy::through;  // other engines can have a block as soon as it is computed
  tiers.ask_ahead = 16;                 // blocks of a prompt that some other engine may have written
  auto remote = remote_tier{redis_client{store}, cache_type::format_of(config, model)};
  return cache_type{config, tiers, {64}, {std::move(remote)}};
}

/// The tokens of a prompt that the store has brought within a second; the others are computed.
std::int64_t serve(cache_type& engine, std::span<const token> prompt) {
  const auto made = engine.create_sequence(prompt).value();
  engine.wait(made.id, std::chrono::steady_clock::now() + std::chrono::seconds{1});
  const auto num_cached = std::max(engine.settle(made.id).value(), made.num_cached_tokens);

  auto slots = std::vector<slot>(prompt.size());
  engine.slot_mapping(made.id, 0, slots).value();
  auto numbers = std::vector<float>(prompt.size() * 8);  // one number a token: a model's work
  for (auto i = std::size_t{0}; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(prompt[i / 8] % 1'000);
  }
  const auto computed = static_cast<std::size_t>(num_cached);
  const auto missing = std::span<const float>{numbers}.subspan(computed * 8);
  const auto rows = contiguous_rows(missing, 1, 8);
  engine.write(0, std::span{slots}.subspan(computed), rows, rows).value();
  engine.commit(made.id, std::ssize(prompt)).value();

  auto keys = std::vector<float>(numbers.size());
  auto values = std::vector<float>(numbers.size());
  engine.read(0, slots, contiguous_rows(keys, 1, 8), contiguous_rows(values, 1, 8)).value();
  if (keys != numbers || values != numbers) {
    std::puts("the store brought other K/V than was computed");
  }
  engine.release(made.id).value();
  engine.wait_idle();
  return num_cached;
}

}  // namespace

int main(int count, char** arguments) {
  const auto store = parse_redis_url(count == 2 ? arguments[1] : "");
  if (!store) {
    std::fprintf(stderr, "usage: remote_tier URL\n%s\n", store.error().message().c_str());
    return 2;
  }
  if (const auto problem = redis_client{*store}.failure(); !problem.empty()) {
    std::printf("%s: engines compute everything\n", problem.c_str());
  }
  const auto model = "example " + std::to_string(std::random_device{}());  // so that no earlier run's records are found
  auto prompt = std::vector<token>(200);
  std::iota(prompt.begin(), prompt.end(), 0);
  for (const auto* const name : {"first", "second"}) {
    auto engine = make_engine(*store, model);
    std::printf("the %s engine had %d of 200 tokens cached\n", name, static_cast<int>(serve(engine, prompt)));
  }
  return 0;
}
