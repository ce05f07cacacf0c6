#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pagedkv {

inline constexpr auto num_redis_slots = std::size_t{16'384};

namespace detail {

inline constexpr auto crc16_table = [] {
  auto table = std::array<std::uint16_t, 256>{};
  for (auto i = std::uint32_t{0}; i < table.size(); ++i) {
    auto value = i << 8;
    for (auto bit = 0; bit < 8; ++bit) {
      value = (value << 1) ^ ((value & 0x8000) != 0 ? 0x1021U : 0U);
    }
    table[i] = static_cast<std::uint16_t>(value);
  }
  return table;
}();

}  // namespace detail

/// The slot of a cluster that has this key: CRC16 (XMODEM) of the part between the first braces, if there is one, as
/// Redis' specification of clusters says.
[[nodiscard]] constexpr std::size_t redis_slot(std::string_view key) noexcept {
  if (const auto open = key.find('{'); open != key.npos) {
    const auto close = key.find('}', open + 1);
    if (close != key.npos && close != open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  auto crc = std::uint32_t{0};
  for (const auto character : key) {
    const auto index = ((crc >> 8) ^ static_cast<unsigned char>(character)) & 0xff;
    crc = ((crc << 8) & 0xffff) ^ detail::crc16_table[index];
  }
  return crc % num_redis_slots;
}

static_assert(redis_slot("123456789") == 0x31c3 % num_redis_slots, "the check value of the specification");

}  // namespace pagedkv
