#pragma once

#include <pagedkv/cache/groups/append.hpp>
#include <pagedkv/cache/groups/longest_hit.hpp>
#include <pagedkv/cache/operations/checks.hpp>
#include <pagedkv/cache/operations/create_sequence.hpp>
#include <pagedkv/cache/operations/prompt.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/detail/runs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

// How a sequence of several groups begins: with a prompt, or as a fork of another one.

namespace pagedkv::detail {

/// Makes empty tables those of a prompt with a hit, with room for `num_expected` tokens, and says which blocks a hit
/// shares and which it copies.
template <layered State>
class admission_plan {
 public:
  admission_plan(State& state, group_tables& tables, const hit& found, std::int64_t num_tokens,
                 std::int64_t num_expected = 0)
      : state_(state), tables_(tables), found_(found), num_tokens_(num_tokens), num_expected_(num_expected) {
    for (std::size_t g = 0; g < state.num_groups(); ++g) {
      state.holds_tokens(g) ? plan_tokens(g) : plan_state(g);
    }
  }

  /// Blocks that a hit shares, and those that it copies.
  [[nodiscard]] std::vector<block_id> used() const {
    auto all = std::vector<block_id>{};
    all.reserve(shared_.size() + sources_.size());
    all.assign(shared_.begin(), shared_.end());
    std::ranges::transform(sources_, std::back_inserter(all), &source::block);
    return all;
  }
  [[nodiscard]] std::vector<block_id> take_shared() noexcept { return std::move(shared_); }
  [[nodiscard]] std::int64_t num_fresh() const noexcept { return num_fresh_; }
  /// Errors: `capacity_exhausted`, with the number of blocks that an allocation may take while the hit's blocks are
  /// held; the number needed includes these where the pool never has all at once.
  [[nodiscard]] result<void> check_room() const {
    const auto held = used();
    const auto available = state_.pool.num_available(held);
    if (num_fresh_ <= available) {
      return {};
    }
    const auto at_once = std::ssize(held) + num_fresh_;
    return error{error_code::capacity_exhausted, "number of blocks needed, more than there are now,",
                 at_once > state_.pool.size() ? at_once : num_fresh_, available};
  }

  /// Takes references and blocks, and copies what a hit does not share, by `copy(pairs)`. Requires that enough blocks
  /// are available. When the copy fails, everything is given back. `how_at(g, place)`: the facts with which the
  /// sequence releases a block there; what was copied is released with these.
  template <class HowAt>
  [[nodiscard]] result<void> carry_out(block_copier copy, HowAt&& how_at) noexcept {
    std::ranges::for_each(shared_, [&](block_id block) { reference(block); });
    std::ranges::for_each(sources_, [&](const source& from) { reference(from.block); });
    for (std::size_t g = 0; g < state_.num_groups(); ++g) {
      state_.allocate(fresh_of(g));
    }
    auto copied = result<void>{};
    if (!pairs_.empty()) {
      name_targets();
      copied = copy(pairs_);
    }
    const auto undone = release_as_before(state_.time());
    for (auto i = sources_.size(); i > 0; --i) {
      const auto& [block, g, place, parent] = sources_[i - 1];
      auto how = copied ? how_at(g, place) : undone;
      how.depth = static_cast<std::uint32_t>(place);
      how.num_cached_blocks = std::max(how.num_cached_blocks, how.depth + 1);  // the hit found it
      how.parent = parent;
      state_.release(block, how, 0);
    }
    if (!copied) {
      for (std::size_t g = 0; g < state_.num_groups(); ++g) {
        state_.pool.discard(fresh_of(g));
      }
      for (auto i = shared_.size(); i > 0; --i) {
        state_.release(shared_[i - 1], undone, 0);
      }
    }
    return copied;
  }

 private:
  /// A block that is copied, and its place in the table of its group. `parent`: the block that it continues, if shared.
  struct source {
    block_id block;
    std::size_t g;
    std::size_t place;
    block_id parent;
  };

  void plan_tokens(std::size_t g) {
    auto& table = tables_[g];
    const auto cached = static_cast<std::int64_t>(found_.num_nodes) * state_.granularity();
    const auto end = state_.places_for(g, num_tokens_);
    table.start(state_.num_sinks(g), state_.first_place(g, cached));
    table.reserve(std::max(table.num_sinks() + end - table.first(), state_.entries_expected(g, num_expected_)));
    const auto share = [&](std::size_t place) {
      shared_.push_back(block_at(state_, found_.path, found_.num_nodes, g, place));
      table.extend(1)[0] = shared_.back();
    };
    for (std::size_t place = 0; place < table.num_sinks(); ++place) {
      share(place);
    }
    const auto whole = state_.place_of(g, cached);
    while (table.end() < whole) {
      share(table.end());
    }
    if (cached % state_.block_size(g) != 0) {
      add_source(block_at(state_, found_.path, found_.num_nodes, g, whole), g, whole,
                 whole != 0 ? table[whole - 1] : no_block);
    }
    grow(g, end - table.end());
  }

  void plan_state(std::size_t g) {
    const auto size = state_.blocks_of_state(g);
    tables_[g].start(0, 0);
    tables_[g].reserve(size);
    if (found_.num_nodes != 0) {
      auto block = state_.nodes.attached(found_.path[found_.num_nodes - 1], g);
      for (auto place = std::size_t{0}; block != no_block; block = state_.nodes.next_of_state(block)) {
        add_source(block, g, place++, no_block);
      }
    }
    grow(g, size);
  }

  void add_source(block_id block, std::size_t g, std::size_t place, block_id parent) {
    sources_.push_back({block, g, place, parent});
    pairs_.push_back({static_cast<std::int32_t>(block), static_cast<std::int32_t>(g)});
  }

  void grow(std::size_t g, std::size_t count) noexcept {
    static_cast<void>(tables_[g].extend(count));
    fresh_[g] = count;
    num_fresh_ += static_cast<std::int64_t>(count);
  }
  [[nodiscard]] std::span<block_id> fresh_of(std::size_t g) noexcept { return tables_[g].last(fresh_[g]); }

  /// Until here, the destination of a pair is its group: its copies fill the group's fresh blocks from the first on.
  void name_targets() noexcept {
    auto next = std::array<std::size_t, group_list::max_size>{};
    for (auto& pair : pairs_) {
      const auto g = static_cast<std::size_t>(pair.destination);
      pair.destination = static_cast<std::int32_t>(fresh_of(g)[next[g]++]);
    }
  }

  void reference(block_id block) noexcept {
    [[maybe_unused]] const auto referenced = state_.pool.reference_published(block);
    assert(referenced);
  }

  State& state_;
  group_tables& tables_;
  const hit& found_;
  std::int64_t num_tokens_;
  std::int64_t num_expected_;
  std::vector<block_id> shared_;
  std::vector<source> sources_;
  std::vector<block_pair> pairs_;
  std::array<std::size_t, group_list::max_size> fresh_{};
  std::int64_t num_fresh_ = 0;
};

/// Blocks of a sequence of which so many tokens are committed: in each group, those of what the next token reads, and
/// of all behind.
template <layered State>
[[nodiscard]] std::int64_t blocks_at(const State& state, std::int64_t num_computed, std::int64_t num_tokens) noexcept {
  auto count = std::size_t{0};
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (!state.holds_tokens(g)) {
      count += state.blocks_of_state(g);
      continue;
    }
    auto table = group_table{};
    table.start(state.num_sinks(g), state.first_place(g, num_computed));
    count += table.num_sinks() + state.places_for(g, num_tokens) - table.first();
  }
  return static_cast<std::int64_t>(count);
}

/// Blocks that suffice, and that some chunks take, for a prompt that is computed behind a hit in chunks of at most
/// `first_chunk` tokens, wherever they end; with 0, token by token. More may be said of a prompt that fits into the
/// pool whole. Constant for those, else linear in the prompt's blocks.
template <layered State>
[[nodiscard]] std::int64_t most_blocks(const State& state, const hit& found, std::int64_t num_tokens,
                                       std::int64_t first_chunk) noexcept {
  auto whole = std::int64_t{0};
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    whole +=
        static_cast<std::int64_t>(state.holds_tokens(g) ? state.places_for(g, num_tokens) : state.blocks_of_state(g));
  }
  if (whole <= state.pool.size()) {
    return whole;
  }
  const auto cached = static_cast<std::int64_t>(found.num_nodes) * state.granularity();
  const auto chunk = std::min(std::max(first_chunk, std::int64_t{1}), num_tokens - cached);
  const auto last = num_tokens - chunk;
  auto most = blocks_at(state, cached, cached + chunk);
  // Chunks that start later take more only where their last token starts a block.
  const auto size = state.granularity();
  const auto into_block = (cached + chunk - 1) % size;
  for (auto start = cached + (size - into_block) % size; start <= last; start += size) {
    most = std::max(most, blocks_at(state, start, start + chunk));
  }
  return most;
}

/// Reserves what later operations on a sequence write without allocating.
template <layered State>
[[nodiscard]] bool reserve_room(const State& state, group_sequence& s, std::int64_t num_tokens) noexcept {
  const auto reserve = [&] {
    auto largest = std::size_t{0};
    for (std::size_t g = 0; g < state.num_groups(); ++g) {
      largest = std::max(largest, state.holds_tokens(g) ? 0 : state.blocks_of_state(g));
    }
    s.pairs.reserve(largest + group_list::max_size);
    s.saved.reserve(largest);
    s.newest.reserve(largest);
    return true;
  };
  return with_memory(reserve, false) &&
         s.pending.try_reserve(0, static_cast<std::size_t>(num_tokens + state.granularity()));
}

/// Makes an empty sequence, whose options are known, one of this prompt with a hit, and holds its last node. Errors:
/// those of `check_room`, with the blocks that the hit shares in `shared`; those of `copy`.
template <layered State>
[[nodiscard]] result<void> admit(State& state, group_sequence& s, std::span<const token> tokens, const hit& found,
                                 const sequence_options& options, block_copier copy,
                                 std::vector<block_id>& shared) noexcept {
  const auto num_prompt = static_cast<std::int64_t>(tokens.size());
  const auto chunks = prompt_plan{num_prompt, state.granularity(), options.max_cached_tokens, options.first_chunk};
  const auto length = chunks.length(found.num_nodes);
  const auto cached = static_cast<std::int64_t>(found.num_nodes) * state.granularity();
  s.num_tokens = length;
  s.num_computed_tokens = s.num_cached_tokens = cached;
  s.num_nodes = found.num_nodes;
  const auto attempt = [&]() -> result<void> {
    auto plan = admission_plan{state, s.tables, found, length, state.tokens_expected(options)};
    if (auto checked = plan.check_room(); !checked) {
      shared = plan.take_shared();
      return checked;
    }
    return plan.carry_out(copy, state.releases_of(s));
  };
  const auto tail =
      found.num_nodes == 0 ? state.nodes.root(options.salt) : state.nodes.link(found.path[found.num_nodes - 1]);
  state.hold(tail);  // a hit that needs no block, as at the end of a chunk, keeps its nodes by nothing else
  const auto admitted =
      with_memory(attempt, error{error_code::out_of_memory, "number of tokens in the block tables", num_prompt});
  if (!admitted) {
    state.let_go(tail);
    std::ranges::for_each(s.tables, [](group_table& table) { table.clear(); });
    s.num_tokens = 0;
    return admitted;
  }
  s.tail = tail;
  const auto rest = tokens.subspan(static_cast<std::size_t>(cached), static_cast<std::size_t>(length - cached));
  copy_run(rest, s.pending.from(0));
  return admitted;
}

/// Chooses, of two refusals, with a hit and without, the one that lacks fewer blocks, unless a pool of this size never
/// has as many as it takes with the hit.
[[nodiscard]] inline const error& nearer(const error& with_hit, const error& without, std::int64_t pool_size) noexcept {
  const auto missing = [](const error& refused) { return refused.value - refused.limit; };
  return with_hit.value <= pool_size && missing(with_hit) < missing(without) ? with_hit : without;
}

/// Errors: `invalid_argument`.
[[nodiscard]] inline result<void> check_prompt(const token_run& prompt, const sequence_options& options) noexcept {
  if (!is_valid(options) || (has_ranges(options) && !has_valid_ranges(options))) {
    return invalid_option(options);
  }
  if (auto checked = check_keys_within(prompt.keys, 0, static_cast<std::int64_t>(prompt.tokens.size())); !checked) {
    return checked;
  }
  if (options.saving.every < 0) {
    return error{error_code::invalid_argument, "state_saving.every", options.saving.every, 0};
  }
  return {};
}

/// Whether a prompt has a hit, and could be computed without it.
template <layered State>
[[nodiscard]] bool fits_without(const State& state, const hit& found, std::int64_t num_tokens,
                                const sequence_options& options) noexcept {
  return found.num_nodes != 0 && most_blocks(state, hit{}, num_tokens, options.first_chunk) <= state.pool.size();
}

/// Makes an empty sequence one of this prompt: shares the longest prefix from which every group can continue, and takes
/// blocks for the first chunk of the rest. `copy(pairs)` copies whole blocks.
template <layered State>
[[nodiscard]] result<void> create_sequence(State& state, group_sequence& s, const token_run& prompt,
                                           const sequence_options& options, block_copier copy) noexcept {
  s.num_tokens = 0;
  s.keys.clear();
  s.hashes.clear();
  if (auto checked = check_prompt(prompt, options); !checked) {
    return checked;
  }
  const auto num_prompt = static_cast<std::int64_t>(prompt.tokens.size());
  if (!reserve_room(state, s, std::max(num_prompt, state.tokens_expected(options))) || !reserve_keys(s, prompt.keys) ||
      !reserve_entries(s.hashes, prompt.hashes.size())) {
    return error{error_code::out_of_memory, "number of tokens", num_prompt};
  }
  s.num_prompt_tokens = std::min(num_prompt, options.num_prompt_tokens);
  s.options = options;
  s.has_ranges = has_ranges(options);
  const auto guard = state.guard_nodes();
  auto found = longest_hit_of_prompt(state, prompt, options.salt, options.max_cached_tokens);
  if (!found) {
    return found.error();
  }
  if (const auto most = most_blocks(state, *found, num_prompt, options.first_chunk); most > state.pool.size()) {
    return state.refuse(most, state.pool.num_available());
  }
  auto shared = std::vector<block_id>{};
  auto admitted = admit(state, s, prompt.tokens, *found, options, copy, shared);
  if (!admitted && admitted.error().code == error_code::capacity_exhausted &&
      fits_without(state, *found, num_prompt, options)) {
    // A copy needs its source and its destination at once: without the hit, the source may be evicted.
    const auto without = hit{};
    const auto reason = admitted.error();
    auto none = std::vector<block_id>{};
    admitted = admit(state, s, prompt.tokens, without, options, copy, none);
    if (!admitted) {
      const auto second = admitted.error();
      const auto& chosen = nearer(reason, second, state.pool.size());
      if (&chosen == &second) {
        shared.clear();
      }
      admitted = chosen;
    }
  }
  if (!admitted) {
    const auto& reason = admitted.error();
    return reason.code == error_code::capacity_exhausted ? state.refuse(reason.value, reason.limit, {.shared = shared})
                                                         : reason;
  }
  add_keys(s, prompt.keys);
  note_hashes(state, s, prompt.hashes);
  const auto known = static_cast<std::int64_t>(found->num_without_states) * state.granularity();
  s.branch = options.saving.at_branches && known > s.num_cached_tokens ? known : 0;
  s.steps = {};
  s.first_step = state.pool.newest_open_step();
  s.unlaunched_step = {};
  s.is_withdrawn = false;
  s.reuses_slots = false;
  s.num_reserved = 0;
  s.created = s.last_access = state.time();
  s.num_branch_tokens = s.num_cached_tokens;
  s.num_elsewhere = 0;
  s.has_copies = false;
  for (std::size_t g = 0; g < state.num_groups(); ++g) {  // of a block that a hit took in part, if its node is lost
    s.has_copies |= state.holds_tokens(g) && s.num_cached_tokens % state.block_size(g) != 0;
  }
  find_room(state, s);
  count<&cache_statistics::prompts>(state.counts, 1);
  count<&cache_statistics::prompt_blocks>(state.counts, num_prompt / state.granularity());
  count<&cache_statistics::hit_blocks>(state.counts, static_cast<std::int64_t>(s.num_nodes));
  count<&cache_statistics::hit_tokens>(state.counts, s.num_cached_tokens);
  return {};
}

template <layered State>
void report_admission(State& state, sequence_id id, const group_sequence& s, std::size_t num_prompt) noexcept {
  if (s.num_cached_tokens != 0) {
    report<event_kind::hit>(state.events, [&] {
      return cache_event{.hash = s.tail.hash,
                         .salt = s.options.salt,
                         .sequence = id,
                         .num_tokens = s.num_cached_tokens,
                         .num_blocks = static_cast<std::int64_t>(s.num_nodes)};
    });
  }
  report<event_kind::admitted>(state.events, [&] {
    return cache_event{.salt = s.options.salt,
                       .sequence = id,
                       .num_tokens = static_cast<std::int64_t>(num_prompt),
                       .num_blocks = s.usage().num_blocks};
  });
}

/// Creates a sequence in a new record.
template <layered State>
[[nodiscard]] result<admission> create_sequence(State& state, const token_run& prompt, const sequence_options& options,
                                                block_copier copy) noexcept {
  auto* admitted = static_cast<const group_sequence*>(nullptr);
  const auto made =
      make_record(state.sequences, "number of sequences, at most cache_config.max_sequences,", [&](group_sequence& s) {
        admitted = &s;
        return create_sequence(state, s, prompt, options, copy);
      });
  if (!made) {
    return made.error();
  }
  const auto id = static_cast<sequence_id>(*made);
  report_admission(state, id, *admitted, prompt.tokens.size());
  auto result = admission{id, admitted->num_cached_tokens, admitted->num_tokens, 0, 0};
  for (const auto& table : admitted->tables) {
    for (const auto block : table.all()) {
      const auto seen = state.pool.state(block);
      ++result.num_blocks;
      result.num_new_blocks += seen.count() == 1 && !seen.published();
    }
  }
  return result;
}

/// Gives back the references that a fork has taken so far.
template <layered State>
void undo_fork(State& state, group_sequence& to) noexcept {
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    for (const auto block : to.tables[g].all()) {
      state.pool.release(block, release_as_before(state.time()), 0);
    }
    to.tables[g].clear();
  }
}

/// Makes an empty sequence share every block of another, but for reserved ones, and copies its state. Errors:
/// `invalid_argument` while the other has tokens that are not computed; `limit_reached`, `out_of_memory`, and those of
/// `refuse` and `copy`.
template <layered State>
[[nodiscard]] result<void> fork(State& state, group_sequence& from, group_sequence& to, block_copier copy) noexcept {
  if (from.num_computed_tokens != from.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to fork that are not committed",
                 from.num_tokens - from.num_computed_tokens, 0};
  }
  const auto with_state = state.group_with_state();
  const auto num_state = with_state != state.num_groups() ? state.blocks_of_state(with_state) : 0;
  const auto num_expected = state.tokens_expected(from.options);
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    const auto room = state.holds_tokens(g) ? state.entries_expected(g, num_expected) : 0;
    if (!to.tables[g].try_reserve(std::max(from.tables[g].all().size(), room))) {
      return error{error_code::out_of_memory, "number of blocks to fork", from.num_tokens};
    }
    to.tables[g].clear();
  }
  to.keys.clear();
  const auto num_pending = static_cast<std::int64_t>(state.num_pending(from));
  if (!reserve_room(state, to, std::max(num_pending, num_expected)) || !reserve_keys(to, from.keys) ||
      !reserve_entries(to.hashes, from.hashes.size())) {
    return error{error_code::out_of_memory, "number of tokens to fork", from.num_tokens};
  }
  const auto guard = state.guard_nodes();
  if (const auto available = state.pool.num_available(); static_cast<std::int64_t>(num_state) > available) {
    return state.refuse(static_cast<std::int64_t>(num_state), available);
  }
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (!state.holds_tokens(g)) {
      continue;
    }
    to.tables[g].copy(from.tables[g]);
    to.tables[g].shrink(std::max(state.places_for(g, from.num_tokens), from.tables[g].first()));
    const auto held = to.tables[g].all();
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (!state.pool.reference(held[i])) {
        to.tables[g].withdraw(held.size() - i);
        undo_fork(state, to);
        return error{error_code::limit_reached, "reference count", block_state::max_count + 1, block_state::max_count};
      }
    }
  }
  if (with_state != state.num_groups()) {
    const auto fresh = to.tables[with_state].extend(num_state);
    state.allocate(fresh);
    to.pairs.clear();
    for (std::size_t i = 0; i < num_state; ++i) {
      to.pairs.push_back({static_cast<std::int32_t>(from.tables[with_state][i]), static_cast<std::int32_t>(fresh[i])});
    }
    if (auto copied = copy(to.pairs); !copied) {
      undo_fork(state, to);
      return copied;
    }
  }
  copy_run(from.pending.from(0).first(state.num_pending(from)), to.pending.from(0));
  add_keys(to, from.keys);
  to.hashes.assign(from.hashes.begin(), from.hashes.end());
  to.continue_as(from, state.time());
  to.first_step = state.pool.newest_open_step();
  to.tail = from.tail;
  state.hold(to.tail);
  to.branch = 0;
  to.num_branch_tokens = from.num_tokens;
  to.num_elsewhere = from.num_elsewhere;
  to.has_copies = from.has_copies;
  note_unlaunched(state, from);
  from.forget_room();
  return {};
}

}  // namespace pagedkv::detail
