#pragma once

#include "trace_request.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

namespace pagedkv::support {

/// Makes up requests of one kind. Equal seeds give equal traces, on every platform.
class workload_generator {
 public:
  explicit workload_generator(std::uint64_t seed) : random_(seed) {}

  /// A few system prompts, some much more popular than others, each request with a tail that never returns.
  [[nodiscard]] std::vector<trace_request> shared_system_prompt(std::size_t num_requests) {
    auto prompts = std::vector<std::vector<std::uint64_t>>(50);
    for (auto& prompt : prompts) {
      extend(prompt, 4, 24);
    }
    return generate(num_requests, [&] {
      auto blocks = prompts[skewed(prompts.size())];
      extend(blocks, 1, 24);
      return blocks;
    });
  }

  /// Agents that come back to a prompt which grows with every turn, until their task is done and another takes over.
  [[nodiscard]] std::vector<trace_request> agents(std::size_t num_requests) {
    auto alive = std::vector<agent>(60);
    return generate(num_requests, [&] { return take_turn(alive[below(alive.size())]); });
  }

  /// Documents asked about in no order, each as often as any other.
  [[nodiscard]] std::vector<trace_request> uniform(std::size_t num_requests) {
    auto documents = std::vector<std::vector<std::uint64_t>>(600);
    for (auto& document : documents) {
      extend(document, 4, 40);
    }
    return generate(num_requests, [&] { return documents[below(documents.size())]; });
  }

  /// Agents, and now and then a batch of long prompts that never return.
  [[nodiscard]] std::vector<trace_request> scans(std::size_t num_requests) {
    auto alive = std::vector<agent>(40);
    auto left_in_batch = std::size_t{0};
    return generate(num_requests, [&] {
      if (left_in_batch == 0 && below(300) == 0) {
        left_in_batch = 150;
      }
      if (left_in_batch == 0) {
        return take_turn(alive[below(alive.size())]);
      }
      --left_in_batch;
      auto blocks = std::vector<std::uint64_t>{};
      extend(blocks, 20, 60);
      return blocks;
    });
  }

  /// One kind of traffic, then at once another: agents, then documents asked about with skewed popularity.
  [[nodiscard]] std::vector<trace_request> regime_change(std::size_t num_requests) {
    auto requests = agents(num_requests / 2);
    auto documents = std::vector<std::vector<std::uint64_t>>(2000);
    for (auto& document : documents) {
      extend(document, 4, 40);
    }
    const auto rest = generate(num_requests - requests.size(), [&] { return documents[skewed(documents.size())]; });
    requests.insert(requests.end(), rest.begin(), rest.end());
    return requests;
  }

  /// Conversations in turns: people think for a while, most stop after a few turns.
  [[nodiscard]] std::vector<trace_request> conversations(std::size_t num_requests) {
    auto waiting = std::vector<conversation>{};
    auto clock = 0.0;
    return generate(num_requests, [&] {
      clock += 1.0;
      const auto due = std::find_if(waiting.begin(), waiting.end(), [&](const auto& c) { return c.due <= clock; });
      auto blocks = std::vector<std::uint64_t>{};
      if (due != waiting.end()) {
        blocks = due->blocks;
        *due = waiting.back();
        waiting.pop_back();
      }
      extend(blocks, 1, 8);
      if (below(3) != 0) {
        waiting.push_back({clock + 20.0 + static_cast<double>(below(40) * below(40)), blocks});
      }
      return blocks;
    });
  }

 private:
  struct agent {
    std::vector<std::uint64_t> blocks;
    std::size_t turns_left = 0;
  };

  struct conversation {
    double due = 0.0;
    std::vector<std::uint64_t> blocks;
  };

  [[nodiscard]] std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  /// An index below `bound` whose logarithm is uniform: about as Zipf's law has it.
  [[nodiscard]] std::size_t skewed(std::size_t bound) {
    const auto fraction = static_cast<double>(random_() >> 11) * 0x1p-53;
    return static_cast<std::size_t>(std::pow(static_cast<double>(bound), fraction)) - 1;
  }

  void extend(std::vector<std::uint64_t>& blocks, std::size_t least, std::size_t most) {
    for (auto i = least + below(most - least + 1); i > 0; --i) {
      blocks.push_back(next_id_++);
    }
  }

  [[nodiscard]] std::vector<std::uint64_t> take_turn(agent& a) {
    if (a.turns_left == 0) {
      a.blocks.clear();
      extend(a.blocks, 4, 20);
      a.turns_left = 3 + below(30);
    }
    --a.turns_left;
    extend(a.blocks, 1, 6);
    return a.blocks;
  }

  template <class Make>
  [[nodiscard]] std::vector<trace_request> generate(std::size_t num_requests, Make make) {
    auto requests = std::vector<trace_request>(num_requests);
    for (auto& request : requests) {
      clock_ms_ += static_cast<std::int64_t>(below(600));
      request.arrival_ms = clock_ms_;
      request.blocks = make();
      const auto num_tokens = request.blocks.size() * tokens_per_block - below(tokens_per_block);
      request.num_prompt_tokens = static_cast<std::uint32_t>(num_tokens);
      request.num_output_tokens = static_cast<std::uint32_t>(1 + below(600));
    }
    return requests;
  }

  static constexpr auto tokens_per_block = std::size_t{512};

  std::mt19937_64 random_;
  std::uint64_t next_id_ = 0;
  std::int64_t clock_ms_ = 0;
};

struct named_workload {
  std::string_view name;
  std::vector<trace_request> (workload_generator::*generate)(std::size_t num_requests);
};

inline constexpr auto workloads = std::array{
    named_workload{"shared_system_prompt", &workload_generator::shared_system_prompt},
    named_workload{"agents", &workload_generator::agents},
    named_workload{"uniform", &workload_generator::uniform},
    named_workload{"scans", &workload_generator::scans},
    named_workload{"regime_change", &workload_generator::regime_change},
    named_workload{"conversations", &workload_generator::conversations},
};

}  // namespace pagedkv::support
