#pragma once

#include "options.hpp"

#include <pagedkv/events/event_queues.hpp>

#if defined(REPLAY_PUBLISH)
  #include <pagedkv/wire/event_publisher.hpp>
#endif

#include <cstdint>
#include <optional>
#include <string>

namespace pagedkv::replay {

/// Publishes a cache's events at an endpoint, or nothing for an empty name.
class publication {
 public:
  /// Throws `option_error` when the endpoint cannot be bound.
  publication(const std::string& endpoint, std::int32_t block_size) {
    if (endpoint.empty()) {
      return;
    }
#if defined(REPLAY_PUBLISH)
    auto config = publisher_config{};
    config.endpoint = endpoint;
    queues_.emplace(block_size);
    try {
      publisher_.emplace(*queues_, config);
    } catch (const zmq::error_t& e) {
      throw option_error("--publish " + endpoint + ": " + e.what());
    }
#else
    static_cast<void>(block_size);
    throw option_error("--publish: this program was built without ZeroMQ");
#endif
  }

  [[nodiscard]] const std::optional<event_queues>& queues() const noexcept { return queues_; }

 private:
  std::optional<event_queues> queues_;
#if defined(REPLAY_PUBLISH)
  std::optional<event_publisher> publisher_;
#endif
};

}  // namespace pagedkv::replay
