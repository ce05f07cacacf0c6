#pragma once

#include <pagedkv/cache/index_model.hpp>
#include <pagedkv/cache/operations/parts.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace pagedkv::detail {

/// Notes that look-ups or a fork are about to share more of a sequence, or that one which publishes nothing has full
/// blocks: perhaps ahead of the launch of the newest step, if that is open.
template <class State>
void note_unlaunched(const State& state, sequence_record& s) noexcept {
  const auto newest = state.pool.newest_open_step();
  const auto num_full = static_cast<std::size_t>(s.num_computed_tokens) / state.tokens_per_node();
  const auto first = s.options.publish ? s.hot.num_published : num_full;
  s.first_unlaunched = s.unlaunched_step == newest ? std::min(s.first_unlaunched, first) : first;
  s.unlaunched_step = newest;
}

/// Whether a launch may still have to write K/V of a sequence's nodes from `first_unlaunched` on.
template <class State>
[[nodiscard]] bool is_unlaunched(const State& state, const sequence_record& s) noexcept {
  return s.unlaunched_step != step_id{} && s.unlaunched_step == state.pool.newest_open_step();
}

/// Calls `visit(block)` on the blocks that the sequence holds of these nodes and behind them; of nodes from `first` on.
template <class State>
void for_each_unlaunched(const State& state, const sequence& s, auto&& visit, std::size_t first = 0) noexcept {
  if (is_unlaunched(state, s)) {
    for (auto i = std::max({s.first_unlaunched, first, s.blocks.num_dropped()}); i < s.blocks.size(); ++i) {
      visit(s.blocks[i]);
    }
  }
}
template <layered State>
void for_each_unlaunched(const State& state, const typename State::sequence_type& s, auto&& visit) noexcept {
  if (is_unlaunched(state, s)) {
    state.for_each_place(s.first_unlaunched, [&](std::size_t g, std::size_t first) {
      s.tables[g].for_each_from(first, [&](block_id block, std::size_t, block_id) { visit(block); });
    });
  }
}

/// How many blocks at these nodes, in places that the sequence has dropped, others hold, or want. Nothing tells whether
/// it has written these itself. After an invalidation by others, each may be one that it wrote and another one holds.
template <class State>
[[nodiscard]] std::int64_t num_dropped_shared(const State&, const sequence&, std::span<const block_id>) noexcept {
  return 0;
}
template <layered State>
[[nodiscard]] std::int64_t num_dropped_shared(const State& state, const typename State::sequence_type& s,
                                              std::span<const block_id> wanted) noexcept {
  auto num_shared = std::int64_t{0};
  if (state.commits_only_publish() || !is_unlaunched(state, s)) {
    return num_shared;
  }
  auto node = s.tail.node;
  for (auto left = s.num_nodes; left > s.first_unlaunched; --left, node = state.nodes.parent(node)) {
    const bool invalidated = state.nodes.is_withdrawn(node) && !s.is_withdrawn;
    state.for_each_place(left - 1, [&](std::size_t g, std::size_t place) {
      if (!s.tables[g].is_held(place)) {
        const auto block = state.nodes.attached(node, g);
        num_shared += block == no_block ? invalidated
                                        : state.pool.state(block).count() != 0 ||
                                              std::ranges::binary_search(wanted, block);
      }
    });
  }
  return num_shared;
}

/// How many blocks of the sequence at these nodes others hold, or want: sorted ids. These need its launch. The caller
/// has the guard of the nodes.
template <class State>
[[nodiscard]] std::int64_t num_unlaunched_shared(const State& state, const auto& s,
                                                 std::span<const block_id> wanted = {}) noexcept {
  auto num_shared = num_dropped_shared(state, s, wanted);
  for_each_unlaunched(state, s, [&](block_id block) {
    num_shared += state.pool.state(block).count() > 1 || std::ranges::binary_search(wanted, block);
  });
  return num_shared;
}
/// How many of them look-ups have a lease on: others may be about to hold these.
template <class State>
[[nodiscard]] std::int64_t num_unlaunched_leased(const State& state, const auto& s) noexcept {
  auto num_leased = std::int64_t{0};
  for_each_unlaunched(state, s, [&](block_id block) { num_leased += state.pool.state(block).leases() != 0; });
  return num_leased;
}

/// Hides a published block, to which the caller has a reference, from look-ups that begin afterwards. The block is
/// freed with its last reference. False when it was hidden before: a lease may have kept it since.
template <class State>
bool withdraw(State& state, block_id block) noexcept {
  const bool first = state.pool.withdraw(block) && state.index.withdraw(block);
  if (first) {
    count<&cache_statistics::invalidations>(state.counts, 1);
    state.report_eviction(block);
  }
  return first;
}

/// Publishes the next block of a sequence, whose chained hash this is, unless it is published already. `newest`: the
/// block before it has no published successor.
template <class State>
void publish_next(State& state, sequence& s, std::uint64_t hash, bool& newest) noexcept {
  const auto block = s.blocks[s.num_published_blocks];
  if (state.pool.state(block).published()) {
    newest = false;
  } else {
    // Before another thread can find the block, and before it can be evicted.
    const auto describe = [&] {
      const auto contents = state.index.contents(block);
      return cache_event{.block = block,
                         .origin = s.tail.node,
                         .hash = hash,
                         .parent_hash = s.tail.hash,
                         .tokens = contents.tokens,
                         .keys = contents.keys,
                         .salt = s.options.salt};
    };
    report<event_kind::stored>(state.events, describe, s.tail.node);
    const auto leases = state.pool.leases();
    auto twin = no_block;
    if (newest) {
      state.index.publish_first(block, s.tail, hash);
    } else {
      twin = state.index.publish(block, s.tail, hash, leases);
    }
    newest = twin == no_block;
    state.pool.publish(block);
    if (twin != no_block) {
      state.pool.note_twin(block);
      state.pool.note_twin(twin);
      if (State::locking_type::family::concurrent && state.index.was_withdrawn(twin)) {
        withdraw(state, block);  // an invalidation of these contents has overtaken this commit
      }
      leases.end(twin);
    }
  }
  s.tail = state.index.link(block);
  ++s.num_published_blocks;
}

/// Hashes run ahead, and the cache lines that publishing will touch are fetched meanwhile.
template <class State>
void publish_up_to(State& state, sequence& s, std::size_t num_blocks) noexcept {
  std::array<std::uint64_t, 16> hashes;  // zeroing it would cost more than a block's hash
  auto newest = false;
  while (s.num_published_blocks < num_blocks) {
    const auto first = s.num_published_blocks;
    const auto count = std::min(hashes.size(), num_blocks - first);
    auto last_hash = s.tail.hash;
    for (std::size_t i = 0; i < count; ++i) {
      const auto block = s.blocks[first + i];
      last_hash = hashes[i] = first + i < s.num_hashed_blocks
                                  ? state.index.link(block).hash
                                  : state.index.hash(last_hash, state.index.contents(block));
      state.index.prefetch_publication(block, last_hash);
    }
    for (std::size_t i = 0; i < count; ++i) {
      publish_next(state, s, hashes[i], newest);
    }
  }
}

/// Gives the blocks that are about to be published their keys: all or nothing.
template <class State>
[[nodiscard]] result<void> assign_keys(State& state, const sequence& s, std::size_t num_blocks) noexcept {
  const auto size = static_cast<std::int64_t>(state.block_size());
  const auto first = static_cast<std::int64_t>(s.num_published_blocks) * size;
  auto rest = keys_between(s.keys, first, static_cast<std::int64_t>(num_blocks) * size);
  for (auto assigned = rest.first(0); !rest.empty(); rest = rest.subspan(assigned.size())) {
    const auto index = rest.front().position / size;
    assigned = keys_between(rest, index * size, (index + 1) * size);
    const auto block = s.blocks[static_cast<std::size_t>(index)];
    if (!state.pool.state(block).published() && !state.index.assign_keys(block, assigned)) {
      for (auto i = s.num_published_blocks; i < num_blocks; ++i) {
        if (!state.pool.state(s.blocks[i]).published()) {
          state.index.clear_keys(s.blocks[i]);
        }
      }
      return error{error_code::out_of_memory, "number of keys", static_cast<std::int64_t>(rest.size())};
    }
  }
  return {};
}

/// Whether a commit of so many tokens is valid and surely changes no more than the hot part.
template <class State>
[[nodiscard]] bool only_notes(const State& state, const sequence_record::hot_part& hot,
                              std::int64_t num_tokens) noexcept {
  const auto next = static_cast<std::int64_t>((hot.num_published + 1) * state.tokens_per_node());
  return state.commits_only_publish() && hot.num_computed_tokens <= num_tokens && num_tokens <= hot.num_tokens &&
         num_tokens < next;
}

/// Publishes the full blocks among the first `num_tokens`, whose K/V the caller declares written; perhaps `ahead` of a
/// launch.
template <class State>
[[nodiscard]] result<void> commit(State& state, sequence& s, std::int64_t num_tokens, bool ahead = false) noexcept {
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of computed tokens, more than the sequence has,", num_tokens,
                 s.num_tokens};
  }
  if (num_tokens < s.num_computed_tokens) {
    return error{error_code::invalid_argument, "number of computed tokens, fewer than committed,", num_tokens,
                 s.num_computed_tokens};
  }
  const auto num_blocks = static_cast<std::size_t>(num_tokens) / state.block_size();
  const bool publishes = s.options.publish && num_blocks > s.num_published_blocks;
  if (publishes) {
    if (auto assigned = assign_keys(state, s, num_blocks); !assigned) {
      return assigned;
    }
  }
  if (ahead && num_blocks > static_cast<std::size_t>(s.num_computed_tokens) / state.block_size()) {
    note_unlaunched(state, s);
  }
  if (publishes) {
    publish_up_to(state, s, num_blocks);
  }
  s.num_computed_tokens = num_tokens;
  s.last_access = state.time();
  return {};
}

/// Commits so many tokens if that publishes nothing. False, and nothing is changed, if a commit needs more.
template <class State>
[[nodiscard]] [[gnu::always_inline]] inline bool commit_inside(State& state, sequence_id id,
                                                               std::int64_t num_tokens) noexcept {
  return step_inside(state, id, [&](sequence_record::hot_part& hot) {
    if (!only_notes(state, hot, num_tokens)) {
      return false;
    }
    hot.num_computed_tokens = num_tokens;
    hot.last_access = state.time();
    return true;
  });
}

/// Hides what a sequence has published ahead of a launch, of nodes from `first` on; returns how many blocks.
template <class State>
std::int64_t withdraw_unlaunched(State& state, const sequence& s, std::size_t first = 0) noexcept {
  auto count = std::int64_t{0};
  const auto hide = [&](block_id block) {
    count += state.pool.state(block).published() && withdraw(state, block) ? 1 : 0;
  };
  for_each_unlaunched(state, s, hide, first);
  return count;
}

template <class State>
[[nodiscard]] bool has_state(const State&) noexcept {
  return false;
}
template <layered State>
[[nodiscard]] bool has_state(const State& state) noexcept {
  return state.group_with_state() != state.num_groups();
}

/// Counts tokens that a launch of the newest step, if that is open, may still have to write as not computed: all of a
/// sequence that has started in that step, since it may share what another writes; full blocks as noted; and, since
/// commits inside a block are not noted, all behind the full ones. Those stay with a state where no full block was
/// noted, because the state is of them, too.
template <class State>
void discount_unlaunched(const State& state, sequence_record& s) noexcept {
  const auto size = state.tokens_per_node();
  auto num_full = static_cast<std::size_t>(s.num_computed_tokens) / size;
  const auto newest = state.pool.newest_open_step();
  if (newest == step_id{}) {
    return;
  }
  if (s.first_step == newest) {
    num_full = 0;
  } else if (is_unlaunched(state, s)) {
    num_full = std::min(num_full, s.first_unlaunched);
  } else if (has_state(state)) {
    return;
  }
  s.num_computed_tokens = static_cast<std::int64_t>(num_full * size);
}

/// Why a sequence must not give way now, if others may need its launch. Leases are counted first: each ends, or is a
/// reference before it ends.
template <class State>
[[nodiscard]] std::optional<error> refusal_to_withdraw(const State& state, const auto& s) noexcept {
  const auto num_leased = num_unlaunched_leased(state, s);
  if (const auto num_shared = num_unlaunched_shared(state, s); num_shared != 0) {
    return error{error_code::in_use, "number of blocks that others share ahead of their launch", num_shared, 0};
  }
  if (num_leased != 0) {
    return error{error_code::sequence_busy, "number of blocks that look-ups read ahead of their launch", num_leased, 0};
  }
  return std::nullopt;
}

/// Hides what a sequence has published ahead of a launch, unless others may need the launch; returns how many
/// blocks. From then on, others share none of it.
template <class State>
[[nodiscard]] result<std::int64_t> withdraw(State& state, sequence_id id) noexcept {
  return visit_sequence(state, id, [&](auto& s) -> result<std::int64_t> {
    const auto guard = state.guard_nodes();
    auto refusal = refusal_to_withdraw(state, s);
    auto num_hidden = std::int64_t{0};
    if (!refusal) {
      num_hidden = withdraw_unlaunched(state, s);
      const bool before = std::exchange(s.is_withdrawn, true);
      refusal = refusal_to_withdraw(state, s);  // another thread's hit may have been faster
      s.is_withdrawn = !refusal || before;
    }
    if (refusal) {
      return *refusal;
    }
    s.options.publish = false;
    discount_unlaunched(state, s);
    return num_hidden;
  });
}

/// Marks the time in which one operation withdraws blocks.
template <class Pool>
class [[nodiscard]] invalidation {
 public:
  explicit invalidation(Pool& pool) noexcept : pool_(pool) { pool_.begin_invalidation(); }
  invalidation(const invalidation&) = delete;
  invalidation& operator=(const invalidation&) = delete;
  ~invalidation() { pool_.end_invalidation(); }

 private:
  Pool& pool_;
};

/// Withdraws a published block and gives back the caller's reference to it. Returns how many blocks that hides: 0 or 1.
template <class State>
[[nodiscard]] std::int64_t withdraw_and_release(State& state, block_id block) noexcept {
  const bool first = withdraw(state, block);
  release_block(state, block, 0, block_release{}, 0);
  return first ? 1 : 0;
}

/// Withdraws every block that continues `before` with these contents. Returns what the last of them was, a link without
/// a block if there was none; adds their number to `count`.
template <class State>
[[nodiscard]] chain_link withdraw_next(State& state, const chain_link& before, const block_contents& contents,
                                       std::int64_t& count) noexcept {
  const auto hash = state.index.hash(before.hash, contents);
  auto last = chain_link{};
  for (;;) {
    const auto block = state.index.find(before, hash, contents, state.pool.leases());
    if (block == no_block) {
      return last;
    }
    last = state.index.link(block);
    reference_found(state, block);
    count += withdraw_and_release(state, block);
  }
}

/// Invalidates the longest cached prefix of these tokens; returns how many blocks that were, twins included.
template <class State>
std::int64_t invalidate_prefix(State& state, const token_run& run, salt salt) noexcept {
  const auto during = invalidation{state.pool};
  auto count = std::int64_t{0};
  auto before = state.index.root(salt);
  for (std::size_t i = 0; i < run.tokens.size() / state.block_size(); ++i) {
    before = withdraw_next(state, before, run.block(i, state.block_size()), count);
    if (before.node == no_block) {
      break;
    }
  }
  return count;
}

/// Invalidates the first block of every chain with this salt; returns how many. Linear in the pool.
template <class State>
std::int64_t invalidate_salt(State& state, salt salt) noexcept {
  const auto during = invalidation{state.pool};
  const auto leases = state.pool.leases();
  auto count = std::int64_t{0};
  for (std::size_t i = 0; i < static_cast<std::size_t>(state.pool.size()); ++i) {
    const auto block = to_block(i);
    if (!leases.take(block)) {
      continue;
    }
    if (state.index.begins_chain(block, salt)) {
      reference_found(state, block);
      count += withdraw_and_release(state, block);
    } else {
      leases.end(block);
    }
  }
  return count;
}

/// Invalidates those of these blocks that are cached; returns how many. Errors: `invalid_argument` outside the pool.
template <class State>
[[nodiscard]] result<std::int64_t> invalidate_blocks(State& state, std::span<const block_id> blocks) noexcept {
  const auto num_blocks = state.pool.size();
  const auto outside = [&](block_id block) { return to_index(block) >= static_cast<std::size_t>(num_blocks); };
  if (const auto found = std::ranges::find_if(blocks, outside); found != blocks.end()) {
    return bad_index("block to invalidate", static_cast<std::int64_t>(*found), num_blocks);
  }
  const auto during = invalidation{state.pool};
  auto count = std::int64_t{0};
  for (const auto block : blocks) {
    if (state.pool.reference_published(block)) {
      count += withdraw_and_release(state, block);
    }
  }
  return count;
}

}  // namespace pagedkv::detail
