#pragma once

#include <pagedkv/policy/events/concept.hpp>

#include <utility>

namespace pagedkv {

/// Two streams in one, such as queues for a router and a log: each gets the kinds that it takes. `Second` may be a tee.
template <events First, events Second>
class event_tee {
 public:
  static constexpr auto kinds = First::kinds | Second::kinds;

  event_tee(First first, Second second) : first_(std::move(first)), second_(std::move(second)) {}

  /// Passes an event on to the streams that take its kind.
  void emit(const cache_event& event) noexcept {
    if (First::kinds.contains(event.kind)) {
      first_.emit(event);
    }
    if (Second::kinds.contains(event.kind)) {
      second_.emit(event);
    }
  }

 private:
  First first_;
  Second second_;
};

}  // namespace pagedkv
