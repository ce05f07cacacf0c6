#pragma once

#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/detail/copy_run.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Copies a sequence's block table from the entry at `first_block` on; returns the table's size.
[[nodiscard]] inline result<std::size_t> copy_table(const sequence& s, std::span<block_id> blocks,
                                                    std::size_t first_block) noexcept {
  const auto size = s.blocks.size();
  if (first_block > size) {
    return error{error_code::invalid_argument, "first block to copy", static_cast<std::int64_t>(first_block),
                 static_cast<std::int64_t>(size)};
  }
  const auto wanted = s.blocks.all().subspan(first_block);
  if (blocks.size() < wanted.size()) {
    return error{error_code::invalid_argument, "room for block ids", static_cast<std::int64_t>(blocks.size()),
                 static_cast<std::int64_t>(wanted.size())};
  }
  copy_run(wanted, blocks);
  return size;
}

template <class State>
[[nodiscard]] result<std::size_t> copy_block_table(const State& state, sequence_id id, std::span<block_id> blocks,
                                                   std::size_t first_block) noexcept {
  return visit_sequence(state, id, [&](const sequence& s) { return copy_table(s, blocks, first_block); });
}

}  // namespace pagedkv::detail
