#pragma once

#include <pagedkv/core/ids.hpp>

#include <concepts>
#include <cstdint>
#include <string_view>

namespace pagedkv {

/// A request as a preemption policy sees it.
struct preemption_candidate {
  request_id id{};         // none while it is being submitted
  sequence_id sequence{};  // that holds its blocks; none while it is being submitted or resumed
  std::uint8_t priority = 0;
  std::uint64_t arrival = 0;  // position in the order of submission, kept across preemptions
  std::int64_t num_preemptions = 0;
  timestamp submitted{};
};

/// Decides which running requests are preempted when a request that may preempt finds too few blocks, and what becomes
/// of their K/V. Functions are called from any thread that calls the tracker.
///
/// | requirement           | meaning                                                                             |
/// |-----------------------|-------------------------------------------------------------------------------------|
/// | `P::enabled`          | whether one request is ever preempted for another                                   |
/// | `p.ranks_below(a, b)` | if so: strict weak order; `a` may be preempted for `b`, and the lowest is first     |
/// | `P::keeps_kv`         | whether the policy keeps the K/V of preempted requests: see `preemption_for`        |
/// | `P::name`             | for tables and options, e.g. "recompute"                                            |
///
/// A minimal model:
///
///     struct own_preemption {
///       static constexpr bool enabled = true;
///       static constexpr bool keeps_kv = false;
///       static constexpr std::string_view name = "latest first";
///       bool ranks_below(const preemption_candidate& a, const preemption_candidate& b) const noexcept {
///         return a.arrival > b.arrival;
///       }
///     };
///
/// It is no axis of the cache, but the second parameter of `request_tracker`.
template <class P>
concept preemption_policy = requires {
  { P::enabled } -> std::convertible_to<bool>;
  { P::keeps_kv } -> std::convertible_to<bool>;
  { P::name } -> std::convertible_to<std::string_view>;
} && (!P::enabled || requires(const P& policy, const preemption_candidate& candidate) {
  { policy.ranks_below(candidate, candidate) } noexcept -> std::same_as<bool>;
});

/// A preemption policy for requests of one cache. A policy that keeps K/V, in host memory for example, has three more
/// functions, which copy on the stream that the tracker's caller gave:
///
/// | requirement                                   | meaning                                                           |
/// |-----------------------------------------------|-------------------------------------------------------------------|
/// | `p.save(cache, request, on)`                  | the sequence of `request` is released next: copy its K/V          |
/// | `p.restore(cache, request, num_cached, on)`   | `request` has a new sequence, whose first `num_cached` tokens are |
/// |                                               | cached: copy back what was saved, forget it, and return how many  |
/// |                                               | leading tokens need no computing                                  |
/// | `p.discard(id)`                               | the request has ended: forget what was saved of it, if anything   |
///
/// Between `save` and the end of `discard` or `restore`, no other `save` is called for the same request. A policy that
/// cannot save, or not restore, does nothing and returns `num_cached`: the K/V is then computed again.
template <class P, class Cache>
concept preemption_for =
    preemption_policy<P> && (!P::keeps_kv || requires(P policy, Cache& cache, const preemption_candidate& request,
                                                      std::int64_t num_cached, typename Cache::stream on) {
      { policy.save(cache, request, on) } noexcept;
      { policy.restore(cache, request, num_cached, on) } noexcept -> std::same_as<std::int64_t>;
      { policy.discard(request.id) } noexcept;
    });

}  // namespace pagedkv
