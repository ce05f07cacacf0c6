#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/with_memory.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// The keys of every node, so that a prefix hit can be confirmed. Holds no memory until a node has a key; then 8
/// bytes per node, and the keys. Only the holders of a node read and write its keys; with an atomic `Atomic`, any
/// thread may call the other members.
template <template <class> class Atomic, class Node = block_id>
class key_store {
 public:
  explicit key_store(std::int32_t num_nodes) : num_nodes_(static_cast<std::size_t>(num_nodes)) {}

  key_store(const key_store&) = delete;
  key_store& operator=(const key_store&) = delete;
  ~key_store() { delete[] lists_.load(std::memory_order_acquire); }

  [[nodiscard]] std::span<const prefix_key> keys(Node node) const noexcept {
    const auto* const lists = lists_.load(std::memory_order_acquire);
    return lists == nullptr || lists[to_index(node)] == nullptr ? std::span<const prefix_key>{}
                                                                 : std::span{*lists[to_index(node)]};
  }

  /// Whether a node has these keys.
  [[nodiscard]] [[gnu::always_inline]] bool has(Node node, std::span<const prefix_key> wanted) const noexcept {
    const auto* const lists = lists_.load(std::memory_order_acquire);
    const bool has_none = lists == nullptr || lists[to_index(node)] == nullptr;
    return has_none || wanted.empty() ? has_none && wanted.empty() : compare(node, wanted);
  }

  /// False when memory is exhausted; then nothing is changed.
  [[nodiscard]] bool assign(Node node, std::span<const prefix_key> keys) noexcept {
    const auto store = [&] {
      auto list = std::make_unique<const std::vector<prefix_key>>(keys.begin(), keys.end());
      ensure_lists()[to_index(node)] = std::move(list);
      return true;
    };
    return detail::with_memory(store, false);
  }

  void clear(Node node) noexcept {
    if (auto* const lists = lists_.load(std::memory_order_acquire)) {
      lists[to_index(node)].reset();
    }
  }

  void rename(Node from, Node to) noexcept {
    if (auto* const lists = lists_.load(std::memory_order_acquire)) {
      lists[to_index(to)] = std::move(lists[to_index(from)]);
    }
  }

  /// Without the keys themselves.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    const auto* const lists = lists_.load(std::memory_order_acquire);
    return lists == nullptr ? 0 : num_nodes_ * sizeof(key_list);
  }

 private:
  using key_list = std::unique_ptr<const std::vector<prefix_key>>;

  /// Out of line, so that the loops over blocks without keys stay small.
  [[nodiscard]] [[gnu::noinline]] bool compare(Node node, std::span<const prefix_key> wanted) const noexcept {
    return std::ranges::equal(keys(node), wanted);
  }

  [[nodiscard]] key_list* ensure_lists() {
    auto* lists = lists_.load(std::memory_order_acquire);
    if (lists == nullptr) {
      auto fresh = std::make_unique<key_list[]>(num_nodes_);
      if (lists_.compare_exchange_strong(lists, fresh.get(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        return fresh.release();
      }
    }
    return lists;
  }

  std::size_t num_nodes_;
  Atomic<key_list*> lists_{nullptr};
};

}  // namespace pagedkv
