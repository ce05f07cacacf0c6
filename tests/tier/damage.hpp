#pragma once

#include <pagedkv/tier/file_descriptor.hpp>

#include <catch2/catch_test_macros.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::testing {

/// Calls `is_refused` with these bytes, of which one bit is flipped, in each byte in turn, and with each number of the
/// first of them, `least` at least.
template <class Refused>
void damage_everywhere(std::vector<std::byte> bytes, const Refused& is_refused, std::size_t least = 0) {
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    const auto bit = static_cast<std::byte>(1 << (at + at / 8) % 8);
    bytes[at] ^= bit;
    CAPTURE(at);
    REQUIRE(is_refused(std::span<const std::byte>{bytes}));
    bytes[at] ^= bit;
  }
  for (auto size = bytes.size(); size-- > least;) {
    CAPTURE(size);
    REQUIRE(is_refused(std::span<const std::byte>{bytes}.first(size)));
  }
}

/// Makes these the bytes of a file, in place, since file systems write at once what replaces a whole file.
inline void put_bytes(const std::string& path, std::span<const std::byte> bytes) {
  const auto file = detail::file_descriptor{::open(path.c_str(), O_WRONLY)};
  const auto size = std::ssize(bytes);
  REQUIRE((::pwrite(file.number(), bytes.data(), bytes.size(), 0) == size && ::ftruncate(file.number(), size) == 0));
}

}  // namespace pagedkv::testing
