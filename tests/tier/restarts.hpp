#pragma once

#include "fake_tiers.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

/// A cache that finds the records that one before it wrote, where most prompts begin with the same blocks. `Driver`
/// runs prompts through a cache and checks their K/V: `serve(prompt)`, `hold(prompt)`, `release(id)`,
/// `check_invariants()`.

namespace pagedkv::test {

inline constexpr auto num_hot_blocks = 8;  // of four tokens
inline constexpr auto num_tails = 40;
inline constexpr auto no_prompt = -1;

/// A prompt that begins with the blocks that all of them share, and ends with two full blocks of its own.
inline std::vector<token> behind_hot_prompt(int number) {
  auto prompt = std::vector<token>(num_hot_blocks * 4 + 9);
  const auto tail = prompt.begin() + num_hot_blocks * 4;
  std::iota(prompt.begin(), tail, 0);
  std::iota(tail, prompt.end(), 1000 + 100 * number);
  return prompt;
}

struct restart_plan {
  write_policy write;
  bool exclusive = false;
  bool overloaded = false;  // many writes find no room
};

inline restart_plan any_plan() {
  const auto overloaded = GENERATE(false, true);
  auto chosen = GENERATE(restart_plan{write_policy::on_eviction}, restart_plan{write_policy::on_eviction, true},
                         restart_plan{write_policy::through}, restart_plan{write_policy::through_hits});
  chosen.overloaded = overloaded;
  return chosen;
}

inline tier_config config_of(const restart_plan& chosen, bool threads) {
  auto config = tier_config{};
  config.threads = threads;
  config.write = chosen.write;
  config.exclusive = chosen.exclusive;
  config.queue_records = chosen.overloaded ? 2 : 256;
  return config;
}

/// Serves prompts in random order, some of them several times in turn, while the shared blocks stay on the device.
/// `served` is called after each.
template <class Driver, class Served>
void serve_behind_hot_prompt(Driver& driver, std::uint32_t seed, int num_served, const Served& served) {
  auto random = std::mt19937{seed};
  const auto hot = driver.hold(behind_hot_prompt(no_prompt));
  for (auto i = 0; i < num_served; ++i) {
    const auto prompt = behind_hot_prompt(static_cast<int>(random() % num_tails));
    for (auto times = 1 + random() % 3; times > 0; --times) {
      driver.serve(prompt);
    }
    served(random);
  }
  driver.check_invariants();
  driver.release(hot);
}

/// `num_found`: records in the tier of a cache that has just been made. None is given up. If there was room for all
/// writes, the first prompts hit nearly all of them; otherwise the first ones compute what is missing, and the next
/// ones hit. `num_torn`: records at most that were being written, so that what continues them is computed once. There
/// is room for all in host memory.
template <class Cache, class Driver>
void check_restart(Cache& cache, Driver& driver, std::int64_t num_found, const restart_plan& chosen,
                   std::int64_t num_torn) {
  const auto at_once = cache.tier(1).adopted;
  CHECK(at_once + cache.tier(1).num_orphans == num_found);
  driver.serve(behind_hot_prompt(num_tails));  // a new one, which reads what lies before the place where it parts
  for (auto i = no_prompt; i < num_tails; ++i) {
    driver.serve(behind_hot_prompt(i));
    driver.check_invariants();
  }
  const auto counts = cache.tier(1);
  CAPTURE(num_found, at_once, counts.loads, counts.adopted, counts.num_orphans);
  CHECK(counts.adopted * 100 >= num_found * 95);
  if (!chosen.overloaded) {
    CHECK((at_once + num_torn) * 100 >= num_found * 95);
    CHECK((counts.loads + num_torn) * 100 >= num_found * 95);
  }
}

/// The records of a store at this moment, as after its process was killed.
inline std::shared_ptr<fake_store> copy_of(fake_store& from) {
  auto copy = std::make_shared<fake_store>();
  for (const auto& [at, record] : from.records) {
    copy->records.emplace(at, fake_store::aligned_record{{record.bytes.get(), record.size}});
  }
  return copy;
}

struct reports_of_killed {
  int count = 0;
  std::int64_t latest = 0;  // records
};

/// Kills a process some time after it has reported so often and the last report was of so many records, and after so
/// many turns for others. `serve(report)` serves prompts in that process without an end, and reports the tier's
/// records.
template <class Serve>
reports_of_killed serve_and_kill(int num_served, std::int64_t num_records, const Serve& serve, int num_turns = 0) {
  auto ends = std::array<int, 2>{};
  REQUIRE(pipe(ends.data()) == 0);
  const auto child = fork();
  if (child == 0) {
    close(ends[0]);
    try {
      serve([&](std::int64_t now) {
        if (write(ends[1], &now, sizeof(now)) != sizeof(now)) {
          _exit(1);
        }
      });
    } catch (...) {  // of Catch2's, whose report is the parent's
    }
    _exit(1);
  }
  close(ends[1]);
  auto reports = reports_of_killed{};
  const auto hear = [&] {
    const auto heard = read(ends[0], &reports.latest, sizeof(reports.latest)) == sizeof(reports.latest);
    reports.count += heard;
    return heard;
  };
  while ((reports.count < num_served || reports.latest < num_records) && hear()) {
  }
  for (auto i = 0; i < num_turns; ++i) {
    std::this_thread::yield();
  }
  kill(child, SIGKILL);
  while (hear()) {
  }
  close(ends[0]);
  auto status = 0;
  waitpid(child, &status, 0);
  REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  return reports;
}

}  // namespace pagedkv::test
