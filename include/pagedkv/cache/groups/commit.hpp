#pragma once

#include <pagedkv/cache/groups/append.hpp>
#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/operations/unlaunched.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>

// Commits with several groups: nodes, saved states, and blocks that windows leave behind.

namespace pagedkv::detail {

/// The length at which a state is saved before the end of the prompt; 0 for none.
template <layered State>
[[nodiscard]] std::int64_t end_of_prompt(const State& state, const group_sequence& s) noexcept {
  const auto last = std::max(s.num_prompt_tokens, std::int64_t{1}) - 1;
  return s.options.saving.at_prompt_end ? last / state.granularity() * state.granularity() : 0;
}

/// Whether a commit of so many tokens saves a state, if a node ends there and there is room.
template <layered State>
[[nodiscard]] bool saves_at(const State& state, const group_sequence& s, std::int64_t num_tokens) noexcept {
  return state.group_with_state() != state.num_groups() && s.options.publish && num_tokens > s.num_cached_tokens &&
         num_tokens % state.granularity() == 0 &&
         (num_tokens == end_of_prompt(state, s) || num_tokens == s.branch ||
          (s.options.saving.every != 0 && num_tokens % s.options.saving.every == 0));
}

/// Whether a commit of so many tokens keeps the state until the sequence ends.
template <layered State>
[[nodiscard]] bool keeps_at(const State& state, const group_sequence& s, std::int64_t num_tokens) noexcept {
  return state.group_with_state() != state.num_groups() && s.options.publish && s.options.saving.at_end &&
         num_tokens % state.granularity() == 0 && num_tokens >= std::max(s.num_prompt_tokens, std::int64_t{1}) &&
         num_tokens != end_of_prompt(state, s);
}

/// The next length after those that are computed at which a commit would save the state; none is the largest number.
template <layered State>
[[nodiscard]] std::int64_t next_saved_length(const State& state, const group_sequence& s) noexcept {
  constexpr auto none = std::numeric_limits<std::int64_t>::max();
  auto next = none;
  const auto consider = [&](std::int64_t length) {
    if (length > s.num_computed_tokens && (saves_at(state, s, length) || keeps_at(state, s, length))) {
      next = std::min(next, length);
    }
  };
  consider(end_of_prompt(state, s));
  consider(s.branch);
  consider((std::max(s.num_computed_tokens, s.num_prompt_tokens - 1) / state.granularity() + 1) * state.granularity());
  if (s.options.saving.every != 0) {
    const auto factor = state.granularity() / std::gcd(s.options.saving.every, state.granularity());
    if (s.options.saving.every <= (none - s.num_computed_tokens) / factor) {
      const auto distance = factor * s.options.saving.every;  // of multiples of both
      consider((s.num_computed_tokens / distance + 1) * distance);
    }
  }
  return next;
}

/// Makes a sequence's blocks findable at one of its nodes, in groups that have no block there. Not those that were
/// invalidated. Returns whether the groups that every hit needs have a block there now.
template <layered State>
[[gnu::always_inline]] inline bool attach_blocks(State& state, group_sequence& s, node_id node,
                                                 std::size_t depth) noexcept {
  auto is_complete = true;
  state.for_each_place(depth, [&](std::size_t g, std::size_t place) {
    const auto block = s.tables[g][place];
    if (const auto there = state.nodes.attached(node, g); there != no_block) {
      s.has_copies |= there != block;
    } else if (block != no_block && !state.pool.state(block).claimed()) {
      state.nodes.attach(node, g, block);
      state.pool.publish(block);
      state.note_attached(node, g);
    } else {
      is_complete = is_complete && !state.is_whole(g);
    }
  });
  return is_complete;
}

/// The number of the first node, of a sequence's own, in a block that it holds; 0 where a group keeps leading ones.
template <layered State>
[[nodiscard]] std::size_t first_held_node(const State& state, const group_sequence& s) noexcept {
  auto first = s.num_nodes;
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (state.holds_tokens(g)) {
      first = std::min(first, state.num_sinks(g) == 0 ? s.tables[g].first() * state.nodes_in_block(g) : 0);
    }
  }
  return first;
}

/// Attaches blocks at all of its nodes, or so many: equal blocks that were found instead of them may have been evicted
/// since.
template <layered State>
void attach_blocks_again(State& state, group_sequence& s,
                         std::size_t num_nodes = std::numeric_limits<std::size_t>::max()) noexcept {
  if (s.options.publish) {
    auto last = s.tail.node;
    while (last != no_node && (state.nodes.is_withdrawn(last) || state.nodes.depth(last) >= num_nodes)) {
      last = state.nodes.parent(last);
    }
    const auto first = first_held_node(state, s);
    auto deepest = no_node;  // with a block
    for (auto node = last; node != no_node && state.nodes.depth(node) >= first; node = state.nodes.parent(node)) {
      attach_blocks(state, s, node, state.nodes.depth(node));
      deepest = deepest == no_node && state.nodes.has_block(node) ? node : deepest;
    }
    state.announce_up_to(state.has_whole() ? last : deepest, s.options.salt);
  }
}

/// Publishes a node behind those up to `tail`, of which there are `depth`; false where there is no room for it. The
/// caller holds `tail`, which becomes the new one. `newest`: see `find_or_add`.
template <layered State>
[[nodiscard]] [[gnu::always_inline]] inline bool publish_next(State& state, group_sequence& s, node_link<node_id>& tail,
                                                              std::size_t depth, std::uint64_t hash,
                                                              const block_contents& contents, bool& newest) noexcept {
  const auto node = state.find_or_add(tail, hash, contents, s.options.salt, newest);
  if (node == no_node) {
    return false;
  }
  const auto is_complete = attach_blocks(state, s, node, depth);
  if (!newest || !state.has_whole()) {
    state.announce_up_to(node, s.options.salt);
  } else if (is_complete) {
    state.announce_new(node, tail.node, s.options.salt);
  }
  tail = state.nodes.link(node);
  return true;
}

/// Publishes the nodes among the first `num_tokens`, and attaches the sequence's blocks to those without any. Nothing
/// that continues what was invalidated.
template <layered State>
void publish_up_to(State& state, group_sequence& s, std::int64_t num_tokens) noexcept {
  if (s.tail.node != no_node && state.nodes.is_withdrawn(s.tail.node)) {
    return;
  }
  const auto size = state.tokens_per_node();
  const auto first_node = s.num_nodes;
  const auto num_wanted = std::max(static_cast<std::size_t>(num_tokens) / size, first_node) - first_node;
  if (num_wanted != 0 && s.tail.node != no_node && !state.nodes.is_announced(s.tail.node) &&
      (state.has_whole() || s.has_copies)) {
    attach_blocks_again(state, s);
  }
  const auto contents_of = [&, tokens = s.pending.from(0).data(), keys = std::span<const prefix_key>{s.keys}](
                               std::size_t i) {  // behind the published ones
    const auto first = static_cast<std::int64_t>((first_node + i) * size);
    return block_contents{std::span{tokens + i * size, size},
                          keys_between(keys, first, first + static_cast<std::int64_t>(size))};
  };
  std::array<std::uint64_t, 16> hashes;  // zeroing it would cost more than a node's hash
  auto tail = s.tail;
  auto num_done = std::size_t{0};
  auto known = true;
  auto newest = false;
  while (num_done < num_wanted && known) {
    const auto count = std::min(hashes.size(), num_wanted - num_done);
    auto last_hash = tail.hash;
    for (std::size_t i = 0; i < count; ++i) {  // ahead, so that the cache lines that publishing touches come meanwhile
      const auto told = num_done + i;
      last_hash = hashes[i] =
          told < s.hashes.size() ? s.hashes[told] : state.nodes.index().hash(last_hash, contents_of(told));
      state.nodes.prefetch_addition(i, last_hash);
    }
    for (std::size_t i = 0; i < count && known; ++i) {
      known = publish_next(state, s, tail, first_node + num_done, hashes[i], contents_of(num_done), newest);
      num_done += known ? 1 : 0;
    }
  }
  if (num_done == 0) {
    return;
  }
  state.hold(tail);
  if (s.tail.node != no_node) {
    state.nodes.let_go(s.tail.node);  // it is continued, so this makes no room for nodes
  }
  s.tail = tail;
  s.num_nodes = first_node + num_done;
  s.pending.drop(num_done * size, state.num_pending(s));
  s.hashes.erase(s.hashes.begin(), s.hashes.begin() + std::ptrdiff_t(std::min(num_done, s.hashes.size())));
}

/// Copies a group's state into these blocks, or, if there are none, into new ones if there is room for them. When the
/// copy fails, gives them back. Errors: those of `copy`.
template <layered State>
[[nodiscard]] result<void> copy_state(State& state, group_sequence& s, std::size_t g, std::vector<block_id>& to,
                                      block_copier copy) noexcept {
  const auto size = state.blocks_of_state(g);
  if (to.empty()) {
    if (state.pool.num_available() < static_cast<std::int64_t>(size)) {
      return {};
    }
    to.resize(size, no_block);
    state.allocate(to);
  }
  s.pairs.clear();
  for (std::size_t i = 0; i < size; ++i) {
    s.pairs.push_back({static_cast<std::int32_t>(s.tables[g][i]), static_cast<std::int32_t>(to[i])});
  }
  auto copied = copy(s.pairs);
  if (!copied) {
    state.pool.discard(to);
    to.clear();
  }
  return copied;
}

/// Makes the copied state of so many tokens findable at a node, or gives it back. `hint`: of the sequence's release.
template <layered State>
void attach_copied_state(State& state, const group_sequence& s, std::vector<block_id>& copied, std::int64_t num_tokens,
                         node_id node, const release_hint& hint = {}) noexcept {
  const auto g = state.group_with_state();
  if (node != no_node && !state.nodes.is_withdrawn(node) && state.nodes.attached(node, g) == no_block) {
    state.nodes.attach_state(node, g, copied);
    std::ranges::for_each(copied, [&](block_id block) { state.pool.publish(block); });
    state.note_attached(node, g);
    if (!state.has_whole()) {
      state.announce_up_to(node, s.options.salt);
    }
  }
  auto how = release_of(s, state.time(), hint);
  how.ended |= hint.branch_complete && num_tokens > s.num_branch_tokens;
  if (s.has_ranges) {
    apply_ranges(how, s, static_cast<std::size_t>(num_tokens - 1), 1, state.time());
  }
  for (auto i = copied.size(); i > 0; --i) {
    state.release(copied[i - 1], how, state.pool.fence_of(step_set{}));
  }
  copied.clear();
}

/// Makes the newest state of the answer findable, before the sequence ends.
template <layered State>
void attach_newest_state(State& state, group_sequence& s, const release_hint& hint) noexcept {
  if (s.newest.empty()) {
    return;
  }
  auto node = s.newest_nodes <= s.num_nodes ? s.tail.node : no_node;
  for (auto left = s.num_nodes; node != no_node && left > s.newest_nodes; --left) {
    node = state.nodes.parent(node);
  }
  attach_copied_state(state, s, s.newest, static_cast<std::int64_t>(s.newest_nodes) * state.granularity(), node, hint);
}

/// Whether tokens from `num_tokens` on do not read blocks that a sequence has.
template <layered State>
[[nodiscard]] bool leaves_windows(const State& state, const group_sequence& s, std::int64_t num_tokens) noexcept {
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (state.holds_tokens(g) && !state.is_whole(g) &&
        s.tables[g].drops_before(state.first_place(g, num_tokens), state.num_sinks(g))) {
      return true;
    }
  }
  return false;
}

/// Releases blocks that tokens from `num_tokens` on do not read.
template <layered State>
void drop_behind_windows(State& state, group_sequence& s, std::int64_t num_tokens) noexcept {
  const auto fence = state.pool.fence_of(s.steps);
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (state.holds_tokens(g) && !state.is_whole(g)) {
      auto how_at = state.releases_of(s);
      s.tables[g].drop_before(state.first_place(g, num_tokens), state.num_sinks(g),
                              [&](block_id block, std::size_t place) {
                                state.release_place(s, g, place, block, how_at, fence);
                              });
    }
  }
}

/// Publishes what is full among the first `num_tokens`, whose K/V and state the caller declares written, perhaps
/// `ahead` of a launch; saves states at chosen lengths; releases blocks that lie behind a window of the committed
/// tokens. Errors: `invalid_argument` beyond the length, or before what was committed; those of `copy`.
template <layered State>
[[nodiscard]] result<void> commit(State& state, group_sequence& s, std::int64_t num_tokens, block_copier copy,
                                  bool ahead = false) noexcept {
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of computed tokens, more than the sequence has,", num_tokens,
                 s.num_tokens};
  }
  if (num_tokens < s.num_computed_tokens) {
    return error{error_code::invalid_argument, "number of computed tokens, fewer than committed,", num_tokens,
                 s.num_computed_tokens};
  }
  const bool saves = num_tokens > s.num_computed_tokens && saves_at(state, s, num_tokens);
  const bool keeps = !saves && num_tokens > s.num_computed_tokens && keeps_at(state, s, num_tokens);
  const bool publishes = s.options.publish && static_cast<std::size_t>(num_tokens / state.granularity()) > s.num_nodes;
  const auto note_ahead = [&] {
    if (ahead && (publishes || num_tokens / state.granularity() > s.num_computed_tokens / state.granularity())) {
      note_unlaunched(state, s);
    }
  };
  const auto note = [&] {
    s.num_computed_tokens = num_tokens;
    s.last_access = state.time();
  };
  if (!saves && !keeps && !publishes && !leaves_windows(state, s, num_tokens)) {
    note_ahead();
    note();
    return {};
  }
  const auto guard = state.guard_nodes();
  const auto with_state = state.group_with_state();
  if (saves) {
    if (auto copied = copy_state(state, s, with_state, s.saved, copy); !copied) {
      return copied;
    }
  } else if (keeps) {
    if (auto copied = copy_state(state, s, with_state, s.newest, copy); !copied) {
      return copied;
    }
    s.newest_nodes = static_cast<std::size_t>(num_tokens / state.granularity());
  }
  note_ahead();
  if (publishes) {
    publish_up_to(state, s, num_tokens);
  }
  note();
  if (saves && !s.saved.empty()) {
    const auto published = static_cast<std::int64_t>(s.num_nodes) * state.granularity() == num_tokens;
    attach_copied_state(state, s, s.saved, num_tokens, published ? s.tail.node : no_node);
  }
  drop_behind_windows(state, s, num_tokens);
  find_room(state, s);
  return {};
}

/// Releases blocks behind the windows of the token at `num_tokens`, before which nothing is computed here. With
/// `saves_state`, a commit of as many tokens saves the state. Errors: `invalid_argument` beyond the length.
template <layered State>
[[nodiscard]] result<void> skip_to_windows(State& state, sequence_id id, std::int64_t num_tokens,
                                           bool saves_state) noexcept {
  return visit_sequence(state, id, [&](group_sequence& s) -> result<void> {
    if (num_tokens < 0 || num_tokens > s.num_tokens) {
      return error{error_code::invalid_argument, "start of what is read", num_tokens,
                   num_tokens < 0 ? 0 : s.num_tokens};
    }
    const auto guard = state.guard_nodes();
    drop_behind_windows(state, s, num_tokens);
    s.num_elsewhere = std::max(s.num_elsewhere, num_tokens);
    s.branch = saves_state ? num_tokens : s.branch;
    return {};
  });
}

template <layered State>
[[nodiscard]] result<std::int64_t> next_saved_length(const State& state, sequence_id id) noexcept {
  return visit_sequence(state, id,
                        [&](const group_sequence& s) -> result<std::int64_t> { return next_saved_length(state, s); });
}

}  // namespace pagedkv::detail
