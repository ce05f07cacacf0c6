#pragma once

#include "kernels.hpp"

#include <pagedkv/kernels/attention/matrix.hpp>

// Products of few rows with a matrix, which take as long as the read of the matrix.

namespace llama::device {

/// Where the two results of a pair of the matrix' rows go: neighbouring rows, whose results are stored.
template <class Element, class Number>
struct stored_pairs {
  Number* results;  // [row][width]
  std::int32_t width;

  [[nodiscard]] std::int32_t count() const noexcept { return width / 2; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(std::int32_t pair) const { return 2 * pair; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t second(std::int32_t pair) const { return 2 * pair + 1; }
  PAGEDKV_DEVICE void put(std::int32_t row, std::int32_t pair, float one, float other) const {
    auto* const to = results + std::int64_t{row} * width + 2 * pair;
    kernels::store(to, Element::encode(one, 1));
    kernels::store(to + 1, Element::encode(other, 1));
  }
};

/// Neighbouring rows, whose results are added to what is there.
struct added_pairs {
  float* results;
  std::int32_t width;

  [[nodiscard]] std::int32_t count() const noexcept { return width / 2; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(std::int32_t pair) const { return 2 * pair; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t second(std::int32_t pair) const { return 2 * pair + 1; }
  PAGEDKV_DEVICE void put(std::int32_t row, std::int32_t pair, float one, float other) const {
    auto* const to = results + std::int64_t{row} * width + 2 * pair;
    kernels::store(to, kernels::load(to) + one);
    kernels::store(to + 1, kernels::load(to + 1) + other);
  }
};

/// A row of the gate and the one of what it lets through.
template <class Element>
struct gated_pairs {
  storage_of<Element>* results;
  std::int32_t width;

  [[nodiscard]] std::int32_t count() const noexcept { return width; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(std::int32_t pair) const { return pair; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t second(std::int32_t pair) const { return width + pair; }
  PAGEDKV_DEVICE void put(std::int32_t row, std::int32_t pair, float gate, float up) const {
    kernels::store(results + std::int64_t{row} * width + pair, Element::encode(silu(gate) * up, 1));
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
    pairs.put(0, pair, sum, sum_of_other);
  }
}

/// Rows of one product by matrix instructions.
inline constexpr auto tile_rows = std::int32_t{8};
/// Pairs of the matrix' rows that a workgroup multiplies. Its waves of 32 lanes take runs of 32 numbers in turns.
inline constexpr auto tile_pairs = std::int32_t{8};
inline constexpr auto tile_waves = std::int32_t{8};
inline constexpr auto tile_run = std::int32_t{32};

/// Whether the compiler's device may have the instructions, for numbers of 16 bits.
#if defined(__HIPCC__)
template <class Element>
inline constexpr bool multiplies_tiles = false;
#else
template <class Element>
inline constexpr bool multiplies_tiles = sizeof(storage_of<Element>) == 2;

/// Eight neighbouring numbers, as words of two.
using eight_numbers = kernels::vector<kernels::lane_word, 4>;

template <class Number>
[[nodiscard]] PAGEDKV_DEVICE eight_numbers read_eight(const Number* from) {
  return kernels::load_vector<4>(reinterpret_cast<const kernels::lane_word*>(from));
}

/// Numbers that no lane reads again: they replace nothing in the caches of processors.
template <class Number>
[[nodiscard]] PAGEDKV_DEVICE eight_numbers read_eight_once(const Number* from) {
  #if defined(__CUDACC__)
  auto read = eight_numbers{};
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(read.values[0]), "=r"(read.values[1]), "=r"(read.values[2]), "=r"(read.values[3])
               : "l"(from));
  return read;
  #else
  return read_eight(from);
  #endif
}

/// A lane's numbers of two rows of the matrix and one of the step: eight of each run, some runs ahead. As a sum
/// may take its products in any order, they are the operands of two instructions.
class runs_of_lane {
 public:
  static constexpr auto depth = 8;  // runs ahead

  template <class Number>
  PAGEDKV_DEVICE void read_weights(int run, const Number* one, const Number* other) {
    one_[run] = read_eight_once(one);
    other_[run] = read_eight_once(other);
  }
  template <class Number>
  PAGEDKV_DEVICE void read_step(int run, const Number* from) {
    step_[run] = read_eight(from);
  }

  template <class Element>
  PAGEDKV_DEVICE void multiply(int run, float (&into)[4]) const {
    for (auto half = 0; half < 4; half += 2) {
      const kernels::lane_word matrix[4] = {one_[run].values[half], other_[run].values[half],
                                            one_[run].values[half + 1], other_[run].values[half + 1]};
      const kernels::lane_word step[2] = {step_[run].values[half], step_[run].values[half + 1]};
      kernels::matrix_unit::template multiply_16x8<Element>(into, matrix, step);
    }
  }

 private:
  eight_numbers one_[depth] = {};
  eight_numbers other_[depth] = {};
  eight_numbers step_[depth] = {};
};

/// Multiplies up to `tile_rows` rows with a matrix. Weights, which no kernel writes, are read before the kernel that
/// writes the rows has ended. `num_in` is a multiple of a run, and the pairs one of `tile_pairs`.
template <class Element, class Pairs>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(tile_waves * 32)
    multiply_tiles(const storage_of<Element>* rows, std::int32_t num_rows, const storage_of<Element>* weights,
                   std::int32_t num_in, Pairs pairs) {
  constexpr auto depth = runs_of_lane::depth;
  constexpr auto stride = tile_waves * tile_run;
  constexpr auto wave_sums = 2 * tile_pairs * tile_rows;
  PAGEDKV_SHARED kernels::shared_array<float, static_cast<std::size_t>(tile_waves * wave_sums)> sums;
  kernels::let_next_kernel_start();
  const auto lane = lane_of_workgroup() % 32;
  const auto wave = lane_of_workgroup() / 32;
  const auto row = lane / 4;  // of the step, and of the pairs
  const auto start = wave * tile_run + lane % 4 * 8;
  const auto pair = index_of_workgroup() * tile_pairs + row;
  const auto* const one = weights + std::int64_t{pairs.first(pair)} * num_in;
  const auto* const other = weights + std::int64_t{pairs.second(pair)} * num_in;
  const auto* const step = rows + std::int64_t{row} * num_in;
  auto ahead = runs_of_lane{};
  for (auto run = 0; run < depth; ++run) {
    if (const auto at = start + run * stride; at < num_in) {
      ahead.read_weights(run, one + at, other + at);
    }
  }
  kernels::wait_for_previous_kernel();
  for (auto run = 0; run < depth; ++run) {
    if (const auto at = start + run * stride; at < num_in && row < num_rows) {
      ahead.read_step(run, step + at);
    }
  }
  float into[4] = {};
  // Every lane of a wave takes part in the instructions, also behind the last run.
  for (auto first = wave * tile_run; first < num_in; first += depth * stride) {
    for (auto run = 0; run < depth; ++run) {
      if (first + run * stride < num_in) {
        ahead.template multiply<Element>(run, into);
      }
      if (const auto at = first + (depth + run) * stride + lane % 4 * 8; at < num_in) {
        ahead.read_weights(run, one + at, other + at);
        if (row < num_rows) {
          ahead.read_step(run, step + at);
        }
      }
    }
  }
  for (auto i = 0; i < 4; ++i) {
    const auto place = wave * wave_sums + (row + i / 2 * tile_pairs) * tile_rows + lane % 4 * 2 + i % 2;
    sums[static_cast<std::size_t>(place)] = into[i];
  }
  kernels::barrier();
  const auto sum_at = [&](std::int32_t place) {
    auto sum = 0.0F;
    for (auto i = std::int32_t{0}; i < tile_waves; ++i) {
      sum += sums[static_cast<std::size_t>(i * wave_sums + place)];
    }
    return sum;
  };
  const auto result = lane_of_workgroup();
  if (result < tile_pairs * tile_rows && result % tile_rows < num_rows) {
    pairs.put(result % tile_rows, index_of_workgroup() * tile_pairs + result / tile_rows, sum_at(result),
              sum_at(result + tile_pairs * tile_rows));
  }
}

#endif

}  // namespace llama::device
