#pragma once

#include "cache_operations.hpp"
#include "cache_under_test.hpp"
#include "model_base.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::test {

/// A sequence as the model knows it: what a caller was told, and nothing else.
struct model_sequence {
  sequence_id id{};
  sequence_options options;
  std::vector<token> tokens;
  std::vector<token> rest;              // of the prompt: still to be appended
  std::vector<prefix_key> keys;         // of the tokens, and of the rest
  std::vector<std::uint64_t> prefixes;  // element i names the salt, and the tokens and keys up to and with i
  std::int64_t num_computed = 0;
  std::int64_t num_written = 0;
  std::int64_t num_prompt = 0;
  std::int64_t num_cached = 0;
  std::int64_t num_reserved = 0;  // tokens that slots were reserved for, 0 for none
  std::size_t num_dropped = 0;  // blocks
  std::size_t num_valid = any_number;  // blocks at the start that no invalidation has hidden
  std::set<std::uint64_t> steps;  // that it was named in
  bool reuses_slots = false;      // the rest of its last block has held other tokens
  std::vector<block_id> blocks;
  timestamp created{};
  timestamp last_access{};

  static constexpr auto any_number = std::numeric_limits<std::size_t>::max();

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
};

/// Tokens with their keys.
struct model_text {
  std::vector<token> tokens;
  std::vector<prefix_key> keys;

  [[nodiscard]] token_run run() const { return {tokens, keys}; }
};

/// An append: its tokens, and its slots ahead.
struct model_growth {
  model_text text;
  std::int64_t num_ahead = 0;
};

struct model_pin {
  pin_id id{};
  std::vector<std::uint64_t> prefixes;  // of the pinned blocks
  std::size_t num_valid = model_sequence::any_number;  // tokens at the start that no invalidation has hidden
};

struct model_coverage : common_coverage {
  std::int64_t revivals_checked = 0;  // hits on blocks that no live sequence held
  std::int64_t chunks = 0;            // of prompts, appended after creation
  std::int64_t batch_failures = 0;

  void add(const model_coverage& more) noexcept {
    common_coverage::add(more);
    revivals_checked += more.revivals_checked;
    chunks += more.chunks;
    batch_failures += more.batch_failures;
  }
};

/// Runs operations on a cache and on a map of vectors, and compares everything that a caller can see, after every one.
class cache_model : model_base {
 public:
  cache_model(cache_under_test& cache, const cache_kind& kind, const cache_config& config);

  /// Says what was wrong, or nothing.
  [[nodiscard]] std::optional<std::string> run(const std::vector<operation>& operations);

  [[nodiscard]] const model_coverage& coverage() const noexcept { return coverage_; }

 private:
  // Entries of one block table: with a sliding window, more than the pool has blocks.
  static constexpr auto max_table = std::size_t{1024};

  void apply(const operation& next);
  void create(const operation& next);
  void append(const operation& next, bool run);
  void reserve_slots(const operation& next);
  void append_batch(const operation& next);
  void compute(const operation& next);
  void write_ahead(const operation& next);
  void fork(const operation& next);
  void truncate(const operation& next);
  void drop_before(const operation& next);
  void release(std::size_t index, bool ended);
  void pin(const operation& next);
  void unpin(std::size_t index);
  void unpin_all();
  void invalidate(const operation& next);
  void hide(block_id block);
  void find_prefix(const operation& next);
  void begin_step(const operation& next);
  void retire_step(const operation& next);
  void evict(const operation& next);
  void retire(step_id step);
  void compact(const operation& next);
  void resize(const operation& next);
  [[nodiscard]] bool may_hold_beyond(std::int32_t num_blocks) const;
  void follow_moves(std::span<const block_pair> moves);
  void reset();
  void advance_time(const operation& next);
  void update_batches(const operation& next);
  void ask_wrongly(const operation& next);
  void ask_wrongly_of(const model_sequence& s, const operation& next);
  void use_dead_id(const operation& next);
  void finish();

  [[nodiscard]] std::size_t block_size() const;
  [[nodiscard]] model_sequence* pick(std::uint32_t number);
  [[nodiscard]] model_text draw_prompt(const operation& next) const;
  [[nodiscard]] sequence_options draw_options(const operation& next) const;
  [[nodiscard]] model_growth draw_growth(const model_sequence& s, std::uint32_t b, std::uint32_t c, bool run) const;
  [[nodiscard]] std::vector<std::uint64_t> hash(const model_text& text, salt tag);
  [[nodiscard]] std::vector<std::uint64_t> hash_grown(const model_sequence& s, const model_text& more);
  [[nodiscard]] std::vector<std::uint64_t> name_prefixes(const model_text& text, salt tag) const;
  [[nodiscard]] std::int64_t most_cached(std::size_t num_tokens) const;
  [[nodiscard]] std::int64_t provably_cached(std::span<const std::uint64_t> prefixes) const;
  [[nodiscard]] std::int64_t blocks_for(std::int64_t num_tokens) const;
  [[nodiscard]] std::int64_t available(const block_counts& counts) const;
  [[nodiscard]] bool held_by_any(block_id block) const;
  [[nodiscard]] bool must_copy(const model_sequence& s, bool grows) const;
  [[nodiscard]] std::int64_t grown_blocks(const model_sequence& s, const model_growth& growth) const;
  [[nodiscard]] std::int64_t num_fresh_for(const model_sequence& s, const model_growth& growth) const;
  void expect_grown(model_sequence& s, const model_growth& growth, const result<void>& outcome);
  std::vector<new_block> grow(model_sequence& s, const model_growth& growth);

  void take_fresh(block_id block);
  [[nodiscard]] std::uint64_t fence_of(const std::set<std::uint64_t>& steps) const;
  void let_go(block_id block, const model_sequence& s);
  void expect_hit(block_id block, std::uint64_t prefix);
  static void extend_names(model_sequence& s, std::span<const token> tokens);
  [[nodiscard]] std::vector<block_id> fetch_table(sequence_id id);
  void write(const model_sequence& s, std::int64_t first, std::int64_t last);
  void mark_committed(model_sequence& s, std::int64_t num_tokens);

  void check();
  void check_sequence(const model_sequence& s);
  void check_stored(const model_sequence& s);
  void check_slots_ahead(const model_sequence& s);
  void check_statistics(const cache_statistics& now);
  void check_common_prefix(const model_sequence& a, const model_sequence& b);
  void check_batches(std::span<const model_sequence* const> rows);

  cache_under_test& cache_;
  cache_kind kind_;
  cache_config config_;
  std::vector<model_sequence> live_;
  std::vector<model_pin> pins_;
  std::vector<model_text> past_;  // of sequences that ended
  std::vector<sequence_id> dead_;
  std::vector<pin_id> dead_pins_;
  std::map<block_id, std::uint64_t> published_;  // contents, also after release, until the block is handed out again
  std::set<block_id> hidden_;                    // those of them that were invalidated
  bool invalidated_ = false;                     // since the last reset
  std::map<std::uint64_t, salt> committed_;      // prefixes of whole blocks since the last reset
  std::set<std::uint64_t> in_flight_;            // steps
  std::uint64_t last_step_ = 0;
  std::uint64_t last_of_everything_ = 0;  // the newest step that uses every block
  std::map<block_id, std::uint64_t> fences_;  // the newest step that may touch a block, or slots, that were given back
  bool unpinned_in_flight_ = false;
  timestamp now_{};
  cache_statistics seen_;      // after the operation before
  cache_statistics expected_;  // counts that only the model makes: prompts and so on
  std::int64_t fresh_taken_ = 0;
  std::int64_t peak_within_ = 0;
  std::int64_t peak_at_most_ = 0;  // where copies within a batch let go of blocks; 0 for exactly
  bool may_free_within_ = false;  // a batch: blocks become free before it ends
  std::size_t num_checks_ = 0;
  padded_batch padded_;
  compressed_batch compressed_;
  model_coverage coverage_;
};

}  // namespace pagedkv::test
