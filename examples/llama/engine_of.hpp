#pragma once

#include "engine.hpp"
#include "paged.hpp"

#include <pagedkv/pagedkv.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace llama {

/// A cache that may find K/V in slower memory than the device's.
template <class Cache>
concept has_tiers = requires(Cache& cache, pagedkv::sequence_id id) { cache.settle(id); };

/// An engine over one kind of cache.
///
/// The step's order: running requests commit what the step before computed and append their last token, in one call, so
/// that blocks go to them first; waiting ones are admitted while they fit; the model runs. Prompts of a model whose
/// layers all attend to all tokens are committed before the model runs, so that those admitted later in the same step
/// share them: the pass writes K and V of a layer for all rows before any row reads them. Windows and states are
/// released and saved by commits, after the pass has read and written them, and a commit copies to tiers what the pass
/// wrote.
///
/// A request whose K/V comes from a slow tier runs from the step on in which it is there.
template <class Cache>
class engine_of final : public engine {
 public:
  engine_of(model& with, const engine_sizes& sizes, std::unique_ptr<Cache> cache);
  engine_of(const engine_of&) = delete;
  engine_of& operator=(const engine_of&) = delete;
  /// Waits until tiers have what they are to keep.
  ~engine_of() override;

  [[nodiscard]] pagedkv::result<void> check(std::span<const pagedkv::token> prompt,
                                            const generation_options& options) const override;
  [[nodiscard]] bool fits(std::size_t num_prompt_tokens, std::size_t max_tokens,
                          std::size_t num_samples) const override;
  pagedkv::result<const sample*> submit(std::vector<pagedkv::token> prompt, const generation_options& options,
                                        listener on_token) override;
  void cancel(const sample& which) override;
  void forget(const sample& which) override;
  bool step() override;

  [[nodiscard]] std::vector<const sample*> samples() const override;
  [[nodiscard]] std::size_t num_waiting() const noexcept override { return waiting_.size(); }
  [[nodiscard]] const engine_statistics& statistics() const noexcept override { return statistics_; }
  [[nodiscard]] pagedkv::tracker_statistics request_statistics() const noexcept override {
    return requests_.statistics();
  }
  [[nodiscard]] pagedkv::cache_statistics cache_statistics() const noexcept override { return cache_.statistics(); }
  [[nodiscard]] pagedkv::memory_profile cache_memory() const noexcept override { return cache_.memory(); }
  [[nodiscard]] std::vector<std::string> check_invariants() override { return cache_.check_invariants(); }

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
    bool is_loading = false;    // more of them are on their way from a tier
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

  /// Where the row's next chunk ends: within the budget and, with states, where the cache saves one.
  [[nodiscard]] std::int64_t end_of_chunk(const row& r) const;

  /// Commits what the step before computed, and appends the last token of every running request or the next chunk of
  /// its prompt, at the cost of requests that rank below. Those without success wait for the next step.
  void extend_running();

  /// Of all entries, in all groups.
  [[nodiscard]] std::size_t num_slots() const;

  /// Whether the row has what tiers loaded for it, and goes on.
  [[nodiscard]] bool has_arrived(row& r);
  /// Whether the step waited a little for a row that is still loading.
  [[nodiscard]] bool wait_for_loads();

  /// Guesses that the tokens repeat what followed their last two before.
  [[nodiscard]] std::vector<token> guess(const row& r) const;

  /// The row computes so many more tokens in this step.
  void take_part(row& r, std::size_t count);

  /// Preempted requests wait again, ahead of the others.
  void put_back(const std::vector<pagedkv::request_id>& preempted);

  /// Rows that the running requests take in a step, those of forks that are still to come included.
  [[nodiscard]] std::size_t num_rows() const;

  /// Starts requests, and resumes preempted ones, while they fit.
  void admit();

  [[nodiscard]] pagedkv::result<void> start(row& r);

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
  std::unique_ptr<Cache> owned_cache_;
  Cache& cache_ = *owned_cache_;
  pagedkv::request_tracker<Cache> requests_;
  paged_memory<Cache> memory_;
  std::ptrdiff_t num_groups_ = std::ranges::count_if(model_.config().groups().all(), &pagedkv::group_config::holds_tokens);
  bool has_states_ = model_.config().has(layer_kind::state);
  bool commits_early_ = !has_states_ && !model_.config().has(layer_kind::window) && !has_tiers<Cache>;

  std::list<row> all_;
  std::deque<row*> waiting_;
  std::list<row*> running_;
  std::vector<row*> rows_;  // of this step
  std::int64_t budget_ = 0;
  std::vector<std::vector<token>> runs_;
  std::vector<pagedkv::batch_entry> entries_;  // of running requests, with these runs
  std::vector<pagedkv::request_id> ids_of_requests_;
  std::vector<row*> extended_;  // none: the entry failed
  std::vector<pagedkv::batch_failure> failures_;
  std::vector<pagedkv::slot> slots_;
  step_tokens step_;
  std::vector<pagedkv::sequence_id> ids_;
  engine_statistics statistics_;
};

}  // namespace llama
