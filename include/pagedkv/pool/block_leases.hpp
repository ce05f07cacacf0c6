#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/pool/block_words.hpp>

namespace pagedkv {

/// Leases on published blocks, for look-ups: a lease keeps its block from eviction until it ends. Where no other thread
/// can evict a block during a look-up, nothing is counted.
template <locking Locking>
class block_leases {
 public:
  explicit block_leases(block_words<Locking>& words) noexcept : words_(words) {}

  [[nodiscard]] bool take(block_id block) const noexcept {
    if constexpr (Locking::family::concurrent) {
      return words_.lease(block);
    } else {
      return words_[block].leasable();
    }
  }
  void end([[maybe_unused]] block_id block) const noexcept {
    if constexpr (Locking::family::concurrent) {
      words_.end_lease(block);
    }
  }

 private:
  block_words<Locking>& words_;
};

}  // namespace pagedkv
