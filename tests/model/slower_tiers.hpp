#pragma once

#include "../tier/fake_tiers.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/slower_tier.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <utility>

namespace pagedkv::test {

/// The tiers of a run, which the seed of its configuration chooses: mostly too small for all records.
struct drawn_tiers {
  tier_config config;
  std::int32_t num_host_records;
  std::int32_t num_slower_records;
  fake_store::fault wrong;  // in the store behind a slower tier; a file has no fault
  std::uint32_t seed;       // of the store
  bool in_parts;            // records of a remote tier

  explicit drawn_tiers(std::uint64_t from) {
    auto random = std::mt19937_64{from};
    const auto below = [&](int end) { return std::uniform_int_distribution{0, end - 1}(random); };
    config.threads = false;
    config.write = static_cast<write_policy>(below(3));
    config.exclusive = config.write == write_policy::on_eviction && below(2) == 0;
    num_host_records = 8 << below(4);
    num_slower_records = config.known_records = 16 << below(3);
    wrong = below(2) == 0 ? fake_store::fault::none : static_cast<fake_store::fault>(below(7));
    seed = static_cast<std::uint32_t>(random());
    in_parts = below(5) == 0;
  }
};

/// A tier with places whose kind is chosen when it is made.
class any_tier_with_places {
 public:
  static constexpr std::string_view name = "places";

  any_tier_with_places(std::unique_ptr<slower_tier> tier, std::int64_t num_places)
      : tier_(std::move(tier)), num_places_(num_places) {}

  [[nodiscard]] std::int64_t num_places() const noexcept { return num_places_; }
  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    tier_->write(batch, outcomes);
  }
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    tier_->read(batch, outcomes);
  }
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    tier_->erase(batch, outcomes);
  }
  template <class Visit>
  std::int64_t for_each_record(Visit&& visit) {
    tier_->for_each_record(visit);
    return 0;
  }

 private:
  std::unique_ptr<slower_tier> tier_;
  std::int64_t num_places_;
};

static_assert(persistent_tier<any_tier_with_places>);

/// A file in a temporary folder, or a store that has a fault.
[[nodiscard]] any_tier_with_places make_tier_with_places(const drawn_tiers& drawn, const record_format& format);

}  // namespace pagedkv::test
