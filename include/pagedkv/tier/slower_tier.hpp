#pragma once

#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_places.hpp>
#include <pagedkv/tier/tier_config.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace pagedkv {

/// A tier of any type behind host memory. Queues and the index of records are compiled once for all: a batch of
/// transfers takes so long that a virtual call does not count.
class slower_tier {
 public:
  virtual ~slower_tier() = default;

  virtual void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept = 0;
  virtual void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept = 0;
  virtual void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept = 0;
  /// Calls `visit`, which may throw, for each record from before, as `persistent_tier` does; for none where the tier is
  /// not one.
  virtual void for_each_record(const std::function<void(std::int64_t, const record_identity&)>& visit) = 0;
};

/// A number of places for records, and the order in which records make room.
struct tier_shape {
  std::int64_t num_places;          // records for which there is room
  bool has_places;                  // numbered ones; otherwise records are found by their keys
  record_order_factory make_order;  // of so many places
};

/// All tiers behind a device: host memory first, then the slower ones, the fastest first.
struct tier_list {
  std::vector<tier_shape> shapes;                    // of each tier
  std::vector<std::unique_ptr<slower_tier>> slower;  // those behind host memory
};

namespace detail {

template <tier Tier>
class slower_tier_of final : public slower_tier {
 public:
  explicit slower_tier_of(Tier of) : tier_(std::move(of)) {}

  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept override {
    tier_.write(batch, outcomes);
  }
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept override {
    tier_.read(batch, outcomes);
  }
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept override {
    tier_.erase(batch, outcomes);
  }
  void for_each_record(
      [[maybe_unused]] const std::function<void(std::int64_t, const record_identity&)>& visit) override {
    if constexpr (persistent_tier<Tier>) {
      tier_.for_each_record(visit);
    }
  }

 private:
  Tier tier_;
};

template <class Tier>
[[nodiscard]] tier_shape shape_of(const Tier& tier, const tier_config& config) noexcept {
  return {num_places_of(tier, config), memory_tier<Tier> || tier_with_places<Tier>,
          record_order_of<typename eviction_of<Tier>::type>::make};
}

/// Throws `std::bad_alloc`.
template <class Host, class... Slower>
[[nodiscard]] tier_list make_tier_list(const tier_config& config, const Host& host, std::tuple<Slower...>&& slower) {
  auto tiers = tier_list{{shape_of(host, config)}, {}};
  std::apply(
      [&](auto&... tier) {
        (tiers.shapes.push_back(shape_of(tier, config)), ...);
        (tiers.slower.push_back(std::make_unique<slower_tier_of<Slower>>(std::move(tier))), ...);
      },
      slower);
  return tiers;
}

}  // namespace detail

}  // namespace pagedkv
