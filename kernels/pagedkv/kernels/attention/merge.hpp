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

/// Numbers of a column that a group of lanes merges. Longer columns are several merges: more workgroups read them at
/// once.
inline constexpr int merge_run = merge_lanes * merge_numbers;

/// The numbers of a column that a lane merges.
struct merged_numbers {
  float reference = -INFINITY;
  float sum = 0.0F;
  vector<float, merge_numbers> output = {};

  /// Adds other parts. One that covers no token may hold any bits.
  template <std::size_t Count>
  PAGEDKV_DEVICE void add(const merged_numbers (&parts)[Count]) {
    constexpr auto count = static_cast<int>(Count);
    auto largest = reference;
    PAGEDKV_UNROLL
    for (auto p = 0; p < count; ++p) {
      largest = fmaxf(largest, parts[p].sum == 0.0F ? -INFINITY : parts[p].reference);
    }
    const auto before = weight_in(largest);
    reference = largest;
    sum *= before;
    PAGEDKV_UNROLL
    for (auto n = 0; n < merge_numbers; ++n) {
      output.values[n] *= before;
    }
    PAGEDKV_UNROLL
    for (auto p = 0; p < count; ++p) {
      const auto factor = parts[p].weight_in(largest);
      sum += parts[p].sum * factor;
      PAGEDKV_UNROLL
      for (auto n = 0; n < merge_numbers; ++n) {
        output.values[n] += parts[p].sum == 0.0F ? 0.0F : parts[p].output.values[n] * factor;
      }
    }
  }

 private:
  /// Zero where no token was covered; a sum that is NaN makes the whole result NaN.
  [[nodiscard]] PAGEDKV_DEVICE float weight_in(float largest) const {
    return sum == 0.0F ? 0.0F : power_of_two(reference - largest);
  }
};

inline constexpr int merge_groups = 8;  // groups of a workgroup; each merges every eighth partial result
inline constexpr int most_merging_workgroups = 1024;

/// The column and the run of its numbers that are one merge.
template <int HeadDim>
struct merge_place {
  static constexpr std::int32_t runs = (HeadDim + merge_run - 1) / merge_run;

  std::int32_t merge;  // of the plan
  std::int32_t column;
  std::int32_t run;

  [[nodiscard]] static PAGEDKV_DEVICE merge_place of(std::int32_t index, std::int32_t used_columns) {
    const auto column = index / runs;
    const auto merge = column / used_columns;
    return {merge, column - merge * used_columns, index - column * runs};
  }
};

/// The lanes that merge one run of a column, and the workgroup's shared memory.
template <class Numbers, int HeadDim, bool Prefixes>
class merger {
  // Results that a group reads together: each round waits for memory. More would take registers and reduce occupancy.
  static constexpr int few = 2;
  static constexpr int many = 6;

 public:
  using results_type = merged_results<Prefixes>;
  using place_type = merge_place<HeadDim>;

  struct memory {
    shared_array<float, merge_groups * 2> sums;
    shared_array<float, static_cast<std::size_t>(merge_groups* merge_run)> outputs;
  };

  PAGEDKV_DEVICE merger(const attention_call& call, std::int32_t columns)
      : call_(call),
        columns_(columns),
        group_(static_cast<std::int32_t>(local_index().x) / merge_lanes),
        lane_(static_cast<std::int32_t>(local_index().x) % merge_lanes) {}

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t group() const { return group_; }

  /// Merges on one group.
  PAGEDKV_DEVICE void merge_few(const attention_merge& entry, const results_type& results, const place_type& place) {
    const auto query = find(entry, place.column);
    wait();
    auto all = merged_numbers();
    for (auto partial = 0; partial < results.count; partial += few) {
      add<few>(all, results, partial, 1, place);
    }
    write(all, query, place);
  }

  /// Merges on all groups of the workgroup.
  PAGEDKV_DEVICE void merge_many(const attention_merge& entry, const results_type& results, const place_type& place,
                                 memory& shared) {
    const auto query = find(entry, place.column);
    wait();
    auto own = merged_numbers();
    auto partial = group_;
    for (; partial + few * merge_groups < results.count; partial += many * merge_groups) {
      add<many>(own, results, partial, merge_groups, place);
    }
    for (; partial < results.count; partial += few * merge_groups) {
      add<few>(own, results, partial, merge_groups, place);
    }
    barrier();
    put(own, shared);
    barrier();
    if (group_ == 0) {
      registers<merged_numbers, merge_groups> parts;
      PAGEDKV_UNROLL
      for (auto g = 0; g < merge_groups; ++g) {
        take(g, parts[g], shared);
      }
      auto all = merged_numbers();
      all.add(parts);
      write(all, query, place);
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
  [[nodiscard]] PAGEDKV_DEVICE query_column find(const attention_merge& entry, std::int32_t column) const {
    return find_column(call_, load_row(call_.plan.rows + entry.row), entry.task, column, columns_);
  }

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first_dim(const place_type& place) const {
    return (place.run * merge_lanes + lane_) * merge_numbers;
  }

  /// Adds `Batch` results, `step` apart, from `first` on. All reads are issued together; past the end, the first result
  /// is read again, and past the row its first numbers.
  template <int Batch>
  PAGEDKV_DEVICE void add(merged_numbers& to, const results_type& results, std::int32_t first, std::int32_t step,
                          const place_type& place) const {
    const auto own = first_dim(place);
    const auto dim = own < call_.output.dim ? own : 0;
    registers<merged_numbers, Batch> parts;
    PAGEDKV_UNROLL
    for (auto b = 0; b < Batch; ++b) {
      const auto exists = first + b * step < results.count;
      const auto at = results.at(call_, exists ? first + b * step : first, columns_, place.column);
      const auto sums = load_fresh<2>(call_.partial_sums + 2 * at);
      parts[b].reference = sums.values[0];
      parts[b].sum = sums.values[1];
      parts[b].output = load_fresh<merge_numbers>(call_.partials + at * call_.partial_stride + dim);
    }
    issue_loads();
    PAGEDKV_UNROLL
    for (auto b = 0; b < Batch; ++b) {
      parts[b].sum = first + b * step < results.count ? parts[b].sum : 0.0F;
    }
    to.add(parts);
  }

  PAGEDKV_DEVICE void write(const merged_numbers& all, const query_column& query, const place_type& place) const {
    if (!query.exists()) {
      return;
    }
    const auto& call = read_again(call_);
    const auto ended = end_softmax(call, query, all.reference, all.sum);
    if (lane_ == 0 && place.run == 0) {
      write_log_sum_exp(call, query, ended);
    }
    write_output<Numbers>(call, query, first_dim(place), all.output, ended.factor);
  }

  [[nodiscard]] PAGEDKV_DEVICE std::size_t place_of(int group, int n) const {
    return static_cast<std::size_t>(group * merge_run + n * merge_lanes + lane_);
  }

  PAGEDKV_DEVICE void put(const merged_numbers& from, memory& shared) const {
    if (lane_ == 0) {
      shared.sums[static_cast<std::size_t>(2 * group_)] = from.reference;
      shared.sums[static_cast<std::size_t>(2 * group_ + 1)] = from.sum;
    }
    PAGEDKV_UNROLL
    for (auto n = 0; n < merge_numbers; ++n) {
      shared.outputs[place_of(group_, n)] = from.output.values[n];
    }
  }

  PAGEDKV_DEVICE void take(int group, merged_numbers& into, memory& shared) const {
    into.reference = shared.sums[static_cast<std::size_t>(2 * group)];
    into.sum = shared.sums[static_cast<std::size_t>(2 * group + 1)];
    PAGEDKV_UNROLL
    for (auto n = 0; n < merge_numbers; ++n) {
      into.output.values[n] = shared.outputs[place_of(group, n)];
    }
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
  using place_type = typename merger_type::place_type;
  PAGEDKV_SHARED typename merger_type::memory shared;
  auto own = merger_type(call, columns);
  const auto first = static_cast<std::int32_t>(workgroup_index().x);
  const auto step = static_cast<std::int32_t>(grid_extent().x);
  let_next_kernel_start();
  const auto used_columns = load(&call.plan.counts->used_columns);
  const auto num_large = load(&call.plan.counts->num_large) * used_columns * place_type::runs;
  for (auto i = first; i < num_large; i += step) {
    const auto place = place_type::of(i, used_columns);
    const auto index = load(call.plan.large + place.merge);
    const auto entry = load_merge(call.plan.merges + index);
    own.merge_many(entry, results_type::of(call, entry, index), place, shared);
  }
  const auto num_all = load(&call.plan.counts->num_merges) * used_columns * place_type::runs;
  // Starts behind the workgroups that are busy with large merges, because not all of a grid may run at once.
  const auto busy = num_large < step ? num_large : 0;
  const auto rank = first < busy ? first + step - busy : first - busy;
  for (auto i = rank * merge_groups + own.group(); i < num_all; i += step * merge_groups) {
    const auto place = place_type::of(i, used_columns);
    const auto entry = load_merge(call.plan.merges + place.merge);
    const auto results = results_type::of(call, entry, place.merge);
    if (results.count <= merged_by_group) {
      own.merge_few(entry, results, place);
    }
  }
  // One workgroup waits for the other kernel, so that work after this one follows both. Others that merge nothing end
  // at once, so that workgroups of the next kernel find room. Beside large merges all wait: these then take less time.
  if (first == 0 || num_large > 0) {
    own.wait();
  }
}

}  // namespace pagedkv::kernels
