#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/orphan_records.hpp>
#include <pagedkv/tier/record_places.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>
#include <pagedkv/tier/transfer_queue.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

namespace pagedkv {

/// A tier whose records another policy than `lru` evicts: `evicted_by<file_tier, sieve>`.
template <tier Tier, eviction_policy Eviction>
struct evicted_by : Tier {
  using eviction_type = Eviction;

  explicit evicted_by(Tier of) noexcept : Tier(std::move(of)) {}
};

namespace detail {

template <class Tier>
struct eviction_of {
  using type = lru;
};
template <class Tier>
  requires requires { typename Tier::eviction_type; }
struct eviction_of<Tier> {
  using type = typename Tier::eviction_type;
};

template <tier Tier>
[[nodiscard]] std::int64_t places_of(const Tier& tier, const tier_config& config) noexcept {
  if constexpr (tier_with_places<Tier>) {
    return tier.num_places();
  } else {
    return config.known_records;
  }
}

/// One tier behind host memory: its places, its transfers, and records from before whose ancestors are missing. The
/// places of a tier without any are those in the directory: it forgets the records for which it has no room, the oldest
/// first.
template <tier Tier>
struct slower_tier {
  static constexpr bool has_places = tier_with_places<Tier>;

  slower_tier(Tier of, const record_format& format, const tier_config& config, transfer_signal& signal)
      : places(static_cast<std::int32_t>(places_of(of, config))),
        queue(std::move(of), format, static_cast<std::size_t>(config.queue_records), config.threads, signal) {}

  record_places<typename eviction_of<Tier>::type> places;
  orphan_records orphans;
  tier_statistics counts;
  transfer_queue<Tier> queue;
};

}  // namespace detail

/// The tiers behind host memory, the fastest first: numbers from 1 on.
template <tier... Tiers>
class slower_tiers {
 public:
  static constexpr auto size = sizeof...(Tiers);

  slower_tiers(std::tuple<Tiers...> tiers, const record_format& format, const tier_config& config)
      : tiers_(make(std::move(tiers), format, config, signal_, std::index_sequence_for<Tiers...>{})) {}

  /// Calls `visit(tier)` on the tier of a number from 1 on; returns what it returns, `Result{}` for another number.
  template <class Result, class Visit>
  Result with(std::size_t number, Visit&& visit) noexcept {
    auto answer = Result{};
    for_each([&](std::size_t each, auto& tier) {
      if (each == number) {
        answer = visit(tier);
      }
    });
    return answer;
  }
  template <class Visit>
  void for_each(Visit&& visit) const noexcept {
    std::apply(
        [&](const auto&... tier) {
          [[maybe_unused]] auto number = std::size_t{0};
          (visit(++number, *tier), ...);
        },
        tiers_);
  }

  /// Waits for the batches under way, and erases what is to be erased up to each tier's first failure. Drops other
  /// transfers.
  void stop() noexcept {
    for_each([](std::size_t, auto& tier) { tier.queue.stop(); });
  }

  [[nodiscard]] transfer_signal& signal() noexcept { return signal_; }

 private:
  template <std::size_t... I>
  [[nodiscard]] static auto make([[maybe_unused]] std::tuple<Tiers...> tiers,
                                 [[maybe_unused]] const record_format& format,
                                 [[maybe_unused]] const tier_config& config, [[maybe_unused]] transfer_signal& signal,
                                 std::index_sequence<I...>) {
    return std::tuple{std::make_unique<detail::slower_tier<Tiers>>(std::move(std::get<I>(tiers)), format, config,
                                                                   signal)...};
  }

  transfer_signal signal_;
  std::tuple<std::unique_ptr<detail::slower_tier<Tiers>>...> tiers_;
};

}  // namespace pagedkv
