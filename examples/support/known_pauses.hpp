#pragma once

#include "trace_request.hpp"

#include <pagedkv/policy/eviction/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace pagedkv::support {

/// Requests of 512 tokens a block, made one by one.
class request_writer {
 public:
  [[nodiscard]] std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  void extend(std::vector<std::uint64_t>& blocks, std::size_t count) {
    for (; count > 0; --count) {
      blocks.push_back(next_id_++);
    }
  }

  void add(const std::vector<std::uint64_t>& blocks, std::size_t num_output_tokens) {
    const auto num_tokens = static_cast<std::uint32_t>(512 * blocks.size());
    const auto time = static_cast<std::int64_t>(1000 * requests_.size());
    requests_.push_back({time, num_tokens, static_cast<std::uint32_t>(num_output_tokens), blocks});
  }

  [[nodiscard]] const std::vector<trace_request>& requests() const noexcept { return requests_; }

 private:
  std::mt19937_64 random_{7};
  std::uint64_t next_id_ = 0;
  std::vector<trace_request> requests_;
};

/// One request a second. Three in four are continued: a third of these soon, the others late.
[[nodiscard]] inline std::vector<trace_request> sessions_with_known_pauses() {
  auto writer = request_writer{};
  auto due = std::multimap<std::size_t, std::vector<std::uint64_t>>{};
  for (auto now = std::size_t{0}; now < 6000; ++now) {
    auto blocks = std::vector<std::uint64_t>{};
    if (!due.empty() && due.begin()->first <= now) {
      blocks = std::move(due.extract(due.begin()).mapped());
    }
    writer.extend(blocks, 2 + writer.below(8));
    const auto kind = writer.below(4);
    const auto pause = kind == 0 ? 0 : kind == 1 ? 10 + writer.below(20) : 150 + writer.below(200);
    writer.add(blocks, pause);
    if (pause != 0) {
      due.emplace(now + pause, std::move(blocks));
    }
  }
  return writer.requests();
}

/// Is told when the session returns, or that it does not: by `sessions_with_known_pauses` in the place of the length of
/// the answer.
template <class Policy>
class with_true_hints : public Policy {
 public:
  using Policy::Policy;

  void insert(block_id block, block_release release) noexcept {
    release.expected_return = release.num_output_tokens * std::int64_t{1'000'000'000};
    release.ended = release.num_output_tokens == 0;
    release.num_output_tokens = 0;
    Policy::insert(block, release);
  }
};

}  // namespace pagedkv::support
