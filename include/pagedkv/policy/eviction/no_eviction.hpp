#pragma once

#include <pagedkv/policy/eviction/concept.hpp>

namespace pagedkv {

/// Never gives a block up: the pool is full once every block is cached. Holds no memory.
class no_eviction {
 public:
  static constexpr std::string_view name = "none";
  static constexpr bool concurrent = true;
  static constexpr bool evicts = false;

  explicit no_eviction(std::int32_t /*num_blocks*/) noexcept {}

  void insert(block_id, const block_release&) noexcept {}
  void remove(block_id) noexcept {}
  void erase(block_id) noexcept {}
  void rename(block_id, block_id) noexcept {}

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&&, timestamp) noexcept {
    return no_block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return 0; }
};

static_assert(eviction_policy<no_eviction> && !evicts<no_eviction>);

}  // namespace pagedkv
