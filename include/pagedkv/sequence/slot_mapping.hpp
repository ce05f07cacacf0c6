#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/block_table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv {

[[nodiscard]] constexpr slot make_slot(block_id block, std::int32_t block_size, std::int64_t offset) noexcept {
  return static_cast<slot>(static_cast<std::int64_t>(block) * block_size + offset);
}

/// Slots of the tokens from `first_token` on, one for each element of `slots`; `skip_slot` in blocks that were dropped.
inline void fill_slots(const block_table& blocks, std::int32_t block_size, std::int64_t first_token,
                       std::span<slot> slots) noexcept {
  auto index = static_cast<std::size_t>(first_token / block_size);
  auto offset = first_token % block_size;
  for (std::size_t done = 0; done < slots.size(); ++index, offset = 0) {
    const auto run = slots.subspan(done, std::min(slots.size() - done, static_cast<std::size_t>(block_size - offset)));
    if (blocks[index] == no_block) {
      std::ranges::fill(run, skip_slot);
    } else {
      auto next = static_cast<std::int64_t>(make_slot(blocks[index], block_size, offset));
      std::ranges::generate(run, [&] { return static_cast<slot>(next++); });
    }
    done += run.size();
  }
}

}  // namespace pagedkv
