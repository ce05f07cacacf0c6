#pragma once

#include <pagedkv/policy/eviction/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pagedkv::test {

/// An eviction policy that gives no block up by itself.
struct offering_none {
  static constexpr std::string_view name = "offering none";
  static constexpr bool concurrent = true;
  explicit offering_none(std::int32_t) {}
  void insert(block_id, const block_release&) noexcept {}
  void remove(block_id) noexcept {}
  void erase(block_id) noexcept {}
  void rename(block_id, block_id) noexcept {}
  block_id victim(auto&&, timestamp) noexcept { return no_block; }
  std::size_t metadata_bytes() const noexcept { return 0; }
};

}  // namespace pagedkv::test
