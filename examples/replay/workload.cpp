#include "workload.hpp"

#include "options.hpp"

#include <algorithm>
#include <random>
#include <unordered_set>

namespace pagedkv::replay {

namespace {

/// Conversations that start within an hour, each on one of a few system prompts. Every turn's prompt is all earlier
/// text, answers included, and a question. The same in every run: standard distributions would differ between
/// libraries.
class conversations {
 public:
  [[nodiscard]] std::vector<support::trace_request> generate() {
    auto systems = std::vector<std::vector<std::uint64_t>>(8);
    for (auto& system : systems) {
      extend(system, between(4, 64));
    }
    auto requests = std::vector<support::trace_request>{};
    for (auto i = 0; i < 1000; ++i) {
      converse(systems[between(0, systems.size() - 1)], requests);
    }
    std::ranges::stable_sort(requests, {}, &support::trace_request::arrival_ms);
    return requests;
  }

 private:
  void converse(std::vector<std::uint64_t> blocks, std::vector<support::trace_request>& requests) {
    auto time = static_cast<std::int64_t>(between(0, 3'600'000));
    for (auto num_turns = between(1, 8); num_turns > 0; --num_turns) {
      extend(blocks, between(1, 12));
      const auto num_output_blocks = between(1, 24);
      requests.push_back({time, static_cast<std::uint32_t>(blocks.size() * block_size),
                          static_cast<std::uint32_t>(num_output_blocks * block_size), blocks});
      extend(blocks, num_output_blocks);
      time += static_cast<std::int64_t>(between(5'000, 120'000));
    }
  }

  void extend(std::vector<std::uint64_t>& blocks, std::uint64_t count) {
    for (; count > 0; --count) {
      blocks.push_back(next_id_++);
    }
  }

  [[nodiscard]] std::uint64_t between(std::uint64_t lowest, std::uint64_t highest) {
    return lowest + random_() % (highest - lowest + 1);
  }

 public:
  static constexpr auto block_size = std::int32_t{16};

 private:
  std::mt19937_64 random_{20};
  std::uint64_t next_id_ = 0;
};

}  // namespace

workload make_workload(const options& chosen) {
  constexpr auto traced_block_size = std::int32_t{512};
  auto made = workload{};
  if (chosen.trace.empty()) {
    made.requests = conversations{}.generate();
    made.requests.resize(std::min(made.requests.size(), chosen.limit));
  } else {
    made.requests = support::read_trace(chosen.trace, chosen.limit);
  }
  made.block_size = chosen.block_size.value_or(chosen.trace.empty() ? conversations::block_size : traced_block_size);

  auto distinct = std::unordered_set<std::uint64_t>{};
  for (const auto& request : made.requests) {
    made.num_references += static_cast<std::int64_t>(request.blocks.size());
    made.longest_prompt = std::max(made.longest_prompt, request.blocks.size());
    distinct.insert(request.blocks.begin(), request.blocks.end());
  }
  made.num_distinct_blocks = static_cast<std::int64_t>(distinct.size());
  return made;
}

}  // namespace pagedkv::replay
