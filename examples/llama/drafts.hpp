#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace llama {

/// Tokens that are guessed behind a sequence's last one, each behind the one that it continues. The first chain comes
/// first, one token after the other.
class draft_tree {
 public:
  static constexpr auto root = std::int32_t{-1};  // the sequence's last token

  /// Adds a chain behind the root as far as the tree has room; what it has already is shared.
  void add(std::span<const pagedkv::token> chain, std::size_t room) {
    auto last = root;
    for (const auto next : chain) {
      if (const auto found = child(last, next)) {
        last = *found;
      } else if (nodes_.size() < room) {
        nodes_.push_back({next, last, depth(last) + 1});
        last = static_cast<std::int32_t>(nodes_.size()) - 1;
      } else {
        return;
      }
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] bool empty() const noexcept { return nodes_.empty(); }
  [[nodiscard]] pagedkv::token token(std::int32_t node) const { return at(node).token; }
  /// Tokens from the root to this one.
  [[nodiscard]] std::int32_t depth(std::int32_t node) const { return node == root ? 0 : at(node).depth; }
  [[nodiscard]] bool branches() const noexcept {
    return depth(static_cast<std::int32_t>(size()) - 1) < std::ssize(nodes_);
  }

  /// The token of this value behind another one.
  [[nodiscard]] std::optional<std::int32_t> child(std::int32_t node, pagedkv::token value) const {
    for (auto i = node + 1; i < std::ssize(nodes_); ++i) {
      if (at(i).parent == node && at(i).token == value) {
        return i;
      }
    }
    return {};
  }

  /// The tokens that a node sees, its own included: bit 0 is the root, bit i + 1 node i.
  [[nodiscard]] std::uint32_t mask(std::int32_t node) const {
    auto bits = std::uint32_t{1};
    for (; node != root; node = at(node).parent) {
      bits |= std::uint32_t{2} << node;
    }
    return bits;
  }

 private:
  struct draft {
    pagedkv::token token;
    std::int32_t parent;
    std::int32_t depth;
  };

  [[nodiscard]] const draft& at(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)]; }

  std::vector<draft> nodes_;
};

}  // namespace llama
