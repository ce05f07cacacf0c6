#pragma once

#include "../support/printing.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <pagedkv/core/ids.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

// Rows that are appended and gathered again, and blocks that are converted, on every target.
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

/// Fills every row of the blocks that pairs name with random numbers.
template <class Storage>
void fill_blocks(const Storage& storage, const std::vector<block_pair>& pairs, std::mt19937& random) {
  auto number = std::normal_distribution<float>(0.0F, 4.0F);
  auto numbers = std::vector<float>(static_cast<std::size_t>(storage.config.head_dim));
  for (const auto& pair : pairs) {
    for (auto layer = 0; layer < storage.config.num_layers; ++layer) {
      for (auto offset = 0; offset < storage.config.block_size; ++offset) {
        for (auto head = 0; head < storage.config.num_kv_heads; ++head) {
          for (const auto value : {false, true}) {
            std::generate(numbers.begin(), numbers.end(), [&] { return number(random); });
            storage.write_row(value, layer, pair.source, offset, head, numbers);
          }
        }
      }
    }
  }
}

/// Converts blocks as a plain loop does; equal elements keep their bits.
template <class To, class ToLayout, class From, class FromLayout>
void reference_convert(const reference_storage<To, ToLayout>& to, const reference_storage<From, FromLayout>& from,
                       const std::vector<block_pair>& pairs) {
  const auto& config = from.config;
  for (const auto& [source, destination] : pairs) {
    for (auto row = 0; row < 2 * config.num_layers * config.block_size * config.num_kv_heads; ++row) {
      const auto value = row % 2 == 1;
      const auto head = row / 2 % config.num_kv_heads;
      const auto offset = row / 2 / config.num_kv_heads % config.block_size;
      const auto layer = row / 2 / config.num_kv_heads / config.block_size;
      if constexpr (std::is_same_v<To, From>) {
        for (auto dim = 0; dim < config.head_dim; ++dim) {
          *to.number(value, layer, destination, offset, head, dim) =
              *from.number(value, layer, source, offset, head, dim);
        }
        if (To::scaled) {
          *to.scale(value, layer, destination, offset, head) = *from.scale(value, layer, source, offset, head);
        }
      } else {
        to.write_row(value, layer, destination, offset, head, from.read_row(value, layer, source, offset, head));
      }
    }
  }
}

/// Converts blocks, and compares every byte of both storages.
template <class To, class ToLayout, class From, class FromLayout, class Target>
void check_conversion(Target& target, const laid_out<From, FromLayout>& from, const laid_out<To, ToLayout>& to,
                      const std::vector<block_pair>& pairs, std::mt19937& random) {
  auto source = std::vector<std::byte>(static_cast<std::size_t>(from.plan.bytes));
  auto expected = random_bytes(static_cast<std::size_t>(to.plan.bytes), random);
  const auto from_array = [&] {
    fill_blocks(from.reference(source), pairs, random);
    return target_array<std::byte, Target>(target, source);
  }();
  const auto to_array = target_array<std::byte, Target>(target, expected);
  const auto from_scales = target_scales<From, Target>(target, from.config);
  const auto to_scales = target_scales<To, Target>(target, to.config);
  REQUIRE(hip::convert_blocks<To, From>(from_scales.in(at(from.plan.view, from_array.data())),
                                        to_scales.in(at(to.plan.view, to_array.data())), pairs, target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  reference_convert(to.reference(expected), from.reference(source), pairs);
  REQUIRE(same_bits(to_array.values(), expected));
  REQUIRE(same_bits(from_array.values(), source));
}

}  // namespace pagedkv::test
