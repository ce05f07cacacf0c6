#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Counts the runs of one allocation of several blocks, in the order of the block table, as transfers go through it.
template <class Counts>
void count_runs(Counts& counts, std::span<const block_id> blocks) noexcept {
  constexpr auto least_run = std::size_t{8};
  auto num_runs = std::int64_t{0};
  auto num_in_runs = std::size_t{0};
  auto first = std::size_t{0};
  const auto end_run = [&](std::size_t end) {
    ++num_runs;
    num_in_runs += end - first >= least_run ? end - first : 0;
    first = end;
  };
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if (to_index(blocks[i]) != to_index(blocks[i - 1]) + 1) {
      end_run(i);
    }
  }
  end_run(blocks.size());
  count<&cache_statistics::blocks_together>(counts, std::ssize(blocks));
  count<&cache_statistics::runs_together>(counts, num_runs);
  count<&cache_statistics::blocks_in_runs>(counts, static_cast<std::int64_t>(num_in_runs));
}

}  // namespace pagedkv::detail
