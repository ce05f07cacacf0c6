#pragma once

#include <pagedkv/tier/redis_answer.hpp>
#include <pagedkv/tier/redis_config.hpp>
#include <pagedkv/tier/redis_slots.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// Which node has which slot.
struct redis_topology {
  static constexpr auto no_node = std::uint16_t{0xffff};

  std::vector<redis_endpoint> nodes;
  std::vector<std::uint16_t> node_of_slot;  // empty: the one node has all

  friend bool operator==(const redis_topology&, const redis_topology&) = default;

  [[nodiscard]] std::optional<std::size_t> find(const redis_endpoint& endpoint) const noexcept {
    const auto found = std::ranges::find(nodes, endpoint);
    return found == nodes.end() ? std::nullopt : std::optional{static_cast<std::size_t>(found - nodes.begin())};
  }

  [[nodiscard]] std::size_t node_of(std::string_view key) const noexcept {
    return node_of_slot.empty() ? 0 : node_of_slot[redis_slot(key)];
  }
};

/// From the answer to CLUSTER SLOTS, whose elements are `[first, last, [host, port, …], replicas…]`. A node without a
/// host is the one that was asked, and so is the only node of a store without a cluster, which answers with an error.
/// Nothing if the answer is neither. Throws `std::bad_alloc`.
[[nodiscard]] inline std::optional<redis_topology> read_topology(const redis_answer& answer,
                                                                 const redis_endpoint& asked) {
  if (answer.type == REDIS_REPLY_ERROR) {
    return redis_topology{{asked}, {}};
  }
  if (answer.type != REDIS_REPLY_ARRAY || answer.elements.empty()) {
    return {};
  }
  auto topology = redis_topology{{}, std::vector<std::uint16_t>(num_redis_slots, redis_topology::no_node)};
  const auto is_within = [](const redis_answer& number, long long limit) {
    return number.type == REDIS_REPLY_INTEGER && number.number >= 0 && number.number < limit;
  };
  for (const auto& range : answer.elements) {
    const auto& parts = range.elements;
    if (parts.size() < 3 || !is_within(parts[0], num_redis_slots) || !is_within(parts[1], num_redis_slots) ||
        parts[2].elements.size() < 2 || !is_within(parts[2].elements[1], 65'536)) {
      return {};
    }
    const auto& host = parts[2].elements[0].text;
    auto node = redis_endpoint{host.empty() ? asked.host : host,
                               static_cast<std::uint16_t>(parts[2].elements[1].number)};
    auto index = topology.find(node);
    if (!index) {
      index = topology.nodes.size();
      topology.nodes.push_back(std::move(node));
    }
    for (auto slot = parts[0].number; slot <= parts[1].number; ++slot) {
      topology.node_of_slot[static_cast<std::size_t>(slot)] = static_cast<std::uint16_t>(*index);
    }
  }
  return topology;
}

/// Where a node says that a key is.
struct redis_redirection {
  bool once = false;  // ASK: a slot is on its way there; otherwise it has moved for good
  std::size_t slot = 0;
  redis_endpoint endpoint;
};

/// From an error `MOVED slot host:port` or `ASK slot host:port`; a missing host is that of the node that answered.
/// Throws `std::bad_alloc`.
[[nodiscard]] inline std::optional<redis_redirection> read_redirection(const redis_answer& answer,
                                                                       const redis_endpoint& asked) {
  auto text = std::string_view{answer.text};
  auto found = redis_redirection{text.starts_with("ASK "), 0, asked};
  if (answer.type != REDIS_REPLY_ERROR || (!found.once && !text.starts_with("MOVED "))) {
    return {};
  }
  text.remove_prefix(text.find(' ') + 1);
  const auto space = text.find(' ');
  const auto colon = text.rfind(':');
  if (space == text.npos || colon == text.npos || colon < space) {
    return {};
  }
  const auto slot = small_number(text.substr(0, space));
  const auto port = small_number(text.substr(colon + 1));
  if (!slot || *slot >= num_redis_slots || !port || *port == 0) {
    return {};
  }
  found.slot = *slot;
  found.endpoint.port = *port;
  if (const auto host = text.substr(space + 1, colon - space - 1); !host.empty()) {
    found.endpoint.host = host;
  }
  return found;
}

}  // namespace pagedkv::detail
