#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/with_memory.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// The keys of every block, so that a prefix hit can be confirmed. Holds no memory until a block has a key; then 8
/// bytes per block, and the keys. Only the holders of a block read and write its keys; with an atomic `Atomic`, any
/// thread may call the other members.
template <template <class> class Atomic>
class key_store {
 public:
  explicit key_store(std::int32_t num_blocks) : num_blocks_(static_cast<std::size_t>(num_blocks)) {}

  key_store(const key_store&) = delete;
  key_store& operator=(const key_store&) = delete;
  ~key_store() { delete[] lists_.load(std::memory_order_acquire); }

  [[nodiscard]] std::span<const prefix_key> keys(block_id block) const noexcept {
    const auto* const lists = lists_.load(std::memory_order_acquire);
    return lists == nullptr || lists[to_index(block)] == nullptr ? std::span<const prefix_key>{}
                                                                 : std::span{*lists[to_index(block)]};
  }

  /// False when memory is exhausted; then nothing is changed.
  [[nodiscard]] bool assign(block_id block, std::span<const prefix_key> keys) noexcept {
    const auto store = [&] {
      auto list = std::make_unique<const std::vector<prefix_key>>(keys.begin(), keys.end());
      ensure_lists()[to_index(block)] = std::move(list);
      return true;
    };
    return detail::with_memory(store, false);
  }

  void clear(block_id block) noexcept {
    if (auto* const lists = lists_.load(std::memory_order_acquire)) {
      lists[to_index(block)].reset();
    }
  }

  void rename(block_id from, block_id to) noexcept {
    if (auto* const lists = lists_.load(std::memory_order_acquire)) {
      lists[to_index(to)] = std::move(lists[to_index(from)]);
    }
  }

  /// Without the keys themselves.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    const auto* const lists = lists_.load(std::memory_order_acquire);
    return lists == nullptr ? 0 : num_blocks_ * sizeof(key_list);
  }

 private:
  using key_list = std::unique_ptr<const std::vector<prefix_key>>;

  [[nodiscard]] key_list* ensure_lists() {
    auto* lists = lists_.load(std::memory_order_acquire);
    if (lists == nullptr) {
      auto fresh = std::make_unique<key_list[]>(num_blocks_);
      if (lists_.compare_exchange_strong(lists, fresh.get(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        return fresh.release();
      }
    }
    return lists;
  }

  std::size_t num_blocks_;
  Atomic<key_list*> lists_{nullptr};
};

}  // namespace pagedkv
