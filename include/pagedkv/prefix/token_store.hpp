#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/element/parts/numbers.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

namespace detail {

/// The least number of tokens in a run that `equal_long_runs` compares in less time than `equal_tokens`.
inline constexpr auto long_run = std::size_t{128};

#ifdef PAGEDKV_WIDE_VECTORS
/// Compares whole strips of 32 tokens, and returns the number of tokens in those before the first one that differs.
/// Inside a strip, the next kilobyte of both runs is requested: there, mostly, the next blocks of a long prompt lie,
/// too.
[[nodiscard]] [[gnu::noinline]] PAGEDKV_WIDE inline std::size_t count_equal_strips(const token* a, const token* b,
                                                                                   std::size_t size) noexcept {
  using eight_tokens [[gnu::vector_size(32)]] = long long;
  constexpr auto ahead = std::size_t{256};
  auto i = std::size_t{0};
  for (; i + 32 <= size; i += 32) {
    auto different = eight_tokens{};
    for (auto j = i; j < i + 32; j += 8) {
      auto x = eight_tokens{};
      auto y = eight_tokens{};
      std::memcpy(&x, a + j, sizeof(x));
      std::memcpy(&y, b + j, sizeof(y));
      different |= x ^ y;
    }
    for (auto j = i + ahead; j < i + ahead + 32; j += 16) {
      __builtin_prefetch(a + j);
      __builtin_prefetch(b + j);
    }
    if (__builtin_ia32_ptestz256(different, different) == 0) {
      break;
    }
  }
  leave_wide_vectors();
  return i;
}
#endif

/// Whether two runs of equal length hold the same tokens.
[[nodiscard]] inline bool equal_long_runs(std::span<const token> a, std::span<const token> b) noexcept {
  auto done = std::size_t{0};
#ifdef PAGEDKV_WIDE_VECTORS
  if (has_wide_vectors) {
    done = count_equal_strips(a.data(), b.data(), a.size());
  }
#endif
  return std::memcmp(a.data() + done, b.data() + done, (a.size() - done) * sizeof(token)) == 0;
}

}  // namespace detail

/// The tokens of every node, so that prefix hits can be confirmed. `4 * block_size` bytes per node, from the start of a
/// cache line on: comparing the tokens of 16 reads one line. The constructor writes all of it, so that no operation on
/// the cache waits for the system to map a page.
template <class Node = block_id>
class token_store {
 public:
  token_store(std::int32_t num_nodes, std::int32_t block_size)
      : block_size_(static_cast<std::size_t>(block_size)),
        num_tokens_(static_cast<std::size_t>(num_nodes) * block_size_),
        memory_(std::make_unique<token[]>(num_tokens_ + tokens_per_line - 1)),
        tokens_(memory_.get() + distance_to_line(memory_.get())) {}

  [[nodiscard]] std::span<token> of(Node node) noexcept {
    return {tokens_ + to_index(node) * block_size_, block_size_};
  }
  [[nodiscard]] std::span<const token> of(Node node) const noexcept {
    return {tokens_ + to_index(node) * block_size_, block_size_};
  }

  /// The slot of the K/V of a token in this store, if nodes are blocks.
  [[nodiscard]] slot slot_of(const token* inside) const noexcept { return static_cast<slot>(inside - tokens_); }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return num_tokens_ * sizeof(token); }

 private:
  static constexpr auto tokens_per_line = std::size_t{64} / sizeof(token);

  [[nodiscard]] static std::size_t distance_to_line(const token* from) noexcept {
    return (0 - reinterpret_cast<std::uintptr_t>(from) / sizeof(token)) % tokens_per_line;
  }

  std::size_t block_size_;
  std::size_t num_tokens_;
  std::unique_ptr<token[]> memory_;
  token* tokens_;
};

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

/// The child of each node that was published last, if it is still there: a look-up tries it first. 4 bytes for each of
/// `num_nodes` nodes.
///
/// With an atomic `Atomic`, every member may be called from any thread and none waits. A link may then be stale, and
/// name any node. Otherwise links are exact.
template <template <class> class Atomic, class Node = block_id>
class newest_children {
 public:
  explicit newest_children(std::int32_t num_nodes)
      : num_nodes_(static_cast<std::size_t>(num_nodes)), links_(std::make_unique<Atomic<Node>[]>(num_nodes_)) {
    for (std::size_t i = 0; i < num_nodes_; ++i) {
      links_[i].store(none, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] Node of(Node parent) const noexcept { return at(parent).load(std::memory_order_relaxed); }
  void note(Node parent, Node child) noexcept { at(parent).store(child, std::memory_order_relaxed); }
  [[gnu::always_inline]] void prefetch(Node parent) const noexcept { __builtin_prefetch(&at(parent), 1); }
  void clear(Node parent) noexcept { note(parent, none); }
  /// Clears the link if it names this child.
  void forget(Node parent, Node child) noexcept {
    if (of(parent) == child) {
      clear(parent);
    }
  }

  /// `to`, which has no children, replaces `from`. After all moves, `rename_children` applies `new_id(old id)` to the
  /// links.
  void rename(Node from, Node to) noexcept {
    note(to, of(from));
    clear(from);
  }
  template <class NewId>
  void rename_children(NewId&& new_id) noexcept {
    for (std::size_t i = 0; i < num_nodes_; ++i) {
      if (const auto child = links_[i].load(std::memory_order_relaxed); child != none) {
        links_[i].store(new_id(child), std::memory_order_relaxed);
      }
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return num_nodes_ * sizeof(Node); }

 private:
  static constexpr auto none = Node{-1};

  [[nodiscard]] Atomic<Node>& at(Node node) noexcept { return links_[to_index(node)]; }
  [[nodiscard]] const Atomic<Node>& at(Node node) const noexcept { return links_[to_index(node)]; }

  std::size_t num_nodes_;
  std::unique_ptr<Atomic<Node>[]> links_;
};

}  // namespace pagedkv
