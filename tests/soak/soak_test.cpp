#include "../support/on_threads.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

// Caches of every locking policy, with groups and a host tier among them, serve conversations in one process for as
// many operations as PAGEDKV_SOAK_OPERATIONS says. Their memory does not grow.

namespace {

using namespace pagedkv;
using pagedkv::test::on_threads;

constexpr auto everyday_operations = std::int64_t{120'000};
constexpr auto num_rounds = std::int64_t{20};
constexpr auto warm_rounds = std::int64_t{5};  // tables, records and allocators reach their sizes
constexpr auto slack = std::int64_t{1} << 20;  // of an allocator, whose threads come and go

// A sanitizer keeps memory that was given back.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool memory_is_ours = false;
#elif defined(__has_feature)
  #if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool memory_is_ours = false;
  #else
constexpr bool memory_is_ours = true;
  #endif
#else
constexpr bool memory_is_ours = true;
#endif

std::int64_t num_operations() {
  const auto* const asked = std::getenv("PAGEDKV_SOAK_OPERATIONS");
  return asked == nullptr ? everyday_operations : std::atoll(asked);
}

std::int64_t resident_bytes() {
  auto pages = std::int64_t{0};
  auto ignored = std::int64_t{0};
  std::ifstream("/proc/self/statm") >> ignored >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// Prompts that share beginnings, as turns of a few conversations do.
class conversations {
 public:
  explicit conversations(std::uint32_t seed) : random_(seed) {}

  const std::vector<token>& next() {
    prompt_.clear();
    const auto talk = random_() % 16;
    const auto length = 8 + random_() % 120;
    for (auto i = std::uint32_t{0}; i < length; ++i) {
      prompt_.push_back(static_cast<token>(talk * 1000 + i));
    }
    if (random_() % 4 == 0) {
      prompt_.back() = static_cast<token>(20'000 + random_() % 1000);
    }
    return prompt_;
  }
  std::uint32_t draw(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }

 private:
  std::mt19937 random_;
  std::vector<token> prompt_;
};

/// A request's life: operations that are refused count, too. Returns how many there were.
template <class Cache>
std::int64_t serve(Cache& cache, conversations& talks) {
  const auto made = cache.create_sequence(talks.next());
  if (!made) {
    return 1;
  }
  auto done = std::int64_t{2};
  auto length = made->num_tokens;
  static_cast<void>(cache.commit(made->id, length));
  for (auto i = talks.draw(24); i > 0; --i, ++done) {
    length += cache.append(made->id, static_cast<token>(i)).has_value() ? 1 : 0;
  }
  if (talks.draw(3) == 0) {
    if (const auto fork = cache.fork(made->id)) {
      static_cast<void>(cache.append(*fork, token{9}));
      static_cast<void>(cache.release(*fork));
      done += 3;
    }
  }
  if (talks.draw(4) == 0) {
    static_cast<void>(cache.truncate(made->id, std::max(length - 5, std::int64_t{1})));
    ++done;
  }
  static_cast<void>(cache.release(made->id));
  return done + 1;
}

/// A cache that lives as long as the process does, of any type.
class soaked {
 public:
  virtual ~soaked() = default;
  virtual std::int64_t run(std::int64_t operations, std::uint32_t seed) = 0;
  virtual void check() = 0;
};

template <class Cache>
class soaked_cache : public soaked {
 public:
  template <class... Arguments>
  explicit soaked_cache(const Arguments&... arguments) : cache_(arguments...) {}

  std::int64_t run(std::int64_t operations, std::uint32_t seed) override {
    constexpr auto num_threads = Cache::locking_type::family::concurrent ? 2 : 1;
    auto done = std::vector<std::int64_t>(num_threads);
    on_threads(done.size(), [&](std::size_t thread) {
      auto talks = conversations{seed + static_cast<std::uint32_t>(thread)};
      while (done[thread] < operations / num_threads) {
        done[thread] += serve(cache_, talks);
      }
    });
    auto sum = std::int64_t{0};
    for (const auto each : done) {
      sum += each;
    }
    return sum;
  }

  void check() override {
    CHECK(cache_.check_invariants() == std::vector<std::string>{});
    CHECK(cache_.statistics().blocks.in_use == 0);
  }

 private:
  Cache cache_;
};

cache_config small_cache() {
  auto config = cache_config{};
  config.hash_seed = 1;
  config.block_size = 4;
  config.num_blocks = 96;
  config.num_layers = 1;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  return config;
}

template <class... Policies>
std::unique_ptr<soaked> plain() {
  return std::make_unique<soaked_cache<kv_cache<float16, Policies...>>>(small_cache());
}

template <class... Policies>
std::unique_ptr<soaked> with_groups() {
  auto config = small_cache();
  const auto full = group_config{.key_dim = 8, .value_dim = 8};
  auto window = full;
  window.kind = group_kind::window;
  window.window = 24;
  config.groups = {full, window};
  return std::make_unique<soaked_cache<group_cache<float16, Policies...>>>(config);
}

template <class... Policies>
std::unique_ptr<soaked> with_host_tier() {
  auto tiers = tier_config{};
  tiers.model = "soak";
  return std::make_unique<soaked_cache<tiered_cache<float16, Policies...>>>(small_cache(), tiers, host_tier<>{64});
}

TEST_CASE("memory is flat however many operations there are", "[soak]") {
  auto caches = std::vector<std::unique_ptr<soaked>>{};
  caches.push_back(plain<single_thread>());
  caches.push_back(plain<lock_free, clock_sweep>());
  caches.push_back(with_groups<sharded_mutex>());
  caches.push_back(with_host_tier<rw_lock>());
  const auto asked = num_operations();
  auto done = std::int64_t{0};
  auto warm = std::int64_t{0};
  for (auto round = std::int64_t{0}; round < num_rounds; ++round) {
    for (auto& each : caches) {
      done += each->run(asked / (num_rounds * std::ssize(caches)), static_cast<std::uint32_t>(2 * round));
      each->check();
    }
    const auto resident = resident_bytes();
    std::printf("%15lld operations: %7.2f MiB resident\n", static_cast<long long>(done),
                static_cast<double>(resident) / (1 << 20));
    std::fflush(stdout);
    if (round == warm_rounds) {
      warm = resident;
    }
    CHECK((!memory_is_ours || round <= warm_rounds || resident <= warm + slack));
  }
}

}  // namespace
