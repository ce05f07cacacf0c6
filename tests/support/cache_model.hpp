#pragma once

#include "cache_operations.hpp"
#include "cache_under_test.hpp"
#include "known_prefixes.hpp"
#include "model_checking.hpp"
#include "model_draw.hpp"
#include "model_sequence.hpp"
#include "model_shape.hpp"
#include "open_steps.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// Runs operations on a cache and on a map of vectors, and compares everything that a caller can see, after every one.
///
/// Without groups, a caller can count blocks: the model knows how many an operation takes, copies and evicts. With
/// them, it knows bounds. A hit's length it knows as long as nothing was evicted; behind that, tiers add what was
/// committed.
class cache_model : model_checking {
 public:
  cache_model(cache_under_test& cache, const cache_kind& kind, const cache_config& config);

  /// Says what was wrong, or nothing.
  [[nodiscard]] std::optional<std::string> run(const std::vector<operation>& operations);

  [[nodiscard]] const model_coverage& coverage() const noexcept { return coverage_; }

 private:
  // Entries of one block table: with released blocks, more than the pool has.
  static constexpr auto max_table = std::size_t{1024};

  // Sequences.
  void create(const operation& next);
  void check_refused_prompt(const named_text& text, const sequence_options& options, std::int64_t hit, error_code code);
  void check_admission(const named_text& text, const sequence_options& options, std::int64_t hit,
                       const prompt_fit& forecast, const admission& made);
  [[nodiscard]] model_sequence admit(named_text text, const sequence_options& options, const admission& made,
                                     std::int64_t on_device);
  void take_table(model_sequence& s, std::size_t g, std::int64_t on_device);
  void append(const operation& next, bool run);
  void reserve_slots(const operation& next);
  void follow_growth(model_sequence& s, const model_growth& growth, const result<void>& outcome);
  std::vector<new_block> grow(model_sequence& s, const model_growth& growth);
  void grow_table(model_sequence& s, std::size_t g, const model_growth& growth, std::vector<new_block>& added);
  void compute(const operation& next, bool to_end);
  void write_ahead(const operation& next);
  void commit(model_sequence& s, std::int64_t length);
  void follow_commit(model_sequence& s, std::int64_t length, std::int64_t available);
  void publish(model_sequence& s, std::int64_t length, bool has_room);
  std::size_t drop_to(model_sequence& s, std::size_t g, std::size_t first);
  void fork(const operation& next);
  void truncate(const operation& next);
  void drop_before(const operation& next);
  void release(std::size_t index, bool ended);
  void serve(const operation& next);
  void remember(named_text text);

  // Batches.
  struct batch_row {
    model_sequence* s;
    model_growth growth;
    std::int64_t commit;
  };
  void append_batch(const operation& next);
  [[nodiscard]] std::vector<batch_row> prepare_rows(const operation& next);
  void follow_batch(std::span<const batch_row> rows, std::span<const batch_entry> entries,
                    std::span<const batch_failure> failures, std::span<slot> slots, std::span<const new_block> blocks);
  [[nodiscard]] std::vector<new_block> follow_entry(const batch_row& row, const batch_failure* failure);
  void check_slots_of_entry(const batch_row* row, bool has_failed, std::span<const slot> slots, std::size_t first_slot,
                            std::size_t num_slots);
  void repeat_entry(batch_entry entry, std::span<slot> slots);
  void update_batches(const operation& next);

  // The pool and the prefix cache.
  void pin(const operation& next);
  void unpin(std::size_t index);
  void unpin_all();
  void invalidate(const operation& next);
  void invalidate_blocks(const operation& next);
  void withdraw(const model_sequence& s);
  void follow_hiding(const model_sequence& s, std::int64_t keep);
  void hide(block_id block);
  void forget(const named_text* text, salt tag);
  void begin_step(const operation& next);
  void retire_step(std::uint32_t number);
  void evict(const operation& next);
  void compact(const operation& next);
  void resize(const operation& next);
  [[nodiscard]] bool may_hold_beyond(std::int32_t num_blocks) const;
  void follow_moves(std::span<const block_pair> moves);
  void reset();
  void advance_time(const operation& next);

  // Wrong calls.
  void ask_wrongly(const operation& next);
  void ask_wrongly_of(const model_sequence& s);
  void ask_wrongly_of(const model_sequence& s, std::size_t g);
  void use_dead_id(const operation& next);

  void apply(const operation& next);
  void perform(const operation& next);
  void finish();

  // The knowledge of a caller.
  [[nodiscard]] bool counts_blocks() const noexcept { return !kind_.has_groups; }
  [[nodiscard]] model_sequence* pick(std::uint32_t number);
  [[nodiscard]] bool is_full() const { return std::ssize(live_) == config_.max_sequences; }
  [[nodiscard]] named_text draw_text(const operation& next) const;
  [[nodiscard]] std::vector<std::uint64_t> hash(const named_text& text);
  [[nodiscard]] std::int64_t find(const named_text& text) const;
  [[nodiscard]] std::int64_t find_all(named_text text) const;
  [[nodiscard]] std::int64_t provably_cached(const named_text& text) const;
  [[nodiscard]] std::int64_t num_published(const model_sequence& s) const;
  [[nodiscard]] std::int64_t available(const block_counts& counts) const;
  [[nodiscard]] std::int64_t num_held(const model_sequence& s) const;
  [[nodiscard]] std::int64_t num_entries(const model_sequence& s) const;
  [[nodiscard]] bool held_by_any(block_id block) const;
  [[nodiscard]] bool is_held_from(std::int64_t first) const;
  [[nodiscard]] bool must_copy(const model_sequence& s) const;
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> fresh_for(const model_sequence& s, std::int64_t length) const;
  [[nodiscard]] std::int64_t start_of(const model_sequence& s) const;
  [[nodiscard]] bool can_cut(const model_sequence& s, std::int64_t length) const;
  [[nodiscard]] bool saves_at(const model_sequence& s, std::int64_t length) const;
  [[nodiscard]] bool keeps_at(const model_sequence& s, std::int64_t length) const;
  [[nodiscard]] std::vector<block_id> shown(const model_sequence& s, std::size_t g) const;
  void take_fresh(block_id block);
  [[nodiscard]] bool is_from_tier(block_id block, std::uint64_t name) const;
  void expect_hit(block_id block, std::uint64_t name);
  template <class T>
  [[nodiscard]] bool copy_failed(const result<T>& got);
  template <class T>
  [[nodiscard]] bool lacks_blocks(const result<T>& got);

  // Bytes.
  [[nodiscard]] std::vector<block_id> fetch_shown(const model_sequence& s, std::size_t g) const;
  [[nodiscard]] std::vector<block_id> fetch_table(const model_sequence& s, std::size_t g) const;
  [[nodiscard]] std::vector<slot> fetch_slots(const model_sequence& s, std::size_t g, std::int64_t first,
                                              std::int64_t last) const;
  [[nodiscard]] slot slot_of(const model_sequence& s, std::size_t g, std::int64_t token) const;
  void write(model_sequence& s, std::int64_t last);
  void write_group(const model_sequence& s, std::size_t g, std::int64_t last);
  void write_state(const model_sequence& s, std::int64_t length);
  [[nodiscard]] std::vector<std::span<std::byte>> state_of(const model_sequence& s) const;

  // Checks after every operation.
  void note_before();
  void check_unchanged() const;
  void check();
  void check_events() const;
  void check_sequence(const model_sequence& s);
  void check_table(const model_sequence& s, std::size_t g);
  void check_slots_ahead(const model_sequence& s, std::size_t g);
  void check_next_saved(const model_sequence& s);
  void check_stored(const model_sequence& s, std::size_t g);
  void check_state(const model_sequence& s) const;
  [[nodiscard]] std::int64_t check_hit(const named_text& text, const token_run& run);
  void check_pins() const;
  void check_common_prefix(const model_sequence& a, const model_sequence& b);
  void check_batches(std::span<const model_sequence* const> rows, std::size_t g);
  void check_statistics(const cache_statistics& now);
  void check_blocks(const cache_statistics& now);
  void count_evictions(const cache_statistics& now);
  void count_peak(const cache_statistics& now);

  cache_under_test& cache_;
  cache_kind kind_;
  cache_config config_;
  model_shape shape_;
  draw_sizes sizes_;
  std::vector<model_sequence> live_;
  std::vector<model_pin> pins_;
  std::vector<named_text> past_;  // of sequences that ended or were cut
  std::vector<sequence_id> dead_;
  std::vector<pin_id> dead_pins_;
  known_prefixes prefixes_;
  struct cached_block {
    std::uint64_t name = 0;  // of its contents
    bool is_hidden = false;  // by an invalidation
  };
  // Without groups, those that were published, until they are handed out again; with groups, those that are hidden.
  std::map<block_id, cached_block> cached_;
  bool exact_ = true;         // nothing was evicted, nor single blocks invalidated, since the last reset
  bool invalidated_ = false;  // since the last reset
  open_steps steps_;
  bool unpinned_in_flight_ = false;
  timestamp now_{};
  struct {
    cache_statistics statistics;
    std::vector<std::int64_t> hits;  // of some sequences
  } before_;                         // the latest operation
  cache_statistics seen_;            // after the operation before
  cache_statistics expected_;        // counts that only the model makes: prompts and so on
  std::int64_t fresh_taken_ = 0;     // by the latest operation
  std::int64_t peak_within_ = 0;
  std::int64_t peak_at_most_ = 0;  // where copies within a batch let go of blocks; 0 for exactly
  bool in_batch_ = false;          // the latest operation is one: blocks become free before it ends
  bool copy_failed_ = false;       // for this reason it was refused
  bool may_lose_state_ = false;    // a second state, which the copy overwrote
  std::size_t num_checks_ = 0;
  std::vector<padded_batch> padded_;  // of each group
  std::vector<compressed_batch> compressed_;
  model_coverage coverage_;
};

/// Whether an operation failed because its copy did; that is allowed only when copies do.
template <class T>
bool cache_model::copy_failed(const result<T>& got) {
  if (got || got.error().code != error_code::backend_failure) {
    return false;
  }
  expect(cache_.copies_fail, "a copy failed that could not");
  refused_ = copy_failed_ = true;
  ++coverage_.failed_copies;
  return true;
}

/// Whether it failed for lack of blocks.
template <class T>
bool cache_model::lacks_blocks(const result<T>& got) {
  if (got || (got.error().code != error_code::capacity_exhausted && got.error().code != error_code::never_fits)) {
    return false;
  }
  refused_ = true;
  ++expected_.refusals;
  return true;
}

}  // namespace pagedkv::test
