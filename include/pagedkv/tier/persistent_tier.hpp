#pragma once

#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/record.hpp>

#include <concepts>
#include <cstdint>

namespace pagedkv {

namespace detail {

struct record_visitor {
  void operator()(std::int64_t place, const record_identity& identity) const;
};

}  // namespace detail

/// A tier with places that finds its records again when it is constructed anew, for a directory to adopt.
///
/// | requirement                | meaning                                                                          |
/// |----------------------------|----------------------------------------------------------------------------------|
/// | `t.for_each_record(visit)` | calls `visit(place, identity)` for each place with the whole header of a record   |
/// |                            | of this format, ascending by place; returns how many places could not be read     |
///
/// The identity's contents are valid during the call, which may throw and must not use the tier. A payload is not
/// looked at: its reader verifies it, as always. One key may lie in several places, each of which is right. Ancestors
/// may come after their descendants, or be gone: a directory finds records by key, and a prompt's keys follow from the
/// root's.
template <class T>
concept persistent_tier = tier_with_places<T> && requires(T t, detail::record_visitor visit) {
  { t.for_each_record(visit) } -> std::same_as<std::int64_t>;
};

}  // namespace pagedkv
