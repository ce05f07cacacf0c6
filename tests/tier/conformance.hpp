#pragma once

#include "known_records.hpp"

#include <pagedkv/policy/tiers/concept.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagedkv::testing {

/// The time of a batch in tests of other things than time: no busy machine delays one for that long.
inline constexpr auto no_hurry = std::chrono::minutes{10};

/// Records on their way to a tier or back: each has its number as key and as place.
class conformance_batch {
 public:
  conformance_batch(const known_records& records, std::vector<std::uint32_t> numbers)
      : records_(records), numbers_(std::move(numbers)), memory_(records.format(), numbers_.size()) {
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      transfers_.push_back({records_.key(numbers_[i]), static_cast<std::int64_t>(numbers_[i]), memory_[i]});
    }
    outcomes_.resize(numbers_.size());
  }

  template <class Tier>
  void write(Tier& tier) {
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      records_.seal(numbers_[i], memory_[i]);
    }
    std::ranges::fill(outcomes_, transfer_outcome::missing);
    tier.write(transfers_, outcomes_);
  }

  template <class Tier>
  void read(Tier& tier) {
    memory_.clear();
    std::ranges::fill(outcomes_, transfer_outcome::failed);
    tier.read(transfers_, outcomes_);
  }

  template <class Tier>
  void erase(Tier& tier) {
    auto named = transfers_;
    std::ranges::for_each(named, [](auto& transfer) { transfer.bytes = {}; });
    std::ranges::fill(outcomes_, transfer_outcome::failed);
    tier.erase(named, outcomes_);
  }

  [[nodiscard]] std::size_t size() const noexcept { return numbers_.size(); }
  [[nodiscard]] std::uint32_t number(std::size_t index) const { return numbers_[index]; }
  [[nodiscard]] std::span<record_transfer> transfers() { return transfers_; }
  [[nodiscard]] std::span<const transfer_outcome> outcomes() const { return outcomes_; }

  [[nodiscard]] auto num_done() const { return std::ranges::count(outcomes_, transfer_outcome::done); }

  /// Whether a transfer was done and its record verifies; no record verifies with another payload.
  [[nodiscard]] bool served(std::size_t index) {
    const auto verified = records_.verify(numbers_[index], memory_[index]);
    if (verified) {
      CHECK(records_.has_payload(numbers_[index], memory_[index]));
    }
    return outcomes_[index] == transfer_outcome::done && verified;
  }
  [[nodiscard]] std::size_t num_served() {
    auto number = std::size_t{0};
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      number += served(i) ? 1U : 0U;
    }
    return number;
  }

 private:
  known_records records_;
  std::vector<std::uint32_t> numbers_;
  record_memory memory_;
  std::vector<record_transfer> transfers_;
  std::vector<transfer_outcome> outcomes_;
};

[[nodiscard]] inline std::vector<std::uint32_t> numbers_from(std::uint32_t first, std::size_t count) {
  auto numbers = std::vector<std::uint32_t>(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

/// Checks the promises of every tier, in sections. `make_tier` constructs one without records, with room for 400 of
/// `records`.
template <class MakeTier>
void check_conformance(const known_records& records, const MakeTier& make_tier) {
  static_assert(tier<std::remove_cvref_t<decltype(make_tier())>>);
  constexpr auto room = std::size_t{400};
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto shuffled = [&](std::vector<std::uint32_t> numbers) {
    std::ranges::shuffle(numbers, random);
    return numbers;
  };
  auto tier = make_tier();

  SECTION("reads what it was given, in any order and in batches of any size") {
    auto all = conformance_batch{records, shuffled(numbers_from(0, room))};
    all.write(tier);
    REQUIRE(all.num_done() == room);
    for (const auto size : {std::size_t{1}, std::size_t{2}, std::size_t{33}, room}) {
      CAPTURE(size);
      auto numbers = shuffled(numbers_from(0, room));
      numbers.resize(size);
      auto some = conformance_batch{records, std::move(numbers)};
      some.read(tier);
      CHECK(some.num_served() == size);
    }
  }

  SECTION("does not serve a record that it was not given") {
    auto none = conformance_batch{records, numbers_from(0, 40)};
    none.read(tier);
    CHECK(none.num_served() == 0);
    auto some = conformance_batch{records, numbers_from(10, 5)};
    some.write(tier);
    none.read(tier);
    CHECK(none.num_served() == 5);
  }

  SECTION("takes batches without transfers") {
    auto none = conformance_batch{records, {}};
    none.write(tier);
    none.read(tier);
    CHECK(none.num_done() == 0);
  }

  SECTION("reads one record into several buffers") {
    auto one = conformance_batch{records, {7}};
    one.write(tier);
    auto several = conformance_batch{records, {7, 7, 7}};
    several.read(tier);
    CHECK(several.num_served() == 3);
  }

  SECTION("replaces a record") {
    auto first = conformance_batch{records, {7, 8}};
    first.write(tier);
    first.write(tier);
    first.read(tier);
    CHECK(first.num_served() == 2);
    if constexpr (tier_with_places<decltype(tier)>) {
      auto another = conformance_batch{records, {300}};
      another.transfers().front().place = 7;
      another.write(tier);
      another.read(tier);
      CHECK(another.num_served() == 1);
      first.read(tier);
      CHECK(!first.served(0));
      CHECK(first.served(1));
    }
  }

  SECTION("serves an erased record no more, until it is written again") {
    auto all = conformance_batch{records, numbers_from(0, 150)};
    all.write(tier);
    auto gone = conformance_batch{records, shuffled(numbers_from(20, 100))};
    gone.erase(tier);
    CHECK(gone.num_done() == 100);
    gone.erase(tier);
    CHECK(gone.num_done() == 100);
    gone.read(tier);
    CHECK(gone.num_served() == 0);
    all.read(tier);
    CHECK(all.num_served() == 50);
    gone.write(tier);
    all.read(tier);
    CHECK(all.num_served() == 150);
  }

  SECTION("can be moved") {
    auto some = conformance_batch{records, numbers_from(0, 50)};
    some.write(tier);
    auto moved = std::move(tier);
    some.read(moved);
    CHECK(some.num_served() == 50);
    tier = std::move(moved);
    some.read(tier);
    CHECK(some.num_served() == 50);
  }

  SECTION("goes on serving while records come and go") {
    for (int round = 0; round < 20; ++round) {
      const auto first = std::uniform_int_distribution<std::uint32_t>{0, 300}(random);
      auto batch = conformance_batch{records, shuffled(numbers_from(first, 1 + random() % 100))};
      batch.write(tier);
      CHECK(batch.num_done() == static_cast<std::ptrdiff_t>(batch.size()));
      batch.read(tier);
      CHECK(batch.num_served() == batch.size());
    }
  }
}

}  // namespace pagedkv::testing
