#pragma once

#include "../../examples/llama/engine.hpp"
#include "../../examples/llama/model.hpp"
#include "../../examples/replay/contents.hpp"
#include "../../examples/support/trace_request.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace llama::bench {

using pagedkv::support::trace_request;

/// Sizes of a trace's requests in an engine for smaller ones.
struct trace_scale {
  double speed = 1;                   // arrivals in a second for one in the trace
  std::size_t tokens_per_block = 16;  // for the 512 of the trace

  [[nodiscard]] std::size_t tokens_for(std::uint32_t in_trace) const noexcept {
    return std::max(std::size_t{1}, (in_trace * tokens_per_block + 511) / 512);
  }
};

/// The tokens of a prompt: equal blocks of the trace have equal tokens.
[[nodiscard]] inline std::vector<pagedkv::token> prompt_of(const trace_request& request, const trace_scale& scale,
                                                           std::int32_t vocabulary) {
  const auto size = scale.tokens_per_block;
  auto tokens = std::vector<pagedkv::token>(request.blocks.size() * size);
  for (auto i = std::size_t{0}; i < request.blocks.size(); ++i) {
    pagedkv::replay::fill_tokens(request.blocks[i], std::span(tokens).subspan(i * size, size));
  }
  if (request.num_prompt_tokens != 0) {
    tokens.resize(std::min(tokens.size(), scale.tokens_for(request.num_prompt_tokens)));
  }
  std::ranges::for_each(tokens, [&](pagedkv::token& each) { each %= vocabulary; });
  return tokens;
}

/// Seconds since its construction, and those that it skipped.
class skipping_clock {
 public:
  [[nodiscard]] double now() const {
    return skipped_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  void skip_to(double time) { skipped_ += std::max(0.0, time - now()); }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double skipped_ = 0;
};

/// Times of one kind, in seconds.
class times {
 public:
  void add(double seconds) { all_.push_back(seconds); }
  /// The least time that this share of all did not exceed.
  [[nodiscard]] double quantile(double share) {
    if (all_.empty()) {
      return 0;
    }
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(all_.size())));
    const auto at = all_.begin() + static_cast<std::ptrdiff_t>(std::max(rank, std::size_t{1}) - 1);
    std::ranges::nth_element(all_, at);
    return *at;
  }

 private:
  std::vector<double> all_;
};

struct load_figures {
  std::size_t requests = 0;
  std::size_t refused = 0;  // larger than the pool
  std::size_t failed = 0;
  std::int64_t output_tokens = 0;
  double offered_seconds = 0;  // from the first arrival to the last
  double seconds = 0;          // from the first arrival to the last token
  times to_first_token;        // from arrival
  times between_tokens;        // of one request
  times in_cache;              // of each step
  engine_statistics engine;
  pagedkv::cache_statistics cache;
};

/// Sends a trace's requests to an engine as they arrive. Times in which there is nothing to do are skipped.
class load {
 public:
  load(model& with, const engine_sizes& sizes, const trace_scale& scale)
      : engine_(make_engine(with, sizes)), scale_(scale), vocabulary_(with.config().vocabulary) {}

  [[nodiscard]] load_figures run(std::span<const trace_request> requests) {
    auto next = requests.begin();
    for (auto is_busy = true; is_busy || next != requests.end();) {
      for (; next != requests.end() && arrival_of(*next) <= clock_.now(); ++next) {
        submit(*next);
      }
      const auto before = engine_->statistics().in_cache;
      is_busy = engine_->step();
      made_.in_cache.add(std::chrono::duration<double>(engine_->statistics().in_cache - before).count());
      std::ranges::for_each(std::exchange(ended_, {}), [&](const sample* each) { engine_->forget(*each); });
      if (!is_busy && next != requests.end()) {
        clock_.skip_to(arrival_of(*next));
      }
    }
    made_.offered_seconds = requests.empty() ? 0 : arrival_of(requests.back()) - arrival_of(requests.front());
    made_.seconds = requests.empty() ? 0 : clock_.now() - arrival_of(requests.front());
    made_.engine = engine_->statistics();
    made_.cache = engine_->cache_statistics();
    return std::move(made_);
  }

 private:
  [[nodiscard]] double arrival_of(const trace_request& request) const {
    return static_cast<double>(request.arrival_ms) / 1e3 / scale_.speed;
  }

  void submit(const trace_request& request) {
    auto prompt = prompt_of(request, scale_, vocabulary_);
    auto options = generation_options{};
    options.max_tokens = scale_.tokens_for(request.num_output_tokens);
    options.ignores_end = true;
    ++made_.requests;
    if (prompt.empty() || !engine_->fits(prompt.size(), options.max_tokens, 1)) {
      ++made_.refused;
      return;
    }
    const auto listener = [this, last = arrival_of(request)](const sample& from,
                                                             std::optional<pagedkv::token> next) mutable {
      if (next) {
        auto& sort = from.answer().size() == 1 ? made_.to_first_token : made_.between_tokens;
        sort.add(clock_.now() - last);
        last = clock_.now();
        ++made_.output_tokens;
      }
      if (!from.is_open()) {
        made_.failed += static_cast<std::size_t>(from.failure.has_value());
        ended_.push_back(&from);
      }
    };
    static_cast<void>(engine_->submit(std::move(prompt), options, listener).value());
  }

  std::unique_ptr<engine> engine_;
  trace_scale scale_;
  std::int32_t vocabulary_;
  skipping_clock clock_;
  std::vector<const sample*> ended_;
  load_figures made_;
};

}  // namespace llama::bench
