#pragma once

#include "config.hpp"
#include "step.hpp"

#include <pagedkv/host/attend.hpp>
#include <pagedkv/pagedkv.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llama {

/// The K/V and the states of a step's rows in the blocks of a cache.
template <class Cache>
class paged_memory final : public memory {
 public:
  using stream_type = typename Cache::stream_type;
  static constexpr bool takes_trees = true;

  paged_memory(Cache& cache, const model_config& config, const step_limits& limits, stream_type stream = {})
      : cache_(cache), config_(config), stream_(stream) {
    const auto max_rows = limits.max_rows;
    const auto groups = config.groups();
    for (const auto& group : groups.all()) {
      const auto indices = group.holds_tokens() ? max_rows * static_cast<std::size_t>(cache.config().capacity()) : 0;
      groups_.push_back({.kind = group, .tables = pagedkv::compressed_batch(max_rows, indices)});
    }
  }

  /// Finds where the rows of a step lie: the tokens of row i are the last ones of sequence `ids[i]`.
  /// Rows with more tokens than a tree mask has bits are behind the others, if there are trees.
  [[nodiscard]] pagedkv::result<void> prepare(const step_tokens& step, std::span<const pagedkv::sequence_id> ids) {
    step_ = &step;
    num_masked_ = 0;
    while (!step.seen.empty() && num_masked_ < ids.size() &&
           step.starts[num_masked_ + 1] - step.starts[num_masked_] <= pagedkv::largest_attention_tree) {
      ++num_masked_;
    }
    for (auto g = std::size_t{0}; g < groups_.size(); ++g) {
      const auto found = groups_[g].kind.holds_tokens() ? find_blocks(g, ids) : find_states(g, ids);
      if (!found) {
        return found;
      }
    }
    return {};
  }

  void attend(std::size_t layer, const float* queries, const float* keys, const float* values, float* output) override {
    const auto [group, index] = places_[layer];
    const auto& [kind, slots, tables, states] = groups_[group];
    const auto rows_of = [&](auto* numbers, std::int32_t num_heads) {
      const auto all = std::span(numbers, slots.size() * static_cast<std::size_t>(num_heads * config_.head_dim));
      return pagedkv::contiguous_rows(all, num_heads, config_.head_dim);
    };
    const auto num_kv_heads = config_.num_kv_heads;
    cache_.write(index, slots, rows_of(keys, num_kv_heads), rows_of(values, num_kv_heads), stream_, group).value();
    const auto options = pagedkv::attention_options{
        .scale = config_.attention_scale,
        .window = config_.layers[layer] == layer_kind::window ? config_.window : 0,
    };
    const auto attend_rows = [&](std::size_t first, std::size_t end, std::span<const std::uint32_t> masks) {
      const auto batch = pagedkv::attention_batch{
          .indptr = tables.indptr().subspan(first, end - first + 1),
          .indices = tables.indices(),
          .last_block_len = tables.last_block_len().subspan(first, end - first),
          .query_indptr = std::span(step_->starts).subspan(first, end - first + 1),
          .tree_masks = masks,
      };
      cache_
          .attend(index, batch, rows_of(queries, config_.num_heads), {rows_of(output, config_.num_heads)}, options,
                  stream_, group)
          .value();
    };
    attend_rows(0, num_masked_, step_->seen);
    attend_rows(num_masked_, step_->num_rows(), {});
  }

  /// Keeps K and V of a sequence's tokens at these positions, for `put`.
  void take(pagedkv::sequence_id id, std::span<const std::int64_t> positions) {
    exchange(id, positions, [&](std::int32_t layer, std::size_t group, const auto& slots, auto keys, auto values) {
      return cache_.read(layer, slots, keys, values, stream_, group);
    });
  }
  /// Writes what `take` kept to these positions.
  void put(pagedkv::sequence_id id, std::span<const std::int64_t> positions) {
    exchange(id, positions, [&](std::int32_t layer, std::size_t group, const auto& slots, auto keys, auto values) {
      return cache_.write(layer, slots, keys, values, stream_, group);
    });
  }

  float* state(std::size_t layer, std::size_t row) override {
    if constexpr (Cache::layers_differ) {
      const auto [group, index] = places_[layer];
      const auto per_block = cache_.plan().groups[group].parts_per_block;
      const auto& blocks = groups_[group].states[row];
      const auto block = blocks[static_cast<std::size_t>(index / per_block)];
      return reinterpret_cast<float*>(cache_.state_part(group, block, index % per_block));
    } else {
      return nullptr;  // a model with states has groups
    }
  }

 private:
  struct rows_of_group {
    pagedkv::group_config kind;
    std::vector<pagedkv::slot> slots = {};
    pagedkv::compressed_batch tables;
    std::vector<std::vector<pagedkv::block_id>> states = {};
  };

  template <class Call>
  void exchange(pagedkv::sequence_id id, std::span<const std::int64_t> positions, const Call& call) {
    const auto size = positions.size() * static_cast<std::size_t>(config_.num_kv_heads * config_.head_dim);
    kept_.resize(2 * size * places_.size());
    auto slots = std::vector<pagedkv::slot>(positions.size());
    for (auto layer = std::size_t{0}; layer < places_.size(); ++layer) {
      const auto [group, index] = places_[layer];
      for (auto i = std::size_t{0}; i < slots.size(); ++i) {
        cache_.slot_mapping(id, positions[i], std::span(slots).subspan(i, 1), group).value();
      }
      const auto rows_of = [&](std::size_t part) {
        const auto numbers = std::span(kept_).subspan((2 * layer + part) * size, size);
        return pagedkv::contiguous_rows(numbers, config_.num_kv_heads, config_.head_dim);
      };
      call(index, group, slots, rows_of(0), rows_of(1)).value();
    }
  }

  [[nodiscard]] pagedkv::result<void> find_blocks(std::size_t group, std::span<const pagedkv::sequence_id> ids) {
    auto& [kind, slots, tables, states] = groups_[group];
    const auto updated = cache_.update(tables, ids, group, 1);  // with a token that the step before is to choose
    slots.clear();
    for (auto row = std::size_t{0}; updated && row < ids.size(); ++row) {
      add_slots(tables, row, block_size_of(cache_, group), step_->starts[row + 1] - step_->starts[row], slots);
    }
    return updated;
  }

  [[nodiscard]] pagedkv::result<void> find_states(std::size_t group, std::span<const pagedkv::sequence_id> ids) {
    auto& states = groups_[group].states;
    states.resize(ids.size());
    for (auto row = std::size_t{0}; row < ids.size(); ++row) {
      states[row].resize(static_cast<std::size_t>(groups_[group].kind.num_layers));
      const auto copied = cache_.block_table(ids[row], states[row], 0, group);
      if (!copied) {
        return copied.error();
      }
    }
    return {};
  }

  Cache& cache_;
  const model_config& config_;
  stream_type stream_;
  std::vector<layer_place> places_ = config_.places();
  std::vector<rows_of_group> groups_;
  const step_tokens* step_ = nullptr;
  std::size_t num_masked_ = 0;  // leading rows of the step that are attended with tree masks
  std::vector<float> kept_;
};

}  // namespace llama
