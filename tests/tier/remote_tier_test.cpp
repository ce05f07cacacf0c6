#include "conformance.hpp"
#include "known_records.hpp"
#include "store_process.hpp"

#include <pagedkv/tier/redis_client.hpp>
#include <pagedkv/tier/remote_tier.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

using store_tier = remote_tier<redis_client>;

static_assert(tier<store_tier> && !tier_with_places<store_tier>);

/// The smallest client: a map that moved tiers share.
struct map_client {
  static constexpr std::string_view name = "map";

  std::shared_ptr<std::map<std::string, std::vector<std::byte>>> values =
      std::make_shared<std::map<std::string, std::vector<std::byte>>>();

  using time_point = std::chrono::steady_clock::time_point;

  void set_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes, time_point) noexcept {
    for (const auto& [key, bytes] : batch) {
      (*values)[std::string{key}].assign(bytes.begin(), bytes.end());
    }
    std::ranges::fill(outcomes, transfer_outcome::done);
  }
  void get_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes, time_point) noexcept {
    for (auto i = std::size_t{0}; i < batch.size(); ++i) {
      const auto found = values->find(std::string{batch[i].key});
      outcomes[i] = found == values->end()                               ? transfer_outcome::missing
                    : found->second.size() != batch[i].bytes.size() ? transfer_outcome::failed
                                                                         : transfer_outcome::done;
      if (outcomes[i] == transfer_outcome::done) {
        std::ranges::copy(found->second, batch[i].bytes.begin());
      }
    }
  }
  void erase_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes, time_point) noexcept {
    for (const auto& value : batch) {
      values->erase(std::string{value.key});
    }
    std::ranges::fill(outcomes, transfer_outcome::done);
  }
};

static_assert(remote_client<map_client>);

}  // namespace

TEST_CASE("a tier over a map conforms, in whole values and in parts", "[remote_tier][random]") {
  const auto records = known_records{small_record_format()};
  for (const auto max_bytes : {std::size_t{1} << 20, std::size_t{5'000}}) {
    check_conformance(records, [&] {
      auto config = remote_tier_config{};
      config.max_value_bytes = max_bytes;
      return remote_tier{map_client{}, records.format(), config};
    });
  }
}

TEST_CASE("the longest timeout is no limit", "[remote_tier]") {
  struct punctual_client : map_client {
    void set_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes,
                  time_point deadline) noexcept {
      map_client::set_many(batch, outcomes, deadline);
      if (std::chrono::steady_clock::now() >= deadline) {
        std::ranges::fill(outcomes, transfer_outcome::failed);
      }
    }
  };
  const auto records = known_records{small_record_format()};
  auto tier = remote_tier{punctual_client{}, records.format(), {.timeout = std::chrono::milliseconds::max()}};
  auto some = conformance_batch{records, numbers_from(1, 5)};
  some.write(tier);
  CHECK(std::ranges::count(some.outcomes(), transfer_outcome::done) == 5);
}

TEST_CASE("a tier over a store conforms", "[remote_tier][random]") {
  skip_without_store();
  const auto store = store_process{};
  const auto records = known_records{small_record_format()};
  check_conformance(records, [&] {
    return store_tier{redis_client{parse_redis_url(store.url()).value()}, records.format(), {.timeout = no_hurry}};
  });
}

TEST_CASE("a record in parts is there as a whole or not at all", "[remote_tier]") {
  const auto records = known_records{small_record_format()};
  auto config = remote_tier_config{};
  config.max_value_bytes = 1'000;
  config.prefix = "model:";
  auto tier = remote_tier{map_client{}, records.format(), config};
  auto one = conformance_batch{records, {7}};
  one.write(tier);
  const auto num_parts = (records.format().record_bytes() + 999) / 1'000;
  auto& values = *tier.client().values;
  REQUIRE(values.size() == num_parts);
  for (auto part = std::size_t{0}; part < num_parts; ++part) {
    CAPTURE(part);
    const auto taken = values.extract(tier.key_in_store(records.key(7), part));
    REQUIRE(!taken.empty());
    CHECK(taken.key().starts_with("model:"));
    one.read(tier);
    CHECK(one.outcomes()[0] == transfer_outcome::missing);
    values.insert({taken.key(), std::vector<std::byte>(3)});
    one.read(tier);
    CHECK(one.outcomes()[0] == transfer_outcome::failed);
    values[taken.key()] = taken.mapped();
    one.read(tier);
    CHECK(one.served(0));
  }
}

TEST_CASE("formats do not share a store's keys", "[remote_tier]") {
  const auto records = known_records{small_record_format()};
  auto format = records.format();
  format.text += " of another model";
  const auto others = known_records{format};
  const auto client = map_client{};
  auto tier = remote_tier{client, records.format()};
  auto other = remote_tier{client, others.format()};
  auto batch = conformance_batch{records, {7}};
  auto other_batch = conformance_batch{others, {7}};
  batch.write(tier);
  other_batch.read(other);
  CHECK(other_batch.outcomes()[0] == transfer_outcome::missing);
  other_batch.write(other);
  batch.read(tier);
  CHECK(batch.served(0));
}

TEST_CASE("a record that is damaged in the store is not served", "[remote_tier][random]") {
  skip_without_store();
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto store = store_process{};
  const auto records = known_records{small_record_format(1'000)};
  auto tier = store_tier{redis_client{parse_redis_url(store.url()).value()}, records.format(), {.timeout = no_hurry}};
  auto one = conformance_batch{records, {7}};
  auto vandal = redis_client{parse_redis_url(store.url()).value()};
  one.write(tier);
  one.read(tier);
  REQUIRE(one.served(0));
  const auto read = one.transfers()[0].bytes;
  const auto right = std::vector<std::byte>(read.begin(), read.end());
  const auto key = tier.key_in_store(records.key(7));
  const auto served = [&](std::span<std::byte> bytes) {
    auto outcome = transfer_outcome::failed;
    vandal.set_many(std::array{remote_value{key, bytes}}, {&outcome, 1},
                    std::chrono::steady_clock::now() + std::chrono::minutes{1});
    REQUIRE(outcome == transfer_outcome::done);
    one.read(tier);
    return one.served(0);
  };
  const auto filled = records.format().header_bytes() + records.format().payload_bytes();

  SECTION("torn at every byte of its header") {
    for (auto size = std::size_t{0}; size < 200; ++size) {
      auto torn = right;
      std::fill(torn.begin() + static_cast<std::ptrdiff_t>(size), torn.end(), std::byte{});
      CHECK(!served(torn));
    }
  }
  SECTION("cut short anywhere, or too long") {
    for (auto i = 0; i < 300; ++i) {
      auto cut = right;
      cut.resize(random() % right.size());
      CHECK(!served(cut));
    }
    auto longer = right;
    longer.push_back({});
    CHECK(!served(longer));
  }
  SECTION("with a flipped bit") {
    for (auto i = 0; i < 10'000; ++i) {
      auto flipped = right;
      flipped[random() % filled] ^= static_cast<std::byte>(1U << (random() % 8));
      REQUIRE(!served(flipped));
    }
  }
  auto again = right;
  CHECK(served(again));
}
