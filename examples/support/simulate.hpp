#pragma once

#include "prefix_trace.hpp"

#include <pagedkv/policy/eviction/concept.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::support {

struct simulation_result {
  std::int64_t references = 0;
  std::int64_t hits = 0;
  std::int64_t evictions = 0;
  std::int64_t refused_requests = 0;

  [[nodiscard]] double hit_ratio() const noexcept {
    return references == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(references);
  }
};

/// Blocks that a request of `examples/replay` takes besides those of its prompt: one, for the token of its own.
inline constexpr auto replay_private_blocks = std::size_t{1};

struct simulation_options {
  /// Blocks that a request takes besides those of its prompt.
  std::size_t num_private = replay_private_blocks;

  /// Whether a block is kept as long as blocks which continue it are, as in the cache. Otherwise, policies may evict
  /// it, and its continuations are found again when it returns: a cache without knowledge of chains.
  bool leaves_first = true;
};

/// A cache of prefix chains reduced to its bookkeeping. It serves one request at a time: shares the leading cached
/// blocks, takes blocks for the rest and a few for the request's own tokens, and releases all, deepest first. Drives a
/// policy exactly as `kv_cache` does, at millions of references a second.
template <eviction_policy Policy>
class chain_simulator {
 public:
  chain_simulator(const prefix_trace& trace, std::int32_t num_blocks, simulation_options options = {})
      : policy_(num_blocks),
        trace_(trace),
        options_(options),
        blocks_(static_cast<std::size_t>(num_blocks)),
        resident_(trace.num_nodes(), no_block) {
    for (auto i = num_blocks; i-- > 0;) {
      free_.push_back(block_id{i});
    }
  }

  void run(const prefix_trace::request& request) {
    result_.references += static_cast<std::int64_t>(request.nodes.size());
    if (request.nodes.size() + options_.num_private > blocks_.size()) {
      ++result_.refused_requests;
      return;
    }
    now_ = static_cast<timestamp>(request.arrival_ms * 1'000'000);
    share(request);
    const auto num_cached = chain_.size();
    if constexpr (!evicts<Policy>) {
      if (request.nodes.size() - num_cached + options_.num_private > free_.size()) {
        ++result_.refused_requests;
        return;
      }
    }
    result_.hits += static_cast<std::int64_t>(num_cached);
    while (chain_.size() < request.nodes.size()) {
      extend(request.nodes[chain_.size()]);
    }
    take_private();
    release(request, num_cached);
  }

  [[nodiscard]] const simulation_result& result() const noexcept { return result_; }
  [[nodiscard]] const Policy& policy() const noexcept { return policy_; }

 private:
  // A residence is one stay of one node in one block. Children are found through the residence of their parent, so
  // those of an evicted parent are lost even when it comes back.
  struct block_state {
    std::uint64_t residence = 0;
    std::uint64_t parent_residence = 0;
    block_id parent = no_block;
    prefix_trace::node node = 0;
    std::int32_t num_children = 0;
  };

  [[nodiscard]] block_state& at(block_id block) noexcept { return blocks_[to_index(block)]; }

  void share(const prefix_trace::request& request) {
    chain_.clear();
    auto residence = std::uint64_t{0};
    for (const auto node : request.nodes) {
      const auto block = resident_[node];
      if (block == no_block || (options_.leaves_first && at(block).parent_residence != residence)) {
        break;
      }
      policy_.remove(block);
      residence = at(block).residence;
      chain_.push_back(block);
    }
  }

  void extend(prefix_trace::node node) {
    if (!options_.leaves_first && resident_[node] != no_block) {
      policy_.remove(resident_[node]);
      chain_.push_back(resident_[node]);
      return;
    }
    const auto block = take();
    auto& state = at(block);
    state = {++num_residences_, 0, no_block, node, 0};
    if (!chain_.empty()) {
      state.parent = chain_.back();
      state.parent_residence = at(state.parent).residence;
      ++at(state.parent).num_children;
    }
    resident_[node] = block;
    chain_.push_back(block);
  }

  [[nodiscard]] block_id take() {
    if (free_.empty()) {
      ++result_.evictions;
      const auto block = policy_.victim(offer{*this}, now_);
      assert(block != no_block);
      return block;
    }
    const auto block = free_.back();
    free_.pop_back();
    return block;
  }

  void take_private() {
    for (auto i = std::size_t{0}; i < options_.num_private; ++i) {
      private_.push_back(take());
    }
    free_.insert(free_.end(), private_.rbegin(), private_.rend());
    private_.clear();
  }

  struct offer {
    chain_simulator& simulator;

    eviction_answer operator()(block_id block) const noexcept {
      const auto leaf = simulator.at(block).num_children == 0 || !simulator.options_.leaves_first;
      return leaf ? (*this)(block, evict_anyway) : eviction_answer::has_children;
    }

    eviction_answer operator()(block_id block, evict_anyway_t) const noexcept {
      const auto& state = simulator.at(block);
      if (state.parent != no_block && simulator.at(state.parent).residence == state.parent_residence) {
        --simulator.at(state.parent).num_children;
      }
      if (simulator.resident_[state.node] == block) {
        simulator.resident_[state.node] = no_block;
      }
      return eviction_answer::taken;
    }
  };

  void release(const prefix_trace::request& request, std::size_t num_cached) {
    auto release = block_release{};
    release.num_chain_blocks = static_cast<std::uint32_t>(request.nodes.size());
    release.num_prompt_tokens = request.num_prompt_tokens;
    release.num_output_tokens = request.num_output_tokens;
    release.num_cached_blocks = static_cast<std::uint32_t>(num_cached);
    release.last_cached = num_cached == 0 ? no_block : chain_[num_cached - 1];
    release.released_at = now_;
    for (auto i = chain_.size(); i-- > 0;) {
      release.hash = trace_.hash(request.nodes[i]);
      release.parent = i == 0 ? no_block : chain_[i - 1];
      release.depth = static_cast<std::uint32_t>(i);
      policy_.insert(chain_[i], release);
    }
  }

  Policy policy_;
  const prefix_trace& trace_;
  simulation_options options_;
  std::vector<block_state> blocks_;
  std::vector<block_id> resident_;
  std::vector<block_id> free_;
  std::vector<block_id> chain_;
  std::vector<block_id> private_;
  std::uint64_t num_residences_ = 0;
  timestamp now_{};
  simulation_result result_;
};

template <eviction_policy Policy>
[[nodiscard]] simulation_result simulate(const prefix_trace& trace, std::int32_t num_blocks,
                                         simulation_options options = {}) {
  auto simulator = chain_simulator<Policy>{trace, num_blocks, options};
  for (const auto& request : trace.requests()) {
    simulator.run(request);
  }
  return simulator.result();
}

/// The same references as a flat stream of unrelated blocks, the textbook definition of a cache: simulated without
/// private blocks, a hit is released at once and a miss takes one block.
[[nodiscard]] inline prefix_trace flatten(const prefix_trace& trace) {
  auto flat = std::vector<trace_request>{};
  flat.reserve(trace.num_references());
  for (const auto& request : trace.requests()) {
    for (const auto node : request.nodes) {
      flat.push_back({request.arrival_ms, request.num_prompt_tokens, request.num_output_tokens, {node}});
    }
  }
  return prefix_trace{flat};
}

}  // namespace pagedkv::support
