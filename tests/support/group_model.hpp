#pragma once

#include "cache_operations.hpp"
#include "groups_under_test.hpp"
#include "model_base.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// Tokens with their keys, and a name for each prefix: the salt, and the tokens and keys up to there.
struct named_text {
  pagedkv::salt salt{};
  std::vector<token> tokens;
  std::vector<prefix_key> keys;
  std::vector<std::uint64_t> names;  // element i is of the first i tokens

  named_text() : named_text(pagedkv::salt::none) {}
  explicit named_text(pagedkv::salt tag);

  void add(token next);
  void cut(std::size_t length);
  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
  [[nodiscard]] std::uint64_t name(std::int64_t length) const { return names.at(static_cast<std::size_t>(length)); }
  [[nodiscard]] token_run run() const { return {tokens, keys}; }
};

/// A sequence as the model knows it: what a caller was told, and nothing else.
struct group_member {
  sequence_id id{};
  sequence_options options;
  named_text text;
  std::int64_t num_computed = 0;
  std::int64_t num_prompt = 0;
  std::int64_t num_cached = 0;
  std::int64_t num_reserved = 0;
  std::optional<std::int64_t> branch;  // where its prompt left the prefix cache; unknown behind an eviction
  std::optional<std::int64_t> newest;  // the length of its second state
  bool is_withdrawn = false;           // nothing that continues its published tokens is published
  std::vector<std::size_t> first;      // of each group: the first place that is held behind the sinks
  std::vector<std::vector<block_id>> tables;
  timestamp created{};
  timestamp last_access{};
};

struct group_pinning {
  pin_id id{};
  named_text text;
  bool is_valid = true;  // not invalidated
};

struct group_coverage : common_coverage {
  std::int64_t exact_hits = 0;      // of which the model knew the length
  std::int64_t shortened_hits = 0;  // that a missing state made shorter
  std::int64_t invalidated = 0;        // blocks
  std::int64_t moves_with_states = 0;  // while a sequence had a second state
  std::int64_t failed_copies = 0;
  std::int64_t skipped_blocks = 0;  // released behind windows
  std::int64_t refused_cuts = 0;

  void add(const group_coverage& more) noexcept {
    common_coverage::add(more);
    exact_hits += more.exact_hits;
    shortened_hits += more.shortened_hits;
    invalidated += more.invalidated;
    moves_with_states += more.moves_with_states;
    failed_copies += more.failed_copies;
    skipped_blocks += more.skipped_blocks;
    refused_cuts += more.refused_cuts;
  }
};

/// Runs operations on a cache with groups and on what a caller knows of it, and compares after every one.
class group_model : model_base {
 public:
  group_model(groups_under_test& cache, const group_kind_under_test& kind, const cache_config& config);

  /// Says what was wrong, or nothing.
  [[nodiscard]] std::optional<std::string> run(const std::vector<operation>& operations);

  [[nodiscard]] const group_coverage& coverage() const noexcept { return coverage_; }

 private:
  struct seen_before {
    cache_statistics statistics;
    std::vector<std::int64_t> hits;  // of some sequences
  };
  // A slot that an open step may read or write.
  struct use {
    std::size_t group;
    std::int64_t offset;
    sequence_id id;
    std::uint64_t name;  // of the prefix that ends there; 0 where the step chooses the token
  };

  void apply(const operation& next);
  void create(const operation& next);
  void append(const operation& next, std::size_t num_tokens);
  void reserve_slots(const operation& next);
  void append_batch(const operation& next);
  void compute(const operation& next, bool to_end);
  void fork(const operation& next);
  void truncate(const operation& next);
  void release(std::size_t index, bool ended);
  void pin(const operation& next);
  void unpin(std::size_t index);
  void find_prefix(const operation& next);
  void begin_step(const operation& next);
  void retire_step(const operation& next);
  void evict(const operation& next);
  void compact();
  void resize(const operation& next);
  void follow_moves(std::span<const block_pair> moves);
  void invalidate(const operation& next);
  void forget(std::optional<std::uint64_t> first_run, salt tag);
  [[nodiscard]] std::int64_t num_published(const group_member& s) const;
  void reset();
  void update_batches(const operation& next);
  void ask_wrongly(const operation& next);
  void use_dead_id(const operation& next);
  void finish();

  [[nodiscard]] std::size_t num_groups() const noexcept { return config_.groups.size(); }
  [[nodiscard]] std::int64_t block_size(std::size_t g) const { return cache_.plan().groups[g].block_size; }
  [[nodiscard]] std::size_t places_for(std::size_t g, std::int64_t num_tokens) const;
  [[nodiscard]] std::size_t sinks_of(std::size_t g) const;
  [[nodiscard]] std::int64_t blocks_for(std::int64_t num_tokens) const;
  [[nodiscard]] std::int64_t least_for(std::int64_t num_cached, std::int64_t num_tokens) const;
  [[nodiscard]] std::int64_t blocks_of_state() const;
  [[nodiscard]] std::size_t end_of_table(const group_member& s, std::size_t g) const;
  [[nodiscard]] bool is_held(const group_member& s, std::size_t g, std::size_t place) const;
  [[nodiscard]] std::int64_t skipped_tokens(const group_member& s, std::size_t g) const;

  [[nodiscard]] group_member* pick(std::uint32_t number);
  [[nodiscard]] named_text draw_prompt(const operation& next) const;
  [[nodiscard]] sequence_options draw_options(const operation& next) const;
  [[nodiscard]] std::vector<token> draw_run(std::uint32_t number, std::size_t count) const;
  [[nodiscard]] std::int64_t longest_known(const named_text& text, std::int64_t most, bool with_states) const;
  [[nodiscard]] std::int64_t growth_at_most(const group_member& s, std::int64_t num_tokens) const;
  void expect_grown(group_member& s, const std::vector<token>& run, std::int64_t num_ahead, const result<void>& outcome,
                    std::int64_t available);
  [[nodiscard]] static std::int64_t end_of_prompt(const group_member& s, std::int64_t granularity);
  [[nodiscard]] bool saves_at(const group_member& s, std::int64_t length) const;
  [[nodiscard]] bool keeps_at(const group_member& s, std::int64_t length) const;
  void check_next_saved(const group_member& s);
  void commit(group_member& s, std::int64_t length);
  void note_commit(group_member& s, std::int64_t length, std::int64_t available);
  void fetch_tables(group_member& s);
  void write(const group_member& s, std::int64_t first, std::int64_t last);
  void write_state(const group_member& s, std::int64_t length);
  void check_writable(const group_member& s, std::size_t g, block_id block, std::int64_t offset,
                      std::uint64_t name) const;
  void use_in_step(step_id step, const group_member& s);

  void check();
  void check_sequence(const group_member& s);
  void check_contents(const group_member& s, std::size_t g);
  void check_statistics(const cache_statistics& now);
  void check_hit(const named_text& text);
  void note_before();
  void check_unchanged() const;

  /// Whether an operation failed because its copy did; that is allowed only when copies do.
  template <class T>
  [[nodiscard]] bool copy_failed(const result<T>& got) {
    if (got || got.error().code != error_code::backend_failure) {
      return false;
    }
    expect(cache_.copies_fail, "a copy failed that could not");
    refused_ = true;
    copy_failed_ = true;
    ++coverage_.failed_copies;
    return true;
  }
  /// For lack of blocks.
  template <class T>
  [[nodiscard]] bool lacks_blocks(const result<T>& got) {
    if (got || (got.error().code != error_code::capacity_exhausted && got.error().code != error_code::never_fits)) {
      return false;
    }
    refused_ = true;
    ++num_refusals_;
    return true;
  }

  groups_under_test& cache_;
  group_kind_under_test kind_;
  cache_config config_;
  std::int64_t granularity_;
  std::size_t with_state_;
  std::vector<group_member> live_;
  std::vector<group_pinning> pins_;
  std::vector<named_text> past_;
  std::vector<sequence_id> dead_;
  struct origin {
    std::uint64_t first_run;  // the name of the first granule
    pagedkv::salt salt;
  };
  std::map<std::uint64_t, origin> published_;  // prefixes that were committed since the last reset
  std::set<std::uint64_t> saved_;              // those of them with a state
  std::set<block_id> hidden_;                  // blocks that were invalidated, while sequences hold them
  bool exact_ = true;                          // nothing has been evicted since then
  std::map<step_id, std::multimap<block_id, use>> steps_;
  timestamp now_{};
  std::int64_t num_refusals_ = 0;
  bool copy_failed_ = false;     // for this reason
  bool may_lose_state_ = false;  // a second state, which the copy overwrote
  seen_before before_;           // the latest operation
  cache_statistics seen_;
  cache_statistics expected_;
  std::vector<padded_batch> batches_;  // of each group
  std::size_t num_checks_ = 0;
  group_coverage coverage_;
};

}  // namespace pagedkv::test
