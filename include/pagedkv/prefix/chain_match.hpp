#pragma once

#include <pagedkv/core/token_run.hpp>
#include <pagedkv/prefix/token_store.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv {

namespace detail {

/// The blocks of a run of nothing but tokens, in order. The compiler then leaves out every question about keys and
/// known hashes. `Contents` says how they are compared.
template <class Contents>
class plain_blocks {
 public:
  plain_blocks(const token_run& run, std::size_t block_size) noexcept
      : tokens_(run.tokens.data()), block_size_(block_size) {}

  [[nodiscard]] Contents here() const noexcept { return Contents{std::span{tokens_, block_size_}}; }
  void go_on() noexcept { tokens_ += block_size_; }

  /// The hash of the block here.
  template <class Index>
  [[nodiscard]] std::uint64_t hash(std::uint64_t previous) const noexcept {
    return Index::hash(previous, here());
  }

 private:
  const token* tokens_;
  std::size_t block_size_;
};

/// Blocks with keys, and with hashes of the first ones.
class blocks_with_more {
 public:
  blocks_with_more(const token_run& run, std::size_t block_size) noexcept
      : tokens_(run.tokens.data()), block_size_(block_size), rest_(run.keys), hashes_(run.hashes) {
    take_keys_before(0);
    take_keys_before(static_cast<std::int64_t>(block_size_));
  }

  [[nodiscard]] block_contents here() const noexcept { return {std::span{tokens_, block_size_}, keys_}; }
  void go_on() noexcept {
    tokens_ += block_size_;
    position_ += block_size_;
    ++index_;
    take_keys_before(static_cast<std::int64_t>(position_ + block_size_));
  }

  template <class Index>
  [[nodiscard]] std::uint64_t hash(std::uint64_t previous) const noexcept {
    return index_ < hashes_.size() ? hashes_[index_] : Index::hash(previous, here());
  }

 private:
  void take_keys_before(std::int64_t end) noexcept {
    auto count = std::size_t{0};
    while (count < rest_.size() && rest_[count].position < end) {
      ++count;
    }
    keys_ = rest_.first(count);
    rest_ = rest_.subspan(count);
  }

  const token* tokens_;
  std::size_t block_size_;
  std::size_t position_ = 0;          // of the block here
  std::size_t index_ = 0;             // the same, in blocks
  std::span<const prefix_key> keys_;  // of the block here
  std::span<const prefix_key> rest_;  // behind it
  std::span<const std::uint64_t> hashes_;
};

/// Most blocks that are hashed ahead of the comparisons.
inline constexpr auto most_hashed_ahead = std::size_t{16};

/// Finds the next `count` blocks by their hashes, which do not depend on the nodes found: so they are computed ahead of
/// the comparisons, and the cache lines that these will read are prefetched. Returns how many were found; `before` and
/// `blocks` have gone on by as many.
template <class Index, class Blocks, class Leases, class Found>
[[gnu::noinline]] std::size_t follow_hashes(const Index& index, typename Index::link_type& before, Blocks& blocks,
                                            std::size_t count, Leases& leases, Found& found) noexcept {
  std::array<std::uint64_t, most_hashed_ahead> hashes;  // zeroing them would take as long as hashing a block
  std::array<typename Index::node_type, most_hashed_ahead> candidates;
  auto last_hash = before.hash;
  auto ahead = blocks;
  for (std::size_t i = 0; i < count; ++i, ahead.go_on()) {
    last_hash = hashes[i] = ahead.template hash<Index>(last_hash);
    index.prefetch_bucket(last_hash);
  }
  for (std::size_t i = 0; i < count; ++i) {
    candidates[i] = index.prefetch_node(hashes[i]);
  }
  for (std::size_t i = 0; i < count; ++i, blocks.go_on()) {
    const auto node = candidates[i] != Index::none
                          ? index.find_near(candidates[i], before, hashes[i], blocks.here(), leases)
                          : Index::none;
    if (node == Index::none) {
      return i;
    }
    before = index.link(node);
    found(node);
  }
  return count;
}

/// See `match_chain`.
template <class Index, class Blocks, class Leases, class Found>
std::size_t follow_chain(const Index& index, typename Index::link_type before, Blocks blocks, std::size_t block_size,
                         std::size_t max_blocks, Leases& leases, Found& found) noexcept {
  constexpr auto look_ahead = std::size_t{1024};
  const auto most_ahead = std::clamp(look_ahead / block_size, std::size_t{1}, most_hashed_ahead);
  auto last = before.node;
  auto num_found = std::size_t{0};
  auto num_ahead = std::size_t{0};
  const auto go_on = [&](auto node) {
    last = node;
    found(node);
    blocks.go_on();
    ++num_found;
  };
  for (;;) {
    // Nothing in this loop is called, so that all it needs stays in registers.
    const auto num_found_before = num_found;
    while (num_found < max_blocks) {
      const auto node = index.follow(last, before, blocks.here(), leases);
      if (node == Index::none) {
        break;
      }
      if constexpr (!Index::links_are_exact) {
        before = index.link(node);  // while the lease holds
      }
      go_on(node);
    }
    if (num_found == max_blocks) {
      return num_found;
    }
    if (last != before.node) {
      before = index.link(last);
    }
    // Where links keep failing, more and more blocks are hashed at once.
    num_ahead = num_found != num_found_before ? 1 : std::clamp(2 * num_ahead, std::size_t{1}, most_ahead);
    const auto count = std::min(num_ahead, max_blocks - num_found);
    if (count == 1) {
      const auto hash = blocks.template hash<Index>(before.hash);
      const auto node = index.find_another(before, hash, blocks.here(), leases);
      if (node == Index::none) {
        return num_found;
      }
      if constexpr (!Index::links_are_exact) {
        before = index.link(node);
      }
      go_on(node);
      continue;
    }
    auto rest = blocks;
    const auto num_hashed = follow_hashes(index, before, rest, count, leases, found);
    num_found += num_hashed;
    if (num_hashed < count) {
      return num_found;
    }
    last = before.node;
    blocks = rest;
  }
}

}  // namespace detail

/// Follows a chain of published nodes as long as tokens and keys agree, for at most `max_blocks` full blocks. Calls
/// `found(id)` on each, under a lease of `leases`, and returns their number. Hashes that the run has are not checked: a
/// wrong one may lose a hit.
///
/// Cost: for each node found, a comparison of its tokens and keys. Only the first node, and one that is not the newest
/// child of the node before it, also takes a hash of its tokens and a bucket of the table. After a miss, at most
/// `look_ahead` tokens, or one block, were hashed in vain; after a miss right behind a node that was found by a link,
/// one block.
///
/// `found` gets each node under a lease, which it ends or turns into a reference. The search itself keeps no lease and
/// locks nothing.
template <class Index, class Leases, class Found>
std::size_t match_chain(const Index& index, typename Index::link_type before, const token_run& run,
                        std::size_t block_size, std::size_t max_blocks, Leases&& leases, Found&& found) noexcept {
  const auto follow = [&](const auto& blocks) {
    return detail::follow_chain(index, before, blocks, block_size, max_blocks, leases, found);
  };
  if (!run.tokens_only()) {
    return follow(detail::blocks_with_more{run, block_size});
  }
  return block_size < detail::long_run ? follow(detail::plain_blocks<block_contents>{run, block_size})
                                       : follow(detail::plain_blocks<long_contents>{run, block_size});
}

}  // namespace pagedkv
