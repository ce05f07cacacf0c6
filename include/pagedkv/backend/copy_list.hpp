#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/allocator/concept.hpp>

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pagedkv {

/// Copies nothing: appends the blocks to copy, on write, in a compaction or in a change of size, to a list of the
/// caller's, for engines that keep K/V in their own tensors. The engine copies each `source` to its `destination`, in
/// every layer, in the order of the list, before it launches the kernels of the step; a destination may be the source
/// of a later pair. A thread's list is its own. Errors: `out_of_memory` when the list cannot grow.
struct copy_list {
  /// Refers to the caller's list, which outlives the call.
  class stream_type {
   public:
    stream_type(std::vector<block_pair>& pairs) noexcept : pairs_(&pairs) {}  // NOLINT(google-explicit-constructor)

    template <class List = void>
    stream_type() noexcept {
      static_assert(!std::is_void_v<List>,
                    "with `copy_list`, an operation that may copy blocks needs a list to append them to: pass a "
                    "std::vector<pagedkv::block_pair>, and carry out its copies before the next launch");
    }

   private:
    friend copy_list;

    std::vector<block_pair>* pairs_ = nullptr;
  };

  /// It leaves the view alone: see `backend`.
  using default_allocator = no_memory;
  static constexpr bool uses_storage = false;

  static constexpr std::string_view name = "copy_list";

  /// Constant time: there is no work to wait for. Errors: none.
  [[nodiscard]] result<void> synchronize(stream_type) noexcept { return {}; }

  /// Appends the pairs to the list. Linear in them. Errors: `out_of_memory`, with the list as it was.
  [[nodiscard]] result<void> copy_blocks(const block_storage_view&, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    const auto add = [&]() -> result<void> {
      stream.pairs_->insert(stream.pairs_->end(), pairs.begin(), pairs.end());
      return {};
    };
    return detail::with_memory(add, error{error_code::out_of_memory, "number of blocks to copy",
                                          static_cast<std::int64_t>(pairs.size())});
  }

  /// Does what `copy_blocks` does: a cache's moves lead to blocks that are free, so their order does not matter.
  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    return copy_blocks(view, pairs, stream);
  }
};

static_assert(backend<copy_list> && !uses_storage<copy_list>);

}  // namespace pagedkv
