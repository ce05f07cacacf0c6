#pragma once

#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/kernels/attention/result.hpp>
#include <pagedkv/kernels/attention/walk.hpp>

namespace pagedkv::kernels {

inline constexpr int merge_lanes = 32;   // lanes that share the numbers of one column
inline constexpr int merge_numbers = 4;  // numbers per lane and access

/// The partial results of one merge, counted from 0: those of its own task, then, with `Prefixes`, those of a shared
/// prefix. Without, nothing about these takes registers.
template <bool Prefixes>
struct merged_results {
  std::int32_t first;
  std::int32_t count;

  [[nodiscard]] static PAGEDKV_DEVICE merged_results of(const attention_call& /*call*/, const attention_merge& entry,
                                                        std::int32_t /*index*/) {
    return {entry.first_partial, entry.num_partials};
  }

  /// Index of a column among the columns of all partial results.
  [[nodiscard]] PAGEDKV_DEVICE std::int64_t at(const attention_call& /*call*/, std::int32_t partial,
                                               std::int32_t columns, std::int32_t column) const {
    return static_cast<std::int64_t>(first + partial) * columns + column;
  }
};
template <>
struct merged_results<true> {
  std::int32_t first;
  std::int32_t num_own;
  std::int32_t count;
  std::int32_t first_of_prefix;
  std::int32_t prefix_column;

  [[nodiscard]] static PAGEDKV_DEVICE merged_results of(const attention_call& call, const attention_merge& entry,
                                                        std::int32_t index) {
    const auto prefix = load_vector<4>(reinterpret_cast<const std::int32_t*>(call.plan.prefix_results + index));
    return {entry.first_partial, entry.num_partials, entry.num_partials + prefix.values[1], prefix.values[0],
            prefix.values[2]};
  }

  /// A column of the task that does not exist may be another one's.
  [[nodiscard]] PAGEDKV_DEVICE std::int64_t at(const attention_call& call, std::int32_t partial, std::int32_t columns,
                                               std::int32_t column) const {
    if (partial < num_own) {
      return static_cast<std::int64_t>(first + partial) * columns + column;
    }
    const auto& plan = call.plan;
    const auto of_prefix = prefix_column + column;
    return plan.first_prefix_column +
           static_cast<std::int64_t>(first_of_prefix + partial - num_own) * plan.prefix_columns +
           (of_prefix < plan.prefix_columns ? of_prefix : 0);
  }
};

/// Merges partial results of up to `Columns` neighbouring columns of one task. Each lane holds some dimensions of each
/// column.
template <int HeadDim, int Columns>
class merged_columns {
 public:
  static constexpr int chunks = (HeadDim + merge_lanes * merge_numbers - 1) / (merge_lanes * merge_numbers);

  registers<float, Columns> reference;
  registers<float, Columns> sum;
  registers<float, Columns, chunks, merge_numbers> output;

  PAGEDKV_DEVICE merged_columns() {
    PAGEDKV_UNROLL
    for (auto c = 0; c < Columns; ++c) {
      reference[c] = -INFINITY;
      sum[c] = 0.0F;
      PAGEDKV_UNROLL
      for (auto j = 0; j < chunks; ++j) {
        PAGEDKV_UNROLL
        for (auto n = 0; n < merge_numbers; ++n) {
          output[c][j][n] = 0.0F;
        }
      }
    }
  }

  [[nodiscard]] static PAGEDKV_DEVICE std::int32_t first_dim(std::int32_t lane, int chunk) {
    return (chunk * merge_lanes + lane) * merge_numbers;
  }

  /// Adds the `Batch` results, `step` apart, from `first` on. All reads are issued together; past the end, the first
  /// result is read again.
  template <int Batch, class Results>
  PAGEDKV_DEVICE void add(const attention_call& call, const Results& results, std::int32_t first, std::int32_t step,
                          std::int32_t columns, std::int32_t column, std::int32_t lane) {
    registers<vector<float, 2>, Batch, Columns> sums;
    registers<vector<float, merge_numbers>, Batch, Columns, chunks> numbers;
    PAGEDKV_UNROLL
    for (auto b = 0; b < Batch; ++b) {
      const auto exists = first + b * step < results.count;
      PAGEDKV_UNROLL
      for (auto c = 0; c < Columns; ++c) {
        const auto of_task = column + c < columns ? column + c : column;
        const auto at = results.at(call, exists ? first + b * step : first, columns, of_task);
        sums[b][c] = load_fresh<2>(call.partial_sums + 2 * at);
        sums[b][c].values[1] = exists ? sums[b][c].values[1] : 0.0F;
        PAGEDKV_UNROLL
        for (auto j = 0; j < chunks; ++j) {
          numbers[b][c][j] = {};
          if (first_dim(lane, j) < call.output.dim) {
            numbers[b][c][j] = load_fresh<merge_numbers>(call.partials + at * call.partial_stride + first_dim(lane, j));
          }
        }
      }
    }
    PAGEDKV_UNROLL
    for (auto b = 0; b < Batch; ++b) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Columns; ++c) {
        add_one(c, sums[b][c].values[0], sums[b][c].values[1], numbers[b][c]);
      }
    }
  }

  PAGEDKV_DEVICE void add_one(int c, float of_reference, float of_sum,
                              const registers<vector<float, merge_numbers>, chunks>& numbers) {
    const auto largest = fmaxf(reference[c], of_sum == 0.0F ? -INFINITY : of_reference);
    const auto before = weight(reference[c], sum[c], largest);
    const auto now = weight(of_reference, of_sum, largest);
    reference[c] = largest;
    sum[c] = sum[c] * before + of_sum * now;
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto n = 0; n < merge_numbers; ++n) {
        // A result that covers no token may hold any bits.
        output[c][j][n] = output[c][j][n] * before + (of_sum == 0.0F ? 0.0F : numbers[j].values[n] * now);
      }
    }
  }

  template <class Numbers>
  PAGEDKV_DEVICE void write(const attention_call& shared_call, const attention_row& row, std::int32_t task,
                            std::int32_t columns, std::int32_t column, std::int32_t lane) const {
    const auto& call = read_again(shared_call);
    PAGEDKV_UNROLL
    for (auto c = 0; c < Columns; ++c) {
      const auto query = column + c < columns ? find_column(call, row, task, column + c, columns) : query_column{};
      if (query.exists()) {
        const auto ended = end_softmax(call, query, reference[c], sum[c]);
        if (lane == 0) {
          write_log_sum_exp(call, query, ended);
        }
        PAGEDKV_UNROLL
        for (auto j = 0; j < chunks; ++j) {
          auto numbers = vector<float, merge_numbers>{};
          PAGEDKV_UNROLL
          for (auto n = 0; n < merge_numbers; ++n) {
            numbers.values[n] = output[c][j][n];
          }
          write_output<Numbers>(call, query, first_dim(lane, j), numbers, ended.factor);
        }
      }
    }
  }

 private:
  /// A result that covers no token has weight zero; a sum that is NaN makes the whole result NaN.
  [[nodiscard]] static PAGEDKV_DEVICE float weight(float reference, float sum, float largest) {
    return sum == 0.0F ? 0.0F : exp2f(reference - largest);
  }
};

inline constexpr int merge_groups = 8;  // groups of a workgroup; each merges every eighth partial result
inline constexpr int most_merging_workgroups = 1024;

/// The lanes that merge one column, and the workgroup's shared memory.
template <class Numbers, int HeadDim, bool Prefixes>
class merger {
  using merged_column = merged_columns<HeadDim, 1>;
  // Results that a group reads together: each round waits for memory. More would take registers and reduce occupancy.
  static constexpr int few = 2;
  static constexpr int many = HeadDim > 256 ? 2 : (HeadDim > 128 ? 4 : 6);

 public:
  using results_type = merged_results<Prefixes>;

  struct memory {
    shared_array<float, merge_groups * 2> sums;
    shared_array<float, static_cast<std::size_t>(merge_groups* HeadDim)> outputs;
  };

  PAGEDKV_DEVICE merger(const attention_call& call, std::int32_t columns)
      : call_(call),
        columns_(columns),
        group_(static_cast<std::int32_t>(local_index().x) / merge_lanes),
        lane_(static_cast<std::int32_t>(local_index().x) % merge_lanes) {}

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t group() const { return group_; }

  /// Merges on one group.
  PAGEDKV_DEVICE void merge_few(const attention_merge& entry, const results_type& results, std::int32_t column) {
    const auto row = load_row(call_.plan.rows + entry.row);
    wait();
    auto merged = merged_column();
    for (auto partial = 0; partial < results.count; partial += few) {
      merged.template add<few>(call_, results, partial, 1, columns_, column, lane_);
    }
    merged.template write<Numbers>(call_, row, entry.task, columns_, column, lane_);
  }

  /// Merges on all groups of the workgroup.
  PAGEDKV_DEVICE void merge_many(const attention_merge& entry, const results_type& results, std::int32_t column,
                                 memory& shared) {
    const auto row = load_row(call_.plan.rows + entry.row);
    wait();
    auto merged = merged_column();
    auto partial = group_;
    for (; partial + few * merge_groups < results.count; partial += many * merge_groups) {
      merged.template add<many>(call_, results, partial, merge_groups, columns_, column, lane_);
    }
    for (; partial < results.count; partial += few * merge_groups) {
      merged.template add<few>(call_, results, partial, merge_groups, columns_, column, lane_);
    }
    barrier();
    put(merged, shared);
    barrier();
    if (group_ == 0) {
      auto all = merged_column();
      for (auto g = 0; g < merge_groups; ++g) {
        take(g, all, shared);
      }
      all.template write<Numbers>(call_, row, entry.task, columns_, column, lane_);
    }
  }

  /// Waits for the kernel that writes the partial results. Plans are complete earlier.
  PAGEDKV_DEVICE void wait() {
    if (!waited_) {
      wait_for_previous_kernel();
      waited_ = true;
    }
  }

 private:
  PAGEDKV_DEVICE void put(const merged_column& merged, memory& shared) const {
    if (lane_ == 0) {
      shared.sums[static_cast<std::size_t>(2 * group_)] = merged.reference[0];
      shared.sums[static_cast<std::size_t>(2 * group_ + 1)] = merged.sum[0];
    }
    PAGEDKV_UNROLL
    for (auto j = 0; j < merged_column::chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto n = 0; n < merge_numbers; ++n) {
        const auto dim = merged_column::first_dim(lane_, j) + n;
        if (dim < HeadDim) {
          shared.outputs[static_cast<std::size_t>(group_ * HeadDim + dim)] = merged.output[0][j][n];
        }
      }
    }
  }

  PAGEDKV_DEVICE void take(int group, merged_column& into, memory& shared) const {
    registers<vector<float, merge_numbers>, merged_column::chunks> numbers = {};
    PAGEDKV_UNROLL
    for (auto j = 0; j < merged_column::chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto n = 0; n < merge_numbers; ++n) {
        const auto dim = merged_column::first_dim(lane_, j) + n;
        if (dim < HeadDim) {
          numbers[j].values[n] = shared.outputs[static_cast<std::size_t>(group * HeadDim + dim)];
        }
      }
    }
    into.add_one(0, shared.sums[static_cast<std::size_t>(2 * group)],
                 shared.sums[static_cast<std::size_t>(2 * group + 1)], numbers);
  }

  const attention_call& call_;
  std::int32_t columns_;
  std::int32_t group_;
  std::int32_t lane_;
  bool waited_ = false;
};

/// Merges the tasks that have several pieces, or with `Prefixes` a shared prefix. Workgroups loop, so the grid may have
/// any size.
template <class Numbers, int HeadDim, bool Prefixes>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(merge_lanes* merge_groups)
    merge_kernel(attention_call call, std::int32_t columns) {
  using merger_type = merger<Numbers, HeadDim, Prefixes>;
  using results_type = typename merger_type::results_type;
  PAGEDKV_SHARED typename merger_type::memory shared;
  auto own = merger_type(call, columns);
  const auto first = static_cast<std::int32_t>(workgroup_index().x);
  const auto step = static_cast<std::int32_t>(grid_extent().x);
  let_next_kernel_start();
  const auto used_columns = load(&call.plan.counts->used_columns);
  const auto num_large = load(&call.plan.counts->num_large) * used_columns;
  for (auto i = first; i < num_large; i += step) {
    const auto index = load(call.plan.large + i / used_columns);
    const auto entry = load_merge(call.plan.merges + index);
    own.merge_many(entry, results_type::of(call, entry, index), i % used_columns, shared);
  }
  const auto num_all = load(&call.plan.counts->num_merges) * used_columns;
  // Starts behind the workgroups that are busy with large merges, because not all of a grid may run at once.
  const auto busy = num_large < step ? num_large : 0;
  const auto rank = first < busy ? first + step - busy : first - busy;
  for (auto i = rank * merge_groups + own.group(); i < num_all; i += step * merge_groups) {
    const auto entry = load_merge(call.plan.merges + i / used_columns);
    const auto results = results_type::of(call, entry, i / used_columns);
    if (results.count <= merged_by_group) {
      own.merge_few(entry, results, i % used_columns);
    }
  }
  // One workgroup waits for the other kernel, so that work after this one follows both. Others that merge nothing end
  // at once, so that workgroups of the next kernel find room. Beside large merges all wait: these then take less time.
  if (first == 0 || num_large > 0) {
    own.wait();
  }
}

}  // namespace pagedkv::kernels
