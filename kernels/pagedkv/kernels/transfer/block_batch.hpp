#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/divider.hpp>
#include <pagedkv/kernels/runtime.hpp>
#include <pagedkv/storage/view.hpp>

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

/// Calls `launch_one(batch)` for successive batches until all pairs are launched or one launch fails.
template <class Launch>
[[nodiscard]] runtime::status launch_batches(std::span<const block_pair> pairs, Launch launch_one) {
  auto status = runtime::success;
  for (auto follows = false; !pairs.empty() && status == runtime::success; follows = true) {
    auto batch = block_batch{};
    batch.follows = follows;
    for (const auto pair : pairs.first(pairs.size() < batch.capacity ? pairs.size() : batch.capacity)) {
      batch.pairs[batch.num_pairs++] = pair;
    }
    pairs = pairs.subspan(static_cast<std::size_t>(batch.num_pairs));
    status = launch_one(batch);
  }
  return status;
}

}  // namespace pagedkv::kernels
