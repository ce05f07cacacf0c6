#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/step_set.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/sequence/block_table.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace pagedkv {

/// How long blocks stay, under a policy that heeds it (see `uses_priority`).
struct block_retention {
  std::uint8_t priority = 50;  // 0 to 100; blocks of higher priority stay longer
  std::int64_t duration = 0;   // nanoseconds after release for which the priority holds; 0 for ever
};

/// Retention of the blocks that hold some of the tokens [first, last), counted in tokens. An empty range says nothing.
struct range_retention {
  std::int64_t first = 0;
  std::int64_t last = 0;
  block_retention retention = {};
};

/// The lengths at which a commit saves a sequence's state, so that later prompts can continue from there. All are
/// multiples of the hit granularity.
struct state_saving {
  bool at_branches = true;    // where the prompt leaves the cached tokens of groups without state
  bool at_prompt_end = true;  // the last one before the prompt's last token
  std::int64_t every = 0;     // every so many tokens, too; 0: not
  bool at_end = false;        // the last one of the answer: until the sequence ends, it has a second state, which each
                              // commit of a multiple overwrites
};

/// Options of `create_sequence`.
struct sequence_options {
  static constexpr auto no_limit = std::numeric_limits<std::int64_t>::max();

  pagedkv::salt salt = pagedkv::salt::none;  // sequences with different salts share nothing
  std::uint8_t priority = 50;        // 0 to 100; under a policy that heeds it, blocks of higher priority stay longer
  std::int64_t retention = 0;        // nanoseconds after release for which the priority holds; 0 for ever
  std::int64_t expected_return = 0;  // nanoseconds after release until the session's next request; 0: unknown
  std::int64_t expected_tokens = 0;  // appending up to this length allocates no memory

  std::int64_t max_cached_tokens = no_limit;  // of the prompt, that hits may bring; 0 does not read the prefix cache
  bool publish = true;                        // false: commit enters nothing into the prefix cache
  std::int64_t first_chunk = no_limit;        // tokens behind the cached ones that creation appends; the caller appends
                                              // the rest in chunks that are not larger (after 0: token by token), for
                                              // which creation makes sure that the pool is large enough
  std::int64_t num_prompt_tokens = no_limit;  // of the tokens at creation; later ones are an answer so far

  state_saving saving = {};  // of a model with state

  /// A block has the highest priority of the ranges that it has tokens of, for the longest time where several give it;
  /// without one, `priority` for `retention`.
  std::array<range_retention, 4> ranges = {};
  std::optional<block_retention> answer = {};  // the range from the end of the prompt on
};

inline constexpr auto default_sequence_options = sequence_options{};  // no call needs to make them

/// Facts about a session when one of its requests ends. A wrong hint costs little.
struct release_hint {
  bool session_ended = false;        // no request will continue the sequence, or any part of it
  bool branch_complete = false;      // none will continue what it added to the prefix that it shared or was forked from
  std::int64_t expected_return = 0;  // nanoseconds until the next request; 0: as in `sequence_options`
};

/// The part of a sequence's record that both index models have. The first `num_computed_tokens` have their K/V written;
/// full blocks of those, or full nodes, are published.
struct sequence_record {
  static constexpr auto unknown_code = error_code::unknown_sequence;
  static constexpr auto id_name = "sequence id";
  static constexpr auto busy_id_name = "id of a sequence that another thread is using";

  /// Appending inside a block, and a commit that publishes nothing, touch this alone.
  struct hot_part {
    // Where the next tokens go as long as no other sequence can see their slots: appending is a store. Empty when in
    // doubt.
    token* next_token = nullptr;
    token* end_of_room = nullptr;
    std::int64_t num_tokens = 0;
    std::int64_t num_computed_tokens = 0;
    std::size_t num_published = 0;  // blocks, or nodes, from the start; without `publish`, only prefix hits
    timestamp last_access{};

    /// Whether the next token needs no more than a store.
    [[nodiscard]] bool has_room() const noexcept { return next_token != end_of_room; }
    /// The next append finds out anew.
    void forget_room() noexcept { next_token = end_of_room; }
  };

  /// The hot part outlives the sequence.
  explicit sequence_record(hot_part& part) noexcept : hot(part) {}
  sequence_record(const sequence_record&) = delete;
  sequence_record& operator=(const sequence_record&) = delete;

  sequence_options options;            // as at creation
  std::int64_t num_prompt_tokens = 0;  // also those that are still to be appended
  std::int64_t num_cached_tokens = 0;
  timestamp created{};
  bool has_ranges = false;  // in its options

  std::vector<prefix_key> keys;  // of the tokens, and of the rest of the prompt
  step_set steps;                // that use it
  step_id first_step{};          // the newest one at its start, if open: its launch may write what the sequence shares
  step_id unlaunched_step{};     // the step in which a commit alone, or a fork, last let others share more of it; none
                                 // if no step was open
  std::size_t first_unlaunched = 0;  // of the blocks, or nodes, that its launch may have to write
  bool is_withdrawn = false;     // its launch will not happen: others share none of it
  bool reuses_slots = false;     // the rest of the last blocks held tokens before, which an open step may read

  /// Where it is, and its numbers under their names.
  hot_part& hot;
  std::int64_t& num_computed_tokens = hot.num_computed_tokens;
  timestamp& last_access = hot.last_access;

  /// A batch view reads these of every row, and the block table behind them: they lie in one cache line.
  alignas(64) std::int64_t& num_tokens = hot.num_tokens;
  std::int64_t num_reserved = 0;  // tokens that slots were reserved for, if more than there are

  /// Whether the hot part has room for the next token.
  [[nodiscard]] bool has_room() const noexcept { return hot.has_room(); }
  /// The next append finds out anew.
  void forget_room() noexcept { hot.forget_room(); }

  /// Makes this the fork of a sequence, but for blocks, tokens and keys.
  void continue_as(const sequence_record& from, timestamp now) noexcept {
    forget_room();
    num_tokens = from.num_tokens;
    num_computed_tokens = from.num_computed_tokens;
    hot.num_published = from.hot.num_published;
    num_prompt_tokens = from.num_prompt_tokens;
    num_cached_tokens = from.num_cached_tokens;
    num_reserved = 0;
    steps = {};
    unlaunched_step = {};
    is_withdrawn = false;
    // An open step of the other sequence may write its slots ahead in a shared block; its release fences the block.
    reuses_slots = from.reuses_slots || from.num_reserved > from.num_tokens;
    options = from.options;
    has_ranges = from.has_ranges;
    created = last_access = now;
  }
};

/// One token stream whose blocks are nodes.
struct sequence : sequence_record {
  using sequence_record::sequence_record;

  /// Commits that publish, and appends that take blocks, touch these, too.
  block_table blocks;
  std::size_t& num_published_blocks = hot.num_published;  // at the start of the table
  chain_link tail;                                        // link that block number `num_published_blocks` continues
  chain_link window_start;                                // link that the first block still held continues

  std::size_t num_hashed_blocks = 0;  // at the start of the table: their hashes are known, and kept
  std::size_t num_branch_blocks = 0;  // at the start of the table: shared with others since creation or fork

  /// Calls `visit(blocks)` on the entries of its table.
  template <class Visit>
  void for_each_run(Visit&& visit) const noexcept {
    visit(blocks.held());
  }

  /// Prefetches what commits that publish, and appends that take blocks, touch.
  [[gnu::always_inline]] void prefetch() const noexcept {
    __builtin_prefetch(&options.publish);
    __builtin_prefetch(&keys);
    __builtin_prefetch(&reuses_slots);
    __builtin_prefetch(&num_reserved);
    __builtin_prefetch(&tail);
  }

  /// The entries and bytes of its table, for statistics.
  [[nodiscard]] table_usage usage() const noexcept { return blocks.usage(num_tokens); }
};

}  // namespace pagedkv
