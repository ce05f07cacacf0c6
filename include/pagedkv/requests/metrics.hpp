#pragma once

#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/requests/request.hpp>

#include <array>
#include <cstdint>

namespace pagedkv {

namespace detail {

[[nodiscard]] constexpr auto tracker_metrics() {
  using enum metric_kind;
  using rows = metrics_builder<tracker_statistics>;
  using all = tracker_statistics;
  constexpr auto open = metric_family{gauge, "requests", "", "Requests that have not ended, by state."};
  constexpr auto ended = metric_family{counter, "ended", "requests", "Requests that have ended, by outcome."};
  return std::array{
      rows::row<&all::submitted>({counter, "submitted", "requests", "Requests that were admitted, forks included."}),
      rows::row<&all::refused>({counter, "refused", "requests", "Requests that were not admitted, forks included."}),
      rows::row<&all::waiting>(open, {"state", "waiting"}),
      rows::row<&all::running>(open, {"state", "running"}),
      rows::row<&all::preempted>(open, {"state", "preempted"}),
      rows::row<&all::finished>(ended, {"outcome", "finished"}),
      rows::row<&all::cancelled>(ended, {"outcome", "cancelled"}),
      rows::row<&all::failed>(ended, {"outcome", "failed"}),
      rows::row<&all::preemptions>({counter, "preemptions", "", "Times that a request gave up its blocks."}),
      rows::row<&all::kept_records>({gauge, "request_records", "", "Records of ended requests."}),
  };
}

}  // namespace detail

/// The table of a request tracker's statistics.
template <>
inline constexpr auto metrics_of<tracker_statistics> = detail::tracker_metrics();

static_assert(sizeof(tracker_statistics) == metrics_of<tracker_statistics>.size() * sizeof(std::int64_t),
              "every field has a row in the table");

}  // namespace pagedkv
