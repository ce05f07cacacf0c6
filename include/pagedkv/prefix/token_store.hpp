#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace pagedkv {

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

}  // namespace pagedkv
