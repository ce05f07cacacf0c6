#pragma once

#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/detail/copy_run.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Errors: `invalid_argument` when there is too little room.
[[nodiscard]] inline result<void> copy_ids(std::span<const block_id> from, std::span<block_id> to) noexcept {
  if (to.size() < from.size()) {
    return error{error_code::invalid_argument, "room for block ids", static_cast<std::int64_t>(to.size()),
                 static_cast<std::int64_t>(from.size())};
  }
  copy_run(from, to);
  return {};
}

/// Copies a sequence's block table from the entry at `first_block` on; returns the table's size.
[[nodiscard]] inline result<std::size_t> copy_table(const sequence& s, std::span<block_id> blocks,
                                                    std::size_t first_block) noexcept {
  const auto size = s.blocks.size();
  if (first_block > size) {
    return error{error_code::invalid_argument, "first block to copy", static_cast<std::int64_t>(first_block),
                 static_cast<std::int64_t>(size)};
  }
  if (const auto copied = copy_ids(s.blocks.all().subspan(first_block), blocks); !copied) {
    return copied.error();
  }
  return size;
}

template <class State>
[[nodiscard]] result<std::size_t> copy_block_table(const State& state, sequence_id id, std::span<block_id> blocks,
                                                   std::size_t first_block) noexcept {
  return visit_sequence(state, id, [&](const sequence& s) { return copy_table(s, blocks, first_block); });
}

}  // namespace pagedkv::detail
