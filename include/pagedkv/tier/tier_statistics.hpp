#pragma once

#include <pagedkv/metrics/counters.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pagedkv {

/// A snapshot of one tier, in records; counters begin at construction. Records that came in and have not gone are
/// there: `written + adopted + loaded_into == num_records + evictions + dropped`. A record that a tier should get is
/// written, lost, or still owed: `handed_over == written + lost_writes + num_owed`. It counts again when it is lost and
/// comes again.
struct tier_statistics {
  std::int64_t num_places = 0;
  std::int64_t num_records = 0;
  std::int64_t hit_blocks = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t written = 0;
  std::int64_t adopted = 0;
  std::int64_t loaded_into = 0;
  std::int64_t evictions = 0;
  std::int64_t dropped = 0;
  std::int64_t handed_over = 0;
  std::int64_t num_owed = 0;
  std::int64_t lost_writes = 0;
  std::int64_t failed_writes = 0;
  std::int64_t late_writes = 0;
  std::int64_t loads = 0;
  std::int64_t missing_loads = 0;
  std::int64_t failed_loads = 0;
  std::int64_t refused_loads = 0;
  std::int64_t num_erasing = 0;
  std::int64_t num_orphans = 0;
};

/// Lengths, in tokens, of the prefix that a prompt would find: on the device; with host memory behind that; and with
/// the slower tiers behind both. Each is at least the one before.
struct prefix_reach {
  std::int64_t on_device = 0;
  std::int64_t with_host_memory = 0;
  std::int64_t with_slower_tiers = 0;
};

namespace detail {

/// Names in memory of their own, each with a zero behind it. Of equal ones, each but the first has its number behind
/// it: "file_tier", "file_tier_2". Different if no given name ends like that.
template <std::size_t NumNames, std::size_t Room>
class distinct_names {
  static_assert(NumNames <= 9, "numbers have one digit");

 public:
  constexpr explicit distinct_names(const std::array<std::string_view, NumNames>& names) noexcept {
    for (std::size_t i = 0; i < NumNames; ++i) {
      auto number = 1;
      for (std::size_t before = 0; before < i; ++before) {
        number += names[before] == names[i] ? 1 : 0;
      }
      sizes_[i] = names[i].copy(texts_[i].data(), Room);
      if (number > 1) {
        texts_[i][sizes_[i]++] = '_';
        texts_[i][sizes_[i]++] = static_cast<char>('0' + number);
      }
    }
  }

  /// Valid as long as this object.
  [[nodiscard]] constexpr std::array<std::string_view, NumNames> views() const noexcept {
    auto all = std::array<std::string_view, NumNames>{};
    for (std::size_t i = 0; i < NumNames; ++i) {
      all[i] = {texts_[i].data(), sizes_[i]};
    }
    return all;
  }

 private:
  std::array<std::array<char, Room + 3>, NumNames> texts_{};
  std::array<std::size_t, NumNames> sizes_{};
};

/// Names that tell the tiers of one cache apart.
template <class... Tiers>
inline constexpr auto names_of_tiers =
    distinct_names<sizeof...(Tiers), std::max({std::string_view{Tiers::name}.size()...})>{
        std::array<std::string_view, sizeof...(Tiers)>{Tiers::name...}};

[[nodiscard]] constexpr auto tier_metrics() {
  using enum metric_kind;
  using rows = metrics_builder<tier_statistics>;
  using all = tier_statistics;
  return std::array{
      rows::row<&all::num_places>({gauge, "tier_places", "", "Records that the tier has room for; 0 if it says none."}),
      rows::row<&all::num_records>({gauge, "tier_records", "", "Records that the cache knows in the tier."}),
      rows::row<&all::hit_blocks>({counter, "tier_hit", "blocks", "Blocks that sequences took from the tier."}),
      rows::row<&all::hit_tokens>({counter, "tier_hit", "tokens", "Tokens in these blocks."}),
      rows::row<&all::written>({counter, "tier_written", "", "Records written, acknowledged by the tier."}),
      rows::row<&all::adopted>({counter, "tier_adopted", "", "Records from before that the cache took up."}),
      rows::row<&all::loaded_into>({counter, "tier_loaded_into", "", "Records that came in from a slower tier."}),
      rows::row<&all::evictions>({counter, "tier_evicted", "", "Records that made room for others."}),
      rows::row<&all::dropped>({counter, "tier_dropped", "", "Records that were invalid, or of use no more."}),
      rows::row<&all::handed_over>({counter, "tier_handed_over", "", "Records that the tier should get."}),
      rows::row<&all::num_owed>({gauge, "tier_owed", "", "Records that the tier should get and has not got yet."}),
      rows::row<&all::lost_writes>({counter, "tier_lost_writes", "", "Records given up before the tier had them."}),
      rows::row<&all::failed_writes>({counter, "tier_failed_writes", "", "Writes that failed, or found no room."}),
      rows::row<&all::late_writes>({counter, "tier_late_writes", "", "Writes to slower tiers put off, or repeated."}),
      rows::row<&all::loads>({counter, "tier_loads", "", "Records read whole."}),
      rows::row<&all::missing_loads>({counter, "tier_missing_loads", "", "Records asked for that the tier lacks."}),
      rows::row<&all::failed_loads>({counter, "tier_failed_loads", "", "Reads that failed, or brought other bytes."}),
      rows::row<&all::refused_loads>({counter, "tier_refused_loads", "", "Records not read for want of room."}),
      rows::row<&all::num_erasing>({gauge, "tier_erasing", "", "Invalid records that are not erased yet."}),
      rows::row<&all::num_orphans>({gauge, "tier_orphans", "", "Records from before whose ancestors are unknown."}),
  };
}

}  // namespace detail

/// The table of a tier's statistics.
template <>
inline constexpr auto metrics_of<tier_statistics> = detail::tier_metrics();

static_assert(sizeof(tier_statistics) == metrics_of<tier_statistics>.size() * sizeof(std::int64_t),
              "every field has a row in its table");

}  // namespace pagedkv
