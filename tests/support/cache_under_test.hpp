#pragma once

#include "../../examples/support/chosen_eviction.hpp"
#include "operations_under_test.hpp"

#include <pagedkv/pagedkv.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::test {

/// Every operation of a cache without groups.
class cache_under_test : public operations_under_test {
 public:
  using operations_under_test::append;

  virtual result<admission> create_sequence(const token_run& prompt, const sequence_options& options) = 0;
  virtual result<void> append(sequence_id id, token next) = 0;
  virtual result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out) = 0;
  virtual result<void> drop_before(sequence_id id, std::int64_t num_tokens) = 0;
  virtual result<void> slot_mapping(sequence_id id, std::int64_t first_token, std::span<slot> slots) const = 0;
  virtual result<std::size_t> block_table(sequence_id id, std::span<block_id> blocks) const = 0;
  virtual result<std::int64_t> common_prefix(std::span<const sequence_id> ids) const = 0;
  virtual result<void> update(padded_batch& batch, std::span<const sequence_id> ids) const = 0;
  virtual result<void> update(compressed_batch& batch, std::span<const sequence_id> ids) const = 0;
  virtual result<void> write(std::int32_t layer, std::span<const slot> slots, token_rows<const float> keys,
                             token_rows<const float> values) = 0;
  virtual result<void> read(std::int32_t layer, std::span<const slot> slots, token_rows<float> keys,
                            token_rows<float> values) = 0;
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
class adapted_cache final : public adapted_operations<cache_under_test, Cache> {
  using operations = adapted_operations<cache_under_test, Cache>;
  using operations::cache_;

 public:
  using operations::append;

  explicit adapted_cache(const cache_config& config)
      : operations([&](const cache_under_test&) { return Cache(config); }) {}

  result<admission> create_sequence(const token_run& prompt, const sequence_options& options) override {
    return cache_.create_sequence(prompt, options);
  }
  result<void> append(sequence_id id, token next) override { return cache_.append(id, next); }
  result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out) override {
    return cache_.append_batch(entries, out);
  }
  result<void> drop_before(sequence_id id, std::int64_t num_tokens) override {
    return cache_.drop_before(id, num_tokens);
  }
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
