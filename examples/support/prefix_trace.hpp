#pragma once

#include "trace_request.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

namespace pagedkv::support {

/// A trace made ready for simulation: every distinct block (its id and its prefix) has a number, and a hash as in a
/// cache.
class prefix_trace {
 public:
  using node = std::uint32_t;

  struct request {
    std::int64_t arrival_ms = 0;
    std::uint32_t num_prompt_tokens = 0;
    std::uint32_t num_output_tokens = 0;
    std::span<const node> nodes;
  };

  /// Hashes are made of the numbers.
  explicit prefix_trace(const std::vector<trace_request>& trace)
      : prefix_trace(trace, [this](auto&&...) { return mixed(hashes_.size() + 1); }) {}

  /// `hash(before, id)` is the hash of a block that continues the one with the hash `*before`, or none if that is null.
  template <class Hash>
  prefix_trace(const std::vector<trace_request>& trace, Hash&& hash) {
    auto starts = std::vector<std::size_t>{};
    for (const auto& from : trace) {
      requests_.push_back({from.arrival_ms, from.num_prompt_tokens, from.num_output_tokens, {}});
      starts.push_back(nodes_.size());
      auto parent = no_parent;
      for (const auto id : from.blocks) {
        const auto [child, is_new] = children_.try_emplace({parent, id}, static_cast<node>(children_.size()));
        if (is_new) {
          hashes_.push_back(hash(parent == no_parent ? nullptr : &hashes_[parent], id));
        }
        parent = child->second;
        nodes_.push_back(parent);
      }
    }
    starts.push_back(nodes_.size());
    for (auto i = std::size_t{0}; i < requests_.size(); ++i) {
      requests_[i].nodes = std::span{nodes_}.subspan(starts[i], starts[i + 1] - starts[i]);
    }
  }

  prefix_trace(const prefix_trace&) = delete;
  prefix_trace& operator=(const prefix_trace&) = delete;

  [[nodiscard]] std::span<const request> requests() const noexcept { return requests_; }
  [[nodiscard]] std::uint64_t hash(node of) const noexcept { return hashes_[of]; }
  [[nodiscard]] std::size_t num_nodes() const noexcept { return hashes_.size(); }
  [[nodiscard]] std::size_t num_references() const noexcept { return nodes_.size(); }

 private:
  static constexpr auto no_parent = std::numeric_limits<node>::max();

  struct edge {
    node parent;
    std::uint64_t id;

    friend bool operator==(const edge&, const edge&) = default;
  };

  struct edge_hash {
    std::size_t operator()(const edge& e) const noexcept {
      const auto mixed = (e.id ^ std::uint64_t{e.parent} << 32) * 0x9e3779b97f4a7c15U;
      return static_cast<std::size_t>(mixed ^ mixed >> 29);
    }
  };

  [[nodiscard]] static std::uint64_t mixed(std::uint64_t number) noexcept {
    number *= 0x9e3779b97f4a7c15U;
    number = (number ^ number >> 32) * 0xd6e8feb86659fd93U;
    return number ^ number >> 32;
  }

  std::vector<request> requests_;
  std::vector<node> nodes_;
  std::vector<std::uint64_t> hashes_;  // by node
  std::unordered_map<edge, node, edge_hash> children_;
};

}  // namespace pagedkv::support
