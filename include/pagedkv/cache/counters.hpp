#pragma once

#include <pagedkv/policy/locking.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// What a cache counts over its life.
enum class counter : std::uint8_t {
  prompts,        // sequences created from a prompt
  prompt_blocks,  // full blocks in those prompts
  hit_blocks,     // of those, found in the prefix index
  hit_tokens,     // tokens in those
  evictions,      // evictable blocks taken for other contents
  copies,         // blocks copied on write
  refusals,       // operations that failed for want of blocks
  number_of_counters,
};

template <locking Locking>
class counters {
 public:
  void add(counter which, std::int64_t amount) noexcept {
    values_[static_cast<std::size_t>(which)].fetch_add(amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::int64_t get(counter which) const noexcept {
    return values_[static_cast<std::size_t>(which)].load(std::memory_order_relaxed);
  }

 private:
  using value = typename Locking::template atomic<std::int64_t>;

  std::array<value, static_cast<std::size_t>(counter::number_of_counters)> values_{};
};

}  // namespace pagedkv
