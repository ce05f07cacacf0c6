#pragma once

#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/pagedkv.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv::test {

/// A cache without memory, and beside it an engine's arrays for K/V, with the operations of a cache that has memory.
/// Each list of copies is carried out as an engine does it: in order, before anything else is written.
template <class... Policies>
class cache_beside_arrays : public kv_cache<copy_list, Policies...> {
  using cache = kv_cache<copy_list, Policies...>;
  using copies = std::vector<block_pair>;
  struct no_stream {};

 public:
  explicit cache_beside_arrays(const cache_config& config)
      : cache(config),
        width_(static_cast<std::size_t>(config.num_kv_heads) * static_cast<std::size_t>(config.head_dim)),
        block_(static_cast<std::size_t>(config.block_size) * width_),
        layers_(static_cast<std::size_t>(config.num_layers),
                arrays{std::vector<float>(block_ * static_cast<std::size_t>(config.capacity())),
                       std::vector<float>(block_ * static_cast<std::size_t>(config.capacity()))}) {}

  result<void> append(sequence_id id, const token_run& run) {
    return carried_out([&](copies& pairs) { return this->cache::append(id, run, pairs); });
  }
  result<void> append(sequence_id id, token next) {
    return carried_out([&](copies& pairs) { return this->cache::append(id, next, pairs); });
  }
  result<void> reserve_slots(sequence_id id, std::int64_t num_ahead) {
    return carried_out([&](copies& pairs) { return this->cache::reserve_slots(id, num_ahead, pairs); });
  }
  result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out) {
    return carried_out([&](copies& pairs) { return this->cache::append_batch(entries, out, pairs); });
  }
  result<std::vector<block_pair>> compact() {
    return carried_out([&](copies& pairs) { return this->cache::compact(pairs); });
  }
  result<std::vector<block_pair>> resize(std::int32_t num_blocks) {
    return carried_out([&](copies& pairs) { return this->cache::resize(num_blocks, pairs); });
  }

  result<void> write(std::int32_t layer, std::span<const slot> slots, token_rows<const float> keys,
                     token_rows<const float> values, no_stream = {}, std::size_t = 0) {
    auto& [own_keys, own_values] = layers_[static_cast<std::size_t>(layer)];
    for (auto i = std::size_t{0}; i < slots.size(); ++i) {
      std::copy_n(row(keys, i), width_, place(own_keys, slots[i]));
      std::copy_n(row(values, i), width_, place(own_values, slots[i]));
    }
    return {};
  }
  result<void> read(std::int32_t layer, std::span<const slot> slots, token_rows<float> keys, token_rows<float> values,
                    no_stream = {}, std::size_t = 0) {
    auto& [own_keys, own_values] = layers_[static_cast<std::size_t>(layer)];
    for (auto i = std::size_t{0}; i < slots.size(); ++i) {
      std::copy_n(place(own_keys, slots[i]), width_, row(keys, i));
      std::copy_n(place(own_values, slots[i]), width_, row(values, i));
    }
    return {};
  }

 private:
  struct arrays {
    std::vector<float> keys;
    std::vector<float> values;
  };

  template <class Operation>
  auto carried_out(Operation&& operation) {
    auto pairs = copies{};
    auto outcome = operation(pairs);
    for (const auto [source, destination] : pairs) {
      for (auto& layer : layers_) {
        for (auto* const numbers : {&layer.keys, &layer.values}) {
          const auto at = [&](std::int32_t block) {
            return numbers->begin() + static_cast<std::ptrdiff_t>(block_ * static_cast<std::size_t>(block));
          };
          std::copy_n(at(source), block_, at(destination));
        }
      }
    }
    return outcome;
  }

  /// Rows of the tests have no gaps.
  template <class Number>
  [[nodiscard]] static Number* row(const token_rows<Number>& rows, std::size_t i) {
    return rows.data + static_cast<std::int64_t>(i) * rows.token_stride;
  }
  [[nodiscard]] float* place(std::vector<float>& numbers, slot of) const {
    return numbers.data() + static_cast<std::size_t>(of) * width_;
  }

  std::size_t width_;
  std::size_t block_;
  std::vector<arrays> layers_;
};

}  // namespace pagedkv::test
