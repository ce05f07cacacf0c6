#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/preemption/concept.hpp>
#include <pagedkv/requests/concept.hpp>
#include <pagedkv/requests/records.hpp>
#include <pagedkv/requests/request.hpp>
#include <pagedkv/requests/sequence_releases.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

namespace detail {

/// Fails to compile, with a sentence, for a policy that does not preempt requests of the cache.
template <class Preemption, class Cache>
struct preemption_check {
  static_assert(sizeof(Preemption) == 0,
                "request_tracker<Cache, Preemption> needs a policy of pagedkv/policy/preemption/concept.hpp, such as "
                "recompute or no_preemption");
};
template <class Preemption, class Cache>
  requires(!preemption_for<Preemption, Cache> && preemption_axis::resembles<Preemption>)
struct preemption_check<Preemption, Cache> : preemption_axis::lacks<Preemption, Cache> {};
template <class Preemption, class Cache>
  requires preemption_for<Preemption, Cache>
struct preemption_check<Preemption, Cache> {};

/// Stands for a policy that the check refuses, so that compilers report nothing else.
struct refused_preemption {
  static constexpr bool enabled = false;
  static constexpr bool keeps_kv = false;

  explicit refused_preemption(const auto&) noexcept {}
};

}  // namespace detail

/// Takes the blocks of running requests, by the preemption policy.
template <class Cache, class Preemption, class Mutex>
class request_preemption {
 public:
  using stream_type = typename Cache::stream_type;

  request_preemption(Cache& cache, request_records<Mutex>& records, sequence_releases<Cache, Mutex>& releases,
                     Preemption policy)
      : cache_(cache), records_(records), releases_(releases), policy_(std::move(policy)) {}

  /// Errors: `preempted`, `already_ended`, `unknown_request`; `in_use` while others need what the request has published
  /// ahead of a launch; `sequence_busy` while another thread is inside the sequence, or looks its blocks up, and if
  /// other threads have preempted and resumed the request meanwhile.
  [[nodiscard]] result<void> preempt(request_id id, stream_type stream) noexcept {
    auto held = result<sequence_id>{sequence_id{}};
    if constexpr (cache_that_withdraws<Cache>) {
      held = records_.sequence_of(id);
      if (!held) {
        return held.error();
      }
      const auto withdrawn = detail::repeat_while_busy([&] { return cache_.withdraw(*held); });
      if (!withdrawn && withdrawn.error().code != error_code::unknown_sequence) {
        return withdrawn.error();
      }
    }
    const auto taken = records_.preempt(id, *held, Preemption::keeps_kv, [&](sequence_id sequence) {
      detail::report<event_kind::preempted>(cache_.events(),
                                            [&] { return cache_event{.sequence = sequence, .request = id}; });
    });
    if (!taken) {
      return taken.error();
    }
    if constexpr (Preemption::keeps_kv) {
      policy_.save(cache_, *taken, stream);
    }
    releases_.release(taken->sequence, {});
    if constexpr (Preemption::keeps_kv) {
      if (!records_.end_saving(id)) {
        policy_.discard(id);
      }
    }
    return {};
  }

  /// Preempts the lowest-ranking requests that rank below the beneficiary, until their blocks are `num_missing`, and
  /// adds them to `preempted`. Leaves out those in `kept`, and adds to it those that keep their blocks. False, and
  /// nothing is changed, when the others' blocks would not be enough. Errors: `out_of_memory`, which changes nothing.
  [[nodiscard]] result<bool> make_room(const preemption_candidate& beneficiary, std::int64_t num_missing,
                                       const token_run& prompt, salt salt, stream_type stream,
                                       std::vector<request_id>& preempted, std::vector<request_id>& kept) noexcept {
    const auto preempt_fewest = [&]() -> result<bool> {
      auto candidates = records_.all_in({request_state::running});
      std::erase_if(candidates, [&](const auto& other) {
        return !policy_.ranks_below(other, beneficiary) || std::ranges::find(kept, other.id) != kept.end();
      });
      std::sort(candidates.begin(), candidates.end(),
                [&](const auto& a, const auto& b) { return policy_.ranks_below(a, b); });
      auto sequences = std::vector<sequence_id>{};
      sequences.reserve(candidates.size());
      for (const auto& candidate : candidates) {
        sequences.push_back(candidate.sequence);
      }
      const auto chosen = fewest_to_release(sequences, num_missing, prompt, salt, beneficiary.sequence);
      if (!chosen && chosen.error().code == error_code::out_of_memory) {
        return chosen.error();
      }
      if (!chosen || chosen->empty()) {  // another thread may have ended one of them meanwhile
        return false;
      }
      preempted.reserve(preempted.size() + chosen->size());
      kept.reserve(kept.size() + chosen->size());
      for (const auto i : *chosen) {
        // Fails only where another thread has ended or shared it, or uses it: perhaps one that is stopped.
        const auto done = preempt(candidates[i].id, stream);
        (done ? preempted : kept).push_back(candidates[i].id);
      }
      return true;
    };
    return detail::with_memory(preempt_fewest, error{error_code::out_of_memory, "memory for a list of requests"});
  }

  /// Never, where no request is preempted for another.
  [[nodiscard]] bool ranks_above([[maybe_unused]] const preemption_candidate& a,
                                 [[maybe_unused]] const preemption_candidate& b) const noexcept {
    if constexpr (Preemption::enabled) {
      return policy_.ranks_below(b, a);
    } else {
      return false;
    }
  }

  /// The preempted and waiting requests, those that rank highest first; where none ranks above another, in the order of
  /// arrival.
  [[nodiscard]] result<std::vector<request_id>> resumable() const noexcept {
    const auto rank = [&]() -> result<std::vector<request_id>> {
      auto waiting = records_.all_in({request_state::preempted, request_state::waiting});
      std::ranges::sort(waiting, {}, &preemption_candidate::arrival);
      std::ranges::stable_sort(waiting, [&](const auto& a, const auto& b) { return ranks_above(a, b); });
      auto ids = std::vector<request_id>(waiting.size());
      std::ranges::transform(waiting, ids.begin(), &preemption_candidate::id);
      return ids;
    };
    return detail::with_memory(rank, error{error_code::out_of_memory, "memory for a list of requests"});
  }

  /// Number of leading tokens of a resumed request whose K/V is in the cache.
  [[nodiscard]] std::int64_t restore([[maybe_unused]] const preemption_candidate& request, std::int64_t num_cached,
                                     [[maybe_unused]] stream_type stream) noexcept {
    if constexpr (Preemption::keeps_kv) {
      return policy_.restore(cache_, request, num_cached, stream);
    } else {
      return num_cached;
    }
  }

  /// Call it when a request has ended.
  void discard([[maybe_unused]] request_id id) noexcept {
    if constexpr (Preemption::keeps_kv) {
      policy_.discard(id);
    }
  }

 private:
  /// With what an append to the beneficiary need not copy then, if the cache tells.
  [[nodiscard]] result<std::vector<std::size_t>> fewest_to_release(std::span<const sequence_id> ids,
                                                                   std::int64_t num_blocks, const token_run& prompt,
                                                                   salt salt, sequence_id beneficiary) const noexcept {
    if constexpr (requires { cache_.fewest_to_release(ids, num_blocks, prompt, salt, beneficiary); }) {
      return cache_.fewest_to_release(ids, num_blocks, prompt, salt, beneficiary);
    } else {
      return cache_.fewest_to_release(ids, num_blocks, prompt, salt);
    }
  }

  Cache& cache_;
  request_records<Mutex>& records_;
  sequence_releases<Cache, Mutex>& releases_;
  [[no_unique_address]] Preemption policy_;
};

/// A request that needs blocks, and the purpose.
template <class Stream>
struct room_wanted {
  request_id id{};  // none while it is being submitted
  const request_info& request;
  token_run prompt;  // of the sequence that is to be created; empty for an append
  Stream stream{};
};

/// The part of a request's prompt that its sequence may share, with one token behind it.
[[nodiscard]] inline token_run shareable(const token_run& prompt, const sequence_options& options) noexcept {
  auto part = prompt;
  if (options.max_cached_tokens < std::ssize(prompt.tokens)) {
    part.tokens = prompt.tokens.first(static_cast<std::size_t>(options.max_cached_tokens) + 1);
  }
  return part;
}

/// Repeats an operation that takes blocks of the cache, and whose first attempt was `done`, until it succeeds or there
/// is no way to make room: free and evictable blocks first, then sequences whose release was deferred, then preemption,
/// if the request may preempt. Adds preempted requests to `preempted`.
///
/// If a step's retirement will make room, no other request is preempted.
template <class Result, class Cache, class Preemption, class Mutex, class Operation>
[[nodiscard]] Result with_room(Result done, const room_wanted<typename Cache::stream_type>& wanted,
                               std::vector<request_id>& preempted, sequence_releases<Cache, Mutex>& releases,
                               request_preemption<Cache, Preemption, Mutex>& preemption,
                               Operation&& operation) noexcept {
  const auto is_full = [&] { return !done && done.error().code == error_code::capacity_exhausted; };
  if (is_full() && releases.release_deferred()) {
    done = operation();
  }
  if constexpr (Preemption::enabled) {
    const auto& options = wanted.request.options;
    auto kept = std::vector<request_id>{};
    while (is_full() && options.may_preempt && done.error().step == step_id{}) {
      const auto has_room = preemption.make_room(
          candidate_of(wanted.id, wanted.request), done.error().value - done.error().limit,
          shareable(wanted.prompt, options.sequence), options.sequence.salt, wanted.stream, preempted, kept);
      if (!has_room) {
        return has_room.error();
      }
      if (!*has_room) {
        break;
      }
      done = operation();
    }
  }
  return done;
}

}  // namespace pagedkv
