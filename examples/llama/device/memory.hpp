#pragma once

#include "../config.hpp"
#include "../step.hpp"
#include "arrays.hpp"
#include "graph.hpp"

#include <pagedkv/device/attend.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/layout/hnd_layer_major.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace llama::device {

template <class Element>
using device_cache = pagedkv::kv_cache<Element, pagedkv::hip_backend, pagedkv::hnd_layer_major>;

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

/// The arrays that the kernels of a step read.
struct step_inputs {
  std::size_t num_tokens;
  std::size_t num_wanted;
  const pagedkv::token* tokens;
  std::span<const pagedkv::slot> slots;
  std::span<const std::int64_t> positions;
  const std::int32_t* wanted;
  pagedkv::attention_batch batch;
};

/// Where the rows of a step lie in a cache of a device. Its arrays have fixed addresses, so that recorded work of one
/// step serves later ones.
template <class Element>
class paged_memory {
 public:
  using cache_type = device_cache<Element>;
  static constexpr bool takes_trees = false;

  paged_memory(cache_type& cache, const model_config& config, const step_limits& limits, runtime::stream stream)
      : cache_(cache),
        stream_(stream),
        tables_(limits.max_rows, most_blocks(cache, limits)),
        tokens_(limits.max_tokens),
        slots_(limits.max_tokens),
        positions_(limits.max_tokens),
        wanted_(limits.max_wanted),
        blocks_(most_blocks(cache, limits)),
        decoding_(cache.view(), config.num_heads / config.num_kv_heads,
                  {.max_rows = static_cast<std::int32_t>(limits.max_rows)}),
        chunks_(cache.view(), config.num_heads / config.num_kv_heads,
                {.max_rows = static_cast<std::int32_t>(limits.max_rows),
                 .max_query_tokens = static_cast<std::int32_t>(limits.max_tokens)}) {}

  /// Finds where the rows of a step lie: the tokens of row i are the last ones of sequence `ids[i]`. Enqueues the copy of
  /// this to the device, behind the step that it computes.
  [[nodiscard]] pagedkv::result<void> prepare(const step_tokens& step, std::span<const pagedkv::sequence_id> ids) {
    const auto updated = cache_.update(tables_, ids, 0, 1);  // with a token that the step before is to choose
    if (!updated) {
      return updated;
    }
    decodes_ = step.tokens.size() == ids.size() && step.wanted.size() == ids.size();
    positions_.assign(step.positions);
    wanted_.assign(step.wanted);
    blocks_.assign(tables_.indices());
    slots_.clear();
    for (auto row = std::size_t{0}; row < ids.size(); ++row) {
      add_slots(row, step.starts[row + 1] - step.starts[row]);
    }
    starts_ = decodes_ ? std::span<const std::int32_t>{} : std::span(step.starts);
    const auto planned = plan().update(rows());
    slots_.upload(stream_);
    positions_.upload(stream_);
    wanted_.upload(stream_);
    blocks_.upload(stream_);
    plan().upload(stream_);
    return planned;
  }

  /// Enqueues the copy of the tokens, which may be known later than the rest.
  [[nodiscard]] step_inputs upload(const step_tokens& step) {
    tokens_.assign(step.tokens);
    tokens_.upload(stream_);
    auto batch = rows();
    batch.indices = blocks_.of_device();
    batch.plan = plan().on_device();
    return {tokens_.size(),      wanted_.size(), tokens_.on_device(), slots_.of_device(), positions_.of_device(),
            wanted_.on_device(), batch};
  }

  /// Whether each row of the step has one token, and wants the next.
  [[nodiscard]] bool decodes() const noexcept { return decodes_; }
  [[nodiscard]] pagedkv::block_storage_view view() const { return cache_.view(); }
  /// Work that was recorded for steps that decode, by their rows.
  [[nodiscard]] std::map<std::size_t, recorded_work>& recorded() noexcept { return recorded_; }

 private:
  /// Entries of block tables: rows share blocks, but one row has each at most once.
  [[nodiscard]] static std::size_t most_blocks(const cache_type& cache, const step_limits& limits) {
    return limits.max_rows * static_cast<std::size_t>(cache.config().capacity());
  }

  [[nodiscard]] pagedkv::attention_batch rows() const {
    auto batch = pagedkv::attention_batch{};
    batch.indptr = tables_.indptr();
    batch.last_block_len = tables_.last_block_len();
    batch.query_indptr = starts_;
    return batch;
  }

  [[nodiscard]] step_plan<Element>& plan() noexcept { return decodes_ ? decoding_ : chunks_; }

  /// A row's tokens are the last ones in its table, so their slots follow without a call for each sequence.
  void add_slots(std::size_t row, std::int32_t count) {
    const auto size = cache_.config().block_size;
    const auto blocks = tables_.indices().subspan(static_cast<std::size_t>(tables_.indptr()[row]));
    const auto length = (tables_.indptr()[row + 1] - tables_.indptr()[row] - 1) * size + tables_.last_block_len()[row];
    for (auto i = length - count; i < length; ++i) {
      const auto block = static_cast<std::int64_t>(blocks[static_cast<std::size_t>(i / size)]);
      slots_.push_back(static_cast<pagedkv::slot>(block * size + i % size));
    }
  }

  cache_type& cache_;
  runtime::stream stream_;
  pagedkv::compressed_batch tables_;
  step_array<pagedkv::token> tokens_;
  step_array<pagedkv::slot> slots_;
  step_array<std::int64_t> positions_;
  step_array<std::int32_t> wanted_;
  step_array<pagedkv::block_id> blocks_;
  step_plan<Element> decoding_;
  step_plan<Element> chunks_;
  std::span<const std::int32_t> starts_;
  bool decodes_ = false;
  std::map<std::size_t, recorded_work> recorded_;
};

}  // namespace llama::device
