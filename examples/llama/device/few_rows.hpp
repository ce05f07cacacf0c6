#pragma once

#include "kernels.hpp"

#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Products of few rows with a matrix, which take as long as the read of the matrix.

namespace llama::device {

/// Where the two results of a pair of the matrix' rows go: neighbouring rows, whose results are stored.
template <class Element, class Number>
struct stored_pairs {
  static constexpr bool makes_squares = false;

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
  static constexpr bool makes_squares = false;

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
  static constexpr bool makes_squares = false;

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
/// Pairs of the matrix' rows that a workgroup multiplies at once.
inline constexpr auto tile_pairs = std::int32_t{8};
/// Its waves of 32 lanes take runs of 64 numbers in turns: whole lines of 128 bytes.
inline constexpr auto tile_waves = std::int32_t{16};
inline constexpr auto tile_run = std::int32_t{64};
inline constexpr auto tile_lanes = tile_waves * 32;
/// Sums of squares that a tile makes for each row.
inline constexpr auto parts_of_tile = std::int32_t{2};
/// Sums of squares of a hidden row of so many numbers.
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t parts_of_squares(std::int32_t width) {
  return width / (2 * tile_pairs) * parts_of_tile;
}

/// Rows of a step. With sums of squares, the numbers are those of hidden rows times the weights of their norm, the sums
/// are of the hidden rows, and the product is divided by the root of their mean.
template <class Element>
struct step_rows {
  const storage_of<Element>* numbers;
  std::int32_t num_rows;
  const float* squares = nullptr;  // [row][part], parts a multiple of four
  std::int32_t num_parts = 0;
  float epsilon = 0;
};

/// Results that are added to hidden rows. The next product reads the new rows: they are also stored as `Element`, times
/// the weights of its norm, and beside them sums of the new rows' squares.
template <class Element>
struct added_and_weighted_pairs {
  static_assert(std::is_same_v<Element, pagedkv::bfloat16>, "undivided numbers may be too large for other types");
  static constexpr bool makes_squares = true;

  float* hidden;
  std::int32_t width;
  const float* weights;
  storage_of<Element>* weighted;
  float* squares;  // [row][part]

  [[nodiscard]] std::int32_t count() const noexcept { return width / 2; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(std::int32_t pair) const { return 2 * pair; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t second(std::int32_t pair) const { return 2 * pair + 1; }
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t num_parts() const { return parts_of_squares(width); }
  /// Returns the sum of the squares.
  [[nodiscard]] PAGEDKV_DEVICE float put(std::int32_t row, std::int32_t pair, float one, float other) const {
    const auto at = std::int64_t{row} * width + 2 * pair;
    const auto weight = kernels::load_vector<2>(weights + 2 * pair);
    auto numbers = kernels::load_vector<2>(hidden + at);
    numbers.values[0] += one;
    numbers.values[1] += other;
    kernels::store_vector(hidden + at, numbers);
    kernels::store(weighted + at, Element::encode(numbers.values[0] * weight.values[0], 1));
    kernels::store(weighted + at + 1, Element::encode(numbers.values[1] * weight.values[1], 1));
    return numbers.values[0] * numbers.values[0] + numbers.values[1] * numbers.values[1];
  }
};

/// Whether the compiler's device may have the instructions, for numbers of 16 bits.
#if defined(__HIPCC__) || !defined(__CUDACC__)
template <class Element>
inline constexpr bool multiplies_tiles = false;
[[nodiscard]] inline bool has_room_for_tiles() { return false; }
#else
template <class Element>
inline constexpr bool multiplies_tiles = sizeof(storage_of<Element>) == 2;

/// Eight neighbouring numbers, as words of two.
using eight_numbers = kernels::vector<kernels::lane_word, 4>;

/// Runs of weights on their way, and bytes of one.
inline constexpr auto tile_depth = 5;
inline constexpr auto tile_run_bytes = std::size_t{4 * tile_lanes * 16};
/// A wave's sums of a tile, and those of all waves. There is room for two tiles, as a wave may be a tile ahead of
/// another.
inline constexpr auto wave_sums = 2 * tile_pairs * tile_rows;
inline constexpr auto tile_sums = tile_waves * wave_sums;
using sums_of_tiles = kernels::shared_array<float, static_cast<std::size_t>(2 * tile_sums)>;
using factors_of_rows = kernels::shared_array<float, tile_rows>;

/// Whether a workgroup of the device has as much shared memory as the kernel takes.
[[nodiscard]] inline bool has_room_for_tiles() {
  constexpr auto bytes_of_sums = sizeof(sums_of_tiles) + sizeof(factors_of_rows);
  auto bytes = 0;
  return cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess &&
         static_cast<std::size_t>(bytes) >= tile_depth * tile_run_bytes + bytes_of_sums;
}

/// A lane's weights of two rows of the matrix on their way to shared memory, some runs ahead, tile after tile. The lane
/// reads what it copied itself, so that no lane waits for another.
template <class Element, class Pairs>
class weights_ahead {
 public:
  using number = storage_of<Element>;
  static constexpr auto depth = tile_depth;
  static constexpr auto bytes_of_run = static_cast<std::int32_t>(tile_run_bytes);
  static constexpr auto bytes_of_part = bytes_of_run / 4;

  PAGEDKV_DEVICE weights_ahead(const number* weights, std::int32_t num_in, const Pairs& pairs, std::int32_t num_tiles)
      : weights_(weights),
        num_in_(num_in),
        num_tiles_(num_tiles),
        pairs_(pairs),
        first_(lane_of_workgroup() / 32 * tile_run + lane_of_workgroup() % 4 * 8),
        tile_(index_of_workgroup()),
        place_(static_cast<std::uint32_t>(__cvta_generic_to_shared(kernels::dynamic_shared<float4>(0, 0).values)) +
               static_cast<std::uint32_t>(lane_of_workgroup() * 16)) {
    begin_tile();
    for (auto run = 0; run < depth; ++run) {
      copy_run();
    }
  }

  /// Waits for the next run, multiplies it with that of the step, and copies one into its place.
  PAGEDKV_DEVICE void multiply(const eight_numbers (&step)[2], float (&into)[4]) {
    asm volatile("cp.async.wait_group %0;" ::"n"(depth - 1) : "memory");
    for (auto half = 0; half < 2; ++half) {
      const auto one = read(2 * half);
      const auto other = read(2 * half + 1);
      // As a sum may take its products in any order, eight numbers are the operands of two instructions.
      for (auto i = 0; i < 4; i += 2) {
        const kernels::lane_word matrix[4] = {one.values[i], other.values[i], one.values[i + 1], other.values[i + 1]};
        const kernels::lane_word row[2] = {step[half].values[i], step[half].values[i + 1]};
        kernels::matrix_unit::template multiply_16x8<Element>(into, matrix, row);
      }
    }
    copy_run();
  }

 private:
  PAGEDKV_DEVICE void begin_tile() {
    const auto pair = tile_ * tile_pairs + lane_of_workgroup() % 32 / 4;
    at_ = first_;
    one_ = weights_ + std::int64_t{pairs_.first(pair)} * num_in_;
    other_ = weights_ + std::int64_t{pairs_.second(pair)} * num_in_;
  }

  PAGEDKV_DEVICE void copy_run() {
    for (auto half = 0; half < 2 && tile_ < num_tiles_; ++half) {
      const auto at = at_ + half * (tile_run / 2);
      copy(2 * half, one_ + at, at < num_in_);
      copy(2 * half + 1, other_ + at, at < num_in_);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    slot_ = slot_ + 1 == depth ? 0 : slot_ + 1;
    at_ += tile_waves * tile_run;
    if (at_ - first_ >= num_in_) {
      tile_ += static_cast<std::int32_t>(kernels::grid_extent().x);
      begin_tile();
    }
  }

  /// Zeros where nothing exists.
  PAGEDKV_DEVICE void copy(std::int32_t part, const number* from, bool exists) const {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(place_of(part)), "l"(from),
                 "r"(exists ? 16 : 0)
                 : "memory");
  }

  [[nodiscard]] PAGEDKV_DEVICE eight_numbers read(std::int32_t part) const {
    auto read = eight_numbers{};
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(read.values[0]), "=r"(read.values[1]), "=r"(read.values[2]), "=r"(read.values[3])
                 : "r"(place_of(part))
                 : "memory");
    return read;
  }

  [[nodiscard]] PAGEDKV_DEVICE std::uint32_t place_of(std::int32_t part) const {
    return place_ + static_cast<std::uint32_t>(slot_ * bytes_of_run + part * bytes_of_part);
  }

  const number* weights_;
  std::int32_t num_in_;
  std::int32_t num_tiles_;
  const Pairs& pairs_;
  std::int32_t first_;  // index of the first number that the lane copies
  std::int32_t tile_;   // of the next copy
  std::int32_t at_ = 0;
  const number* one_ = nullptr;
  const number* other_ = nullptr;
  std::uint32_t place_;
  std::int32_t slot_ = 0;
};

/// A lane's numbers of the step, some runs ahead. They stay in registers where these are all.
template <class Element>
class step_ahead {
 public:
  static constexpr auto depth = std::int32_t{4};  // runs ahead

  PAGEDKV_DEVICE step_ahead(const step_rows<Element>& rows, std::int32_t num_in)
      : from_(rows.numbers + std::int64_t{lane_of_workgroup() % 32 / 4} * num_in),
        first_(lane_of_workgroup() / 32 * tile_run + lane_of_workgroup() % 4 * 8),
        end_(lane_of_workgroup() % 32 / 4 < rows.num_rows ? num_in : 0),
        num_runs_((num_in + tile_waves * tile_run - 1) / (tile_waves * tile_run)) {
    for (auto run = 0; run < depth; ++run) {
      read(run, run);
    }
  }

  /// Multiplies a tile.
  template <class Weights>
  PAGEDKV_DEVICE void multiply(Weights& weights, float (&into)[4]) {
    // Every lane of a wave takes part in the instructions, also behind the last run.
    for (auto start = std::int32_t{0}; start < num_runs_; start += depth) {
      const auto next = start + depth < num_runs_ ? start + depth : 0;
      for (auto i = 0; i < depth; ++i) {
        if (start + i < num_runs_) {
          weights.multiply(runs_[i], into);
        }
        if (next != start) {
          read(i, next + i);
        }
      }
    }
  }

 private:
  PAGEDKV_DEVICE void read(int place, std::int32_t run) {
    for (auto half = 0; half < 2; ++half) {
      if (const auto at = first_ + run * tile_waves * tile_run + half * (tile_run / 2); at < end_) {
        runs_[place][half] = kernels::load_vector<4>(reinterpret_cast<const kernels::lane_word*>(from_ + at));
      }
    }
  }

  const storage_of<Element>* from_;
  std::int32_t first_;
  std::int32_t end_;
  std::int32_t num_runs_;
  eight_numbers runs_[depth][2] = {};
};

/// Multiplies up to `tile_rows` rows with a matrix, in workgroups that take tiles in turns. Each processor has one
/// workgroup, which fills the processor's shared memory. Weights, which no kernel writes, are copied before the kernel
/// that writes the rows has ended. `num_in` is a multiple of half a run, and the pairs one of `tile_pairs`.
template <class Element, class Pairs>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(tile_lanes, 1)
    multiply_tiles(step_rows<Element> rows, const storage_of<Element>* weights, std::int32_t num_in, Pairs pairs,
                   std::int32_t num_tiles) {
  PAGEDKV_SHARED sums_of_tiles sums;
  PAGEDKV_SHARED factors_of_rows factors;
  kernels::let_next_kernel_start();
  auto ahead = weights_ahead<Element, Pairs>(weights, num_in, pairs, num_tiles);
  kernels::wait_for_previous_kernel();
  auto step = step_ahead<Element>(rows, num_in);
  const auto lane = lane_of_workgroup() % 32;
  const auto wave = lane_of_workgroup() / 32;
  if (wave < rows.num_rows) {
    auto sum = 0.0F;
    for (auto part = 4 * lane; part < rows.num_parts; part += 128) {
      for (const auto square : kernels::load_vector<4>(rows.squares + wave * rows.num_parts + part).values) {
        sum += square;
      }
    }
    const auto mean = sum_of_wave(sum) / static_cast<float>(num_in);
    factors[static_cast<std::size_t>(wave)] = rows.num_parts > 0 ? 1.0F / std::sqrt(mean + rows.epsilon) : 1.0F;
  }
  auto first_sum = std::int32_t{0};
  const auto num_workgroups = static_cast<std::int32_t>(kernels::grid_extent().x);
  for (auto tile = index_of_workgroup(); tile < num_tiles; tile += num_workgroups) {
    float into[4] = {};
    step.multiply(ahead, into);
    for (auto i = 0; i < 4; ++i) {
      const auto place = wave * wave_sums + (lane / 4 + i / 2 * tile_pairs) * tile_rows + lane % 4 * 2 + i % 2;
      sums[static_cast<std::size_t>(first_sum + place)] = into[i];
    }
    kernels::barrier();
    if (const auto result = lane_of_workgroup(); result < tile_pairs * tile_rows) {
      const auto row = result % tile_rows;
      const auto sum_at = [&](std::int32_t place) {
        auto sum = 0.0F;
        for (auto i = std::int32_t{0}; i < tile_waves; ++i) {
          sum += sums[static_cast<std::size_t>(first_sum + i * wave_sums + place)];
        }
        return row < rows.num_rows ? sum * factors[static_cast<std::size_t>(row)] : 0.0F;
      };
      const auto one = sum_at(result);
      const auto other = sum_at(result + tile_pairs * tile_rows);
      const auto pair = tile * tile_pairs + result / tile_rows;
      if constexpr (Pairs::makes_squares) {
        auto square = row < rows.num_rows ? pairs.put(row, pair, one, other) : 0.0F;
        square += kernels::shuffle_xor(square, 8, 32);
        square += kernels::shuffle_xor(square, 16, 32);
        if (lane < rows.num_rows) {
          kernels::store(pairs.squares + lane * pairs.num_parts() + tile * parts_of_tile + wave, square);
        }
      } else if (row < rows.num_rows) {
        pairs.put(row, pair, one, other);
      }
    }
    first_sum = tile_sums - first_sum;
  }
}

#endif

}  // namespace llama::device
