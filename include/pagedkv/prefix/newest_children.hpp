#pragma once

#include <pagedkv/core/ids.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv {

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
