#pragma once

#include "prefix_trace.hpp"
#include "simulate.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace pagedkv::support {

/// A cache that knows all future requests and keeps the blocks that are needed soonest (Belady). A request needs every
/// ancestor of a block that it needs, so ancestors are never needed later than their descendants: it suffices to count
/// the kept blocks by the request that needs them next. Every policy refuses prompts larger than the pool; these need
/// no blocks.
class foresight {
 public:
  foresight(const prefix_trace& trace, std::int32_t num_blocks, const simulation_options& options)
      : trace_(trace), num_blocks_(static_cast<std::size_t>(num_blocks)), num_private_(options.num_private) {
    find_next_uses();
  }

  /// Hits of a cache that may also skip a request: it serves the cached part of the prompt and keeps any part of the
  /// rest. No policy hits more, whichever requests it refuses.
  [[nodiscard]] simulation_result choosing() const { return run(false); }

  /// Hits of a cache that must hold the whole prompt of each request that fits. No policy that refuses none of these
  /// hits more.
  [[nodiscard]] simulation_result admitting() const { return run(true); }

 private:
  using request_index = std::uint32_t;

  static constexpr auto never = UINT32_MAX;

  /// Kept blocks by their next use; those that have none need not be kept.
  class kept_blocks {
   public:
    void add(request_index next_use, std::size_t count) {
      by_next_use_[next_use] += count;
      size_ += count;
    }

    /// Removes the blocks that this request needs. None is needed earlier.
    std::size_t take(request_index request) {
      const auto first = by_next_use_.begin();
      if (first == by_next_use_.end() || first->first != request) {
        return 0;
      }
      const auto count = first->second;
      by_next_use_.erase(first);
      size_ -= count;
      return count;
    }

    void shrink(std::size_t most) {
      while (size_ > most) {
        const auto last = std::prev(by_next_use_.end());
        const auto count = std::min(last->second, size_ - most);
        size_ -= count;
        last->second -= count;
        if (last->second == 0) {
          by_next_use_.erase(last);
        }
      }
    }

   private:
    std::map<request_index, std::size_t> by_next_use_;
    std::size_t size_ = 0;
  };

  [[nodiscard]] bool fits(const prefix_trace::request& request) const noexcept {
    return request.nodes.size() + num_private_ <= num_blocks_;
  }

  void find_next_uses() {
    auto next = std::vector<request_index>(trace_.num_nodes(), never);
    auto end = trace_.num_references();
    next_uses_.resize(end, never);
    for (auto i = trace_.requests().size(); i-- > 0;) {
      const auto& request = trace_.requests()[i];
      const auto start = end - request.nodes.size();
      for (auto at = start; fits(request) && at < end; ++at) {
        next_uses_[at] = std::exchange(next[request.nodes[at - start]], static_cast<request_index>(i));
      }
      end = start;
    }
  }

  [[nodiscard]] simulation_result run(bool admits_all) const {
    auto result = simulation_result{};
    auto kept = kept_blocks{};
    auto start = std::size_t{0};
    for (auto i = std::size_t{0}; i < trace_.requests().size(); ++i) {
      const auto& request = trace_.requests()[i];
      const auto end = start + request.nodes.size();
      result.references += static_cast<std::int64_t>(request.nodes.size());
      if (fits(request)) {
        const auto most = num_blocks_ - num_private_;
        result.hits += static_cast<std::int64_t>(kept.take(static_cast<request_index>(i)));
        kept.shrink(admits_all ? most - request.nodes.size() : most);
        add_all(kept, start, end);
        kept.shrink(most);
      } else {
        ++result.refused_requests;
      }
      start = end;
    }
    return result;
  }

  void add_all(kept_blocks& kept, std::size_t start, std::size_t end) const {
    while (start < end && next_uses_[start] != never) {
      const auto first = start;
      while (start < end && next_uses_[start] == next_uses_[first]) {
        ++start;
      }
      kept.add(next_uses_[first], start - first);
    }
  }

  const prefix_trace& trace_;
  std::size_t num_blocks_;
  std::size_t num_private_;
  std::vector<request_index> next_uses_;  // of each reference: the request that needs its block next
};

/// Hits that no policy exceeds.
[[nodiscard]] inline simulation_result bound_of(const prefix_trace& trace, std::int32_t num_blocks,
                                                const simulation_options& options = {}) {
  return foresight{trace, num_blocks, options}.choosing();
}

/// Hits that no policy exceeds if it has to admit every request that fits.
[[nodiscard]] inline simulation_result oracle_of(const prefix_trace& trace, std::int32_t num_blocks,
                                                 const simulation_options& options = {}) {
  return foresight{trace, num_blocks, options}.admitting();
}

}  // namespace pagedkv::support
