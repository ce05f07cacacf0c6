#include "workload.hpp"

#include "options.hpp"

#include <algorithm>
#include <random>
#include <unordered_set>
#include <utility>

namespace pagedkv::replay {

namespace {

/// Requests of one hour: conversations, questions about shared documents, and agents. The same in every run: standard
/// distributions would differ between libraries.
class mixed_sessions {
 public:
  [[nodiscard]] std::vector<support::trace_request> generate() {
    const auto systems = prefixes(8, 4, 64);
    const auto tools = prefixes(2, 64, 128);
    const auto documents = prefixes(150, 60, 400);
    for (auto i = 0; i < 700; ++i) {
      converse(systems[between(0, systems.size() - 1)]);
    }
    for (auto i = 0; i < 450; ++i) {
      // The lowest of three: some documents are asked about much more often than others.
      const auto last = documents.size() - 1;
      ask(documents[std::min({between(0, last), between(0, last), between(0, last)})]);
    }
    for (auto i = 0; i < 40; ++i) {
      work(tools[between(0, tools.size() - 1)]);
    }
    std::ranges::stable_sort(requests_, {}, &support::trace_request::arrival_ms);
    return std::move(requests_);
  }

 private:
  using chain = std::vector<std::uint64_t>;

  [[nodiscard]] std::vector<chain> prefixes(std::size_t count, std::uint64_t shortest, std::uint64_t longest) {
    auto made = std::vector<chain>(count);
    for (auto& each : made) {
      extend(each, between(shortest, longest));
    }
    return made;
  }

  /// People read an answer before they go on, longer ones longer, and go on more often after a short one.
  void converse(chain blocks) {
    auto time = start();
    for (auto goes_on = true; goes_on;) {
      extend(blocks, between(1, 12));
      const auto answer = between(0, 2) == 0 ? between(20, 60) : between(1, 12);
      request(time, blocks, answer);
      time += minutes(between(1, 3)) * static_cast<std::int64_t>(answer > 12 ? 2 : 1);
      goes_on = between(1, 100) <= (answer > 12 ? 35U : 85U);
    }
  }

  /// One or two questions, the document in front.
  void ask(chain blocks) {
    auto time = start();
    for (auto num_questions = between(1, 2); num_questions > 0; --num_questions) {
      extend(blocks, between(1, 6));
      request(time, blocks, between(2, 16));
      time += minutes(between(1, 4));
    }
  }

  /// Short calls of tools in quick succession, each with its result, then a report, which no request continues.
  void work(chain blocks) {
    auto time = start();
    for (auto num_calls = between(6, 24); num_calls > 0; --num_calls) {
      extend(blocks, between(2, 20));
      request(time, blocks, between(1, 3));
      time += static_cast<std::int64_t>(between(2'000, 30'000));
    }
    request(time, blocks, between(30, 60));
  }

  /// The answer is part of the prompt that follows.
  void request(std::int64_t time, chain& blocks, std::uint64_t num_answer_blocks) {
    requests_.push_back({time, static_cast<std::uint32_t>(blocks.size() * block_size),
                         static_cast<std::uint32_t>(num_answer_blocks * block_size), blocks});
    extend(blocks, num_answer_blocks);
  }

  [[nodiscard]] std::int64_t start() { return static_cast<std::int64_t>(between(0, 3'600'000)); }

  [[nodiscard]] static std::int64_t minutes(std::uint64_t count) { return static_cast<std::int64_t>(count * 60'000); }

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
  std::vector<support::trace_request> requests_;
  std::mt19937_64 random_{20};
  std::uint64_t next_id_ = 0;
};

}  // namespace

workload make_workload(const options& chosen) {
  constexpr auto traced_block_size = std::int32_t{512};
  auto made = workload{};
  if (chosen.trace.empty()) {
    made.requests = mixed_sessions{}.generate();
    made.requests.resize(std::min(made.requests.size(), chosen.limit));
  } else {
    made.requests = support::read_trace(chosen.trace, chosen.limit);
  }
  made.block_size = chosen.block_size.value_or(chosen.trace.empty() ? mixed_sessions::block_size : traced_block_size);

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
