#pragma once

#include "model.hpp"

#include <pagedkv/device/append.hpp>
#include <pagedkv/device/attend.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

// The members of `model`, for the sources that compile them.

namespace llama::device {

template <auto Kernel, class... Arguments>
void start(const kernels::launch_shape& shape, runtime::stream stream, Arguments... arguments) {
  hip::require(kernels::launch_following<Kernel>(shape, stream, arguments...), "the launch of a kernel of the model");
}

template <class Count>
[[nodiscard]] kernels::extent extent_of(Count count) {
  return {static_cast<std::uint32_t>(count)};
}

template <class Number>
[[nodiscard]] std::int32_t rows_of_matrix(const device_array<Number>& matrix, std::int32_t width) {
  return static_cast<std::int32_t>(matrix.size() / static_cast<std::size_t>(width));
}

template <class Element>
std::vector<float> model<Element>::make_angles() const {
  const auto& [frequencies, scale] = config_.full_rotation;
  auto angles = std::vector<float>{};
  angles.reserve(static_cast<std::size_t>(config_.context) * 2 * frequencies.size());
  for (auto position = std::int32_t{0}; position < config_.context; ++position) {
    for (const auto frequency : frequencies) {
      angles.push_back(std::cos(static_cast<float>(position) * frequency) * scale);
    }
    for (const auto frequency : frequencies) {
      angles.push_back(std::sin(static_cast<float>(position) * frequency) * scale);
    }
  }
  return angles;
}

template <class Element>
void model<Element>::begin(const step_tokens& step, paged_memory<Element>& of_rows) {
  const auto view = of_rows.view();
  const auto inputs = of_rows.upload(step);
  if (of_rows.decodes()) {
    auto& recorded = of_rows.recorded();
    auto found = recorded.find(inputs.num_tokens);
    if (found == recorded.end()) {
      const auto record = [this, inputs, view](runtime::stream stream) { enqueue(inputs, view, stream); };
      found = recorded.emplace(inputs.num_tokens, recorded_work(record)).first;
    }
    found->second.launch(stream());
  } else {
    enqueue(inputs, view, stream());
  }
  num_wanted_ = inputs.num_wanted;
  is_greedy_ = step.is_greedy;
  enqueue_copies_of_results(stream());
}

template <class Element>
void model<Element>::enqueue(const step_inputs& in, const pagedkv::block_storage_view& view, runtime::stream stream) {
  const auto num_rows = in.num_tokens;
  start<look_up<Element>>({extent_of(num_rows), {workgroup_size}}, stream, weights_.embeddings.data(), in.tokens,
                          config_.hidden, hidden_.data());
  normalize(num_rows, nullptr, weights_.layers.front().norm, stream);
  const auto& head = weights_.head.size() == 0 ? weights_.embeddings : weights_.head;
  for (auto i = std::size_t{0}; i < weights_.layers.size(); ++i) {
    const auto& layer = weights_.layers[i];
    multiply(layer.projections, num_rows, projected_.data(), stream);
    normalize_heads_of(layer, num_rows, stream);
    attend(static_cast<std::int32_t>(i), in, view, stream);
    add_product(attended_, layer.output, num_rows, {layer.feed_norm, layer.gates}, stream);
    multiply_gates(layer, num_rows, stream);
    if (i + 1 < weights_.layers.size()) {
      const auto& next = weights_.layers[i + 1];
      add_product(gated_, layer.down, num_rows, {next.norm, next.projections}, stream);
    } else if (in.num_wanted == num_rows) {
      // Wanted rows ascend, so that all of them are rows 0, 1 and so on.
      add_product(gated_, layer.down, num_rows, {weights_.norm, head}, stream);
    } else {
      add_product(gated_, layer.down, num_rows, stream);
    }
  }
  if (in.num_wanted == 0) {
    return;
  }
  if (in.num_wanted != num_rows) {
    normalize(in.num_wanted, in.wanted, weights_.norm, stream);
  }
  multiply(head, in.num_wanted, logits_.data(), stream);
  find_best_tokens(in.num_wanted, stream);
}

template <class Element>
void model<Element>::normalize(std::size_t count, const std::int32_t* rows, const device_array<float>& weights,
                               runtime::stream stream) {
  const auto lanes = std::clamp((config_.hidden / 4 + 63) / 64 * 64, 64, row_workgroup_size);
  start<normalize_rows<Element>>({extent_of(count), extent_of(lanes)}, stream, hidden_.data(), rows, weights.data(),
                                 config_.norm_epsilon, config_.hidden, normed_.data());
  num_parts_ = 0;
}

template <class Element>
void model<Element>::normalize_heads_of(const layer_weights<Element>& layer, std::size_t num_rows,
                                        runtime::stream stream) {
  if (layer.query_norm.size() > 0) {
    const auto heads = projected_heads{static_cast<std::int64_t>(sizes_.projected()), config_.num_heads,
                                       config_.num_heads + config_.num_kv_heads, config_.head_dim};
    const auto grid =
        kernels::extent{static_cast<std::uint32_t>(num_rows), static_cast<std::uint32_t>(heads.num_heads)};
    start<normalize_heads<Element>>({grid, {64}}, stream, projected_.data(), heads, layer.query_norm.data(),
                                    layer.key_norm.data(), config_.norm_epsilon);
  }
}

template <class Element>
void model<Element>::attend(std::int32_t index, const step_inputs& in, const pagedkv::block_storage_view& view,
                            runtime::stream stream) {
  const auto stride = static_cast<std::int64_t>(sizes_.projected());
  const auto heads_at = [&](std::size_t first, std::int32_t count) {
    return pagedkv::token_rows<number>{
        projected_.data() + first, stride, config_.head_dim, static_cast<std::int64_t>(in.num_tokens), count,
        config_.head_dim};
  };
  const auto queries = heads_at(0, config_.num_heads);
  const auto keys = heads_at(sizes_.queries, config_.num_kv_heads);
  const auto values = heads_at(sizes_.queries + sizes_.keys, config_.num_kv_heads);
  const auto table = kernels::rope_table{angles_.data(), config_.context,
                                         static_cast<std::int32_t>(2 * config_.full_rotation.frequencies.size())};
  hip::rope_append<Element, Element, kernels::rope_pairing::halves>(
      view, index, in.slots, keys, values, in.positions, table, {queries, queries, config_.num_heads}, stream)
      .value();
  hip::attend<Element, Element>(view, index, in.batch, queries,
                                {{attended_.data(), static_cast<std::int64_t>(sizes_.queries), config_.head_dim,
                                  queries.num_tokens, config_.num_heads, config_.head_dim},
                                 nullptr},
                                {.scale = config_.attention_scale}, stream)
      .value();
}

template <class Element>
void model<Element>::multiply_gates(const layer_weights<Element>& layer, std::size_t num_rows, runtime::stream stream) {
  const auto width = config_.intermediate;
  if (!multiply_few(prepared_rows(num_rows), layer.gates, gated_pairs<Element>{gated_.data(), width}, stream)) {
    multiply(layer.gates, num_rows, gates_.data(), stream);
    const auto each = workgroup_size * kernels::numbers_in_vector<number>;
    start<apply_gates<Element>>(
        {{static_cast<std::uint32_t>((width + each - 1) / each), static_cast<std::uint32_t>(num_rows)},
         {workgroup_size}},
        stream, gates_.data(), width, gated_.data());
  }
}

template <class Element>
template <class Number>
void model<Element>::multiply(const device_array<number>& weights, std::size_t num_rows, Number* result,
                              runtime::stream stream) {
  using stored = std::conditional_t<std::is_same_v<Number, float>, pagedkv::float32, Element>;
  const auto num_in = config_.hidden;
  const auto num_out = rows_of_matrix(weights, num_in);
  const auto rows = prepared_rows(num_rows);
  if (!multiply_few(rows, weights, stored_pairs<stored, Number>{result, num_out}, stream)) {
    blas_.enqueue(product<Element, Number>{rows.numbers, weights.data(), result, rows.num_rows, num_in, num_out},
                  stream);
  }
}

template <class Element>
void model<Element>::add_product(const device_array<number>& rows, const device_array<number>& weights,
                                 std::size_t num_rows, runtime::stream stream) {
  const auto num_out = config_.hidden;
  const auto of_step = step_rows<Element>{rows.data(), static_cast<std::int32_t>(num_rows)};
  if (!multiply_few(of_step, weights, added_pairs{hidden_.data(), num_out}, stream)) {
    blas_.enqueue(product<Element, float>{rows.data(), weights.data(), hidden_.data(), of_step.num_rows,
                                          rows_of_matrix(weights, num_out), num_out, true},
                  stream);
  }
}

template <class Element>
void model<Element>::add_product(const device_array<number>& rows, const device_array<number>& weights,
                                 std::size_t num_rows, const following_product& next, runtime::stream stream) {
  const auto width = config_.hidden;
  if constexpr (multiplies_tiles<Element>) {
    if (takes_tiles(num_rows, weights, rows_of_matrix(weights, width)) && takes_tiles(num_rows, next.weights, width)) {
      const auto pairs =
          added_and_weighted_pairs<Element>{hidden_.data(), width, next.norm.data(), normed_.data(), squares_.data()};
      start_tiles({rows.data(), static_cast<std::int32_t>(num_rows)}, weights, pairs, stream);
      num_parts_ = pairs.num_parts();
      return;
    }
  }
  add_product(rows, weights, num_rows, stream);
  normalize(num_rows, nullptr, next.norm, stream);
}

template <class Element>
step_rows<Element> model<Element>::prepared_rows(std::size_t num_rows) const {
  auto rows = step_rows<Element>{normed_.data(), static_cast<std::int32_t>(num_rows)};
  if (num_parts_ > 0) {
    rows.squares = squares_.data();
    rows.num_parts = num_parts_;
    rows.epsilon = config_.norm_epsilon;
  }
  return rows;
}

template <class Element>
template <class Pairs>
bool model<Element>::multiply_few(const step_rows<Element>& rows, const device_array<number>& weights,
                                  const Pairs& pairs, runtime::stream stream) {
  const auto num_pairs = pairs.count();
  const auto num_in = rows_of_matrix(weights, 2 * num_pairs);
  if constexpr (multiplies_tiles<Element>) {
    if (takes_tiles(static_cast<std::size_t>(rows.num_rows), weights, num_in)) {
      start_tiles(rows, weights, pairs, stream);
      return true;
    }
  }
  if (rows.num_rows == 1) {
    const auto each = workgroup_size / device_.wave_size;
    start<multiply_row<Element, Pairs>>({extent_of((num_pairs + each - 1) / each), {workgroup_size}}, stream,
                                        rows.numbers, static_cast<const number*>(weights.data()), num_in, num_pairs,
                                        pairs);
    return true;
  }
  return false;
}

template <class Element>
bool model<Element>::takes_tiles(std::size_t num_rows, const device_array<number>& weights, std::int32_t num_in) const {
  return multiplies_tiles<Element> && has_tiles_ && num_rows <= tile_rows && num_in % (tile_run / 2) == 0 &&
         rows_of_matrix(weights, num_in) % (2 * tile_pairs) == 0;
}

#if defined(__CUDACC__) && !defined(__HIPCC__)
template <class Element>
template <class Pairs>
void model<Element>::start_tiles(const step_rows<Element>& rows, const device_array<number>& weights,
                                 const Pairs& pairs, runtime::stream stream) {
  const auto num_tiles = pairs.count() / tile_pairs;
  start<multiply_tiles<Element, Pairs>>(
      {extent_of(std::min(num_tiles, device_.num_processors)), {tile_lanes}, tile_ring_bytes}, stream, rows,
      weights.data(), rows_of_matrix(weights, 2 * pairs.count()), pairs, num_tiles, num_claimed_.data());
}
#endif

template <class Element>
void model<Element>::find_best_tokens(std::size_t num_rows, runtime::stream stream) {
  const auto rows = static_cast<std::uint32_t>(num_rows);
  start<find_best_of_parts<Element>>({{parts_of_row, rows}, {workgroup_size}}, stream, logits_.data(),
                                     config_.vocabulary, best_parts_.data());
  start<find_best<Element>>({{rows}, {workgroup_size}}, stream, best_parts_.data(), best_.data());
}

template <class Element>
void model<Element>::enqueue_copies_of_results(runtime::stream stream) {
  copy(best_of_host_.data(), static_cast<const pagedkv::token*>(best_.data()), num_wanted_, runtime::device_to_host,
       stream);
  if (!is_greedy_) {
    copy(logits_of_host_.data(), static_cast<const float*>(logits_.data()), num_wanted_ * sizes_.vocabulary,
         runtime::device_to_host, stream);
  }
}

template <class Element>
predictions model<Element>::finish() {
  stream_.synchronize().value();
  auto made = predictions{};
  made.width = sizes_.vocabulary;
  if (is_greedy_) {
    made.best = best_of_host_.all().first(num_wanted_);
  } else {
    made.logits = logits_of_host_.all().first(num_wanted_ * made.width);
  }
  return made;
}

}  // namespace llama::device
