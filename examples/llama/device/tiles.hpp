#pragma once

#include "few_rows.hpp"

#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Products of up to eight rows with a matrix by matrix instructions.

namespace llama::device {

/// Rows of one product by matrix instructions.
inline constexpr auto tile_rows = std::int32_t{8};
/// Pairs of the matrix' rows that a tile has.
inline constexpr auto tile_pairs = std::int32_t{8};
/// A workgroup's waves of 32 lanes take runs of 64 numbers in turns: whole lines of 128 bytes.
inline constexpr auto tile_waves = std::int32_t{16};
inline constexpr auto tile_run = std::int32_t{64};
inline constexpr auto tile_lanes = tile_waves * 32;
/// Runs of a row that a lane keeps in registers.
inline constexpr auto kept_runs = std::int32_t{4};
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t runs_of_row(std::int32_t num_in) {
  return (num_in + tile_waves * tile_run - 1) / (tile_waves * tile_run);
}
/// Neighbouring tiles that a workgroup multiplies at once: two where it reads the step's numbers again for each.
inline constexpr auto most_tiles_at_once = std::int32_t{2};
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t tiles_at_once(std::int32_t num_in) {
  return runs_of_row(num_in) > kept_runs ? most_tiles_at_once : 1;
}
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
  /// Of two hidden numbers, and the weights of their norm.
  struct addends {
    kernels::vector<float, 2> numbers;
    kernels::vector<float, 2> weights;
  };

  float* hidden;
  std::int32_t width;
  const float* weights;
  storage_of<Element>* weighted;
  float* squares;  // [row][part]
  std::int32_t num_parts;

  [[nodiscard]] std::int32_t count() const noexcept { return width / 2; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(std::int32_t pair) const { return 2 * pair; }
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t second(std::int32_t pair) const { return 2 * pair + 1; }
  [[nodiscard]] PAGEDKV_DEVICE addends read(std::int32_t row, std::int32_t pair) const {
    return {kernels::load_vector<2>(hidden + std::int64_t{row} * width + 2 * pair),
            kernels::load_vector<2>(weights + 2 * pair)};
  }
  /// Returns the sum of the squares.
  [[nodiscard]] PAGEDKV_DEVICE float put(std::int32_t row, std::int32_t pair, float one, float other,
                                         const addends& to) const {
    const auto at = std::int64_t{row} * width + 2 * pair;
    auto numbers = to.numbers;
    numbers.values[0] += one;
    numbers.values[1] += other;
    kernels::store_vector(hidden + at, numbers);
    kernels::store_vector(weighted + at, kernels::vector<storage_of<Element>, 2>{
                                             {Element::encode(numbers.values[0] * to.weights.values[0], 1),
                                              Element::encode(numbers.values[1] * to.weights.values[1], 1)}});
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
inline constexpr auto line_bytes = std::uint32_t{128};
/// The dynamic shared memory of the kernel.
inline constexpr auto tile_ring_bytes = tile_depth * tile_run_bytes + line_bytes;
/// A wave's sums of a tile, and those of all waves. There is room for twice as many tiles as are multiplied at once, as
/// a wave may be that far ahead of another.
inline constexpr auto wave_sums = 2 * tile_pairs * tile_rows;
inline constexpr auto tile_sums = tile_waves * wave_sums;
using sums_of_tiles = kernels::shared_array<float, static_cast<std::size_t>(2 * most_tiles_at_once * tile_sums)>;
using factors_of_rows = kernels::shared_array<float, tile_rows>;

/// The shares of a product that a workgroup takes, of one tile or two each. As processors read at different speeds, a
/// workgroup knows its first shares and claims further ones. `num_claimed` is zero before and after the kernel.
class shares_of_workgroup {
 public:
  static constexpr auto num_known = std::int32_t{3};
  /// A place is written again four shares later.
  using claimed_shares = kernels::shared_array<std::int32_t, num_known + 1>;

  PAGEDKV_DEVICE shares_of_workgroup(claimed_shares& claimed, unsigned* num_claimed, std::int32_t num_shares,
                                     std::int32_t runs_of_share)
      : claimed_(claimed),
        num_claimed_(num_claimed),
        num_shares_(num_shares),
        num_workgroups_(static_cast<std::int32_t>(kernels::grid_extent().x)),
        // Copies of shorter shares begin more than two shares ahead.
        claims_(runs_of_share * 2 > tile_depth && num_shares > num_known * num_workgroups_),
        may_claim_(claims_ && lane_of_workgroup() == tile_lanes - 1) {}

  /// The workgroup's share of this index, from 0; not below `num_shares` behind its last.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t operator[](std::int32_t index) const {
    return claims_ && index >= num_known ? claimed_[place(index)] : index_of_workgroup() + index * num_workgroups_;
  }
  [[nodiscard]] PAGEDKV_DEVICE bool has(std::int32_t index) const { return (*this)[index] < num_shares_; }

  /// Claims a share, whose number comes later. The kernel before has ended.
  PAGEDKV_DEVICE void begin_claim() {
    if (may_claim_) {
      claim_ = num_known * num_workgroups_ + static_cast<std::int32_t>(atomicAdd(num_claimed_, 1U));
    }
  }
  /// Behind the next barrier, the claimed share has this index.
  PAGEDKV_DEVICE void end_claim(std::int32_t index) {
    if (may_claim_) {
      claimed_[place(index)] = claim_;
      may_claim_ = claim_ < num_shares_;
      if (claim_ == num_shares_ + num_workgroups_ - 1) {  // each workgroup is refused once: this is the last claim
        kernels::store(num_claimed_, 0U);
      }
    }
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE static std::size_t place(std::int32_t index) {
    return static_cast<std::size_t>(index % (num_known + 1));
  }

  claimed_shares& claimed_;
  unsigned* num_claimed_;
  std::int32_t num_shares_;
  std::int32_t num_workgroups_;
  bool claims_;
  bool may_claim_;
  std::int32_t claim_ = 0;
};

/// Whether a workgroup of the device has as much shared memory as the kernel takes.
[[nodiscard]] inline bool has_room_for_tiles() {
  constexpr auto bytes_of_sums =
      sizeof(sums_of_tiles) + sizeof(factors_of_rows) + sizeof(shares_of_workgroup::claimed_shares);
  auto bytes = 0;
  return cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess &&
         static_cast<std::size_t>(bytes) >= tile_ring_bytes + bytes_of_sums;
}

/// A lane's weights of two rows of the matrix on their way to shared memory, some runs ahead, share after share. The
/// lane reads what it copied itself, so that no lane waits for another.
template <class Element, class Pairs>
class weights_ahead {
 public:
  using number = storage_of<Element>;
  static constexpr auto depth = tile_depth;
  static constexpr auto bytes_of_run = static_cast<std::int32_t>(tile_run_bytes);
  static constexpr auto bytes_of_part = bytes_of_run / 4;

  PAGEDKV_DEVICE weights_ahead(const number* weights, std::int32_t num_in, std::int32_t num_tiles, const Pairs& pairs,
                               const shares_of_workgroup& shares)
      : weights_(weights),
        num_in_(num_in),
        num_tiles_(num_tiles),
        pairs_(pairs),
        shares_(shares),
        to_second_tile_(std::int64_t{pairs.first(tile_pairs) - pairs.first(0)} * num_in),
        first_(lane_of_workgroup() / 32 * tile_run + lane_of_workgroup() % 4 * 8),
        place_(first_place() + static_cast<std::uint32_t>(lane_of_workgroup() * 16)) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(read_once_));
    begin_share();
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
  /// Where lines do not begin at multiples of their size, a product takes up to a third longer.
  [[nodiscard]] PAGEDKV_DEVICE static std::uint32_t first_place() {
    const auto any = __cvta_generic_to_shared(kernels::dynamic_shared<float4>(0, 0).values);
    return (static_cast<std::uint32_t>(any) + line_bytes - 1) / line_bytes * line_bytes;
  }

  PAGEDKV_DEVICE void begin_share() {
    has_more_ = shares_.has(index_);
    const auto tile = shares_[index_] * tiles_at_once(num_in_);
    has_second_ = tiles_at_once(num_in_) > 1 && tile + 1 < num_tiles_;
    const auto pair = tile * tile_pairs + lane_of_workgroup() % 32 / 4;
    at_ = first_;
    one_ = weights_ + std::int64_t{pairs_.first(pair)} * num_in_;
    other_ = weights_ + std::int64_t{pairs_.second(pair)} * num_in_;
  }

  /// Of each of a share's tiles, before the next run.
  PAGEDKV_DEVICE void copy_run() {
    for (auto half = 0; half < 2 && has_more_; ++half) {
      const auto at = at_ + half * (tile_run / 2);
      const auto in_tile = in_second_ ? at + to_second_tile_ : at;
      copy(2 * half, one_ + in_tile, at < num_in_);
      copy(2 * half + 1, other_ + in_tile, at < num_in_);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    slot_ = slot_ + 1 == depth ? 0 : slot_ + 1;
    in_second_ = has_second_ && !in_second_;
    if (in_second_) {
      return;
    }
    at_ += tile_waves * tile_run;
    if (at_ - first_ >= num_in_ && has_more_) {
      ++index_;
      begin_share();
    }
  }

  /// Zeros where nothing exists. No kernel reads the weights again in this step, so they leave the second-level cache
  /// first.
  PAGEDKV_DEVICE void copy(std::int32_t part, const number* from, bool exists) const {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(place_of(part)),
                 "l"(from), "r"(exists ? 16 : 0), "l"(read_once_)
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
  const shares_of_workgroup& shares_;
  std::int64_t to_second_tile_;  // numbers
  std::int32_t first_;           // index of the first number that the lane copies
  std::uint64_t read_once_ = 0;  // a policy of the second-level cache
  std::uint32_t place_;
  std::int32_t slot_ = 0;
  // Of the next copy.
  std::int32_t index_ = 0;  // of the share
  bool has_more_ = true;
  bool has_second_ = false;
  bool in_second_ = false;
  std::int32_t at_ = 0;
  const number* one_ = nullptr;
  const number* other_ = nullptr;
};

/// A lane's numbers of the step, some runs ahead. They stay in registers where these are all.
template <class Element>
class step_ahead {
 public:
  static constexpr auto depth = kept_runs;

  PAGEDKV_DEVICE step_ahead(const step_rows<Element>& rows, std::int32_t num_in)
      : from_(rows.numbers + std::int64_t{lane_of_workgroup() % 32 / 4} * num_in),
        first_(lane_of_workgroup() / 32 * tile_run + lane_of_workgroup() % 4 * 8),
        end_(lane_of_workgroup() % 32 / 4 < rows.num_rows ? num_in : 0),
        num_runs_(runs_of_row(num_in)) {
    for (auto run = 0; run < depth; ++run) {
      read(run, run);
    }
  }

  /// Multiplies one tile or two.
  template <class Weights>
  PAGEDKV_DEVICE void multiply(Weights& weights, bool has_second, float (&into)[most_tiles_at_once][4]) {
    // Every lane of a wave takes part in the instructions, also behind the last run.
    for (auto start = std::int32_t{0}; start < num_runs_; start += depth) {
      const auto next = start + depth < num_runs_ ? start + depth : 0;
      for (auto i = 0; i < depth; ++i) {
        if (start + i < num_runs_) {
          weights.multiply(runs_[i], into[0]);
          if (has_second) {
            weights.multiply(runs_[i], into[1]);
          }
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

/// Puts the results of a tile, whose sums begin at `first_sum`: one pair and row on each of 64 lanes.
template <class Pairs>
PAGEDKV_DEVICE void put_tile(const Pairs& pairs, std::int32_t num_rows, std::int32_t tile, std::int32_t result,
                             sums_of_tiles& sums, std::int32_t first_sum, factors_of_rows& factors) {
  const auto row = result % tile_rows;
  const auto sum_at = [&](std::int32_t place) {
    auto sum = 0.0F;
    for (auto i = std::int32_t{0}; i < tile_waves; ++i) {
      sum += sums[static_cast<std::size_t>(first_sum + i * wave_sums + place)];
    }
    return row < num_rows ? sum * factors[static_cast<std::size_t>(row)] : 0.0F;
  };
  const auto one = sum_at(result);
  const auto other = sum_at(result + tile_pairs * tile_rows);
  const auto pair = tile * tile_pairs + result / tile_rows;
  if constexpr (Pairs::makes_squares) {
    auto square = row < num_rows ? pairs.put(row, pair, one, other, pairs.read(row, pair)) : 0.0F;
    square += kernels::shuffle_xor(square, 8, 32);
    square += kernels::shuffle_xor(square, 16, 32);
    if (const auto lane = result % 32; lane < num_rows) {
      kernels::store(pairs.squares + lane * pairs.num_parts + tile * parts_of_tile + result / 32, square);
    }
  } else if (row < num_rows) {
    pairs.put(row, pair, one, other, pairs.read(row, pair));
  }
}

/// Multiplies up to `tile_rows` rows with a matrix. Each processor has one workgroup, which takes most of its shared
/// memory. Weights, which no kernel writes, are copied before the kernel that writes the rows has ended. `num_in` is a
/// multiple of half a run, and the pairs one of `tile_pairs`.
template <class Element, class Pairs>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(tile_lanes, 1)
    multiply_tiles(step_rows<Element> rows, const storage_of<Element>* weights, std::int32_t num_in, Pairs pairs,
                   std::int32_t num_tiles, unsigned* num_claimed) {
  PAGEDKV_SHARED sums_of_tiles sums;
  PAGEDKV_SHARED factors_of_rows factors;
  PAGEDKV_SHARED shares_of_workgroup::claimed_shares claimed;
  kernels::let_next_kernel_start();
  const auto at_once = tiles_at_once(num_in);
  auto shares = shares_of_workgroup(claimed, num_claimed, (num_tiles + at_once - 1) / at_once,
                                    runs_of_row(num_in) * at_once);
  auto ahead = weights_ahead<Element, Pairs>(weights, num_in, num_tiles, pairs, shares);
  kernels::wait_for_previous_kernel();
  shares.begin_claim();
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
  for (auto index = std::int32_t{0}; shares.has(index); ++index) {
    const auto tile = shares[index] * at_once;
    const auto has_second = at_once > 1 && tile + 1 < num_tiles;
    float into[most_tiles_at_once][4] = {};
    step.multiply(ahead, has_second, into);
    for (auto of_share = 0; of_share < at_once; ++of_share) {
      for (auto i = 0; i < 4; ++i) {
        const auto place = wave * wave_sums + (lane / 4 + i / 2 * tile_pairs) * tile_rows + lane % 4 * 2 + i % 2;
        sums[static_cast<std::size_t>(first_sum + of_share * tile_sums + place)] = into[of_share][i];
      }
    }
    shares.end_claim(index + shares_of_workgroup::num_known);
    kernels::barrier();
    shares.begin_claim();
    const auto of_share = lane_of_workgroup() / (tile_pairs * tile_rows);
    if (of_share == 0 || (of_share == 1 && has_second)) {
      put_tile(pairs, rows.num_rows, tile + of_share, lane_of_workgroup() % (tile_pairs * tile_rows), sums,
               first_sum + of_share * tile_sums, factors);
    }
    first_sum = most_tiles_at_once * tile_sums - first_sum;
  }
}

#endif

}  // namespace llama::device
