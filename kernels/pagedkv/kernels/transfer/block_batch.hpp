#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/divider.hpp>
#include <pagedkv/kernels/runtime.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::kernels {

/// Pairs of blocks as a kernel argument: a launch copies its arguments, so the caller's memory is free after the call
/// and nothing is uploaded. More pairs take one more launch per batch; the data of a full batch takes far longer to
/// move than a launch.
struct block_batch {
  static constexpr auto capacity = 400;

  block_pair pairs[capacity];
  std::int32_t num_pairs = 0;
  bool follows = false;  // a batch of the same call
};

/// Pairs of a batch whose launch takes so many units of work, of which each pair has so many. At least one.
[[nodiscard]] inline std::size_t pairs_of_launch(std::int64_t most_units, std::int64_t units_of_pair) noexcept {
  return static_cast<std::size_t>(std::clamp<std::int64_t>(most_units / units_of_pair, 1, block_batch::capacity));
}

/// Calls `launch_one(batch)` for successive batches of up to `most` pairs until all are launched or one launch fails.
template <class Launch>
[[nodiscard]] runtime::status launch_batches(std::span<const block_pair> pairs, Launch launch_one,
                                             std::size_t most = block_batch::capacity) {
  auto status = runtime::success;
  for (auto follows = false; !pairs.empty() && status == runtime::success; follows = true) {
    auto batch = block_batch{};
    batch.follows = follows;
    for (const auto pair : pairs.first(std::min(pairs.size(), most))) {
      batch.pairs[batch.num_pairs++] = pair;
    }
    pairs = pairs.subspan(static_cast<std::size_t>(batch.num_pairs));
    status = launch_one(batch);
  }
  return status;
}

}  // namespace pagedkv::kernels
