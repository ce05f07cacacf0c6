#pragma once

#include "kernels.hpp"

#include <cstdint>

// Products of few rows with a matrix, which take as long as the read of the matrix.

namespace llama::device {

/// Of results that are stored as they are.
struct no_addends {};

/// Where the two results of a pair of the matrix' rows go: neighbouring rows, whose results are stored.
template <class Element, class Number>
struct stored_pairs {
  static constexpr bool makes_squares = false;
  using addends = no_addends;

  Number* results;  // [row][width]
  std::int32_t width;

  [[nodiscard]] std::int32_t count() const noexcept { return width / 2; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(std::int32_t pair) const { return 2 * pair; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t second(std::int32_t pair) const { return 2 * pair + 1; }
  [[nodiscard]] PAGEDKV_DEVICE addends read(std::int32_t /*row*/, std::int32_t /*pair*/) const { return {}; }
  PAGEDKV_DEVICE void put(std::int32_t row, std::int32_t pair, float one, float other, addends /*none*/) const {
    kernels::store_vector(results + std::int64_t{row} * width + 2 * pair,
                          kernels::vector<Number, 2>{{Element::encode(one, 1), Element::encode(other, 1)}});
  }
};

/// Neighbouring rows, whose results are added to what is there.
struct added_pairs {
  static constexpr bool makes_squares = false;
  using addends = kernels::vector<float, 2>;

  float* results;
  std::int32_t width;

  [[nodiscard]] std::int32_t count() const noexcept { return width / 2; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(std::int32_t pair) const { return 2 * pair; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t second(std::int32_t pair) const { return 2 * pair + 1; }
  [[nodiscard]] PAGEDKV_DEVICE addends read(std::int32_t row, std::int32_t pair) const {
    return kernels::load_vector<2>(results + std::int64_t{row} * width + 2 * pair);
  }
  PAGEDKV_DEVICE void put(std::int32_t row, std::int32_t pair, float one, float other, const addends& to) const {
    kernels::store_vector(results + std::int64_t{row} * width + 2 * pair,
                          addends{{to.values[0] + one, to.values[1] + other}});
  }
};

/// A row of the gate and the one of what it lets through.
template <class Element>
struct gated_pairs {
  static constexpr bool makes_squares = false;
  using addends = no_addends;

  storage_of<Element>* results;
  std::int32_t width;
  bool is_gelu = false;

  [[nodiscard]] std::int32_t count() const noexcept { return width; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(std::int32_t pair) const { return pair; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t second(std::int32_t pair) const { return width + pair; }
  [[nodiscard]] PAGEDKV_DEVICE addends read(std::int32_t /*row*/, std::int32_t /*pair*/) const { return {}; }
  PAGEDKV_DEVICE void put(std::int32_t row, std::int32_t pair, float gate, float up, addends /*none*/) const {
    kernels::store(results + std::int64_t{row} * width + pair, Element::encode(gated(gate, up, is_gelu), 1));
  }
};

/// Some vectors of two rows of the matrix, a wave's numbers apart.
template <class Element>
class weights_of_lane {
 public:
  static constexpr auto numbers = kernels::numbers_in_vector<storage_of<Element>>;
  static constexpr auto depth = 4;

  PAGEDKV_DEVICE void read(const storage_of<Element>* one, const storage_of<Element>* other, std::int32_t first,
                           std::int32_t end) {
    for (auto d = 0; d < depth; ++d) {
      const auto at = first + d * kernels::wave_size() * numbers;
      if (at < end) {
        one_[d] = kernels::load_vector<numbers>(one + at);
        other_[d] = kernels::load_vector<numbers>(other + at);
      }
    }
  }

  /// Adds the products with a row of the same numbers.
  PAGEDKV_DEVICE void multiply(const storage_of<Element>* in, std::int32_t first, std::int32_t end, float& one,
                               float& other) const {
    for (auto d = 0; d < depth; ++d) {
      const auto at = first + d * kernels::wave_size() * numbers;
      if (at < end) {
        const auto x = kernels::decode<Element, numbers>(kernels::load_vector<numbers>(in + at), 1);
        const auto a = kernels::decode<Element, numbers>(one_[d], 1);
        const auto b = kernels::decode<Element, numbers>(other_[d], 1);
        for (auto n = 0; n < numbers; ++n) {
          one += x.values[n] * a.values[n];
          other += x.values[n] * b.values[n];
        }
      }
    }
  }

 private:
  kernels::vector<storage_of<Element>, numbers> one_[depth];
  kernels::vector<storage_of<Element>, numbers> other_[depth];
};

/// Multiplies a row of `num_in` numbers with a matrix, a wave for each pair of the matrix' rows. Weights, which no
/// kernel writes, are read before the kernel that writes the row has ended. `num_in` is a multiple of a vector's size.
template <class Element, class Pairs>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(workgroup_size)
    multiply_row(const storage_of<Element>* row, const storage_of<Element>* weights, std::int32_t num_in,
                 std::int32_t num_pairs, Pairs pairs) {
  using lane_weights = weights_of_lane<Element>;
  const auto wave_size = kernels::wave_size();
  const auto lane = lane_of_workgroup() % wave_size;
  const auto pair = index_of_workgroup() * (workgroup_size / wave_size) + lane_of_workgroup() / wave_size;
  kernels::let_next_kernel_start();
  if (pair >= num_pairs) {
    return;
  }
  const auto* const one = weights + std::int64_t{pairs.first(pair)} * num_in;
  const auto* const other = weights + std::int64_t{pairs.second(pair)} * num_in;
  const auto stride = wave_size * lane_weights::numbers * lane_weights::depth;
  auto first = lane * lane_weights::numbers;
  auto next = lane_weights{};
  next.read(one, other, first, num_in);
  kernels::wait_for_previous_kernel();
  auto sum = 0.0F;
  auto sum_of_other = 0.0F;
  for (; first < num_in; first += stride) {
    const auto current = next;
    next.read(one, other, first + stride, num_in);
    current.multiply(row, first, num_in, sum, sum_of_other);
  }
  sum = sum_of_wave(sum);
  sum_of_other = sum_of_wave(sum_of_other);
  if (lane == 0) {
    pairs.put(0, pair, sum, sum_of_other, pairs.read(0, pair));
  }
}

}  // namespace llama::device
