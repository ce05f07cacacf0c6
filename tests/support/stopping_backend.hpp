#pragma once

#include <pagedkv/pagedkv.hpp>

#include <atomic>
#include <span>

namespace pagedkv::test {

/// Copies of blocks stop in the middle, inside an operation on a sequence, until they are let go.
struct stopping_backend : host_backend {
  struct gate {
    std::atomic<bool> closed{false};
    std::atomic<bool> reached{false};
  };

  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    if (stop != nullptr && stop->closed) {
      stop->reached = true;
      stop->reached.notify_all();
      stop->closed.wait(true);
    }
    return host_backend::copy_blocks(view, pairs, stream);
  }

  gate* stop = nullptr;
};

static_assert(backend_for<stopping_backend, float32>);

}  // namespace pagedkv::test
