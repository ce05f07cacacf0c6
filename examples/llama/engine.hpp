#pragma once

#include "config.hpp"
#include "sampling.hpp"
#include "step.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/requests/request.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

class model;

struct engine_sizes {
  std::int32_t block_size = 16;
  std::int32_t num_blocks = 1024;
  std::size_t max_rows = 64;        // sequences in a step
  std::int64_t token_budget = 512;  // tokens in a step: those of running requests first, then chunks of prompts
  std::size_t num_drafts = 0;       // tokens guessed behind the last one; 0: no speculation
  bool overlaps = false;         // the cache works for a step while the one before computes; not with drafts or states
  std::size_t num_branches = 1;  // guesses at once, as a tree of at most 31 tokens; 1 with windows, and on devices
};

[[nodiscard]] inline step_limits limits_of(const engine_sizes& sizes) noexcept {
  const auto max_tokens = static_cast<std::size_t>(sizes.token_budget);
  return {sizes.max_rows, max_tokens, std::min(max_tokens, sizes.max_rows * (1 + sizes.num_drafts))};
}

/// How K and V are stored: int8 and float8, which is OCP's e4m3, with a scale for each token and KV head.
enum class stored_as : std::uint8_t { float32, float16, bfloat16, int8, float8 };

/// Where blocks go that the pool evicts: to host memory, and from there to a file and to a store.
struct tier_sizes {
  std::int32_t host_blocks = 0;  // 0: no tiers
  std::string file = {};         // empty: none
  std::int64_t file_bytes = std::int64_t{1} << 30;
  std::string remote = {};  // the URL of a store of Redis' kind that processes share; empty: none
  std::string model = {};   // the name of the model: records and sessions of another name are not found

  [[nodiscard]] bool any() const noexcept { return host_blocks > 0 || !file.empty() || !remote.empty(); }
};

struct generation_options {
  std::size_t max_tokens = 128;
  std::size_t num_samples = 1;  // answers to the prompt, by forks of its sequence
  sampling_options sampling;
  std::uint8_t priority = 50;
  pagedkv::salt salt = pagedkv::salt::none;
  bool ignores_end = false;  // goes on behind the model's end tokens
  std::string save_to = {};  // file for the session of the first answer, when it has ended; empty: none
};

enum class generation_state : std::uint8_t { waiting, running, ended, cut, cancelled, failed };

/// One answer to a prompt.
struct sample {
  std::vector<pagedkv::token> tokens;  // the prompt, then the answer
  std::size_t num_prompt_tokens = 0;
  std::size_t index = 0;  // among the answers to its prompt
  generation_options options;
  generation_state state = generation_state::waiting;
  std::optional<pagedkv::error> failure;  // also of an answer that ended, if its session was not saved
  std::int64_t num_cached_tokens = 0;     // of the prompt, when it was admitted first

  [[nodiscard]] std::span<const pagedkv::token> answer() const { return std::span(tokens).subspan(num_prompt_tokens); }
  [[nodiscard]] bool is_open() const noexcept {
    return state == generation_state::waiting || state == generation_state::running;
  }
};

struct engine_statistics {
  std::int64_t steps = 0;
  std::int64_t prompt_tokens = 0;  // of admissions, resumed ones included
  std::int64_t cached_tokens = 0;  // of these
  std::int64_t computed_tokens = 0;
  std::int64_t drafts = 0;
  std::int64_t accepted_drafts = 0;
  std::int64_t preemptions = 0;
  std::chrono::nanoseconds in_steps{};
  std::chrono::nanoseconds in_model{};  // of these
  std::chrono::nanoseconds in_cache{};  // of these: calls of the cache and of the tracker, slots and block tables
};

/// Counts of one tier. The name lives as long as the program.
struct named_tier {
  std::string_view name;
  pagedkv::tier_statistics counts;
};

/// Continuous batching: each step computes one token of every running request and chunks of prompts, in one pass.
class engine {
 public:
  /// Called for every new token, and without one for a request that fails or is cancelled. `sample::is_open` tells
  /// whether more calls follow. Calls nothing of the engine.
  using listener = std::function<void(const sample&, std::optional<pagedkv::token>)>;

  virtual ~engine() = default;

  /// Whether `submit` takes a request. Reads only what never changes, so any thread may call it. Errors:
  /// `invalid_argument` for an empty prompt, for tokens outside the vocabulary, for more answers than rows, and on a
  /// device for more tokens than the model was trained for.
  [[nodiscard]] virtual pagedkv::result<void> check(std::span<const pagedkv::token> prompt,
                                                    const generation_options& options) const = 0;
  /// Whether the pool holds that many answers of so many tokens, alone. Any thread may call it.
  [[nodiscard]] virtual bool fits(std::size_t num_prompt_tokens, std::size_t max_tokens,
                                  std::size_t num_samples) const = 0;

  /// Queues a request; the pointer is valid until `forget`. Errors: those of `check`.
  virtual pagedkv::result<const sample*> submit(std::vector<pagedkv::token> prompt,
                                                const generation_options& options = {}, listener on_token = {}) = 0;

  /// Ends an open request, and releases its blocks.
  virtual void cancel(const sample& which) = 0;
  /// Drops the record of a request that is not open.
  virtual void forget(const sample& which) = 0;

  /// Brings K/V of a saved session into the cache, where the next prompt finds it, and returns the session's tokens:
  /// all but the last one of its answer. Errors: those of `pagedkv::restore_sequence`.
  virtual pagedkv::result<std::vector<pagedkv::token>> restore(const std::string& file) = 0;

  /// One forward pass. Returns whether open requests are left. Throws what the model throws, as on a device that fails.
  /// The pass is lost then, and the cache may hold K/V that was not computed: the engine is only to be destroyed.
  virtual bool step() = 0;
  void run() {
    while (step()) {
    }
  }

  /// Every sample that is not forgotten, answers by forks behind those of submissions.
  [[nodiscard]] virtual std::vector<const sample*> samples() const = 0;
  [[nodiscard]] virtual std::size_t num_waiting() const noexcept = 0;
  [[nodiscard]] virtual const engine_statistics& statistics() const noexcept = 0;
  [[nodiscard]] virtual pagedkv::tracker_statistics request_statistics() const noexcept = 0;
  [[nodiscard]] virtual pagedkv::cache_statistics cache_statistics() const noexcept = 0;
  [[nodiscard]] virtual pagedkv::memory_profile cache_memory() const noexcept = 0;
  /// Host memory, then the slower tiers; empty without tiers.
  [[nodiscard]] virtual std::vector<named_tier> tiers() { return {}; }
  /// A sentence for each fault of the cache.
  [[nodiscard]] virtual std::vector<std::string> check_invariants() = 0;
};

/// An engine for such a model, which outlives it. Throws `std::invalid_argument` where tiers cannot stand behind the
/// model's layers or such K/V, for a URL that is wrong and a file that cannot be taken, and what the cache throws.
[[nodiscard]] std::unique_ptr<engine> make_engine(model& with, const engine_sizes& sizes,
                                                  stored_as stored = stored_as::float32, const tier_sizes& tiers = {});

}  // namespace llama
