#pragma once

#include <pagedkv/kernels/attention/lane_maps.hpp>
#include <pagedkv/kernels/attention/lane_word.hpp>
#include <pagedkv/kernels/attention/scores.hpp>

#include <type_traits>

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

/// Reads `Runs` runs of N numbers, `step` apart. All reads are issued before the first is used. `count`: from the first
/// run's start to the end of the row.
template <class Element, std::size_t Runs, std::size_t N>
PAGEDKV_DEVICE void read_runs(const number_rows& rows, std::int64_t at, std::int32_t step, std::int32_t count,
                              float (&numbers)[Runs][N]) {
  const auto* const from = static_cast<const typename Element::storage*>(rows.data) + at;
  registers<vector<typename Element::storage, static_cast<int>(N)>, static_cast<int>(Runs)> stored;
  PAGEDKV_UNROLL
  for (auto j = 0; j < static_cast<int>(Runs); ++j) {
    stored[j] = {};
    if (rows.aligned) {
      if (j * step < count) {
        stored[j] = load_vector<static_cast<int>(N)>(from + j * step);
      }
    } else {
      PAGEDKV_UNROLL
      for (auto i = 0; i < static_cast<int>(N); ++i) {
        if (j * step + i < count) {
          stored[j].values[i] = load(from + j * step + i);
        }
      }
    }
  }
  PAGEDKV_UNROLL
  for (auto j = 0; j < static_cast<int>(Runs); ++j) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < static_cast<int>(N); ++i) {
      numbers[j][i] = Element::decode(stored[j].values[i], 1.0F);
    }
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

/// Runs of N numbers of a query, `step` apart from `first` on, as float32; zeros past the head dimension, or for a
/// missing query.
template <class Numbers, std::size_t Runs, std::size_t N>
PAGEDKV_DEVICE void read_query(const attention_call& call, const query_column& query, std::int32_t first,
                               std::int32_t step, float (&numbers)[Runs][N]) {
  PAGEDKV_UNROLL
  for (auto j = 0; j < static_cast<int>(Runs); ++j) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < static_cast<int>(N); ++i) {
      numbers[j][i] = 0.0F;
    }
  }
  if (!query.exists()) {
    return;
  }
  const auto& rows = call.queries;
  const auto at = query.token * rows.token_stride + query.head * rows.head_stride + first;
  const auto count = call.view.head_dim - first;
  if (rows.type == number_type::float32) {
    read_runs<typename Numbers::single>(rows, at, step, count, numbers);
  } else if (rows.type == number_type::float16) {
    read_runs<typename Numbers::half>(rows, at, step, count, numbers);
  } else {
    read_runs<typename Numbers::brain>(rows, at, step, count, numbers);
  }
}

/// Whether the queries are rows of 16-bit numbers that matrix instructions multiply as they are.
template <class Numbers, class Number>
[[nodiscard]] PAGEDKV_DEVICE bool has_queries_of_products(const number_rows& rows) {
  constexpr auto type = std::is_same_v<Number, typename Numbers::brain> ? number_type::bfloat16 : number_type::float16;
  return rows.aligned && rows.type == type;
}

/// Numbers times a factor; zeros if the factor is zero, because what no token was read for may hold any bits.
template <int N>
[[nodiscard]] PAGEDKV_DEVICE vector<float, N> scale(const vector<float, N>& numbers, float factor) {
  auto scaled = vector<float, N>{};
  PAGEDKV_UNROLL
  for (auto i = 0; i < N; ++i) {
    scaled.values[i] = factor == 0.0F ? 0.0F : numbers.values[i] * factor;
  }
  return scaled;
}

template <class Numbers, int N>
PAGEDKV_DEVICE void write_numbers(const number_rows& rows, std::int64_t at, std::int32_t count,
                                  const vector<float, N>& numbers) {
  if (rows.type == number_type::float32) {
    write_run<typename Numbers::single>(rows, at, count, numbers);
  } else if (rows.type == number_type::float16) {
    write_run<typename Numbers::half>(rows, at, count, numbers);
  } else {
    write_run<typename Numbers::brain>(rows, at, count, numbers);
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
  const auto at = query.token * call.output.token_stride + query.head * call.output.head_stride + first;
  write_numbers<Numbers>(call.output, at, count, scale(numbers, query.position < 0 ? 0.0F : factor));
}

/// Writes numbers as a matrix unit rounds them, in fewer instructions than `write_run` where rows are aligned.
template <class Element, int N>
PAGEDKV_DEVICE void write_packed(const number_rows& rows, std::int64_t at, std::int32_t count,
                                 const vector<float, N>& numbers) {
  if constexpr (sizeof(typename Element::storage) == 2) {
    if (rows.aligned) {
      auto words = vector<lane_word, N / 2>{};
      PAGEDKV_UNROLL
      for (auto i = 0; i < N / 2; ++i) {
        words.values[i] = pack<Element>(numbers.values[2 * i], numbers.values[2 * i + 1]);
      }
      auto* const to = static_cast<typename Element::storage*>(rows.data) + at;
      store_vector<N / 2>(reinterpret_cast<lane_word*>(to), words);
      return;
    }
  }
  write_run<Element>(rows, at, count, numbers);
}

/// Writes runs of N numbers of an output, `step` apart.
template <class Numbers, std::size_t Runs, int N>
PAGEDKV_DEVICE void write_outputs(const attention_call& call, const query_column& query, std::int32_t first,
                                  std::int32_t step, const vector<float, N> (&numbers)[Runs], float factor) {
  const auto& rows = call.output;
  const auto at = query.token * rows.token_stride + query.head * rows.head_stride + first;
  const auto count = rows.dim - first;
  const auto write = [&](auto element) {
    PAGEDKV_UNROLL
    for (auto j = 0; j < static_cast<int>(Runs); ++j) {
      if (j * step < count) {
        const auto scaled = scale(numbers[j], query.position < 0 ? 0.0F : factor);
        write_packed<decltype(element)>(rows, at + j * step, count - j * step, scaled);
      }
    }
  };
  if (rows.type == number_type::float32) {
    write(typename Numbers::single{});
  } else if (rows.type == number_type::float16) {
    write(typename Numbers::half{});
  } else {
    write(typename Numbers::brain{});
  }
}

/// Numbers of a partial result from `first` on. `at` counts partial results and their columns.
template <int N>
PAGEDKV_DEVICE void write_partial(const attention_call& call, std::int64_t at, std::int32_t first,
                                  const vector<float, N>& numbers) {
  auto* const to = call.partials + at * call.partial_stride + first;
  if constexpr (N == 2) {
    if (first < call.output.dim) {
      store_vector<2>(to, numbers);
    }
  } else {
    PAGEDKV_UNROLL
    for (auto i = 0; i < N; i += 4) {
      if (first + i < call.output.dim) {
        store_vector<4>(to + i,
                        {numbers.values[i], numbers.values[i + 1], numbers.values[i + 2], numbers.values[i + 3]});
      }
    }
  }
}

PAGEDKV_DEVICE inline void write_partial_sum(const attention_call& call, std::int64_t at, float reference, float sum) {
  store_vector<2>(call.partial_sums + 2 * at, {reference, sum});
}

}  // namespace pagedkv::kernels
