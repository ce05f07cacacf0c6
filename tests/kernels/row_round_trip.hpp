#pragma once

#include "../support/printing.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

// Rows that are appended and gathered again, on every target.
namespace pagedkv::test {

template <class Target, class Element, class Layout>
struct combination {
  using target = Target;
  using element = Element;
  using layout_type = Layout;
};

template <class Element, class Layout>
using rows_on_host = combination<host_target, Element, Layout>;
template <class Element, class Layout>
using rows_on_waves_of_64 = combination<hip_target<0>, Element, Layout>;
template <class Element, class Layout>
using rows_on_waves_of_32 = combination<hip_target<1>, Element, Layout>;

struct row_shape {
  std::int32_t block_size;
  std::int32_t num_blocks;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::size_t num_tokens;
  std::int64_t gap;  // numbers between the caller's rows
};

/// Where the layers of a cache lie, or those of one group in blocks that several share.
template <class Element, class Layout>
struct laid_out {
  cache_config config;  // of these layers
  storage_plan plan;
  std::int64_t block_bytes = 0;

  [[nodiscard]] reference_storage<Element, Layout> reference(std::vector<std::byte>& bytes) const {
    return {config, bytes.data(), block_bytes};
  }
};

/// Nothing if the layout does not take the sizes.
template <class Element, class Layout>
std::optional<laid_out<Element, Layout>> lay_out(const cache_config& config) {
  const auto planned = plan_storage<Layout>(config, size_of_element<Element>);
  return planned ? std::optional{laid_out<Element, Layout>{config, *planned}} : std::nullopt;
}

/// Appends rows stored as `Rows` to the second layer, compares every byte of the storage with a plain loop by the
/// published formulas, and gathers the rows again.
template <class Rows, class Target, class Element, class Layout>
void append_and_gather(Target& target, const laid_out<Element, Layout>& layers, const std::vector<slot>& slots,
                       std::int64_t gap, std::mt19937& random) {
  const auto& config = layers.config;
  const auto tokens = static_cast<std::int64_t>(slots.size());
  auto keys = rows_of<Rows>(tokens, config.num_kv_heads, config.head_dim, gap);
  auto values = rows_of<Rows>(tokens, config.num_kv_heads, config.head_dim, gap);
  keys.fill(tokens, config.num_kv_heads, random, 3.0F);
  values.fill(tokens, config.num_kv_heads, random, 300.0F);
  const auto& planned = layers.plan;
  auto expected = random_bytes(static_cast<std::size_t>(planned.bytes), random);

  const auto storage = target_array<std::byte, Target>(target, expected);
  const auto scales = target_scales<Element, Target>(target, config);
  const auto view = scales.in(at(planned.view, storage.data()));
  const auto mapping = target_array<slot, Target>(target, slots);
  const auto all = std::span<const slot>{mapping.data(), mapping.size()};
  using number = typename Rows::storage;
  const auto key_rows = target_array<number, Target>(target, keys.numbers);
  const auto value_rows = target_array<number, Target>(target, values.numbers);
  REQUIRE(target.backend.template append<Element, Rows>(view, 1, all, keys.view(key_rows.data()),
                                                        values.view(value_rows.data()), target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  const auto reference = layers.reference(expected);
  reference_append(reference, 1, slots, keys, values);
  REQUIRE(same_bits(storage.values(), expected));

  std::fill(keys.numbers.begin(), keys.numbers.end(), rows_of<Rows>::canary());
  std::fill(values.numbers.begin(), values.numbers.end(), rows_of<Rows>::canary());
  const auto key_out = target_array<number, Target>(target, keys.numbers);
  const auto value_out = target_array<number, Target>(target, values.numbers);
  REQUIRE(target.backend.template gather<Element, Rows>(view, 1, all, keys.view(key_out.data()),
                                                        values.view(value_out.data()), target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  reference_gather(reference, 1, slots, keys, values);
  REQUIRE(same_bits(key_out.values(), keys.numbers));
  REQUIRE(same_bits(value_out.values(), values.numbers));
  REQUIRE(same_bits(storage.values(), expected));
}

}  // namespace pagedkv::test
