#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace pagedkv {

/// A cache that appends batches, such as `kv_cache`.
template <class C>
concept cache_for_batches =
    requires(C cache, std::span<const batch_entry> entries, const batch_buffers& out, typename C::stream_type stream) {
      { cache.append_batch(entries, out, stream) } noexcept -> std::same_as<result<batch_outcome>>;
    };

/// A batch of which some entries failed. Repeats single entries, and keeps the caller's buffers as one call would have
/// filled them.
template <class Cache>
class batch_repetition {
 public:
  using stream_type = typename Cache::stream_type;
  static constexpr auto no_entry = std::numeric_limits<std::size_t>::max();

  /// May throw `std::bad_alloc`.
  batch_repetition(Cache& cache, std::span<const batch_entry> entries, const batch_buffers& out, batch_outcome& done,
                   stream_type stream)
      : cache_(cache), entries_(entries), out_(out), done_(done), stream_(stream) {
    auto longest = std::size_t{0};
    for (const auto& failure : failures()) {
      longest = std::max(longest, detail::num_slots_of(entries_[failure.entry]));
    }
    slots_.resize(longest * done_.num_groups);
  }

  [[nodiscard]] std::span<batch_failure> failures() const noexcept { return out_.failures.first(done_.num_failures); }

  /// Tries an entry again; fills its slots if it does not fail. Errors: those of the entry.
  [[nodiscard]] result<void> repeat(std::size_t entry) noexcept {
    auto failure = std::array<batch_failure, 1>{};
    const auto new_blocks = out_.new_blocks.subspan(std::min(done_.num_new_blocks, out_.new_blocks.size()));
    const auto repeated = cache_.append_batch(entries_.subspan(entry, 1), {slots_, failure, new_blocks}, stream_);
    if (!repeated) {
      return repeated.error();
    }
    if (repeated->num_failures != 0) {
      return failure[0].reason;
    }
    for (auto& added : new_blocks.first(std::min(repeated->num_new_blocks, new_blocks.size()))) {
      added.entry = static_cast<std::uint32_t>(entry);
    }
    done_.num_new_blocks += repeated->num_new_blocks;
    for (std::size_t g = 0; g < done_.num_groups; ++g) {
      const auto slots = slots_of(entry, g);
      std::copy_n(slots_.begin() + static_cast<std::ptrdiff_t>(g * slots.size()), slots.size(), slots.begin());
    }
    return {};
  }

  /// An entry is of no use any more, for this reason, also if it has failed for another one.
  void withdraw(std::size_t entry, const error& reason) noexcept {
    const auto all = failures();
    if (const auto failure = std::ranges::find(all, entry, &batch_failure::entry); failure != all.end()) {
      failure->reason = reason;
      return;
    }
    for (std::size_t g = 0; g < done_.num_groups; ++g) {
      std::ranges::fill(slots_of(entry, g), skip_slot);
    }
    out_.failures[done_.num_failures++] = {entry, reason};
  }

  /// Forgets the failures that name `no_entry`.
  void drop_repeated() noexcept {
    const auto all = failures();  // clang 15 does not take std::ranges::remove of libstdc++
    const auto repeated = [](const batch_failure& failure) { return failure.entry == no_entry; };
    const auto end = std::remove_if(all.begin(), all.end(), repeated);
    done_.num_failures = static_cast<std::size_t>(end - all.begin());
  }
  void sort_failures() noexcept { std::ranges::sort(failures(), {}, &batch_failure::entry); }

 private:
  [[nodiscard]] std::span<slot> slots_of(std::size_t entry, std::size_t group) const noexcept {
    auto first = group * done_.num_slots;
    for (const auto& before : entries_.first(entry)) {
      first += detail::num_slots_of(before);
    }
    return out_.slots.subspan(first, detail::num_slots_of(entries_[entry]));
  }

  Cache& cache_;
  std::span<const batch_entry> entries_;
  const batch_buffers& out_;
  batch_outcome& done_;
  stream_type stream_;
  std::vector<slot> slots_;  // of an entry that is repeated
};

}  // namespace pagedkv
