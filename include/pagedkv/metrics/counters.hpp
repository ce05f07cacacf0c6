#pragma once

#include <pagedkv/policy/locking/parts/tally.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// The counters of a cache over its life.
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
  void add(counter which, std::int64_t amount) noexcept { sums_.add(static_cast<std::size_t>(which), amount); }
  [[nodiscard]] std::int64_t get(counter which) const noexcept { return sums_.get(static_cast<std::size_t>(which)); }

 private:
  tally_for<Locking, static_cast<std::size_t>(counter::number_of_counters)> sums_;
};

}  // namespace pagedkv
