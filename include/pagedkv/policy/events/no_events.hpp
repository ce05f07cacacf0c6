#pragma once

#include <pagedkv/policy/events/concept.hpp>

#include <type_traits>

namespace pagedkv {

/// No events, at no cost.
struct no_events {
  static constexpr auto kinds = event_kinds{};

  void emit(const cache_event&) noexcept {}
};

static_assert(events<no_events> && std::is_empty_v<no_events>);

}  // namespace pagedkv
