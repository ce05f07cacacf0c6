#pragma once

#include "../support/allocation_count.hpp"
#include "../support/failing_allocator.hpp"
#include "../support/tokens.hpp"
#include "failing_backend.hpp"
#include "failing_files.hpp"

#include <pagedkv/pagedkv.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pagedkv::test {

/// Where a fault is injected.
enum class fault_site { operator_new, allocator, backend, files };

inline constexpr auto fault_sites =
    std::array{fault_site::operator_new, fault_site::allocator, fault_site::backend, fault_site::files};

/// The plans of all sites; outlives the cache.
struct fault_plan {
  allocation_log memory;
  backend_calls backend;

  /// Makes the n-th use of a site from now on fail.
  void arm(fault_site site, std::int64_t n) noexcept {
    site_ = site;
    end_ = num_uses() + n;
    switch (site) {
      case fault_site::operator_new: fail_allocation(static_cast<long>(n)); break;
      case fault_site::allocator: memory.fail_at = end_; break;
      case fault_site::backend: backend.fail_at = end_; break;
      case fault_site::files: fail_file_operation(static_cast<long>(n)); break;
    }
  }

  /// Ends the fault, and says whether it happened.
  bool disarm() noexcept {
    const auto happened = num_uses() >= end_;
    fail_allocation(0);
    fail_file_operation(0);
    memory.fail_at = backend.fail_at = 0;
    return happened;
  }

 private:
  [[nodiscard]] std::int64_t num_uses() const noexcept {
    switch (site_) {
      case fault_site::operator_new: return allocation_count();
      case fault_site::allocator: return memory.calls;
      case fault_site::backend: return backend.calls;
      case fault_site::files: break;
    }
    return file_operation_count();
  }

  fault_site site_ = fault_site::operator_new;
  std::int64_t end_ = 0;
};

[[nodiscard]] inline bool tells_of_a_fault(const error& reason) {
  return reason.code == error_code::out_of_memory || reason.code == error_code::backend_failure;
}

/// The state of a cache and its sequences that a caller can observe. `counts_attempts`: with the statistics of
/// prompts, hits and refusals, which count also what is then given back or repeated.
template <class Cache>
[[nodiscard]] std::vector<std::int64_t> observe(const Cache& cache, const std::vector<sequence_id>& ids,
                                                std::size_t num_groups, bool counts_attempts = true) {
  constexpr auto num_counters = sizeof(cache_statistics) / sizeof(std::int64_t);
  auto statistics = cache.statistics();
  // These count allocations, also those that a failed operation gives back.
  statistics.peak_in_use = statistics.blocks_together = statistics.runs_together = statistics.blocks_in_runs = 0;
  if (!counts_attempts) {
    statistics.prompts = statistics.prompt_blocks = statistics.hit_blocks = statistics.hit_tokens = 0;
    statistics.refusals = 0;
  }
  const auto counters = std::bit_cast<std::array<std::int64_t, num_counters>>(statistics);
  auto seen = std::vector<std::int64_t>(counters.begin(), counters.end());
  seen.push_back(cache.num_free_blocks());
  seen.push_back(cache.num_available_blocks());
  for (const auto first : {0, 200, 500, 900}) {
    seen.push_back(cache.find_prefix(text(first, 40)));
  }
  for (const auto id : ids) {
    const auto info = cache.describe(id).value();
    seen.insert(seen.end(), {info.num_tokens, info.num_computed_tokens, static_cast<std::int64_t>(info.last_access)});
    auto tokens = std::vector<token>(static_cast<std::size_t>(info.num_tokens));
    REQUIRE(cache.tokens(id, 0, tokens));
    seen.insert(seen.end(), tokens.begin(), tokens.end());
    for (std::size_t group = 0; group < num_groups; ++group) {
      auto blocks = std::array<block_id, 64>{};
      const auto size = cache.block_table(id, blocks, 0, group).value();
      for (std::size_t i = 0; i < size; ++i) {
        seen.push_back(static_cast<std::int64_t>(blocks[i]));
      }
    }
  }
  return seen;
}

/// An operation of a table: the name, what happens before, and the operation, which returns its error if it has one and
/// takes no memory of its own.
template <class World>
struct faulty_operation {
  const char* name;
  std::optional<error> (*run)(World&);
  void (*prepare)(World&) = [](World&) {};
  bool is_whole = true;      // otherwise a part may stay after a failure
  bool meets_faults = true;  // otherwise it uses no site
};

/// An operation that uses no site, if a condition holds.
template <class World>
[[nodiscard]] constexpr faulty_operation<World> without_faults(faulty_operation<World> operation, bool holds = true) {
  operation.meets_faults = !holds;
  return operation;
}

template <class Value>
[[nodiscard]] std::optional<error> error_of(const result<Value>& outcome) noexcept {
  return outcome ? std::nullopt : std::optional<error>{outcome.error()};
}

/// How many faults happened, and how many of them an operation reported.
struct fault_counts {
  std::int64_t met = 0;
  std::int64_t reported = 0;
};

/// Repeats an operation, each time in a new world, with the n-th use of a site failing, until none fails.
template <class World>
fault_counts inject_faults(const faulty_operation<World>& operation, fault_site site) {
  auto counts = fault_counts{};
  for (auto n = std::int64_t{1};; ++n) {
    CAPTURE(operation.name, static_cast<int>(site), n);
    auto plan = fault_plan{};
    auto world = World{plan};
    operation.prepare(world);
    const auto before = world.observe();
    plan.arm(site, n);
    const auto failure = operation.run(world);
    const auto happened = plan.disarm();
    CHECK(world.check_invariants().empty());
    if (failure) {
      CAPTURE(failure->message());
      REQUIRE(happened);
      ++counts.reported;
      CHECK(tells_of_a_fault(*failure));
      if (operation.is_whole) {
        CHECK(world.observe() == before);
        CHECK_FALSE(operation.run(world));
        CHECK(world.check_invariants().empty());
      }
    }
    if (!happened) {
      return counts;
    }
    ++counts.met;
  }
}

/// Every operation of a table at every site: each meets a fault, unless it says that it uses none. Returns how many
/// faults were reported.
template <class World, std::size_t Count>
std::int64_t inject_faults(const std::array<faulty_operation<World>, Count>& operations,
                           fault_counts (*inject)(const faulty_operation<World>&, fault_site) = inject_faults<World>) {
  auto num_reported = std::int64_t{0};
  for (const auto& operation : operations) {
    auto num_met = std::int64_t{0};
    for (const auto site : fault_sites) {
      const auto counts = inject(operation, site);
      num_met += counts.met;
      num_reported += counts.reported;
    }
    CAPTURE(operation.name);
    CHECK((num_met != 0) == operation.meets_faults);
  }
  return num_reported;
}

/// Constructs a cache with the n-th use of each site failing: a value or an error, and no memory is kept. Returns how
/// many constructions failed.
template <class Make>
std::int64_t inject_into_construction(const Make& make) {
  auto num_failed = std::int64_t{0};
  for (const auto site : fault_sites) {
    for (auto n = std::int64_t{1}, happened = std::int64_t{1}; happened != 0; ++n) {
      CAPTURE(static_cast<int>(site), n);
      auto plan = fault_plan{};
      {
        plan.arm(site, n);
        const auto made = make(plan);
        happened = plan.disarm();
        CHECK((made || (happened != 0 && tells_of_a_fault(made.error()))));
        num_failed += !made;
      }
      CHECK(plan.memory.live == 0);
    }
  }
  return num_failed;
}

}  // namespace pagedkv::test
