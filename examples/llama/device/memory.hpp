#pragma once

#include "../config.hpp"
#include "../step.hpp"
#include "arrays.hpp"
#include "graph.hpp"

#include <pagedkv/device/attend.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/layout/all.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace llama::device {

template <class Element>
using device_cache = pagedkv::group_cache<Element, pagedkv::hip_backend, pagedkv::hnd_layer_major>;

/// A plan of attention for steps of one use, and the memory in which the device reads it.
template <class Element>
class step_plan {
 public:
  step_plan(const pagedkv::block_storage_view& view, std::int32_t group_size, const hip::attention_use& use)
      : planner_(hip::attention_shape_on<Element>(0, view, group_size, use).value()),
        words_(planner_.bytes().size()),
        workspace_(pagedkv::attention_workspace_bytes(planner_.shape(), view.dim_of_values())) {}

  [[nodiscard]] pagedkv::result<void> update(const pagedkv::attention_batch& batch) {
    const auto updated = planner_.update(batch);
    words_.assign(planner_.bytes());
    return updated;
  }
  void upload(runtime::stream stream) const { words_.upload(stream); }
  [[nodiscard]] pagedkv::attention_plan on_device() const noexcept {
    return {planner_.shape(), words_.on_device(), workspace_.data()};
  }

 private:
  pagedkv::attention_planner planner_;
  step_array<std::byte> words_;
  device_array<std::byte> workspace_;
};

/// Where the kernels of a step find K and V of one group.
struct group_inputs {
  pagedkv::block_storage_view view;
  std::int32_t window = 0;
  std::span<const pagedkv::slot> slots = {};
  pagedkv::attention_batch batch = {};
};

/// The arrays that the kernels of a step read.
struct step_inputs {
  std::size_t num_rows;
  std::size_t num_tokens;
  std::size_t num_wanted;
  const pagedkv::token* tokens;
  const std::int32_t* starts;  // [rows + 1]
  std::span<const std::int64_t> positions;
  const std::int32_t* wanted;
  std::vector<group_inputs> groups;  // in the cache's order, without that of states, which is the last
  float* const* states;              // [layer with a state][row]
};

/// The block tables, slots and plans of one group in a step.
template <class Element>
class group_rows {
 public:
  template <class Cache>
  group_rows(const Cache& cache, std::size_t group, const model_config& config, const step_limits& limits)
      : group_(group),
        inputs_{cache.view(group), static_cast<std::int32_t>(cache.config().groups[group].window)},
        tables_(limits.max_rows, most_blocks(cache, group, config, limits)),
        slots_(limits.max_tokens),
        blocks_(most_blocks(cache, group, config, limits)),
        decoding_(inputs_.view, config.num_heads / config.num_kv_heads,
                  {.max_rows = static_cast<std::int32_t>(limits.max_rows), .window = inputs_.window}),
        chunks_(inputs_.view, config.num_heads / config.num_kv_heads,
                {.max_rows = static_cast<std::int32_t>(limits.max_rows),
                 .max_query_tokens = static_cast<std::int32_t>(limits.max_tokens),
                 .window = inputs_.window}) {}

  /// Finds the rows of a step, and enqueues the copy of where they lie.
  template <class Cache>
  [[nodiscard]] pagedkv::result<void> prepare(Cache& cache, const step_tokens& step,
                                              std::span<const pagedkv::sequence_id> ids, bool decodes,
                                              runtime::stream stream) {
    const auto updated = cache.update(tables_, ids, group_, 1);  // with a token that the step before is to choose
    if (!updated) {
      return updated;
    }
    blocks_.assign(tables_.indices());
    slots_.clear();
    for (auto row = std::size_t{0}; row < ids.size(); ++row) {
      add_slots(tables_, row, inputs_.view.block_size, step.starts[row + 1] - step.starts[row], slots_);
    }
    auto& plan = decodes ? decoding_ : chunks_;
    auto& batch = inputs_.batch;
    batch = {};
    batch.indptr = tables_.indptr();
    batch.last_block_len = tables_.last_block_len();
    batch.query_indptr = decodes ? std::span<const std::int32_t>{} : std::span(step.starts);
    const auto planned = plan.update(batch);
    slots_.upload(stream);
    blocks_.upload(stream);
    plan.upload(stream);
    batch.indices = blocks_.of_device();
    batch.plan = plan.on_device();
    inputs_.slots = slots_.of_device();
    return planned;
  }

  [[nodiscard]] const group_inputs& inputs() const noexcept { return inputs_; }

 private:
  /// Entries of block tables: a row has a block at most once, and tables of windows leave out those that were released.
  template <class Cache>
  [[nodiscard]] static std::size_t most_blocks(const Cache& cache, std::size_t group, const model_config& config,
                                               const step_limits& limits) {
    const auto of_context = config.context / cache.view(group).block_size + 2;
    return limits.max_rows * static_cast<std::size_t>(std::min(of_context, cache.config().capacity()));
  }

  std::size_t group_;
  group_inputs inputs_;
  pagedkv::compressed_batch tables_;
  step_array<pagedkv::slot> slots_;
  step_array<pagedkv::block_id> blocks_;
  step_plan<Element> decoding_;
  step_plan<Element> chunks_;
};

/// The arrays of a step, at fixed addresses, so that recorded work of one step serves later ones.
template <class Element>
class step_memory {
 public:
  /// Enqueues the copy of the tokens, which may be known later than the rest.
  [[nodiscard]] step_inputs upload(const step_tokens& step) {
    tokens_.assign(step.tokens);
    tokens_.upload(stream_);
    auto groups = std::vector<group_inputs>{};
    for (const auto& group : groups_) {
      groups.push_back(group.inputs());
    }
    return {.num_rows = starts_.size() - 1,
            .num_tokens = tokens_.size(),
            .num_wanted = wanted_.size(),
            .tokens = tokens_.on_device(),
            .starts = starts_.on_device(),
            .positions = positions_.of_device(),
            .wanted = wanted_.on_device(),
            .groups = std::move(groups),
            .states = states_.on_device()};
  }

  /// Whether each row of the step has one token, and wants the next.
  [[nodiscard]] bool decodes() const noexcept { return decodes_; }
  /// Work that was recorded for steps that decode, by their rows.
  [[nodiscard]] std::map<std::size_t, recorded_work>& recorded() noexcept { return recorded_; }

 protected:
  template <class Cache>
  step_memory(const Cache& cache, const model_config& config, const step_limits& limits, runtime::stream stream)
      : stream_(stream),
        context_(config.context),
        tokens_(limits.max_tokens),
        starts_(limits.max_rows + 1),
        positions_(limits.max_tokens),
        wanted_(limits.max_wanted),
        states_(num_states(cache) * limits.max_rows) {
    const auto& groups = cache.config().groups;
    for (auto g = std::size_t{0}; g < groups.size(); ++g) {
      if (groups[g].holds_tokens()) {
        groups_.emplace_back(cache, g, config, limits);
      }
    }
  }

  template <class Cache>
  [[nodiscard]] pagedkv::result<void> prepare_in(Cache& cache, const step_tokens& step,
                                                 std::span<const pagedkv::sequence_id> ids) {
    decodes_ = step.tokens.size() == ids.size() && step.wanted.size() == ids.size();
    for (auto& group : groups_) {
      if (const auto prepared = group.prepare(cache, step, ids, decodes_, stream_); !prepared) {
        return prepared;
      }
    }
    if (const auto found = find_states(cache, ids); !found) {
      return found;
    }
    starts_.assign(step.starts);
    find_angles(step);
    wanted_.assign(step.wanted);
    starts_.upload(stream_);
    positions_.upload(stream_);
    wanted_.upload(stream_);
    states_.upload(stream_);
    return {};
  }

 private:
  /// Rows of angles: those of long texts lie behind the others.
  void find_angles(const step_tokens& step) {
    positions_.clear();
    for (auto i = std::size_t{0}; i < step.positions.size(); ++i) {
      const bool is_long = !step.is_long.empty() && step.is_long[i];
      positions_.push_back(step.positions[i] + (is_long ? context_ : 0));
    }
  }

  /// Layers with a state, whose group is the last one.
  template <class Cache>
  [[nodiscard]] static std::size_t num_states(const Cache& cache) {
    const auto& last = cache.config().groups.all().back();
    return last.holds_tokens() ? 0 : static_cast<std::size_t>(last.num_layers);
  }

  template <class Cache>
  [[nodiscard]] pagedkv::result<void> find_states(const Cache& cache, std::span<const pagedkv::sequence_id> ids) {
    states_.clear();
    const auto num_layers = num_states(cache);
    if (num_layers == 0) {
      return {};
    }
    const auto group = cache.config().groups.size() - 1;
    auto blocks = std::vector<pagedkv::block_id>(num_layers * ids.size());
    for (auto row = std::size_t{0}; row < ids.size(); ++row) {
      const auto of_row = std::span<pagedkv::block_id>(blocks).subspan(row * num_layers, num_layers);
      if (const auto copied = cache.block_table(ids[row], of_row, 0, group); !copied) {
        return copied.error();
      }
    }
    const auto per_block = static_cast<std::size_t>(cache.plan().groups[group].parts_per_block);
    for (auto layer = std::size_t{0}; layer < num_layers; ++layer) {
      for (auto row = std::size_t{0}; row < ids.size(); ++row) {
        const auto block = blocks[row * num_layers + layer / per_block];
        const auto part = static_cast<std::int32_t>(layer % per_block);
        states_.push_back(reinterpret_cast<float*>(cache.state_part(group, block, part)));
      }
    }
    return {};
  }

  runtime::stream stream_;
  std::int32_t context_;
  std::vector<group_rows<Element>> groups_;
  step_array<pagedkv::token> tokens_;
  step_array<std::int32_t> starts_;
  step_array<std::int64_t> positions_;
  step_array<std::int32_t> wanted_;
  step_array<float*> states_;
  bool decodes_ = false;
  std::map<std::size_t, recorded_work> recorded_;
};

/// Where the rows of a step lie in a cache of a device.
template <class Cache>
class paged_memory final : public step_memory<typename Cache::element_type> {
 public:
  static constexpr bool takes_trees = false;

  paged_memory(Cache& cache, const model_config& config, const step_limits& limits, runtime::stream stream)
      : step_memory<typename Cache::element_type>(cache, config, limits, stream), cache_(cache) {}

  /// Finds where the rows of a step lie: the tokens of row i are the last ones of sequence `ids[i]`. Enqueues the copy
  /// of this to the device, behind the step that it computes.
  [[nodiscard]] pagedkv::result<void> prepare(const step_tokens& step, std::span<const pagedkv::sequence_id> ids) {
    return this->prepare_in(cache_, step, ids);
  }

 private:
  Cache& cache_;
};

}  // namespace llama::device
