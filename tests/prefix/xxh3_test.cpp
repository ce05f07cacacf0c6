#define XXH_INLINE_ALL
#include <xxhash.h>

#include <pagedkv/prefix/block_hash.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

using pagedkv::token;
using pagedkv::xxh3_hash;

TEST_CASE("blocks of every size have the hash that the reference gives them", "[xxh3]") {
  const auto random_seed = std::random_device{}();
  CAPTURE(random_seed);
  auto random = std::mt19937_64{random_seed};
  auto tokens = std::vector<token>(3000);
  for (auto& t : tokens) {
    t = static_cast<token>(random());
  }
  for (std::size_t size = 1; size < tokens.size(); ++size) {
    for (const auto previous : {std::uint64_t{0}, std::uint64_t{random()}}) {
      const auto block = std::span<const token>{tokens}.last(size);
      const auto expected = XXH3_64bits_withSeed(block.data(), block.size_bytes(), previous);
      if (xxh3_hash::hash(previous, block) != expected) {
        FAIL("hash of " << size << " tokens after " << previous);
      }
    }
  }
}
