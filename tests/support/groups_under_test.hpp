#pragma once

#include "../../examples/support/chosen_eviction.hpp"
#include "eager_runs.hpp"
#include "operations_under_test.hpp"

#include <pagedkv/pagedkv.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::test {

/// The prefixes that events tell of, by hash.
struct announced_prefixes {
  std::set<std::uint64_t> known;
  std::int64_t num_wrong = 0;  // events that contradict those before
};

/// Keeps them.
struct followed_events {
  static constexpr auto kinds = event_kinds{event_kind::stored, event_kind::evicted, event_kind::reset};

  announced_prefixes* to;

  void emit(const cache_event& event) noexcept {
    if (event.kind == event_kind::reset) {
      to->known.clear();
    } else if (event.kind == event_kind::evicted) {
      to->num_wrong += to->known.erase(event.hash) == 0;
    } else {
      to->num_wrong += event.origin != no_block && !to->known.contains(event.parent_hash);
      to->num_wrong += !to->known.insert(event.hash).second;
    }
  }
};

static_assert(events<followed_events>);

/// The host backend, whose copies and moves fail on demand.
struct failing_backend : host_backend {
  const bool* fails;

  explicit failing_backend(const bool& when) : fails(&when) {}

  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream on) noexcept {
    return *fails ? error{error_code::backend_failure, "copy"} : host_backend::copy_blocks(view, pairs, on);
  }
  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream on) noexcept {
    return *fails ? error{error_code::backend_failure, "move"} : host_backend::move_blocks(view, pairs, on);
  }
};

static_assert(backend_for<failing_backend, float32>);

/// Every operation of a cache with groups.
class groups_under_test : public operations_under_test {
 public:
  virtual result<admission> create_sequence(const token_run& prompt, const sequence_options& options) = 0;
  virtual result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out) = 0;
  virtual result<std::int64_t> next_saved_length(sequence_id id) const = 0;
  virtual result<void> tokens(sequence_id id, std::int64_t first, std::span<token> out) const = 0;
  virtual result<void> slot_mapping(std::size_t group, sequence_id id, std::int64_t first,
                                    std::span<slot> slots) const = 0;
  virtual result<std::size_t> block_table(std::size_t group, sequence_id id, std::span<block_id> blocks) const = 0;
  virtual result<std::int64_t> num_skipped_tokens(std::size_t group, sequence_id id) const = 0;
  virtual result<void> update(std::size_t group, padded_batch& batch, std::span<const sequence_id> ids) const = 0;
  virtual result<void> write(std::size_t group, std::int32_t layer, std::span<const slot> slots,
                             token_rows<const float> keys, token_rows<const float> values) = 0;
  virtual result<void> read(std::size_t group, std::int32_t layer, std::span<const slot> slots, token_rows<float> keys,
                            token_rows<float> values) = 0;
  virtual std::byte* state_part(std::size_t group, block_id block, std::int32_t part) = 0;
  virtual const memory_plan& plan() const = 0;

  announced_prefixes announced;
  bool copies_fail = false;
};

/// The properties of a combination of policies that the model needs.
struct group_kind_under_test {
  std::string name;
  bool evicts = false;
  bool has_tiers = false;
  std::int32_t piece = 1;  // divides the hit granularity, and the head dimension, which K and V share if it is not 1
  std::unique_ptr<groups_under_test> (*make)(const cache_config&) = nullptr;
};

template <class Cache>
class adapted_groups : public adapted_operations<groups_under_test, Cache> {
  using operations = adapted_operations<groups_under_test, Cache>;

 protected:
  using operations::cache_;

 public:
  explicit adapted_groups(const cache_config& config)
      : operations([&](groups_under_test& self) {
          return Cache(config, host_allocator{}, failing_backend{self.copies_fail}, followed_events{&self.announced});
        }) {}
  /// `make(interface)` makes the cache.
  template <class Make>
  explicit adapted_groups(const Make& make) : operations(make) {}

  result<admission> create_sequence(const token_run& prompt, const sequence_options& options) override {
    return cache_.create_sequence(prompt, options);
  }
  result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out) override {
    return cache_.append_batch(entries, out);
  }
  result<std::int64_t> next_saved_length(sequence_id id) const override { return cache_.next_saved_length(id); }
  result<void> tokens(sequence_id id, std::int64_t first, std::span<token> out) const override {
    return cache_.tokens(id, first, out);
  }
  result<void> slot_mapping(std::size_t group, sequence_id id, std::int64_t first,
                            std::span<slot> slots) const override {
    return cache_.slot_mapping(id, first, slots, group);
  }
  result<std::size_t> block_table(std::size_t group, sequence_id id, std::span<block_id> blocks) const override {
    return cache_.block_table(id, blocks, 0, group);
  }
  result<std::int64_t> num_skipped_tokens(std::size_t group, sequence_id id) const override {
    return cache_.num_skipped_tokens(id, group);
  }
  result<void> update(std::size_t group, padded_batch& batch, std::span<const sequence_id> ids) const override {
    return cache_.update(batch, ids, group);
  }
  result<void> write(std::size_t group, std::int32_t layer, std::span<const slot> slots, token_rows<const float> keys,
                     token_rows<const float> values) override {
    return cache_.write(layer, slots, keys, values, {}, group);
  }
  result<void> read(std::size_t group, std::int32_t layer, std::span<const slot> slots, token_rows<float> keys,
                    token_rows<float> values) override {
    return cache_.read(layer, slots, keys, values, {}, group);
  }
  std::byte* state_part(std::size_t group, block_id block, std::int32_t part) override {
    return cache_.state_part(group, block, part);
  }
  const memory_plan& plan() const override { return cache_.plan(); }
};

/// A cache for any policy that evicts, with this one.
template <class Locking, class Layout, class Eviction>
[[nodiscard]] group_kind_under_test make_group_kind() {
  static_assert(evicts<Eviction>);
  constexpr auto piece = strided_layout<Layout> ? 1 : static_cast<std::int32_t>(16 / sizeof(float));
  return {std::string(Locking::name) + " " + std::string(Eviction::name) + (piece == 1 ? "" : " in pieces"), true,
          false, piece, [](const cache_config& config) -> std::unique_ptr<groups_under_test> {
            using chosen = support::chosen_eviction<false>;
            using cache = group_cache<float32, Locking, chosen, Layout, failing_backend, followed_events>;
            chosen::factory = support::any_eviction_of<Eviction>::make;
            return std::make_unique<adapted_groups<cache>>(config);
          }};
}

/// A cache that makes runs.
template <class Locking, class Eviction>
[[nodiscard]] group_kind_under_test make_group_kind_with_runs() {
  return {std::string(Locking::name) + " " + std::string(Eviction::name) + " " + std::string(contiguous_runs::name),
          evicts<Eviction>, false, 1, [](const cache_config& config) -> std::unique_ptr<groups_under_test> {
            using cache = group_cache<float32, Locking, Eviction, eager_runs, failing_backend, followed_events>;
            return std::make_unique<adapted_groups<cache>>(config);
          }};
}

/// A cache that never evicts.
template <class Locking>
[[nodiscard]] group_kind_under_test make_group_kind_without_eviction() {
  return {std::string(Locking::name) + " " + std::string(no_eviction::name), false, false, 1,
          [](const cache_config& config) -> std::unique_ptr<groups_under_test> {
            using cache = group_cache<float32, Locking, no_eviction, failing_backend, followed_events>;
            return std::make_unique<adapted_groups<cache>>(config);
          }};
}

}  // namespace pagedkv::test
