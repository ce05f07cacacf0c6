#pragma once

#include <cstdint>

namespace pagedkv {

/// One block copied or moved to another, in every layer. Laid out as the int32 pairs that kernels read.
struct block_pair {
  std::int32_t source = 0;
  std::int32_t destination = 0;

  friend bool operator==(const block_pair&, const block_pair&) = default;
};

static_assert(sizeof(block_pair) == 8);

}  // namespace pagedkv
