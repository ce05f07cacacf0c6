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

/// The number of a batch: the last part but one, ahead of the payload.
[[nodiscard]] inline std::optional<std::uint64_t> number_in(const std::vector<zmq::message_t>& parts) {
  return from_big_endian(parts[parts.size() - 2].to_string_view());
}

}  // namespace pagedkv::detail
