#include "fake_store.hpp"
#include "store_process.hpp"
#include "temporary_folder.hpp"
#include "tiered_driver.hpp"

#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/file_engine.hpp>
#include <pagedkv/tier/redis_client.hpp>
#include <pagedkv/tier/remote_tier.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <csignal>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace pagedkv;
using namespace pagedkv::test;
using testing::store_process;
using testing::temporary_folder;

namespace {

using store_tier = remote_tier<redis_client>;
using remote_cache = tiered_cache<float32, store_tier>;
using disk_tier = basic_file_tier<thread_files>;
using disk_cache = tiered_cache<float32, disk_tier>;

constexpr auto num_blocks = 12;
constexpr auto num_operations = 150;
constexpr auto longest_wait = std::chrono::minutes{1};  // a test that waits for this in an operation hangs

tier_config asking() {
  auto config = tier_config{};
  config.known_records = 200;
  config.ask_ahead = 2;
  config.queue_records = 32;
  return config;
}

store_tier connect(const std::string& url, std::chrono::milliseconds timeout) {
  auto client = parse_redis_url(url).value();
  client.shortest_pause = client.longest_pause = std::chrono::milliseconds{1};
  auto config = remote_tier_config{};
  config.timeout = timeout;
  return {redis_client{client}, remote_cache::format_of(small_device(num_blocks), ""), config};
}

/// Prompts that no other part of a test uses.
std::vector<token> other_prompt(token number) { return numbered(13, 100'000 + 100 * number); }

/// New prompts, which wait for no tier.
template <class Cache>
void serve_at_once(Cache& cache, tiered_driver<Cache>& driver, token first) {
  for (auto number = first; number < first + 30; ++number) {
    const auto made = driver.create(other_prompt(number));
    REQUIRE(made);
    driver.settle(made->id);
    driver.compute(made->id);
    driver.release(made->id);
    cache.poll();
  }
}

/// Serves until the tier takes records again, and gives them back when host memory has lost them.
template <class Cache>
void check_recovery(Cache& cache, tiered_driver<Cache>& driver) {
  const auto written = cache.tier(1).written;
  auto number = token{0};
  for (; cache.tier(1).written < written + 12; ++number) {
    driver.serve(other_prompt(number));
    cache.wait_idle();
    std::this_thread::yield();
  }
  const auto last = number;
  const auto loads = cache.tier(1).loads;
  while (cache.tier(1).loads == loads) {
    for (auto i = last; i < last + 8; ++i) {
      driver.serve(other_prompt(i));
      cache.wait_idle();
    }
  }
  driver.check_invariants();
}

/// One kind of fault of a store, and its end.
struct mishap {
  store_process& store;

  void begin(int kind) const {
    switch (kind) {
      case 0: store.kill(); break;
      case 1: store.signal(SIGSTOP); break;
      case 2: store.call({"CLIENT", "PAUSE", "40", "ALL"}); break;
      case 3: store.call({"CONFIG", "SET", "maxmemory", "1"}); break;
      case 4:
        store.call({"EVAL",
                    "for i, key in ipairs(redis.call('KEYS', '*')) do "
                    "redis.call('SETRANGE', key, (i * 997) % redis.call('STRLEN', key), 'garbage') end",
                    "0"});
        break;
      default: store.call({"FLUSHALL"});
    }
  }
  void end(int kind) const {
    switch (kind) {
      case 0: store.start(); break;
      case 1: store.signal(SIGCONT); break;
      case 3: store.call({"CONFIG", "SET", "maxmemory", "0"}); break;
      default: break;
    }
  }
};

/// Of files, in a process: writes behind it fail.
class file_size_limit {
 public:
  explicit file_size_limit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const auto limit = rlimit{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

void damage(const std::string& path, std::mt19937& random) {
  const auto file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  struct stat facts{};
  REQUIRE(::fstat(file, &facts) == 0);
  const auto garbage = std::string{"garbage"};
  for (auto i = 0; i < 40; ++i) {
    const auto at = 8'192 + random() % static_cast<std::uint64_t>(facts.st_size - 9'000);
    REQUIRE(::pwrite(file, garbage.data(), garbage.size(), static_cast<off_t>(at)) == std::ssize(garbage));
  }
  ::close(file);
}

}  // namespace

TEST_CASE("requests go on whatever happens to a store, and it is used again", "[tiered_faults][random]") {
  if (!testing::store_program()) {
    SKIP("neither valkey-server nor redis-server is installed");
  }
  const auto seed = Catch::getSeed();
  const auto kind = GENERATE(0, 1, 2, 3, 4, 5);
  CAPTURE(kind);
  auto store = store_process{};
  const auto mishap = ::mishap{store};
  // A store that is only slow is given up after less time than it takes. No operation waits for one that is stopped.
  const auto timeout = kind == 2 ? std::chrono::milliseconds{10} : std::chrono::milliseconds{longest_wait};
  auto cache = remote_cache{small_device(num_blocks), asking(), {10}, {connect(store.url(), timeout)}};
  auto driver = tiered_driver{cache};
  run_randomly(cache, seed, num_operations);
  check_recovery(cache, driver);
  for (auto round = std::uint32_t{1}; round <= 2; ++round) {
    mishap.begin(kind);
    serve_at_once(cache, driver, 1'000 * static_cast<token>(round));
    run_randomly(cache, seed + round, num_operations, [&] {
      if (kind == 0 || kind == 3) {  // which fail what they are asked
        cache.wait_idle();
        CHECK(cache.tier(1).failed_writes > 0);
      }
      mishap.end(kind);
    });
    check_recovery(cache, driver);
  }
  if (kind == 4) {
    CHECK(cache.tier(1).failed_loads > 0);
  }
}

TEST_CASE("records that are not those that were written are written again", "[tiered_faults]") {
  if (!testing::store_program()) {
    SKIP("neither valkey-server nor redis-server is installed");
  }
  const auto* const damage = GENERATE("redis.call('SETRANGE', key, redis.call('STRLEN', key) - 9, 'garbage')",
                                      "redis.call('SET', key, 'short')");
  CAPTURE(damage);
  auto store = store_process{};
  auto config = asking();
  config.ask_ahead = 0;
  auto cache = remote_cache{small_device(num_blocks), config, {24}, {connect(store.url(), longest_wait)}};
  auto driver = tiered_driver{cache};
  const auto hits_of_a_round = [&] {
    const auto before = cache.statistics().hit_tokens + cache.tier(0).hit_tokens + cache.tier(1).hit_tokens;
    for (auto number = 0; number < 20; ++number) {
      driver.serve(other_prompt(number));
      cache.wait_idle();
    }
    return cache.statistics().hit_tokens + cache.tier(0).hit_tokens + cache.tier(1).hit_tokens - before;
  };
  hits_of_a_round();
  hits_of_a_round();
  const auto before = hits_of_a_round();
  REQUIRE(before > 0);
  store.call({"EVAL", std::string{"for i, key in ipairs(redis.call('KEYS', '*')) do "} + damage + " end", "0"});
  CHECK(hits_of_a_round() < before);
  hits_of_a_round();
  CHECK(hits_of_a_round() >= before);
  driver.check_invariants();
}

TEST_CASE("a store that answers garbage costs hits, and nothing else", "[tiered_faults][random]") {
  const auto seed = Catch::getSeed();
  auto random = std::mt19937{seed};
  auto values = std::map<std::string, std::string>{};
  const auto answer = [&](const std::vector<std::string>& command) {
    if (command[0] == "SET") {
      values[command[1]] = command[2];
      return std::string{"+OK\r\n"};
    }
    if (command[0] == "UNLINK") {
      return ":" + std::to_string(values.erase(command[1])) + "\r\n";
    }
    const auto found = values.find(command[1]);
    return found == values.end() ? std::string{"$-1\r\n"}
                                 : "$" + std::to_string(found->second.size()) + "\r\n" + found->second + "\r\n";
  };
  const auto store = testing::fake_store{
      testing::fake_store::greeting([&](const std::vector<std::string>& command) -> std::optional<std::string> {
        auto text = answer(command);
        switch (random() % 12) {
          case 0: return std::nullopt;
          case 1: return text.substr(0, random() % text.size());
          case 2: return "$-1\r\n" + text;
          case 3: text[random() % text.size()] ^= 1; return text;
          case 4: return "+OK\r\n";
          case 5: return values.empty() ? text : answer({"GET", values.begin()->first});
          default: return text;
        }
      })};
  auto cache = remote_cache{
      small_device(num_blocks), asking(), {10}, {connect(store.url(), std::chrono::milliseconds{20})}};
  const auto num_failures = [&] { return cache.tier(1).failed_writes + cache.tier(1).failed_loads; };
  for (auto round = std::uint32_t{0}; round < 20 && (round == 0 || num_failures() == 0); ++round) {
    run_randomly(cache, seed + round, 4 * num_operations);
  }
  CHECK(num_failures() > 0);
}

TEST_CASE("requests go on when a disk is full or damaged, and it is used again", "[tiered_faults][random]") {
  const auto seed = Catch::getSeed();
  auto random = std::mt19937{seed};
  const auto is_full = GENERATE(true, false);
  CAPTURE(seed, is_full);
  const auto folder = temporary_folder{};
  const auto format = disk_cache::format_of(small_device(num_blocks), "");
  const auto bytes = static_cast<std::int64_t>(format.header_bytes() + 40 * format.record_bytes());
  auto cache = disk_cache{small_device(num_blocks), asking(), {10},
                          {disk_tier::create({folder.file("a")}, bytes, format).value()}};
  auto driver = tiered_driver{cache};
  run_randomly(cache, seed, num_operations);
  check_recovery(cache, driver);
  // Chance decides which records are written and read: on, until a fault was met.
  const auto run_until = [&](std::uint32_t round, const auto& met) {
    for (auto more = std::uint32_t{0}; more < 20 && (more == 0 || !met()); ++more) {
      if (!is_full) {
        damage(folder.file("a"), random);
      }
      run_randomly(cache, seed + round + 100 * more, num_operations);
    }
    CHECK(met());
  };
  for (auto round = std::uint32_t{1}; round <= 3; ++round) {
    if (is_full) {
      const auto limit = file_size_limit{100'000};
      const auto failed = cache.tier(1).failed_writes;
      serve_at_once(cache, driver, 1'000 * static_cast<token>(round));
      run_until(round, [&] { return cache.tier(1).failed_writes > failed; });
    } else {
      run_until(round, [&] { return round < 3 || cache.tier(1).failed_loads > 0; });
    }
    check_recovery(cache, driver);
  }
}
