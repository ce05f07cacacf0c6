#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace pagedkv {

/// The tokens of every block, so that prefix hits can be confirmed. `4 * block_size` bytes per block.
class token_store {
 public:
  token_store(std::int32_t num_blocks, std::int32_t block_size)
      : block_size_(static_cast<std::size_t>(block_size)),
        num_tokens_(static_cast<std::size_t>(num_blocks) * block_size_),
        tokens_(std::make_unique_for_overwrite<token[]>(num_tokens_)) {}

  [[nodiscard]] std::span<token> block(block_id block) noexcept {
    return {tokens_.get() + to_index(block) * block_size_, block_size_};
  }
  [[nodiscard]] std::span<const token> block(block_id block) const noexcept {
    return {tokens_.get() + to_index(block) * block_size_, block_size_};
  }

  /// The slot of a token in this store.
  [[nodiscard]] slot slot_of(const token* inside) const noexcept { return static_cast<slot>(inside - tokens_.get()); }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return num_tokens_ * sizeof(token); }

 private:
  std::size_t block_size_;
  std::size_t num_tokens_;
  std::unique_ptr<token[]> tokens_;
};

}  // namespace pagedkv
