#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <cstdint>

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

namespace detail {

template <class P>
concept has_enabled = requires {
  { P::enabled } -> std::convertible_to<bool>;
};
template <class P>
concept has_keeps_kv = requires {
  { P::keeps_kv } -> std::convertible_to<bool>;
};
template <class P>
concept never_ranks = has_enabled<P> && requires { requires !P::enabled; };
template <class P>
concept has_ranks_below = never_ranks<P> || requires(const P& policy, const preemption_candidate& candidate) {
  { policy.ranks_below(candidate, candidate) } noexcept -> std::same_as<bool>;
};

}  // namespace detail

/// Decides which running requests are preempted when a request that may preempt finds too few blocks, and what becomes
/// of their K/V. Functions are called from any thread that calls the tracker.
///
/// | requirement           | meaning                                                                         |
/// |-----------------------|---------------------------------------------------------------------------------|
/// | `P::enabled`          | whether one request is ever preempted for another                               |
/// | `p.ranks_below(a, b)` | if so: strict weak order; `a` may be preempted for `b`, and the lowest is first |
/// | `P::keeps_kv`         | whether the policy keeps the K/V of preempted requests: see `preemption_for`    |
/// | `P::name`             | for tables and options, e.g. "recompute"                                        |
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
concept preemption_policy =
    detail::has_enabled<P> && detail::has_ranks_below<P> && detail::has_keeps_kv<P> && detail::has_name<P>;

namespace detail {

template <class P>
concept keeps_no_kv = has_keeps_kv<P> && requires { requires !P::keeps_kv; };
template <class P, class Cache>
concept has_save = keeps_no_kv<P> || requires(P policy, Cache& cache, const preemption_candidate& request,
                                              typename Cache::stream_type stream) {
  { policy.save(cache, request, stream) } noexcept;
};
template <class P, class Cache>
concept has_restore = keeps_no_kv<P> || requires(P policy, Cache& cache, const preemption_candidate& request,
                                                 std::int64_t num_cached, typename Cache::stream_type stream) {
  { policy.restore(cache, request, num_cached, stream) } noexcept -> std::same_as<std::int64_t>;
};
template <class P>
concept has_discard = keeps_no_kv<P> || requires(P policy, request_id id) {
  { policy.discard(id) } noexcept;
};

}  // namespace detail

/// A preemption policy for requests of one cache. A policy that keeps K/V, in host memory for example, has three more
/// functions, which copy on the stream that the tracker's caller gave:
///
/// | requirement                                     | meaning                                                           |
/// |-------------------------------------------------|-------------------------------------------------------------------|
/// | `p.save(cache, request, stream)`                | the sequence of `request` is released next: copy its K/V          |
/// | `p.restore(cache, request, num_cached, stream)` | `request` has a new sequence, its first `num_cached` tokens are   |
/// |                                                 | cached: copy back what was saved, forget it, and return how many  |
/// |                                                 | leading tokens need no computing                                  |
/// | `p.discard(id)`                                 | the request has ended: forget what was saved of it, if anything   |
///
/// `save` finds K/V of the first `num_computed_tokens` that the cache's `describe` tells. Where a cache withdraws,
/// tokens that were committed ahead of their launch no longer count; nor, in an open step, those behind the last full
/// block, nor any of a request that started in that step. A state is of the tokens of the last launch.
///
/// `restore` may find fewer tokens in the new sequence than were saved: see `describe`. Where layers have windows, it
/// calls the cache's `drop_behind_windows` before it writes; docs/requests.md says when it restores nothing.
///
/// Between `save` and the end of `discard` or `restore`, no other `save` is called for the same request. A policy that
/// cannot save, or not restore, does nothing and returns `num_cached`: the K/V is then computed again.
template <class P, class Cache>
concept preemption_for =
    preemption_policy<P> && detail::has_save<P, Cache> && detail::has_restore<P, Cache> && detail::has_discard<P>;

/// The preemption of a tracker.
struct preemption_axis {
  template <class Policy>
  static constexpr bool takes = preemption_policy<Policy>;

  template <class Policy>
  static constexpr bool resembles = requires { Policy::enabled; } || requires { Policy::keeps_kv; } || requires {
    &Policy::ranks_below;
  } || requires(Policy policy, const preemption_candidate& candidate) { policy.ranks_below(candidate, candidate); };

  /// The first requirement that a policy for requests of this cache does not meet, with a sentence each.
  template <class Policy, class Cache>
  struct lacks {
    static constexpr auto unmet =
        detail::first_unmet({detail::has_enabled<Policy>, detail::has_ranks_below<Policy>, detail::has_keeps_kv<Policy>,
                             detail::has_name<Policy>, detail::has_save<Policy, Cache>,
                             detail::has_restore<Policy, Cache>, detail::has_discard<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly a preemption policy: `enabled` is missing or has another type; write `static "
                  "constexpr bool enabled`");
    static_assert(unmet != 1,
                  "this type is nearly a preemption policy: `ranks_below` is missing, may throw or has another form; "
                  "write `bool ranks_below(const preemption_candidate& a, const preemption_candidate& b) const "
                  "noexcept`, which goes with `enabled`");
    static_assert(unmet != 2,
                  "this type is nearly a preemption policy: `keeps_kv` is missing or has another type; write `static "
                  "constexpr bool keeps_kv`");
    static_assert(unmet != 3,
                  "this type is nearly a preemption policy: `name` is missing or has another type; write `static "
                  "constexpr std::string_view name`");
    static_assert(
        unmet != 4,
        "this type is nearly a preemption policy: `save` is missing, may throw or has another form; write "
        "`void save(Cache& cache, const preemption_candidate& request, stream_type stream) noexcept`, which goes "
        "with `keeps_kv`");
    static_assert(unmet != 5,
                  "this type is nearly a preemption policy: `restore` is missing, may throw or has another form; "
                  "write `std::int64_t restore(Cache& cache, const preemption_candidate& request, std::int64_t "
                  "num_cached, stream_type stream) noexcept`, which goes with `keeps_kv`");
    static_assert(unmet != 6,
                  "this type is nearly a preemption policy: `discard` is missing, may throw or has another form; "
                  "write `void discard(request_id id) noexcept`, which goes with `keeps_kv`");
  };
};

/// Preempts no request for another: a full pool refuses. A request that the caller preempts is computed again.
struct no_preemption {
  static constexpr bool enabled = false;
  static constexpr bool keeps_kv = false;
  static constexpr std::string_view name = "none";
};

static_assert(preemption_policy<no_preemption> && std::is_empty_v<no_preemption>);

}  // namespace pagedkv
