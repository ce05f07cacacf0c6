#pragma once

#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace pagedkv::detail {

/// Fills a vacant record by `fill(record)`, makes it reachable and returns its id, or leaves it vacant. `what`: see
/// `reserve`.
template <class Map, class Fill>
[[nodiscard]] result<std::uint64_t> make_record(Map& map, const char* what, Fill&& fill) noexcept {
  auto reserved = map.reserve(what);
  if (!reserved) {
    return reserved.error();
  }
  auto& cell = **reserved;
  if (const result<void> filled = fill(cell.record()); !filled) {
    map.abandon(cell);
    return filled.error();
  }
  map.note_usage(cell);
  return map.open(cell);
}

/// Calls `body(cell)` alone in the open cell of an id: waits for it, or returns `sequence_busy`, depending on the
/// locking policy. The body leaves the cell.
template <class Map, class Body>
[[nodiscard]] auto enter_record(Map& map, std::uint64_t id, Body&& body) noexcept
    -> std::invoke_result_t<Body, typename Map::cell&> {
  using entry = typename Map::entry;
  using record = typename Map::record_type;
  auto* cell = map.find(id);
  const auto entered = cell != nullptr ? map.enter(*cell, id) : entry::stale;
  if (entered == entry::stale) {
    return error{record::unknown_code, record::id_name, static_cast<std::int64_t>(id)};
  }
  if (entered == entry::busy) {
    return error{error_code::sequence_busy, record::busy_id_name, static_cast<std::int64_t>(id)};
  }
  return std::forward<Body>(body)(*cell);
}

/// A map's record, constant where the map is.
template <class Map>
using record_of = std::conditional_t<std::is_const_v<Map>, const typename Map::record_type, typename Map::record_type>;

/// Calls `body(record)` alone in the record.
template <class Map, class Body>
[[nodiscard]] auto visit_record(Map& map, std::uint64_t id, Body&& body) noexcept
    -> std::invoke_result_t<Body, record_of<Map>&> {
  return enter_record(map, id, [&](typename Map::cell& inside) {
    auto outcome = std::forward<Body>(body)(static_cast<record_of<Map>&>(inside.record()));
    if constexpr (!std::is_const_v<Map>) {
      map.note_usage(inside);
    }
    map.leave(inside, id);
    return outcome;
  });
}

/// Calls `body(sequence)` alone in the sequence.
template <class State, class Body>
[[nodiscard]] auto visit_sequence(State& state, sequence_id id, Body&& body) noexcept {
  return visit_record(state.sequences, static_cast<std::uint64_t>(id), std::forward<Body>(body));
}

/// Calls `step(hot)` alone in the sequence, which does its work on the hot part alone, or returns false and changes
/// nothing but the room. Also false where the sequence cannot be entered.
template <class State, class Step>
[[nodiscard]] [[gnu::always_inline]] inline bool step_inside(State& state, sequence_id id, Step&& step) noexcept {
  using map = decltype(state.sequences);
  const auto key = static_cast<std::uint64_t>(id);
  auto* const found = state.sequences.find(key);
  if (found == nullptr || map::enter(*found, key) != map::entry::inside) [[unlikely]] {
    return false;
  }
  auto& hot = found->part.hot;
  const bool done = std::forward<Step>(step)(hot);
  if (done) [[likely]] {
    map::note_num_tokens(*found, hot.num_tokens);
  }
  map::leave(*found, key);
  return done;
}

/// Empties a record by `empty(record)`, closes it, and makes its cell vacant.
template <class Map, class Empty>
[[nodiscard]] result<void> end_record(Map& map, std::uint64_t id, Empty&& empty) noexcept {
  return enter_record(map, id, [&](typename Map::cell& inside) -> result<void> {
    empty(inside.record());
    map.leave_closed(inside);
    map.abandon(inside);
    return {};
  });
}

}  // namespace pagedkv::detail
