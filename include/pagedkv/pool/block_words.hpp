#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/pool/block_state.hpp>

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace pagedkv {

[[nodiscard]] constexpr std::optional<block_state> only_if(bool wanted, block_state state) noexcept {
  if (wanted) {
    return state;
  }
  return std::nullopt;
}

/// The state words of all blocks.
///
/// Memory orders: a change releases the thread's earlier writes to the block and acquires those before earlier changes.
/// So a thread that takes a reference on a published block sees its tokens and links, and a thread that gets a free
/// block sees all accesses of its last user.
template <locking Locking>
class block_words {
 public:
  explicit block_words(std::int32_t num_blocks)
      : num_blocks_(static_cast<std::size_t>(num_blocks)), words_(std::make_unique<word[]>(num_blocks_)) {}

  [[nodiscard]] block_state operator[](block_id block) const noexcept {
    return block_state{words_[to_index(block)].load(std::memory_order_acquire)};
  }

  [[gnu::always_inline]] void prefetch(block_id block) const noexcept {
    __builtin_prefetch(&words_[to_index(block)], 1);
  }

  /// Called by the only thread that may change this block now.
  void set(block_id block, block_state state) noexcept {
    words_[to_index(block)].store(state.word(), std::memory_order_release);
  }

  /// Replaces a block's state by `next(state)` in one step. Returns the previous state, or nothing if `next` returned
  /// nothing.
  template <class Next>
  std::optional<block_state> change(block_id block, Next&& next) noexcept {
    return change_here(block, next);
  }

  /// Takes a lease on a published block: it cannot be evicted until `end_lease`. False if it is not leasable, or with
  /// `max_leases` on it.
  [[nodiscard]] [[gnu::always_inline]] bool lease(block_id block) noexcept {
    const auto leased = [](block_state seen) {
      return only_if(seen.leasable() && seen.leases() < block_state::max_leases, seen.leased());
    };
    return change_here(block, leased).has_value();
  }
  [[gnu::always_inline]] void end_lease(block_id block) noexcept {
    change_here(block, [](block_state seen) {
      assert(seen.leases() > 0 && "a lease ends once");
      return only_if(seen.leases() > 0, seen.unleased());
    });
  }

  [[nodiscard]] contention_counts contention() const noexcept { return metrics_.counts(); }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return num_blocks_ * sizeof(word); }

 private:
  /// `change`, inlined: a look-up takes twice as long where it calls a function for each lease.
  template <class Next>
  [[gnu::always_inline]] std::optional<block_state> change_here(block_id block, Next&& next) noexcept {
    auto& shared = words_[to_index(block)];
    auto seen = shared.load(std::memory_order_acquire);
    for (;;) {
      const std::optional<block_state> wanted = next(block_state{seen});
      if (!wanted) {
        return std::nullopt;
      }
      if (shared.compare_exchange_weak(seen, wanted->word(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        return block_state{seen};
      }
      metrics_.retried();
    }
  }

  using word = typename Locking::template atomic<std::uint64_t>;

  std::size_t num_blocks_;
  std::unique_ptr<word[]> words_;
  [[no_unique_address]] typename Locking::contention metrics_;
};

}  // namespace pagedkv
