#pragma once

#include <zmq.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace pagedkv::detail {

/// The number behind the last batch of a replay: -1.
inline constexpr auto end_of_replay = ~std::uint64_t{0};

[[nodiscard]] constexpr std::array<char, 8> big_endian(std::uint64_t number) noexcept {
  auto bytes = std::array<char, 8>{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  }
  return bytes;
}

/// None when there are not eight bytes.
[[nodiscard]] constexpr std::optional<std::uint64_t> from_big_endian(std::string_view bytes) noexcept {
  if (bytes.size() != 8) {
    return std::nullopt;
  }
  auto number = std::uint64_t{0};
  for (const auto byte : bytes) {
    number = number << 8 | static_cast<std::uint8_t>(byte);
  }
  return number;
}

/// The number of a batch: the last part but one, ahead of the payload.
[[nodiscard]] inline std::optional<std::uint64_t> number_in(const std::vector<zmq::message_t>& parts) {
  return from_big_endian(parts[parts.size() - 2].to_string_view());
}

/// Waits until a message has arrived; false when none has in time. Signals do not end the wait.
[[nodiscard]] inline bool has_message(zmq::socket_t& socket, std::chrono::milliseconds timeout) {
  const auto begin = std::chrono::steady_clock::now();
  auto item = zmq_pollitem_t{socket.handle(), 0, ZMQ_POLLIN, 0};
  for (auto left = timeout;;) {
    if (const auto num_ready = zmq_poll(&item, 1, static_cast<long>(left.count())); num_ready >= 0) {
      return num_ready > 0;
    }
    if (zmq_errno() != EINTR) {
      throw zmq::error_t{};
    }
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    left = std::max(timeout - std::chrono::floor<std::chrono::milliseconds>(elapsed), std::chrono::milliseconds{0});
  }
}

/// All parts of the next message, which has arrived.
[[nodiscard]] inline std::vector<zmq::message_t> receive(zmq::socket_t& socket) {
  auto parts = std::vector<zmq::message_t>{};
  do {
    parts.emplace_back();
    if (!socket.recv(parts.back(), zmq::recv_flags::dontwait)) {
      return {};
    }
  } while (parts.back().more());
  return parts;
}

}  // namespace pagedkv::detail
