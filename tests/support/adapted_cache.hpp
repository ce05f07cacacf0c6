#pragma once

#include "../../examples/support/chosen_eviction.hpp"
#include "cache_under_test.hpp"

#include <pagedkv/pagedkv.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// Follows the events that tell of prefixes.
struct followed_events {
  static constexpr auto kinds = event_kinds{event_kind::stored, event_kind::evicted, event_kind::reset};

  announced_prefixes* to;

  void emit(const cache_event& event) noexcept {
    if (event.kind == event_kind::reset) {
      to->known.clear();
    } else if (event.kind == event_kind::evicted) {
      to->num_unknown += to->known.extract(event.hash).empty();
    } else {
      to->num_orphans += event.origin != no_block && !to->known.contains(event.parent_hash);
      to->num_twice += to->known.contains(event.hash);
      to->known.insert(event.hash);
    }
  }
};

static_assert(events<followed_events>);

/// The host backend, whose copies and moves fail on demand.
struct failing_backend : host_backend {
  const bool* fails;

  explicit failing_backend(const bool& when) : fails(&when) {}

  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    return *fails ? error{error_code::backend_failure, "copy"} : host_backend::copy_blocks(view, pairs, stream);
  }
  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    return *fails ? error{error_code::backend_failure, "move"} : host_backend::move_blocks(view, pairs, stream);
  }
};

static_assert(backend_for<failing_backend, float32>);

/// Implements the interface for a cache.
template <class Cache>
class adapted_cache : public cache_under_test {
  static constexpr bool has_groups = Cache::layers_differ;

 public:
  explicit adapted_cache(const cache_config& config) : cache_(make(config, *this)) {}

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
  std::size_t hash_blocks(const token_run& prompt, std::span<std::uint64_t> hashes, salt tag) const override {
    return cache_.hash_blocks(prompt, hashes, tag);
  }
  result<void> commit(sequence_id id, std::int64_t num_tokens) override { return cache_.commit(id, num_tokens); }
  result<sequence_id> fork(sequence_id id) override { return cache_.fork(id); }
  result<void> truncate(sequence_id id, std::int64_t num_tokens) override { return cache_.truncate(id, num_tokens); }
  result<void> release(sequence_id id, bool ended) override { return cache_.release(id, {.session_ended = ended}); }
  result<std::int64_t> withdraw(sequence_id id) override { return cache_.withdraw(id); }
  result<pinning> pin(const token_run& run, salt tag) override { return cache_.pin(run, tag); }
  result<void> unpin(pin_id id) override { return cache_.unpin(id); }
  std::int64_t unpin_all() override { return cache_.unpin_all(); }
  std::int64_t invalidate_prefix(const token_run& run, salt tag) override { return cache_.invalidate_prefix(run, tag); }
  std::int64_t invalidate_salt(salt tag) override { return cache_.invalidate_salt(tag); }
  result<std::int64_t> invalidate_blocks(std::span<const block_id> blocks) override {
    return cache_.invalidate_blocks(blocks);
  }
  std::int64_t find_prefix(const token_run& run, salt tag) const override {
    const result<std::int64_t> found = cache_.find_prefix(run, tag);
    return found.value();
  }
  result<prompt_fit> would_fit(const token_run& prompt, const sequence_options& options) const override {
    return cache_.would_fit(prompt, options);
  }
  std::int64_t num_free_blocks() const override { return cache_.num_free_blocks(); }
  std::int64_t num_available_blocks() const override { return cache_.num_available_blocks(); }
  result<step_id> begin_step() override { return cache_.begin_step(); }
  result<step_id> begin_step(std::span<const sequence_id> ids) override { return cache_.begin_step(ids); }
  result<void> retire_step(step_id step) override { return cache_.retire_step(step); }
  result<std::int64_t> evict(std::span<block_id> blocks, step_id step) override { return cache_.evict(blocks, step); }
  void advance_time(timestamp now) override { cache_.advance_time(now); }
  result<sequence_info> describe(sequence_id id) const override { return cache_.describe(id); }
  result<void> tokens(sequence_id id, std::int64_t first, std::span<token> out) const override {
    return cache_.tokens(id, first, out);
  }
  result<void> slot_mapping(sequence_id id, std::int64_t first, std::span<slot> slots,
                            std::size_t group) const override {
    return cache_.slot_mapping(id, first, slots, group);
  }
  result<std::size_t> block_table(sequence_id id, std::span<block_id> blocks, std::size_t group) const override {
    return cache_.block_table(id, blocks, 0, group);
  }
  result<std::int64_t> common_prefix(std::span<const sequence_id> ids, std::size_t group) const override {
    return cache_.common_prefix(ids, group);
  }
  result<void> update(padded_batch& batch, std::span<const sequence_id> ids, std::size_t group) const override {
    return cache_.update(batch, ids, group);
  }
  result<void> update(compressed_batch& batch, std::span<const sequence_id> ids, std::size_t group) const override {
    return cache_.update(batch, ids, group);
  }
  result<void> write(std::int32_t layer, std::span<const slot> slots, token_rows<const float> keys,
                     token_rows<const float> values, std::size_t group) override {
    return cache_.write(layer, slots, keys, values, {}, group);
  }
  result<void> read(std::int32_t layer, std::span<const slot> slots, token_rows<float> keys, token_rows<float> values,
                    std::size_t group) override {
    return cache_.read(layer, slots, keys, values, {}, group);
  }
  result<std::vector<block_pair>> compact() override { return cache_.compact(); }
  result<std::vector<block_pair>> resize(std::int32_t num_blocks) override { return cache_.resize(num_blocks); }
  std::int32_t num_blocks() const override { return cache_.num_blocks(); }
  result<std::int64_t> reset_prefix_cache() override { return cache_.reset_prefix_cache(); }
  cache_statistics statistics() const override { return cache_.statistics(); }
  std::vector<std::string> check_invariants() const override { return cache_.check_invariants(); }

  result<void> drop_before(sequence_id id, std::int64_t num_tokens) override {
    if constexpr (has_groups) {
      return error{error_code::invalid_argument, "drop_before of a cache with groups", num_tokens};
    } else {
      return cache_.drop_before(id, num_tokens);
    }
  }
  const memory_plan* plan() const override {
    if constexpr (has_groups) {
      return &cache_.plan();
    } else {
      return nullptr;
    }
  }
  result<std::int64_t> next_saved_length([[maybe_unused]] sequence_id id) const override {
    if constexpr (has_groups) {
      return cache_.next_saved_length(id);
    } else {
      return std::numeric_limits<std::int64_t>::max();
    }
  }
  result<std::int64_t> num_skipped_tokens([[maybe_unused]] sequence_id id,
                                          [[maybe_unused]] std::size_t group) const override {
    if constexpr (has_groups) {
      return cache_.num_skipped_tokens(id, group);
    } else {
      return std::int64_t{0};
    }
  }
  std::byte* state_part([[maybe_unused]] std::size_t group, [[maybe_unused]] block_id block,
                        [[maybe_unused]] std::int32_t part) override {
    if constexpr (has_groups) {
      return cache_.state_part(group, block, part);
    } else {
      return nullptr;
    }
  }

 protected:
  /// `make_cache(interface)` makes the cache.
  template <class Make>
  adapted_cache(std::in_place_t, const Make& make_cache) : cache_(make_cache(static_cast<cache_under_test&>(*this))) {}

  Cache cache_;

 private:
  [[nodiscard]] static Cache make(const cache_config& config, [[maybe_unused]] cache_under_test& self) {
    if constexpr (std::is_same_v<typename Cache::events_type, followed_events>) {
      return Cache(config, host_allocator{}, failing_backend{self.copies_fail}, followed_events{&self.announced});
    } else {
      return Cache(config);
    }
  }
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
  kind.wide = std::is_same_v<Element, float32>;
  kind.evicts = evicts<Eviction>;
  kind.moves_to_fit = detail::runs_alone<Locking>;
  return kind;
}

/// A kind whose caches are of this type.
template <class Cache>
[[nodiscard]] cache_kind made_as(cache_kind kind) {
  kind.compiled_for = true;
  kind.announces = std::is_same_v<typename Cache::events_type, followed_events>;
  kind.make = [](const cache_config& config) -> std::unique_ptr<cache_under_test> {
    return std::make_unique<adapted_cache<Cache>>(config);
  };
  return kind;
}

/// A kind whose caches are of this type, compiled for any policy that evicts, with this one.
template <class Cache, class Eviction>
[[nodiscard]] cache_kind made_by_choice(cache_kind kind) {
  static_assert(evicts<Eviction>);
  kind = made_as<Cache>(kind);
  kind.compiled_for = false;
  kind.make = [](const cache_config& config) -> std::unique_ptr<cache_under_test> {
    support::chosen_eviction<false>::factory = support::any_eviction_of<Eviction>::make;
    return std::make_unique<adapted_cache<Cache>>(config);
  };
  return kind;
}

/// A cache compiled for its eviction policy.
template <class Element, class Locking, class Eviction, class Layout = nhd_layer_major,
          class Allocator = host_allocator>
[[nodiscard]] cache_kind make_kind() {
  return made_as<kv_cache<Element, Locking, Eviction, Layout, Allocator>>(
      describe_kind<Element, Locking, Eviction, Layout>());
}

/// A cache whose events are followed and whose copies fail, compiled for any policy that evicts, with this one. Some
/// keep strict orders, so not under `lock_free`.
template <class Element, class Locking, class Eviction>
[[nodiscard]] cache_kind make_kind_by_choice() {
  using cache = kv_cache<Element, Locking, support::chosen_eviction<false>, failing_backend, followed_events>;
  return made_by_choice<cache, Eviction>(describe_kind<Element, Locking, Eviction, nhd_layer_major>());
}

}  // namespace pagedkv::test
