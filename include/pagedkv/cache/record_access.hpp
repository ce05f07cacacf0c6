#pragma once

#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/result.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace pagedkv::detail {

/// Fills a vacant record by `fill(record)` and makes it reachable, or leaves it vacant. `what`: see `reserve`.
template <class Map, class Fill>
[[nodiscard]] result<typename Map::place*> make_record(Map& map, const char* what, Fill&& fill) noexcept {
  auto reserved = map.reserve(what);
  if (!reserved) {
    return reserved;
  }
  auto& place = **reserved;
  if (const result<void> filled = fill(place.record); !filled) {
    map.abandon(place);
    return filled.error();
  }
  map.note_usage(place);
  map.open(place);
  return reserved;
}

[[nodiscard]] inline error unknown_record(std::uint64_t id) noexcept {
  return {error_code::unknown_sequence, "sequence or pin id", static_cast<std::int64_t>(id)};
}

/// Calls `body(place)` alone in the open place of an id: waits for that, or says `sequence_busy`, as the locking policy
/// wants. The body leaves the place.
template <class Map, class Body>
[[nodiscard]] auto enter_record(Map& map, std::uint64_t id, Body&& body) noexcept
    -> std::invoke_result_t<Body, typename Map::place&> {
  using entry = typename Map::entry;
  auto* place = map.find(id);
  const auto entered = place != nullptr ? map.enter(*place, id) : entry::stale;
  if (entered == entry::stale) {
    return unknown_record(id);
  }
  if (entered == entry::busy) {
    return error{error_code::sequence_busy, "sequence or pin id", static_cast<std::int64_t>(id)};
  }
  return std::forward<Body>(body)(*place);
}

/// A map's record, constant where the map is.
template <class Map>
using record_of = std::conditional_t<std::is_const_v<Map>, const decltype(Map::place::record), decltype(Map::place::record)>;

/// Calls `body(record)` alone in the record.
template <class Map, class Body>
[[nodiscard]] auto visit_record(Map& map, std::uint64_t id, Body&& body) noexcept
    -> std::invoke_result_t<Body, record_of<Map>&> {
  return enter_record(map, id, [&](typename Map::place& inside) {
    auto outcome = std::forward<Body>(body)(static_cast<record_of<Map>&>(inside.record));
    if constexpr (!std::is_const_v<Map>) {
      map.note_usage(inside);
    }
    map.leave(inside, id);
    return outcome;
  });
}

/// Empties a record by `empty(record)`, closes it, and lets its place be taken again.
template <class Map, class Empty>
[[nodiscard]] result<void> end_record(Map& map, std::uint64_t id, Empty&& empty) noexcept {
  return enter_record(map, id, [&](typename Map::place& inside) -> result<void> {
    empty(inside.record);
    map.leave_closed(inside);
    map.abandon(inside);
    return {};
  });
}

}  // namespace pagedkv::detail
