#pragma once

#include <pagedkv/kernels/attention/lane_word.hpp>
#include <pagedkv/kernels/attention/scores.hpp>

namespace pagedkv::kernels {

/// The divisor of a column's output, and its log-sum-exp.
struct softmax_end {
  float factor;
  float log_sum_exp;
};

/// `sum` adds exponentials relative to `reference`, both in base 2.
[[nodiscard]] PAGEDKV_DEVICE inline softmax_end end_softmax(const attention_call& call, const query_column& query,
                                                            float reference, float sum) {
  if (query.position < 0 || (call.lists.exist() && sum == 0.0F)) {
    return {0.0F, -INFINITY};
  }
  auto largest = reference;
  auto total = sum;
  if (call.sinks != nullptr) {
    const auto sink = load(call.sinks + query.head) * log2_e;
    largest = fmaxf(reference, sink);
    total = sum * exp2f(reference - largest) + exp2f(sink - largest);
  }
  return {exp2f(reference - largest) / total, (largest + log2f(total)) * ln_2};
}

PAGEDKV_DEVICE inline void write_log_sum_exp(const attention_call& call, const query_column& query,
                                             const softmax_end& ended) {
  if (call.log_sum_exp != nullptr) {
    store(call.log_sum_exp + static_cast<std::int64_t>(query.token) * call.num_query_heads + query.head,
          ended.log_sum_exp);
  }
}

template <class Element, int N>
PAGEDKV_DEVICE void read_run(const number_rows& rows, std::int64_t at, std::int32_t count,
                             registers<float, N>& numbers) {
  const auto* const from = static_cast<const typename Element::storage*>(rows.data) + at;
  auto stored = vector<typename Element::storage, N>{};
  if (rows.aligned) {
    stored = load_vector<N>(from);
  } else {
    PAGEDKV_UNROLL
    for (auto i = 0; i < N; ++i) {
      if (i < count) {
        stored.values[i] = load(from + i);
      }
    }
  }
  PAGEDKV_UNROLL
  for (auto i = 0; i < N; ++i) {
    numbers[i] = Element::decode(stored.values[i], 1.0F);
  }
}

template <class Element, int N>
PAGEDKV_DEVICE void write_run(const number_rows& rows, std::int64_t at, std::int32_t count,
                              const vector<float, N>& numbers) {
  auto* const to = static_cast<typename Element::storage*>(rows.data) + at;
  auto stored = vector<typename Element::storage, N>{};
  PAGEDKV_UNROLL
  for (auto i = 0; i < N; ++i) {
    stored.values[i] = Element::encode(numbers.values[i], 1.0F);
  }
  if (rows.aligned) {
    store_vector<N>(to, stored);
  } else {
    PAGEDKV_UNROLL
    for (auto i = 0; i < N; ++i) {
      if (i < count) {
        store(to + i, stored.values[i]);
      }
    }
  }
}

/// Numbers `first` to `first + N` of a query, as float32; zeros past the head dimension or for a missing query.
template <class Numbers, int N>
PAGEDKV_DEVICE void read_query(const attention_call& call, const query_column& query, std::int32_t first,
                               registers<float, N>& numbers) {
  PAGEDKV_UNROLL
  for (auto i = 0; i < N; ++i) {
    numbers[i] = 0.0F;
  }
  const auto count = call.view.head_dim - first;
  if (!query.exists() || count <= 0) {
    return;
  }
  const auto& rows = call.queries;
  const auto at = query.token * rows.token_stride + query.head * rows.head_stride + first;
  if (rows.type == number_type::float32) {
    read_run<typename Numbers::single, N>(rows, at, count, numbers);
  } else if (rows.type == number_type::float16) {
    read_run<typename Numbers::half, N>(rows, at, count, numbers);
  } else {
    read_run<typename Numbers::brain, N>(rows, at, count, numbers);
  }
}

/// Writes numbers of the output from `first` on, times `factor`, up to its end.
template <class Numbers, int N>
PAGEDKV_DEVICE void write_output(const attention_call& call, const query_column& query, std::int32_t first,
                                 const vector<float, N>& numbers, float factor) {
  const auto count = call.output.dim - first;
  if (count <= 0) {
    return;
  }
  const auto& rows = call.output;
  const auto at = query.token * rows.token_stride + query.head * rows.head_stride + first;
  auto scaled = vector<float, N>{};
  PAGEDKV_UNROLL
  for (auto i = 0; i < N; ++i) {
    // An empty sequence reads nothing, so its numbers are undefined and its output is set to zero.
    scaled.values[i] = query.position < 0 ? 0.0F : numbers.values[i] * factor;
  }
  if (rows.type == number_type::float32) {
    write_run<typename Numbers::single>(rows, at, count, scaled);
  } else if (rows.type == number_type::float16) {
    write_run<typename Numbers::half>(rows, at, count, scaled);
  } else {
    write_run<typename Numbers::brain>(rows, at, count, scaled);
  }
}

/// Numbers of a partial result from `first` on. `at` counts partial results and their columns.
template <int N>
PAGEDKV_DEVICE void write_partial(const attention_call& call, std::int64_t at, std::int32_t first,
                                  const vector<float, N>& numbers) {
  auto* const to = call.partials + at * call.partial_stride + first;
  PAGEDKV_UNROLL
  for (auto i = 0; i < N; i += 4) {
    if (first + i < call.output.dim) {
      store_vector<4>(to + i, {numbers.values[i], numbers.values[i + 1], numbers.values[i + 2], numbers.values[i + 3]});
    }
  }
}

PAGEDKV_DEVICE inline void write_partial_sum(const attention_call& call, std::int64_t at, float reference, float sum) {
  store_vector<2>(call.partial_sums + 2 * at, {reference, sum});
}

}  // namespace pagedkv::kernels
