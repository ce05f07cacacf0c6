#pragma once

#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/cache/operations/parts/check_group.hpp>
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

/// Copies a block table from the entry at `first_block` on; returns the table's size.
[[nodiscard]] inline result<std::size_t> copy_table(std::span<const block_id> table, std::span<block_id> blocks,
                                                    std::size_t first_block) noexcept {
  const auto size = table.size();
  if (first_block > size) {
    return error{error_code::invalid_argument, "first block to copy", static_cast<std::int64_t>(first_block),
                 static_cast<std::int64_t>(size)};
  }
  if (const auto copied = copy_ids(table.subspan(first_block), blocks); !copied) {
    return copied.error();
  }
  return size;
}

template <class State>
[[nodiscard]] result<std::size_t> copy_block_table(const State& state, sequence_id id, std::span<block_id> blocks,
                                                   std::size_t first_block, std::size_t group) noexcept {
  if (const auto checked = check_group(state, group); !checked) {
    return checked.error();
  }
  return visit_sequence(state, id, [&](const sequence& s) { return copy_table(s.blocks.all(), blocks, first_block); });
}

template <class State>
[[nodiscard]] result<std::size_t> copy_block_table(const State& state, pin_id id, std::span<block_id> blocks,
                                                   std::size_t first_block, std::size_t group) noexcept {
  if (const auto checked = check_group(state, group); !checked) {
    return checked.error();
  }
  return visit_record(state.pins, static_cast<std::uint64_t>(id),
                      [&](const pinned_prefix& p) { return copy_table(p.blocks.all(), blocks, first_block); });
}

}  // namespace pagedkv::detail
