#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/sequence/batch_view.hpp>
#include <pagedkv/sequence/sequence.hpp>
#include <pagedkv/storage/memory_plan.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::test {

/// The prefixes that events tell of, by hash: without groups, once for each block.
struct announced_prefixes {
  std::multiset<std::uint64_t> known;
  std::int64_t num_unknown = 0;  // were evicted
  std::int64_t num_twice = 0;    // were stored while they were known
  std::int64_t num_orphans = 0;  // continue a prefix that is not known
};

/// Every operation of a cache behind a virtual interface, so that the model is compiled once, not once for each
/// combination of policies. The group is an argument; a cache without groups has one, number 0.
class cache_under_test {
 public:
  virtual ~cache_under_test() = default;

  virtual result<admission> create_sequence(const token_run& prompt, const sequence_options& options) = 0;
  virtual result<void> append(sequence_id id, token next) = 0;
  virtual result<void> append(sequence_id id, const token_run& run) = 0;
  virtual result<void> reserve_slots(sequence_id id, std::int64_t num_ahead) = 0;
  virtual result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out) = 0;
  virtual std::size_t hash_blocks(const token_run& prompt, std::span<std::uint64_t> hashes, salt tag) const = 0;
  virtual result<void> commit(sequence_id id, std::int64_t num_tokens) = 0;
  virtual result<sequence_id> fork(sequence_id id) = 0;
  virtual result<void> truncate(sequence_id id, std::int64_t num_tokens) = 0;
  virtual result<void> release(sequence_id id, bool ended) = 0;
  virtual result<std::int64_t> withdraw(sequence_id id) = 0;
  virtual result<pinning> pin(const token_run& run, salt tag) = 0;
  virtual result<void> unpin(pin_id id) = 0;
  virtual std::int64_t unpin_all() = 0;
  virtual std::int64_t invalidate_prefix(const token_run& run, salt tag) = 0;
  virtual std::int64_t invalidate_salt(salt tag) = 0;
  virtual result<std::int64_t> invalidate_blocks(std::span<const block_id> blocks) = 0;
  virtual std::int64_t find_prefix(const token_run& run, salt tag) const = 0;
  virtual result<prompt_fit> would_fit(const token_run& prompt, const sequence_options& options) const = 0;
  virtual std::int64_t num_free_blocks() const = 0;
  virtual std::int64_t num_available_blocks() const = 0;
  virtual result<step_id> begin_step() = 0;
  virtual result<step_id> begin_step(std::span<const sequence_id> ids) = 0;
  virtual result<void> retire_step(step_id step) = 0;
  virtual result<std::int64_t> evict(std::span<block_id> blocks, step_id step) = 0;
  virtual void advance_time(timestamp now) = 0;
  virtual result<sequence_info> describe(sequence_id id) const = 0;
  virtual result<void> tokens(sequence_id id, std::int64_t first, std::span<token> out) const = 0;
  virtual result<void> slot_mapping(sequence_id id, std::int64_t first, std::span<slot> slots,
                                    std::size_t group) const = 0;
  virtual result<std::size_t> block_table(sequence_id id, std::span<block_id> blocks, std::size_t group) const = 0;
  virtual result<std::int64_t> common_prefix(std::span<const sequence_id> ids, std::size_t group) const = 0;
  virtual result<void> update(padded_batch& batch, std::span<const sequence_id> ids, std::size_t group) const = 0;
  virtual result<void> update(compressed_batch& batch, std::span<const sequence_id> ids, std::size_t group) const = 0;
  virtual result<void> write(std::int32_t layer, std::span<const slot> slots, token_rows<const float> keys,
                             token_rows<const float> values, std::size_t group) = 0;
  virtual result<void> read(std::int32_t layer, std::span<const slot> slots, token_rows<float> keys,
                            token_rows<float> values, std::size_t group) = 0;
  virtual result<std::vector<block_pair>> compact() = 0;
  virtual result<std::vector<block_pair>> resize(std::int32_t num_blocks) = 0;
  virtual std::int32_t num_blocks() const = 0;
  virtual result<std::int64_t> reset_prefix_cache() = 0;
  virtual cache_statistics statistics() const = 0;
  virtual std::vector<std::string> check_invariants() const = 0;

  // Without groups only.
  virtual result<void> drop_before(sequence_id id, std::int64_t num_tokens) = 0;

  // With groups; without, as of one group of full attention.
  virtual const memory_plan* plan() const = 0;  // null without groups
  virtual result<std::int64_t> next_saved_length(sequence_id id) const = 0;
  virtual result<std::int64_t> num_skipped_tokens(sequence_id id, std::size_t group) const = 0;
  virtual std::byte* state_part(std::size_t group, block_id block, std::int32_t part) = 0;

  announced_prefixes announced;  // if the cache has `followed_events`
  bool copies_fail = false;      // if it has `failing_backend`
};

/// The properties of a combination of policies that tests need.
struct cache_kind {
  std::string name;
  bool has_groups = false;
  bool has_tiers = false;
  bool announces = false;  // has `followed_events`
  bool scaled = false;     // elements: numbers come back within half a scale, not exactly
  bool wide = false;       // elements of 32 bits
  bool evicts = false;
  bool evicts_more = false;   // allocations may evict more blocks than they need
  std::int32_t piece = 1;     // divides the head dimension, and the hit granularity of groups
  bool moves_to_fit = true;   // shrinking moves blocks that are in the way
  bool compiled_for = false;  // the eviction policy is part of the cache's type, not chosen when it is made
  std::unique_ptr<cache_under_test> (*make)(const cache_config&) = nullptr;
};

}  // namespace pagedkv::test
