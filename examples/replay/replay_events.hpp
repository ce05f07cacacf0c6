#pragma once

#include <pagedkv/events/event_log.hpp>
#include <pagedkv/events/event_queues.hpp>

#include <optional>

namespace pagedkv::replay {

/// The events of a replayed cache: lines of a log, and prefixes to publish if there are queues for them.
struct replay_events {
  static constexpr auto kinds = event_log::kinds;

  void emit(const cache_event& event) noexcept {
    log.emit(event);
    if (published && event_queues::kinds.contains(event.kind)) {
      published->emit(event);
    }
  }

  event_log log;
  std::optional<event_queues> published;
};

static_assert(events<replay_events>);

}  // namespace pagedkv::replay
