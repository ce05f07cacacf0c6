#include "fake_tiers.hpp"
#include "tiered_driver.hpp"

#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <thread>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using fault = fake_store::fault;

/// Requests of one thread. Catch's assertions are for one thread only, so it counts instead.
template <class Cache>
class requests_of_thread {
 public:
  requests_of_thread(Cache& cache, std::uint32_t seed) : cache_(cache), random_(seed) {}

  void serve(int count) {
    for (auto i = 0; i < count; ++i) {
      serve_one();
      if (random_() % 16 == 0) {
        cache_.invalidate_prefix(numbered(8, 0), salt{random_() % 2});
      }
    }
  }

  std::int64_t num_cached = 0;
  std::int64_t num_served = 0;
  std::int64_t num_errors = 0;  // of operations that must succeed
  std::int64_t num_wrong = 0;   // tokens with another one's K/V

 private:
  void serve_one() {
    auto tokens = random_prompt(random_, 7);
    const auto tag = salt{random_() % 2};
    auto options = sequence_options{};
    options.salt = tag;
    const auto image = std::array{prefix_key{0, {2, 3}}};
    const auto keys = std::span<const prefix_key>{image}.first(random_() % 2);
    const auto made = cache_.create_sequence({tokens, keys}, options);
    if (!made) {
      num_errors += made.error().code != error_code::capacity_exhausted;
      return;
    }
    ++num_served;
    auto num_written = made->num_cached_tokens;
    if (made->num_loading_tokens != 0) {
      const auto now = std::chrono::steady_clock::now();
      cache_.wait(made->id, random_() % 2 == 0 ? now : now + std::chrono::milliseconds{1});
      const auto settled = cache_.settle(made->id);
      count_error(settled);
      num_written = settled ? *settled : num_written;
    }
    num_cached += num_written;
    check(made->id, tokens, tag, num_written);
    write(made->id, tokens, tag, num_written);
    count_error(cache_.commit(made->id, std::ssize(tokens)));
    for (auto more = random_() % 6; more > 0 && cache_.append(made->id, token{7}); --more) {
      tokens.push_back(7);
      write(made->id, tokens, tag, std::ssize(tokens) - 1);
    }
    count_error(cache_.commit(made->id, std::ssize(tokens)));
    check(made->id, tokens, tag, std::ssize(tokens));
    count_error(cache_.release(made->id));
  }

  template <class Result>
  void count_error(const Result& answer) {
    num_errors += !answer;
  }

  void write(sequence_id id, const std::vector<token>& tokens, salt tag, std::int64_t from) {
    const auto numbers = rows_of(tokens, tag);
    for (auto i = from; i < std::ssize(tokens); ++i) {
      for (auto layer = std::int32_t{0}; layer < 2; ++layer) {
        auto at = std::array<slot, 1>{};
        count_error(cache_.slot_mapping(id, i, at));
        const auto [key, value] = row_at(numbers[static_cast<std::size_t>(i)], layer);
        count_error(cache_.write(layer, at, rows(key), rows(value)));
      }
    }
  }
  void check(sequence_id id, const std::vector<token>& tokens, salt tag, std::int64_t end) {
    const auto numbers = rows_of(tokens, tag);
    for (auto i = std::int64_t{0}; i < end; ++i) {
      for (auto layer = std::int32_t{0}; layer < 2; ++layer) {
        auto at = std::array<slot, 1>{};
        count_error(cache_.slot_mapping(id, i, at));
        auto key = kv_row{};
        auto value = kv_row{};
        count_error(cache_.read(layer, at, rows(key), rows(value)));
        num_wrong += std::pair{key, value} != row_at(numbers[static_cast<std::size_t>(i)], layer);
      }
    }
  }

  Cache& cache_;
  std::mt19937 random_;
};

/// Requests of four threads, while another one looks at everything that may be looked at.
template <class Cache>
void share_between_threads(Cache& cache, std::uint32_t seed) {
  auto all = std::vector<requests_of_thread<Cache>>{};
  for (auto i = std::uint32_t{0}; i < 4; ++i) {
    all.emplace_back(cache, seed + i);
  }
  {
    auto is_done = std::atomic<bool>{false};
    const auto watching = std::jthread{[&] {
      while (!is_done) {
        cache.poll();
        static_cast<void>(cache.find_prefix(numbered(8)));
        static_cast<void>(cache.tier(1));
        static_cast<void>(cache.statistics());
        static_cast<void>(cache.memory());
      }
    }};
    {
      auto threads = std::vector<std::jthread>{};
      for (auto& requests : all) {
        threads.emplace_back([&requests] { requests.serve(150); });
      }
    }
    is_done = true;
  }
  cache.wait_idle();
  const auto broken = cache.check_invariants();
  CAPTURE(broken);
  CHECK(broken.empty());
  auto num_cached = std::int64_t{0};
  for (const auto& requests : all) {
    CHECK(requests.num_wrong == 0);
    CHECK(requests.num_errors == 0);
    CHECK(requests.num_served > 0);
    num_cached += requests.num_cached;
  }
  CHECK(num_hits(cache) == num_cached);
  CHECK(cache.statistics().blocks.in_use == 0);
}

}  // namespace

/// The first key of a record takes memory in the directory. Nothing but the cache orders the two threads, so that
/// ThreadSanitizer tells whether it does.
TEST_CASE("one thread asks for the memory while another one's record takes some", "[tier][tiered_threads]") {
  using cache_type = tiered_cache<float32, rw_lock, placed_tier, keyed_tier>;
  const auto places = std::make_shared<fake_store>(fault::none, 1);
  const auto keys = std::make_shared<fake_store>(fault::none, 2);
  auto cache = cache_type{small_device(24), tier_config{}, {20},
                          {placed_tier{places, 40, cache_type::format_of(small_device(24), "")}, keyed_tier{keys}}};
  const auto before = cache.memory().index;
  auto asked = std::int64_t{0};
  {
    const auto asking = std::jthread{[&] { asked = cache.memory().index; }};
    const auto storing = std::jthread{[&] {
      const auto image = std::array{prefix_key{0, {2, 3}}};
      const auto made = cache.create_sequence({numbered(9), image});
      if (made && cache.commit(made->id, 9)) {
        static_cast<void>(cache.release(made->id));
      }
    }};
  }
  cache.wait_idle();
  CHECK(cache.memory().index > before);
  CHECK(asked >= before);
}

TEMPLATE_TEST_CASE("threads share a cache with tiers, and each reads its own K/V", "[tier][tiered_threads][random]",
                   rw_lock, sharded_mutex) {
  using cache_type = tiered_cache<float32, TestType, placed_tier, keyed_tier>;
  const auto seed = Catch::getSeed();
  const auto wrong = GENERATE(fault::none, fault::all);
  const auto write = GENERATE(write_policy::on_eviction, write_policy::through);
  CAPTURE(seed, static_cast<int>(wrong), static_cast<int>(write));
  auto config = tier_config{};
  config.write = write;
  config.ask_ahead = 2;
  config.known_records = 60;
  const auto places = std::make_shared<fake_store>(wrong, seed);
  const auto keys = std::make_shared<fake_store>(wrong, seed + 1);
  auto cache = cache_type{small_device(24), config, {20},
                          {placed_tier{places, 40, cache_type::format_of(small_device(24), "")}, keyed_tier{keys}}};
  share_between_threads(cache, seed);
}

TEST_CASE("threads share a cache with groups and tiers, and each reads its own K/V", "[tier][tiered_threads][random]") {
  using cache_type = tiered_cache<float32, sharded_mutex, layer_groups, placed_tier>;
  const auto seed = Catch::getSeed();
  const auto wrong = GENERATE(fault::none, fault::all);
  const auto write = GENERATE(write_policy::on_eviction, write_policy::through);
  CAPTURE(seed, static_cast<int>(wrong), static_cast<int>(write));
  auto device = small_device(24);
  device.block_size = 16;  // that many tokens fill a block: no hit ends inside one, whose rest another thread may write
  device.groups = {group_config{.num_layers = 2, .key_dim = row_dim, .value_dim = row_dim}};
  auto config = tier_config{};
  config.write = write;
  const auto places = std::make_shared<fake_store>(wrong, seed);
  auto cache = cache_type{device, config, {20}, {placed_tier{places, 40, cache_type::format_of(device, "")}}};
  share_between_threads(cache, seed);
}
