#pragma once

#include "../../examples/support/chosen_eviction.hpp"

#include <pagedkv/pagedkv.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::test {

/// Every operation of a cache behind one virtual interface, so that whatever drives caches is compiled once, not once
/// for each combination of policies.
class cache_under_test {
 public:
  virtual ~cache_under_test() = default;

  virtual result<admission> create_sequence(const token_run& prompt, const sequence_options& options) = 0;
  virtual result<void> append(sequence_id id, token next) = 0;
  virtual result<void> append(sequence_id id, const token_run& run) = 0;
  virtual result<void> reserve_slots(sequence_id id, std::int64_t num_ahead) = 0;
  virtual result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out) = 0;
  virtual std::size_t hash_blocks(const token_run& prompt, std::span<std::uint64_t> hashes, salt tag) = 0;
  virtual result<void> commit(sequence_id id, std::int64_t num_tokens) = 0;
  virtual result<sequence_id> fork(sequence_id id) = 0;
  virtual result<void> truncate(sequence_id id, std::int64_t num_tokens) = 0;
  virtual result<void> drop_before(sequence_id id, std::int64_t num_tokens) = 0;
  virtual result<void> release(sequence_id id, bool ended) = 0;
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
  virtual result<void> slot_mapping(sequence_id id, std::int64_t first_token, std::span<slot> slots) const = 0;
  virtual result<std::size_t> block_table(sequence_id id, std::span<block_id> blocks) const = 0;
  virtual result<std::int64_t> common_prefix(std::span<const sequence_id> ids) const = 0;
  virtual result<void> update(padded_batch& batch, std::span<const sequence_id> ids) const = 0;
  virtual result<void> update(compressed_batch& batch, std::span<const sequence_id> ids) const = 0;
  virtual result<void> write(std::int32_t layer, std::span<const slot> slots, token_rows<const float> keys,
                             token_rows<const float> values) = 0;
  virtual result<void> read(std::int32_t layer, std::span<const slot> slots, token_rows<float> keys,
                            token_rows<float> values) = 0;
  virtual result<std::vector<block_pair>> compact() = 0;
  virtual result<std::vector<block_pair>> resize(std::int32_t num_blocks) = 0;
  virtual std::int32_t num_blocks() const = 0;
  virtual result<std::int64_t> reset_prefix_cache() = 0;
  virtual cache_statistics statistics() const = 0;
  virtual std::vector<std::string> check_invariants() const = 0;
};

/// The properties of a combination of policies that tests need.
struct cache_kind {
  std::string name;
  bool scaled = false;  // elements: numbers come back within half a scale, not exactly
  bool evicts = false;
  bool evicts_more = false;  // allocations may evict more blocks than they need
  std::int32_t piece = 1;     // divides the head dimension
  bool moves_to_fit = false;  // shrinking moves blocks that are in the way
  bool compiled_for = false;  // the eviction policy is part of the cache's type, not chosen when it is made
  std::unique_ptr<cache_under_test> (*make)(const cache_config&) = nullptr;
};

template <class Cache>
class adapted_cache final : public cache_under_test {
 public:
  explicit adapted_cache(const cache_config& config) : cache_(config) {}

  result<admission> create_sequence(const token_run& prompt, const sequence_options& options) override {
    return cache_.create_sequence(prompt, options);
  }
  result<void> append(sequence_id id, token next) override { return cache_.append(id, next); }
  result<void> append(sequence_id id, const token_run& run) override { return cache_.append(id, run); }
  result<void> reserve_slots(sequence_id id, std::int64_t num_ahead) override {
    return cache_.reserve_slots(id, num_ahead);
  }
  result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out) override {
    return cache_.append_batch(entries, out);
  }
  std::size_t hash_blocks(const token_run& prompt, std::span<std::uint64_t> hashes, salt tag) override {
    return cache_.hash_blocks(prompt, hashes, tag);
  }
  result<void> commit(sequence_id id, std::int64_t num_tokens) override { return cache_.commit(id, num_tokens); }
  result<sequence_id> fork(sequence_id id) override { return cache_.fork(id); }
  result<void> truncate(sequence_id id, std::int64_t num_tokens) override { return cache_.truncate(id, num_tokens); }
  result<void> drop_before(sequence_id id, std::int64_t num_tokens) override {
    return cache_.drop_before(id, num_tokens);
  }
  result<void> release(sequence_id id, bool ended) override { return cache_.release(id, {.session_ended = ended}); }
  result<pinning> pin(const token_run& run, salt tag) override { return cache_.pin(run, tag); }
  result<void> unpin(pin_id id) override { return cache_.unpin(id); }
  std::int64_t unpin_all() override { return cache_.unpin_all(); }
  std::int64_t invalidate_prefix(const token_run& run, salt tag) override {
    return cache_.invalidate_prefix(run, tag);
  }
  std::int64_t invalidate_salt(salt tag) override { return cache_.invalidate_salt(tag); }
  result<std::int64_t> invalidate_blocks(std::span<const block_id> blocks) override {
    return cache_.invalidate_blocks(blocks);
  }
  std::int64_t find_prefix(const token_run& run, salt tag) const override {
    return cache_.find_prefix(run, tag);
  }
  result<prompt_fit> would_fit(const token_run& prompt, const sequence_options& options) const override {
    return cache_.would_fit(prompt, options);
  }
  std::int64_t num_free_blocks() const override { return cache_.num_free_blocks(); }
  std::int64_t num_available_blocks() const override { return cache_.num_available_blocks(); }
  result<step_id> begin_step() override { return cache_.begin_step(); }
  result<step_id> begin_step(std::span<const sequence_id> ids) override { return cache_.begin_step(ids); }
  result<std::int64_t> evict(std::span<block_id> blocks, step_id step) override { return cache_.evict(blocks, step); }
  result<void> retire_step(step_id step) override { return cache_.retire_step(step); }
  void advance_time(timestamp now) override { cache_.advance_time(now); }
  result<sequence_info> describe(sequence_id id) const override { return cache_.describe(id); }
  result<void> slot_mapping(sequence_id id, std::int64_t first_token, std::span<slot> slots) const override {
    return cache_.slot_mapping(id, first_token, slots);
  }
  result<std::size_t> block_table(sequence_id id, std::span<block_id> blocks) const override {
    return cache_.block_table(id, blocks);
  }
  result<std::int64_t> common_prefix(std::span<const sequence_id> ids) const override {
    return cache_.common_prefix(ids);
  }
  result<void> update(padded_batch& batch, std::span<const sequence_id> ids) const override {
    return cache_.update(batch, ids);
  }
  result<void> update(compressed_batch& batch, std::span<const sequence_id> ids) const override {
    return cache_.update(batch, ids);
  }
  result<void> write(std::int32_t layer, std::span<const slot> slots, token_rows<const float> keys,
                     token_rows<const float> values) override {
    return cache_.write(layer, slots, keys, values);
  }
  result<void> read(std::int32_t layer, std::span<const slot> slots, token_rows<float> keys,
                    token_rows<float> values) override {
    return cache_.read(layer, slots, keys, values);
  }
  result<std::vector<block_pair>> compact() override { return cache_.compact(); }
  result<std::vector<block_pair>> resize(std::int32_t num_blocks) override { return cache_.resize(num_blocks); }
  std::int32_t num_blocks() const override { return cache_.num_blocks(); }
  result<std::int64_t> reset_prefix_cache() override { return cache_.reset_prefix_cache(); }
  cache_statistics statistics() const override { return cache_.statistics(); }
  std::vector<std::string> check_invariants() const override { return cache_.check_invariants(); }

 private:
  Cache cache_;
};

template <class Element, class Locking, class Eviction, class Layout>
[[nodiscard]] cache_kind describe_kind() {
  auto kind = cache_kind{};
  for (const auto part : {Element::name, Locking::name, Eviction::name}) {
    kind.name += std::string(part) + " ";
  }
  if constexpr (strided_layout<Layout>) {
    kind.name += Layout::dimensions == dimension_order::nhd ? "nhd " : "hnd ";
  } else {
    kind.name += "piecewise ";
    kind.piece = static_cast<std::int32_t>(16 / sizeof(typename Element::storage));
  }
  kind.name += Layout::storage == storage_order::layer_major ? "layer_major" : "block_major";
  kind.scaled = Element::scaled;
  kind.evicts = evicts<Eviction>;
  kind.moves_to_fit = detail::runs_alone<Locking>;
  return kind;
}

/// A cache compiled for its eviction policy.
template <class Element, class Locking, class Eviction, class Layout = nhd_layer_major,
          class Allocator = host_allocator>
[[nodiscard]] cache_kind make_kind() {
  auto kind = describe_kind<Element, Locking, Eviction, Layout>();
  kind.compiled_for = true;
  kind.make = [](const cache_config& config) -> std::unique_ptr<cache_under_test> {
    return std::make_unique<adapted_cache<kv_cache<Element, Locking, Eviction, Layout, Allocator>>>(config);
  };
  return kind;
}

/// A cache compiled for any policy that evicts, with this one. Some keep strict orders, so not under `lock_free`.
template <class Element, class Locking, class Eviction>
[[nodiscard]] cache_kind make_kind_by_choice() {
  static_assert(evicts<Eviction>);
  auto kind = describe_kind<Element, Locking, Eviction, nhd_layer_major>();
  kind.make = [](const cache_config& config) -> std::unique_ptr<cache_under_test> {
    using chosen = support::chosen_eviction<false>;
    chosen::factory = support::any_eviction_of<Eviction>::make;
    return std::make_unique<adapted_cache<kv_cache<Element, Locking, chosen>>>(config);
  };
  return kind;
}

}  // namespace pagedkv::test
