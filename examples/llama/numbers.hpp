#pragma once

#include <pagedkv/host/workers.hpp>

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llama {

/// Rows of float32 numbers, one for each token of a step. Keeps its memory from step to step.
class rows {
 public:
  void resize(std::size_t count, std::int64_t width) {
    width_ = width;
    numbers_.resize(count * static_cast<std::size_t>(width));
  }
  [[nodiscard]] float* data() noexcept { return numbers_.data(); }
  [[nodiscard]] const float* data() const noexcept { return numbers_.data(); }
  [[nodiscard]] std::span<float> operator[](std::size_t row) noexcept {
    return std::span(numbers_).subspan(row * static_cast<std::size_t>(width_), static_cast<std::size_t>(width_));
  }
  [[nodiscard]] std::int64_t width() const noexcept { return width_; }
  [[nodiscard]] std::size_t size() const noexcept {
    return width_ == 0 ? 0 : numbers_.size() / static_cast<std::size_t>(width_);
  }

 private:
  std::vector<float> numbers_;
  std::int64_t width_ = 0;
};

/// A product of more rows is computed in one piece, by OpenBLAS's own threads.
inline constexpr auto most_rows_in_parts = 32;
/// A product of fewer weights takes about as long as another thread needs to wake up.
inline constexpr auto least_weights_for_threads = std::int64_t{1} << 17;

/// How many of `num_out` results of each row a part has. A large product begins with a copy of the weights, which for
/// few rows takes longer than the product. OpenBLAS takes operands where they lie if the result has at most 1,200
/// numbers, each with at most so many products.
[[nodiscard]] inline int results_of_part(int num_rows, int num_in, int num_out) {
  const auto most = num_rows == 1 ? 64 : std::min(1'200, 1'000'000 / num_in) / num_rows;
  return num_rows > most_rows_in_parts ? num_out : std::clamp(most, 1, num_out);
}

/// `out[t][o] = sum over i of in[t][i] * weights[o][i]`. Products of few rows are computed in parts, by `threads`.
inline void multiply(const float* in, std::size_t num_rows, std::int64_t num_in, const float* weights,
                     std::int64_t num_out, float* out, pagedkv::host::workers threads = {}) {
  if (num_rows == 0) {
    return;
  }
  const auto rows = static_cast<int>(num_rows);
  const auto from = static_cast<int>(num_in);
  const auto to = static_cast<int>(num_out);
  const auto part = results_of_part(rows, from, to);
  const auto multiply_part = [&](int index) {
    const auto first = index * part;
    const auto count = std::min(part, to - first);
    const auto* const some = weights + static_cast<std::ptrdiff_t>(first) * from;
    if (rows == 1) {
      for (auto o = 0; o < count; ++o) {  // reads faster than cblas_sgemv
        out[first + o] = cblas_sdot(from, some + static_cast<std::ptrdiff_t>(o) * from, 1, in, 1);
      }
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, count, from, 1, in, from, some, from, 0, out + first,
                  to);
    }
  };
  const auto num_parts = (to + part - 1) / part;
  const auto lent = num_in * num_out < least_weights_for_threads ? pagedkv::host::workers() : threads;
  lent.run(num_parts, multiply_part);
}

/// Root-mean-square normalisation in place; `added` is 1 where a model stores weights less one.
inline void normalize(std::span<float> numbers, std::span<const float> weights, float epsilon, float added) {
  auto sum = 0.0f;
  for (const auto number : numbers) {
    sum += number * number;
  }
  const auto factor = 1 / std::sqrt(sum / static_cast<float>(numbers.size()) + epsilon);
  for (auto i = std::size_t{0}; i < numbers.size(); ++i) {
    numbers[i] *= factor * (weights[i] + added);
  }
}

[[nodiscard]] inline float silu(float x) { return x / (1 + std::exp(-x)); }

/// GELU by its approximation with a hyperbolic tangent.
[[nodiscard]] inline float gelu(float x) {
  return 0.5f * x * (1 + std::tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

[[nodiscard]] inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace llama
