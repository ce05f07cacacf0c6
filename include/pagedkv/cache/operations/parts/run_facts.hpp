#pragma once

#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/detail/with_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

namespace pagedkv::detail {

[[nodiscard]] inline result<void> check_slots_ahead(std::int64_t num_ahead) noexcept {
  constexpr auto most = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (num_ahead < 0 || num_ahead > most) {
    return error{error_code::invalid_argument, "number of slots ahead", num_ahead, num_ahead < 0 ? 0 : most};
  }
  return {};
}

/// Errors: `invalid_argument` for keys out of order, before `least`, or not before `end`; for any if these are equal.
[[nodiscard]] inline result<void> check_keys_within(std::span<const prefix_key> keys, std::int64_t least,
                                                    std::int64_t end) noexcept {
  if (!keys.empty() && least == end) {  // no position would do
    return error{error_code::invalid_argument, "number of keys without tokens", std::ssize(keys), 0};
  }
  for (const auto& key : keys) {
    if (key.position < least || key.position >= end) {
      return error{error_code::invalid_argument, "position of a key", key.position,
                   key.position < least ? least : end - 1};
    }
    least = key.position;
  }
  return {};
}

/// Keys of a sequence come behind its end and its last key. Errors: `invalid_argument`.
template <class Sequence>
[[nodiscard]] result<void> check_keys(std::span<const prefix_key> keys, const Sequence& s, std::int64_t end) noexcept {
  const auto least = s.keys.empty() ? s.num_tokens : std::max(s.num_tokens, s.keys.back().position);
  return check_keys_within(keys, least, end);
}

/// Room for so many entries, so that adding them does not allocate. False when memory is exhausted.
template <class Entry>
[[nodiscard]] bool reserve_entries(std::vector<Entry>& entries, std::size_t size) noexcept {
  const auto grow = [&] {
    entries.reserve(std::max(size, 2 * entries.capacity()));
    return true;
  };
  return size <= entries.capacity() || with_memory(grow, false);
}
template <class Sequence>
[[nodiscard]] bool reserve_keys(Sequence& s, std::span<const prefix_key> keys) noexcept {
  return reserve_entries(s.keys, s.keys.size() + keys.size());
}

/// Adds keys, with room for them.
template <class Sequence>
void add_keys(Sequence& s, std::span<const prefix_key> keys) noexcept {
  for (const auto& key : keys) {
    s.keys.push_back(key);
  }
}

/// Keeps the hashes that a caller told of blocks which are full now, until they are published.
template <class State>
void note_hashes(State& state, sequence& s, std::span<const std::uint64_t> hashes) noexcept {
  if (hashes.empty() || !s.options.publish) {
    return;
  }
  const auto num_full = static_cast<std::size_t>(s.num_tokens) / state.block_size();
  auto i = std::max(s.num_hashed_blocks, s.num_published_blocks);
  for (; i < std::min(num_full, hashes.size()); ++i) {
    state.index.note_hash(s.blocks[i], hashes[i]);
  }
  s.num_hashed_blocks = i;
}

}  // namespace pagedkv::detail
