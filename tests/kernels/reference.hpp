#pragma once

#include "../support/draw_number.hpp"
#include "../support/static_scales.hpp"

// The expected results of kernels, as plain loops over host memory.

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/element/parts/row.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace pagedkv::test {

using nhd_by_layer = nhd_layer_major;
using nhd_by_block = nhd_block_major;
using hnd_by_layer = hnd_layer_major;
using hnd_by_block = hnd_block_major;

[[nodiscard]] inline cache_config make_config(std::int32_t block_size, std::int32_t num_blocks, std::int32_t num_layers,
                                              std::int32_t num_kv_heads, std::int32_t head_dim) {
  auto config = cache_config{};
  config.hash_seed = 1;
  config.block_size = block_size;
  config.num_blocks = num_blocks;
  config.num_layers = num_layers;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = head_dim;
  return config;
}

template <class Element, class Layout>
[[nodiscard]] storage_plan plan(const cache_config& config) {
  return plan_storage<Layout>(config, size_of_element<Element>).value();
}

/// The same view of other memory.
[[nodiscard]] inline block_storage_view at(block_storage_view view, std::byte* base) {
  view.base = base;
  return view;
}

template <class T>
[[nodiscard]] bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

[[nodiscard]] inline std::vector<std::byte> random_bytes(std::size_t size, std::mt19937& random) {
  auto bytes = std::vector<std::byte>(size);
  draw_bytes(bytes, random);
  return bytes;
}

/// Rows of `Element` (unscaled), `[token][head][dim]` with room of `gap` numbers after each head and each token.
template <class Element>
struct rows_of {
  using storage = typename Element::storage;

  rows_of(std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t gap)
      : num_tokens(tokens),
        num_heads(heads),
        head_dim(dim),
        head_stride(dim + gap),
        token_stride(heads * (dim + gap) + gap),
        numbers(static_cast<std::size_t>(tokens * token_stride), canary()) {}

  [[nodiscard]] static storage canary() { return Element::encode(-12352.0F, 1.0F); }

  [[nodiscard]] storage* row(std::int64_t token, std::int64_t head) {
    return numbers.data() + token * token_stride + head * head_stride;
  }

  [[nodiscard]] std::vector<float> decoded(std::int64_t token, std::int64_t head) {
    auto row_numbers = std::vector<float>(static_cast<std::size_t>(head_dim));
    std::transform(row(token, head), row(token, head) + head_dim, row_numbers.begin(),
                   [](storage stored) { return Element::decode(stored, 1.0F); });
    return row_numbers;
  }

  void fill(std::int64_t tokens, std::int64_t heads, std::mt19937& random, float magnitude) {
    auto numbers_of_row = std::vector<float>(static_cast<std::size_t>(head_dim));
    for (auto token = std::int64_t{0}; token < tokens; ++token) {
      for (auto head = std::int64_t{0}; head < heads; ++head) {
        draw_numbers(numbers_of_row, magnitude, random);
        encode_row<Element>(numbers_of_row, std::span(row(token, head), numbers_of_row.size()));
      }
    }
  }

  template <class Pointer>
  [[nodiscard]] token_rows<std::remove_pointer_t<Pointer>> view(Pointer data) const {
    return {data,
            token_stride,
            head_stride,
            num_tokens,
            static_cast<std::int32_t>(num_heads),
            static_cast<std::int32_t>(head_dim)};
  }

  std::int64_t num_tokens;
  std::int64_t num_heads;
  std::int64_t head_dim;
  std::int64_t head_stride;
  std::int64_t token_stride;
  std::vector<storage> numbers;
};

/// Where the numbers of one head lie in one layer of one block, by the index formulas that the engines publish; x is
/// the numbers in 16 bytes.
template <class Layout>
struct published_order;

/// Of vLLM's paged attention: key_cache [num_heads, head_size / x, block_size, x], value_cache [num_heads, head_size,
/// block_size].
struct vllm_order {
  static std::int64_t key(std::int64_t block_size, std::int64_t head_size, std::int64_t x, std::int64_t head,
                          std::int64_t block_offset, std::int64_t head_offset) {
    return head * (head_size / x) * block_size * x + head_offset / x * block_size * x + block_offset * x +
           head_offset % x;
  }
  static std::int64_t value(std::int64_t block_size, std::int64_t head_size, std::int64_t /*x*/, std::int64_t head,
                            std::int64_t block_offset, std::int64_t head_offset) {
    return head * head_size * block_size + head_offset * block_size + block_offset;
  }
};

/// Of AITER's assembly kernels: the same K, and value_cache [num_heads, block_size / x, head_size, x].
struct aiter_order : vllm_order {
  static std::int64_t value(std::int64_t block_size, std::int64_t head_size, std::int64_t x, std::int64_t head,
                            std::int64_t block_offset, std::int64_t head_offset) {
    return head * head_size * block_size + block_offset / x * head_size * x + head_offset * x + block_offset % x;
  }
};

template <>
struct published_order<transposed_layer_major> : vllm_order {};
template <>
struct published_order<transposed_block_major> : vllm_order {};
template <>
struct published_order<shuffled_layer_major> : aiter_order {};
template <>
struct published_order<shuffled_block_major> : aiter_order {};

/// Addresses of one token and head, computed from the layout's documentation, not from the view.
template <class Element, class Layout>
struct reference_storage {
  using storage = typename Element::storage;

  cache_config config;
  std::byte* base;
  std::int64_t block_bytes = 0;  // of blocks that groups share, in which all layers lie together

  [[nodiscard]] std::int64_t rows() const { return std::int64_t{config.block_size} * config.num_kv_heads; }
  [[nodiscard]] std::int64_t row_bytes() const { return config.head_dim * static_cast<std::int64_t>(sizeof(storage)); }
  [[nodiscard]] std::int64_t scales_start() const { return (2 * rows() * row_bytes() + 3) / 4 * 4; }
  [[nodiscard]] std::int64_t layer_bytes() const {
    return (scales_start() + (Element::scaled ? 8 * rows() : 0) + 255) / 256 * 256;
  }

  [[nodiscard]] std::byte* block_layer(std::int64_t layer, std::int64_t block) const {
    if (block_bytes != 0) {
      return base + block * block_bytes + layer * layer_bytes();
    }
    const auto place = Layout::storage == storage_order::layer_major ? layer * config.num_blocks + block
                                                                     : block * config.num_layers + layer;
    return base + place * layer_bytes();
  }

  [[nodiscard]] static constexpr bool token_first() {
    if constexpr (strided_layout<Layout>) {
      return Layout::dimensions == dimension_order::nhd;
    }
    return false;
  }

  [[nodiscard]] std::int64_t row_index(bool value, std::int64_t offset, std::int64_t head) const {
    const auto row = token_first() ? offset * config.num_kv_heads + head : head * config.block_size + offset;
    return (value ? rows() : 0) + row;
  }

  /// Of strided layouts.
  [[nodiscard]] storage* row(bool value, std::int64_t layer, std::int64_t block, std::int64_t offset,
                             std::int64_t head) const {
    return reinterpret_cast<storage*>(block_layer(layer, block) + row_index(value, offset, head) * row_bytes());
  }

  [[nodiscard]] storage* number(bool value, std::int64_t layer, std::int64_t block, std::int64_t offset,
                                std::int64_t head, std::int64_t dim) const {
    if constexpr (strided_layout<Layout>) {
      return row(value, layer, block, offset, head) + dim;
    } else {
      constexpr auto x = std::int64_t{16 / sizeof(storage)};
      auto* const start = reinterpret_cast<storage*>(block_layer(layer, block));
      const auto index = value ? published_order<Layout>::value : published_order<Layout>::key;
      return start + (value ? rows() * config.head_dim : 0) +
             index(config.block_size, config.head_dim, x, head, offset, dim);
    }
  }

  [[nodiscard]] float* scale(bool value, std::int64_t layer, std::int64_t block, std::int64_t offset,
                             std::int64_t head) const {
    return reinterpret_cast<float*>(block_layer(layer, block) + scales_start()) + row_index(value, offset, head);
  }

  /// The scale that the tests give.
  [[nodiscard]] float given_scale(bool value, std::int64_t layer, std::int64_t head) const {
    return has_static_scales<Element> ? static_scales<Element>(config).of(value, layer, head) : 1.0F;
  }

  [[nodiscard]] float read_scale(bool value, std::int64_t layer, std::int64_t block, std::int64_t offset,
                                 std::int64_t head) const {
    return Element::scaled ? *scale(value, layer, block, offset, head) : given_scale(value, layer, head);
  }

  void write_row(bool value, std::int64_t layer, std::int64_t block, std::int64_t offset, std::int64_t head,
                 const std::vector<float>& numbers) const {
    auto stored = std::vector<storage>(numbers.size());
    const auto row_scale = encode_row<Element>(numbers, stored, given_scale(value, layer, head));
    for (auto dim = std::size_t{0}; dim < stored.size(); ++dim) {
      *number(value, layer, block, offset, head, static_cast<std::int64_t>(dim)) = stored[dim];
    }
    if (Element::scaled) {
      *scale(value, layer, block, offset, head) = row_scale;
    }
  }

  [[nodiscard]] std::vector<float> read_row(bool value, std::int64_t layer, std::int64_t block, std::int64_t offset,
                                            std::int64_t head) const {
    auto stored = std::vector<storage>(static_cast<std::size_t>(config.head_dim));
    for (auto dim = std::size_t{0}; dim < stored.size(); ++dim) {
      stored[dim] = *number(value, layer, block, offset, head, static_cast<std::int64_t>(dim));
    }
    auto numbers = std::vector<float>(stored.size());
    decode_row<Element>(stored, read_scale(value, layer, block, offset, head), numbers);
    return numbers;
  }
};

/// Calls `visit(token, block, offset, head)` for every row of a slot mapping that is not skipped.
template <class Visit>
void for_each_mapped(const cache_config& config, const std::vector<slot>& slots, Visit visit) {
  for (auto token = std::size_t{0}; token < slots.size(); ++token) {
    const auto position = static_cast<std::int64_t>(slots[token]);
    for (auto head = 0; position >= 0 && head < config.num_kv_heads; ++head) {
      visit(static_cast<std::int64_t>(token), position / config.block_size, position % config.block_size, head);
    }
  }
}

template <class Element, class Layout, class Input>
void reference_append(const reference_storage<Element, Layout>& storage, std::int64_t layer,
                      const std::vector<slot>& slots, rows_of<Input>& keys, rows_of<Input>& values) {
  for_each_mapped(storage.config, slots, [&](auto token, auto block, auto offset, auto head) {
    storage.write_row(false, layer, block, offset, head, keys.decoded(token, head));
    storage.write_row(true, layer, block, offset, head, values.decoded(token, head));
  });
}

template <class Element, class Layout, class Output>
void reference_gather(const reference_storage<Element, Layout>& storage, std::int64_t layer,
                      const std::vector<slot>& slots, rows_of<Output>& keys, rows_of<Output>& values) {
  const auto encode = [](float number) { return Output::encode(number, 1.0F); };
  for_each_mapped(storage.config, slots, [&](auto token, auto block, auto offset, auto head) {
    const auto key = storage.read_row(false, layer, block, offset, head);
    const auto value = storage.read_row(true, layer, block, offset, head);
    std::transform(key.begin(), key.end(), keys.row(token, head), encode);
    std::transform(value.begin(), value.end(), values.row(token, head), encode);
  });
}

/// Blocks copied between host storages as if all were read first.
inline void reference_move(std::vector<std::byte>& to, const std::vector<std::byte>& from, block_storage_view to_view,
                           block_storage_view from_view, const std::vector<block_pair>& pairs) {
  const auto before = from;
  to_view.base = to.data();
  from_view.base = const_cast<std::byte*>(before.data());
  for (const auto& [source, destination] : pairs) {
    for (auto layer = 0; layer < from_view.num_layers; ++layer) {
      std::memcpy(to_view.block(layer, destination), from_view.block(layer, source),
                  static_cast<std::size_t>(from_view.layer_bytes()));
    }
  }
}

/// `count` different slots in random order; every third is skipped, in one of several ways.
[[nodiscard]] inline std::vector<slot> random_slots(const cache_config& config, std::size_t count,
                                                    std::mt19937& random) {
  auto positions = std::vector<std::int64_t>(static_cast<std::size_t>(config.num_blocks) *
                                             static_cast<std::size_t>(config.block_size));
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  std::shuffle(positions.begin(), positions.end(), random);
  auto slots = std::vector<slot>();
  for (auto i = std::size_t{0}; i < count; ++i) {
    const auto skipped = slot{i % 2 == 0 ? -1 : std::numeric_limits<std::int64_t>::min()};
    slots.push_back(i % 3 == 2 ? skipped : slot{positions.at(i)});
  }
  return slots;
}

}  // namespace pagedkv::test
