#pragma once

#include "model.hpp"
#include "paged.hpp"
#include "sampling.hpp"

#include <pagedkv/pagedkv.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <vector>

namespace llama {

struct engine_sizes {
  std::int32_t block_size = 16;
  std::int32_t num_blocks = 1024;
  std::size_t max_rows = 64;        // sequences in a step
  std::int64_t token_budget = 512;  // tokens in a step: those of running requests first, then chunks of prompts
  std::size_t num_drafts = 0;       // tokens guessed behind the last one; 0: no speculation
};

struct generation_options {
  std::size_t max_tokens = 128;
  std::size_t num_samples = 1;  // answers to the prompt, by forks of its sequence
  sampling_options sampling;
  std::uint8_t priority = 50;
  pagedkv::salt salt = pagedkv::salt::none;
  bool ignores_end = false;  // goes on behind the model's end tokens
};

enum class generation_state : std::uint8_t { waiting, running, ended, cut, cancelled, failed };

/// One answer to a prompt.
struct sample {
  std::vector<pagedkv::token> tokens;  // the prompt, then the answer
  std::size_t num_prompt_tokens = 0;
  std::size_t index = 0;  // among the answers to its prompt
  generation_options options;
  generation_state state = generation_state::waiting;
  std::optional<pagedkv::error> failure;
  std::int64_t num_cached_tokens = 0;  // of the prompt, when it was admitted first

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

/// Continuous batching: each step computes one token of every running request and chunks of prompts, in one pass.
///
/// The step's order: running requests append their last token, so that blocks go to them first; waiting ones are
/// admitted while they fit; the model runs; what it wrote is committed. Prompts of a model whose layers all attend to
/// all tokens are committed before the model runs, so that those admitted later in the same step share them: the pass
/// writes K and V of a layer for all rows before any row reads them. Windows and states are released and saved by
/// commits, after the pass has read and written them.
template <class Element>
class engine {
 public:
  using cache_type = pagedkv::group_cache<Element>;
  /// Called for every new token, and without one for a request that fails or is cancelled. `sample::is_open` tells
  /// whether more calls follow. Calls nothing of the engine.
  using listener = std::function<void(const sample&, std::optional<pagedkv::token>)>;

  /// `with` outlives the engine.
  engine(model& with, const engine_sizes& sizes);

  /// Whether `submit` takes a request. Reads only what never changes, so any thread may call it. Errors:
  /// `invalid_argument` for an empty prompt, for tokens outside the vocabulary, and for more answers than rows.
  [[nodiscard]] pagedkv::result<void> check(std::span<const pagedkv::token> prompt,
                                            const generation_options& options) const;
  /// Whether the pool holds that many answers of so many tokens, alone. Any thread may call it.
  [[nodiscard]] bool fits(std::size_t num_prompt_tokens, std::size_t max_tokens, std::size_t num_samples) const;

  /// Queues a request; the pointer is valid until `forget`. Errors: those of `check`.
  pagedkv::result<const sample*> submit(std::vector<pagedkv::token> prompt, const generation_options& options = {},
                                        listener on_token = {});

  /// Ends an open request, and releases its blocks.
  void cancel(const sample& which);
  /// Drops the record of a request that is not open.
  void forget(const sample& which);

  /// One forward pass. Returns whether open requests are left.
  bool step();
  void run();

  [[nodiscard]] const engine_statistics& statistics() const noexcept { return statistics_; }
  [[nodiscard]] pagedkv::tracker_statistics request_statistics() const noexcept { return requests_.statistics(); }
  [[nodiscard]] std::size_t num_waiting() const noexcept { return waiting_.size(); }
  [[nodiscard]] cache_type& cache() noexcept { return cache_; }
  /// Every sample that is not forgotten, answers by forks behind those of submissions.
  template <class Visit>
  void for_each(Visit&& visit) const {
    std::ranges::for_each(all_, [&](const sample& each) { visit(each); });
  }

 private:
  using clock = std::chrono::steady_clock;
  using token = pagedkv::token;

  /// Adds its life to a sum.
  struct stopwatch {
    std::chrono::nanoseconds& sum;
    clock::time_point began = clock::now();
    ~stopwatch() { sum += clock::now() - began; }
  };
  template <class Part>
  struct timed_call {
    Part* part;
    stopwatch watch;
    Part* operator->() const noexcept { return part; }
  };
  /// A part of cache management for one call, whose time is added up.
  template <class Part>
  [[nodiscard]] timed_call<Part> timed(Part& part) {
    return {&part, {statistics_.in_cache}};
  }

  struct row : sample {
    pagedkv::request_id id = {};
    pagedkv::sequence_id sequence = {};
    bool submitted = false;
    std::int64_t length = 0;    // of the sequence
    std::int64_t computed = 0;  // tokens whose K/V is written
    std::vector<token> drafts;  // appended behind the tokens in this step
    random_numbers random;
    listener on_token;

    void tell(std::optional<token> next) const {
      if (on_token) {
        on_token(*this, next);
      }
    }
    /// Rows in a step, those of forks that are still to come included.
    [[nodiscard]] std::size_t num_rows() const { return index == 0 && answer().empty() ? options.num_samples : 1; }
    [[nodiscard]] std::int64_t num_tokens() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::span<const token> from(std::int64_t first, std::int64_t end) const {
      return std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
    }
  };

  [[nodiscard]] static pagedkv::cache_config config_of(const model_config& model, const engine_sizes& sizes);

  /// Where the row's next chunk ends: within the budget and, with states, where the cache saves one.
  [[nodiscard]] std::int64_t end_of_chunk(const row& r) const;

  /// Appends the last token of every running request, or the next chunk of its prompt: in one call, then one by one
  /// those for which there was no block, at the cost of requests that rank below them.
  void extend_running();

  [[nodiscard]] std::size_t num_slots(std::span<const pagedkv::batch_entry> entries) const;

  /// Guesses that the tokens repeat what followed their last two before.
  [[nodiscard]] std::vector<token> guess(const row& r) const;

  /// The row computes so many more tokens in this step.
  void take_part(row& r, std::size_t count);

  /// Appends at the cost of requests that rank below. Without success, the row waits for the next step.
  [[nodiscard]] bool append(row& r, std::span<const token> run);

  /// Preempted requests wait again, ahead of the others.
  void put_back(const std::vector<pagedkv::request_id>& preempted);

  /// Rows that the running requests take in a step, those of forks that are still to come included.
  [[nodiscard]] std::size_t num_rows() const;

  /// Starts requests, and resumes preempted ones, while they fit.
  void admit();

  [[nodiscard]] pagedkv::result<void> start(row& r);

  /// Publishes the tokens of this step ahead of the pass, where that is right.
  void commit_prompts();

  /// The forward pass, and what follows from its logits.
  void compute();
  [[nodiscard]] std::span<const float> run_model();

  /// Takes the tokens that the logits choose: one, and one more for each draft that was right. Wrong ones are cut off.
  void finish_row(row& r, std::span<const float> logits);

  /// Starts the other answers to a prompt, on its blocks.
  void fork(row& r, std::span<const float> logits);

  void take_tokens(row& r, std::span<const token> chosen);

  void fail(row& r, const pagedkv::error& reason);
  void end(row& r, generation_state how);

  model& model_;
  engine_sizes sizes_;
  cache_type cache_;
  pagedkv::request_tracker<cache_type> requests_;
  paged_memory<cache_type> memory_;
  bool has_states_ = model_.config().has(layer_kind::state);
  bool commits_early_ = !has_states_ && !model_.config().has(layer_kind::window);

  std::list<row> all_;
  std::deque<row*> waiting_;
  std::list<row*> running_;
  std::vector<row*> rows_;  // of this step
  std::int64_t budget_ = 0;
  std::vector<std::vector<token>> runs_;
  step_tokens step_;
  std::vector<pagedkv::sequence_id> ids_;
  engine_statistics statistics_;
};

extern template class engine<pagedkv::float32>;
extern template class engine<pagedkv::int8>;

}  // namespace llama
