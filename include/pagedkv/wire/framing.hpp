#pragma once

#include <zmq.hpp>

#include <array>
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
