#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/pool/block_tally.hpp>
#include <pagedkv/pool/block_words.hpp>

#include <cstdint>

namespace pagedkv {

/// The state of every block of a pool, and how many are evictable or retiring.
template <locking Locking>
struct block_states {
  explicit block_states(std::int32_t num_blocks) : words(num_blocks) {}

  block_words<Locking> words;
  block_tally<Locking> tally;
};

}  // namespace pagedkv
