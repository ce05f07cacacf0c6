#pragma once

#include "model.hpp"

#include <pagedkv/device/attend.hpp>
#include <pagedkv/device/rows.hpp>

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

/// Of a workgroup that has a row of so many hidden numbers.
[[nodiscard]] inline kernels::extent lanes_of_row(std::int32_t width) {
  return extent_of(std::clamp((width / 4 + 63) / 64 * 64, 64, row_workgroup_size));
}

template <class Number>
[[nodiscard]] std::int32_t rows_of_matrix(const device_array<Number>& matrix, std::int32_t width) {
  return static_cast<std::int32_t>(matrix.size() / static_cast<std::size_t>(width));
}

template <class Element>
device_array<float> model<Element>::make_angles(const rotation& of) const {
  auto angles = std::vector<float>{};
  for (const auto& frequencies : {of.frequencies, of.of_long}) {
    for (auto position = std::int32_t{0}; position < (frequencies.empty() ? 0 : config_.context); ++position) {
      for (const auto frequency : frequencies) {
        angles.push_back(std::cos(static_cast<float>(position) * frequency) * of.scale);
      }
      for (const auto frequency : frequencies) {
        angles.push_back(std::sin(static_cast<float>(position) * frequency) * of.scale);
      }
    }
  }
  auto made = device_array<float>(angles.size());
  copy(made.data(), static_cast<const float*>(angles.data()), angles.size(), runtime::host_to_device, stream_.get());
  stream_.synchronize().value();
  return made;
}

template <class Element>
void model<Element>::begin(const step_tokens& step, step_memory<Element>& of_rows) {
  const auto inputs = of_rows.upload(step);
  if (of_rows.decodes()) {
    auto& recorded = of_rows.recorded();
    auto found = recorded.find(inputs.num_tokens);
    if (found == recorded.end()) {
      const auto record = [this, inputs](runtime::stream stream) { enqueue(inputs, stream); };
      found = recorded.emplace(inputs.num_tokens, recorded_work(record)).first;
    }
    found->second.launch(stream());
  } else {
    enqueue(inputs, stream());
  }
  num_wanted_ = inputs.num_wanted;
  is_greedy_ = step.is_greedy;
  enqueue_copies_of_results(stream());
}

template <class Element>
void model<Element>::enqueue(const step_inputs& in, runtime::stream stream) {
  const auto num_rows = in.num_tokens;
  start<look_up<Element>>({extent_of(num_rows), {workgroup_size}}, stream, weights_.embeddings.data(), in.tokens,
                          config_.hidden, config_.embedding_scale, hidden_.data());
  normalize(num_rows, nullptr, weights_.layers.front().norm, stream);
  const auto& head = weights_.head.size() == 0 ? weights_.embeddings : weights_.head;
  for (auto i = std::size_t{0}; i < weights_.layers.size(); ++i) {
    const auto& layer = weights_.layers[i];
    if (config_.layers[i] == layer_kind::state) {
      advance_states(i, in, stream);
    } else {
      attend(i, in, stream);
    }
    add_product({attended_, layer.output, layer.output_norm}, num_rows, {layer.feed_norm, layer.gates}, stream);
    multiply_gates(layer, num_rows, stream);
    const auto last = addition{gated_, layer.down, layer.down_norm};
    if (i + 1 < weights_.layers.size()) {
      const auto& next = weights_.layers[i + 1];
      add_product(last, num_rows, {next.norm, next.projections}, stream);
    } else if (in.num_wanted == num_rows) {
      // Wanted rows ascend, so that all of them are rows 0, 1 and so on.
      add_product(last, num_rows, {weights_.norm, head}, stream);
    } else {
      add_product(last, num_rows, stream);
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
  start<normalize_rows<Element>>({extent_of(count), lanes_of_row(config_.hidden)}, stream, hidden_.data(), rows,
                                 weights.data(), config_.norm_epsilon, config_.hidden, normed_.data());
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
void model<Element>::attend(std::size_t layer, const step_inputs& in, runtime::stream stream) {
  multiply(weights_.layers[layer].projections, in.num_tokens, projected_.data(), stream);
  normalize_heads_of(weights_.layers[layer], in.num_tokens, stream);
  const auto [group, index] = places_[layer];
  const auto& [view, window, slots, batch] = in.groups[group];
  const bool is_full = config_.layers[layer] == layer_kind::full;
  const auto& angles = is_full ? full_angles_ : window_angles_;
  const auto& rotation = is_full ? config_.full_rotation : config_.window_rotation;
  const auto stride = static_cast<std::int64_t>(sizes_.projected());
  const auto heads_at = [&](std::size_t first, std::int32_t count) {
    return pagedkv::token_rows<number>{
        projected_.data() + first, stride, config_.head_dim, static_cast<std::int64_t>(in.num_tokens), count,
        config_.head_dim};
  };
  const auto queries = heads_at(0, config_.num_heads);
  const auto keys = heads_at(sizes_.queries, config_.num_kv_heads);
  const auto values = heads_at(sizes_.queries + sizes_.keys, config_.num_kv_heads);
  const auto width = static_cast<std::int32_t>(2 * rotation.frequencies.size());
  const auto table = kernels::rope_table{angles.data(), rows_of_matrix(angles, width), width};
  hip::rope_append<Element, Element, kernels::rope_pairing::halves>(
      view, index, slots, keys, values, in.positions, table, {queries, queries, config_.num_heads}, stream)
      .value();
  hip::attend<Element, Element>(view, index, batch, queries,
                                {{attended_.data(), static_cast<std::int64_t>(sizes_.queries), config_.head_dim,
                                  queries.num_tokens, config_.num_heads, config_.head_dim},
                                 nullptr},
                                {.scale = config_.attention_scale, .window = window}, stream)
      .value();
}

template <class Element>
void model<Element>::advance_states(std::size_t layer, const step_inputs& in, runtime::stream stream) {
  const auto& matrices = weights_.layers[layer];
  const auto& weights = matrices.state;
  multiply(matrices.projections, in.num_tokens, state_inputs_.data(), stream);
  const auto rows = state_rows{
      .sizes = config_.state,
      .starts = in.starts,
      .positions = in.positions.data(),
      .states = in.states + static_cast<std::size_t>(places_[layer].index) * in.num_rows,
      .projected = state_inputs_.data(),
      .convolved = convolved_.data(),
      .results = state_results_.data(),
  };
  const auto grid = [&](std::size_t count, std::int32_t each) {
    return kernels::launch_shape{{static_cast<std::uint32_t>((static_cast<std::int32_t>(count) + each - 1) / each),
                                  static_cast<std::uint32_t>(in.num_rows)},
                                 {workgroup_size}};
  };
  const auto* const bias = weights.convolution_bias.size() == 0 ? nullptr : weights.convolution_bias.data();
  start<convolve<Element>>(grid(sizes_.channels, workgroup_size), stream, rows,
                           convolution_weights{weights.convolution.data(), bias});
  start<advance_sums<Element>>(grid(sizes_.inner, workgroup_size / device_.wave_size), stream, rows,
                               sum_weights{weights.step_bias.data(), weights.decay.data(), weights.skip.data()});
  start<gate_results<Element>>({{static_cast<std::uint32_t>(in.num_tokens),
                                 static_cast<std::uint32_t>(config_.state.num_groups)},
                                {workgroup_size}},
                               stream, rows, static_cast<const float*>(weights.norm.data()), config_.norm_epsilon,
                               attended_.data());
}

template <class Element>
void model<Element>::multiply_gates(const layer_weights<Element>& layer, std::size_t num_rows, runtime::stream stream) {
  const auto width = config_.intermediate;
  const auto pairs = gated_pairs<Element>{gated_.data(), width, config_.gelu};
  if (!multiply_few(prepared_rows(num_rows), layer.gates, pairs, stream)) {
    multiply(layer.gates, num_rows, gates_.data(), stream);
    const auto each = workgroup_size * kernels::numbers_in_vector<number>;
    start<apply_gates<Element>>(
        {{static_cast<std::uint32_t>((width + each - 1) / each), static_cast<std::uint32_t>(num_rows)},
         {workgroup_size}},
        stream, gates_.data(), width, config_.gelu, gated_.data());
  }
}

template <class Element>
template <class Number>
void model<Element>::multiply(const device_array<number>& weights, std::size_t num_rows, Number* result,
                              runtime::stream stream) {
  multiply(prepared_rows(num_rows), weights, config_.hidden, result, stream);
}

template <class Element>
template <class Number>
void model<Element>::multiply(const step_rows<Element>& rows, const device_array<number>& weights, std::int32_t num_in,
                              Number* result, runtime::stream stream) {
  using stored = std::conditional_t<std::is_same_v<Number, float>, pagedkv::float32, Element>;
  const auto num_out = rows_of_matrix(weights, num_in);
  if (!multiply_few(rows, weights, stored_pairs<stored, Number>{result, num_out}, stream)) {
    blas_.enqueue(product<Element, Number>{rows.numbers, weights.data(), result, rows.num_rows, num_in, num_out},
                  stream);
  }
}

template <class Element>
void model<Element>::add_product(const addition& of, std::size_t num_rows, runtime::stream stream) {
  const auto& [rows, weights, norm] = of;
  const auto num_out = config_.hidden;
  const auto num_in = rows_of_matrix(weights, num_out);
  const auto of_step = step_rows<Element>{rows.data(), static_cast<std::int32_t>(num_rows)};
  if (norm.size() > 0) {
    multiply(of_step, weights, num_in, added_.data(), stream);
    start<add_normalized_rows<Element>>({extent_of(num_rows), lanes_of_row(num_out)}, stream,
                                        static_cast<const float*>(added_.data()), norm.data(), config_.norm_epsilon,
                                        num_out, hidden_.data());
  } else if (!multiply_few(of_step, weights, added_pairs{hidden_.data(), num_out}, stream)) {
    blas_.enqueue(product<Element, float>{rows.data(), weights.data(), hidden_.data(), of_step.num_rows, num_in,
                                          num_out, true},
                  stream);
  }
}

template <class Element>
void model<Element>::add_product(const addition& of, std::size_t num_rows, const following_product& next,
                                 runtime::stream stream) {
  const auto& [rows, weights, norm] = of;
  const auto width = config_.hidden;
  if constexpr (multiplies_tiles<Element>) {
    const bool takes_both =
        takes_matrix(num_rows, weights, rows_of_matrix(weights, width)) && takes_matrix(num_rows, next.weights, width);
    if (norm.size() == 0 && takes_both) {
      const auto count = static_cast<std::int32_t>(num_rows);
      num_parts_ = count <= tile_rows ? parts_of_squares(width) : parts_by_clusters(width);
      start_matrix({rows.data(), count}, weights,
                   added_and_weighted_pairs<Element>{hidden_.data(), width, next.norm.data(), normed_.data(),
                                                     squares_.data(), num_parts_},
                   stream);
      return;
    }
  }
  add_product(of, num_rows, stream);
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
    if (takes_matrix(static_cast<std::size_t>(rows.num_rows), weights, num_in)) {
      start_matrix(rows, weights, pairs, stream);
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
bool model<Element>::takes_matrix(std::size_t num_rows, const device_array<number>& weights,
                                  std::int32_t num_in) const {
  if (!multiplies_tiles<Element> || !has_tiles_) {
    return false;
  }
  const auto num_out = rows_of_matrix(weights, num_in);
  if (num_rows <= tile_rows) {
    return num_in % (tile_run / 2) == 0 && num_out % (2 * tile_pairs) == 0;
  }
  const bool is_small = num_in <= most_numbers_of_cluster(small_cluster);
  return num_rows <= cluster_rows && num_in % 8 == 0 && num_in <= most_numbers_of_cluster(large_cluster) &&
         num_out % (2 * cluster_pairs) == 0 && (is_small ? small_clusters_ : large_clusters_) > 0;
}

#if defined(__CUDACC__) && !defined(__HIPCC__)
template <class Element>
template <class Pairs>
void model<Element>::start_matrix(const step_rows<Element>& rows, const device_array<number>& weights,
                                  const Pairs& pairs, runtime::stream stream) {
  const auto num_in = rows_of_matrix(weights, 2 * pairs.count());
  if (rows.num_rows <= tile_rows) {
    const auto num_tiles = pairs.count() / tile_pairs;
    start<multiply_tiles<Element, Pairs>>(
        {extent_of(std::min(num_tiles, device_.num_processors)), {tile_lanes}, tile_ring_bytes}, stream, rows,
        weights.data(), num_in, pairs, num_tiles, num_claimed_.data());
    return;
  }
  const bool is_small = num_in <= most_numbers_of_cluster(small_cluster);
  hip::require(
      is_small ? launch_clusters<Element, small_cluster>(rows, weights.data(), num_in, pairs, small_clusters_, stream)
               : launch_clusters<Element, large_cluster>(rows, weights.data(), num_in, pairs, large_clusters_, stream),
      "the launch of a product");
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
