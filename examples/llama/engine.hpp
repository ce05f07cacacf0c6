#pragma once

#include "model.hpp"
#include "paged.hpp"
#include "sampling.hpp"

#include <pagedkv/pagedkv.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace llama {

struct engine_sizes {
  std::int32_t block_size = 16;
  std::int32_t num_blocks = 1024;
  std::size_t max_rows = 64;         // sequences in a step
  std::int64_t token_budget = 512;   // tokens in a step: those of running requests first, then chunks of prompts
  std::size_t num_drafts = 0;        // tokens guessed behind the last one; 0: no speculation
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
  std::chrono::nanoseconds in_model{};
  std::chrono::nanoseconds in_cache{};  // everything else of the steps but sampling
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
  /// Called for every new token; `ended` with the last one.
  using listener = std::function<void(const sample&, pagedkv::token, bool ended)>;

  /// `with` outlives the engine.
  engine(model& with, const engine_sizes& sizes)
      : model_(with),
        sizes_(sizes),
        cache_(config_of(with.config(), sizes)),
        requests_(cache_),
        memory_(cache_, with.config(), sizes.max_rows) {}

  /// Queues a request; the pointer is valid until `forget`. Errors: `invalid_argument` for an empty prompt, and for
  /// tokens outside the vocabulary.
  pagedkv::result<const sample*> submit(std::vector<pagedkv::token> prompt, const generation_options& options = {},
                                        listener on_token = {}) {
    using pagedkv::error;
    using pagedkv::error_code;
    if (prompt.empty() || options.max_tokens == 0 || options.num_samples == 0) {
      return error{error_code::invalid_argument, "tokens of the prompt, or answers wanted", 0, 1};
    }
    for (const auto each : prompt) {
      if (each < 0 || each >= model_.config().vocabulary) {
        return error{error_code::invalid_argument, "token of the prompt", each, model_.config().vocabulary - 1};
      }
    }
    auto& added = all_.emplace_back();
    added.num_prompt_tokens = prompt.size();
    added.tokens = std::move(prompt);
    added.options = options;
    added.random = random_numbers(options.sampling.seed);
    added.on_token = std::move(on_token);
    waiting_.push_back(&added);
    return static_cast<const sample*>(&added);
  }

  /// Ends an open request, and releases its blocks.
  void cancel(const sample& which) {
    auto& found = *std::ranges::find_if(all_, [&](const row& r) { return &r == &which; });
    if (found.is_open()) {
      end(found, generation_state::cancelled);
      std::erase(waiting_, &found);
    }
  }
  /// Drops the record of a request that is not open.
  void forget(const sample& which) {
    all_.remove_if([&](const row& r) { return &r == &which && !r.is_open(); });
  }

  /// One forward pass. Returns whether open requests are left.
  bool step() {
    const auto began = clock::now();
    const auto in_model = statistics_.in_model;
    const auto opened = cache_.begin_step().value();
    rows_.clear();
    budget_ = sizes_.token_budget;
    extend_running();
    admit();
    commit_prompts();
    compute();
    cache_.retire_step(opened).value();
    running_.remove_if([](const row* r) { return r->state != generation_state::running; });
    ++statistics_.steps;
    statistics_.in_cache += clock::now() - began - (statistics_.in_model - in_model);
    return !running_.empty() || !waiting_.empty();
  }
  void run() {
    while (step()) {
    }
  }

  [[nodiscard]] const engine_statistics& statistics() const noexcept { return statistics_; }
  [[nodiscard]] cache_type& cache() noexcept { return cache_; }
  /// Every sample that is not forgotten, answers by forks behind those of submissions.
  template <class Visit>
  void for_each(Visit&& visit) const {
    std::ranges::for_each(all_, [&](const sample& each) { visit(each); });
  }

 private:
  using clock = std::chrono::steady_clock;
  using token = pagedkv::token;

  struct row : sample {
    pagedkv::request_id id = {};
    pagedkv::sequence_id sequence = {};
    bool submitted = false;
    std::int64_t length = 0;    // of the sequence
    std::int64_t computed = 0;  // tokens whose K/V is written
    std::size_t num_drafts = 0;
    random_numbers random;
    listener on_token;

    [[nodiscard]] std::int64_t num_tokens() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::span<const token> from(std::int64_t first, std::int64_t end) const {
      return std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
    }
  };

  [[nodiscard]] static pagedkv::cache_config config_of(const model_config& model, const engine_sizes& sizes) {
    auto config = pagedkv::cache_config{.block_size = sizes.block_size, .num_blocks = sizes.num_blocks};
    config.max_sequences = static_cast<std::int32_t>(2 * sizes.max_rows);
    config.groups = model.groups();
    return config;
  }

  /// Where the row's next chunk ends: within the budget and, with states, where the cache saves one.
  [[nodiscard]] std::int64_t end_of_chunk(const row& r) const {
    const auto end = std::min(r.num_tokens(), r.length + budget_);
    return has_states_ ? std::min(end, cache_.next_saved_length(r.sequence).value()) : end;
  }

  /// Appends the last token of every running request, or the next chunk of its prompt: in one call, then one by one
  /// those for which there was no block, at the cost of requests that rank below them.
  void extend_running() {
    auto entries = std::vector<pagedkv::batch_entry>{};
    auto extended = std::vector<row*>{};
    runs_.clear();
    for (auto* const r : running_) {
      const auto end = end_of_chunk(*r);
      if (end == r->length) {
        continue;  // nothing is left of the budget
      }
      auto& run = runs_.emplace_back(r->from(r->length, end).begin(), r->from(r->length, end).end());
      r->num_drafts = end == r->num_tokens() ? add_drafts(*r, run) : 0;
      budget_ -= static_cast<std::int64_t>(run.size());
      entries.push_back({.id = r->sequence, .run = std::span<const token>(run)});
      extended.push_back(r);
    }
    auto failures = std::vector<pagedkv::batch_failure>(entries.size());
    auto slots = std::vector<pagedkv::slot>(num_slots(entries));
    const auto done = cache_.append_batch(entries, {.slots = slots, .failures = failures}).value();
    auto failed = std::vector<bool>(entries.size());
    for (const auto& failure : std::span(failures).first(done.num_failures)) {
      failed[failure.entry] = true;
    }
    for (auto i = std::size_t{0}; i < extended.size(); ++i) {
      auto& r = *extended[i];
      if (r.state == generation_state::running && (!failed[i] || append(r, runs_[i]))) {
        take_part(r, runs_[i].size());
      }
    }
    std::erase_if(rows_, [](const row* r) { return r->state != generation_state::running; });
  }

  [[nodiscard]] std::size_t num_slots(std::span<const pagedkv::batch_entry> entries) const {
    const auto num_groups = std::ranges::count_if(cache_.config().groups, &pagedkv::group_config::holds_tokens);
    auto count = std::size_t{0};
    for (const auto& entry : entries) {
      count += entry.run.tokens.size();
    }
    return count * static_cast<std::size_t>(num_groups);
  }

  /// Guesses that the tokens repeat what followed their last two before. Returns how many tokens were added.
  std::size_t add_drafts(const row& r, std::vector<token>& run) const {
    if (has_states_ || sizes_.num_drafts == 0 || r.num_tokens() != r.length + 1 || r.tokens.size() < 4) {
      return 0;  // a state cannot be taken back
    }
    const auto last = std::ranges::subrange(r.tokens.end() - 2, r.tokens.end());
    const auto left = r.options.max_tokens - r.answer().size();
    const auto most = std::min({sizes_.num_drafts, left - 1, static_cast<std::size_t>(std::max<std::int64_t>(budget_ - 1, 0))});
    const auto earlier = std::ranges::find_end(r.tokens.begin(), r.tokens.end() - 1, last.begin(), last.end());
    auto count = std::size_t{0};
    for (auto next = earlier.end(); !earlier.empty() && next != r.tokens.end() && count < most; ++next, ++count) {
      run.push_back(*next);
    }
    return count;
  }

  /// The row computes so many more tokens in this step.
  void take_part(row& r, std::size_t count) {
    r.length += static_cast<std::int64_t>(count);
    rows_.push_back(&r);
  }

  /// Appends at the cost of requests that rank below. Without success, the row waits for the next step.
  bool append(row& r, std::span<const token> run) {
    const auto appended = requests_.append(r.id, run);
    put_back(appended.preempted());
    return appended.has_value();
  }

  void put_back(const std::vector<pagedkv::request_id>& preempted) {
    for (const auto id : preempted) {
      auto& r = **std::ranges::find_if(running_, [&](const row* each) { return each->id == id; });
      r.state = generation_state::waiting;
      r.length = r.computed = 0;
      waiting_.push_front(&r);
      std::erase(rows_, &r);
      ++statistics_.preemptions;
    }
  }

  /// Starts requests, and resumes preempted ones, while they fit.
  void admit() {
    while (!waiting_.empty() && rows_.size() < sizes_.max_rows && running_.size() < sizes_.max_rows && budget_ > 0) {
      auto& r = *waiting_.front();
      const auto admitted = start(r);
      if (!admitted) {
        // A request that does not fit while no other one runs never will.
        if (rows_.empty() && running_.empty()) {
          waiting_.pop_front();
          r.failure = admitted.error();
          end(r, generation_state::failed);
          continue;
        }
        return;
      }
      waiting_.pop_front();
      running_.push_back(&r);
    }
  }

  [[nodiscard]] pagedkv::result<void> start(row& r) {
    auto options = pagedkv::request_options{};
    options.may_preempt = true;
    options.sequence.salt = r.options.salt;
    options.sequence.priority = r.options.priority;
    options.sequence.first_chunk = 0;  // its length is known when the cached tokens are
    options.sequence.num_prompt_tokens = static_cast<std::int64_t>(r.num_prompt_tokens);
    const auto admitted =
        r.submitted ? requests_.resume(r.id, r.tokens) : requests_.submit(r.tokens, options);
    put_back(admitted.preempted());
    if (!admitted) {
      return admitted.error();
    }
    r.id = admitted->id;
    r.sequence = admitted->sequence;
    r.length = r.computed = admitted->num_cached_tokens;
    r.num_drafts = 0;
    r.state = generation_state::running;
    if (!std::exchange(r.submitted, true)) {
      r.num_cached_tokens = admitted->num_cached_tokens;
    }
    statistics_.prompt_tokens += r.num_tokens();
    statistics_.cached_tokens += admitted->num_cached_tokens;
    const auto end = end_of_chunk(r);
    const auto run = r.from(r.length, end);
    const auto appended = requests_.append(r.id, run);
    put_back(appended.preempted());
    if (!appended) {
      requests_.preempt(r.id).value();
      r.state = generation_state::waiting;
      return appended.error();
    }
    budget_ -= static_cast<std::int64_t>(run.size());
    take_part(r, run.size());
    if (commits_early_) {
      cache_.commit(r.sequence, r.length).value();
    }
    return {};
  }

  /// What running rows compute in this step, where it may be published before.
  void commit_prompts() {
    for (const auto* const r : rows_) {
      if (commits_early_ && r->num_drafts == 0) {
        cache_.commit(r->sequence, r->length).value();
      }
    }
  }

  void compute() {
    if (rows_.empty()) {
      return;
    }
    step_ = {};
    ids_.clear();
    for (auto* const r : rows_) {
      const auto end = std::min(r->length, r->num_tokens());
      for (auto i = r->computed; i < r->length; ++i) {
        step_.positions.push_back(static_cast<std::int32_t>(i));
      }
      const auto known = r->from(r->computed, end);
      step_.tokens.insert(step_.tokens.end(), known.begin(), known.end());
      append_drafts(*r);
      step_.starts.push_back(static_cast<std::int32_t>(step_.tokens.size()));
      if (end == r->num_tokens()) {
        for (auto i = r->num_drafts + 1; i > 0; --i) {
          step_.wanted.push_back(static_cast<std::int32_t>(step_.tokens.size() - i));
        }
      }
      ids_.push_back(r->sequence);
    }
    memory_.prepare(step_, ids_).value();
    const auto began = clock::now();
    const auto logits = model_.run(step_, memory_);
    statistics_.in_model += clock::now() - began;
    statistics_.computed_tokens += static_cast<std::int64_t>(step_.tokens.size());
    const auto width = static_cast<std::size_t>(model_.config().vocabulary);
    auto next = std::size_t{0};
    for (auto* const r : std::vector(rows_)) {
      const bool ends = std::min(r->length, r->num_tokens()) == r->num_tokens();
      const auto count = ends ? r->num_drafts + 1 : 0;
      finish_row(*r, logits.subspan(next * width, count * width));
      next += count;
    }
  }

  void append_drafts(const row& r) {
    if (r.num_drafts > 0) {
      auto drafts = std::vector<token>(r.num_drafts);
      cache_.tokens(r.sequence, r.num_tokens(), drafts).value();
      step_.tokens.insert(step_.tokens.end(), drafts.begin(), drafts.end());
    }
  }

  /// Takes the tokens that the logits choose: one, and one more for each draft that was right. Wrong ones are cut off.
  void finish_row(row& r, std::span<const float> logits) {
    const auto width = static_cast<std::size_t>(model_.config().vocabulary);
    const auto drafts = step_drafts(r);
    auto chosen = std::vector<token>{};
    const auto num_choices = logits.size() / width;
    for (auto i = std::size_t{0}; i < num_choices; ++i) {
      chosen.push_back(choose(logits.subspan(i * width, width), r.options.sampling, r.random));
      if (i == drafts.size() || chosen.back() != drafts[i]) {
        break;
      }
    }
    const auto num_right = chosen.empty() ? std::size_t{0} : chosen.size() - 1;
    statistics_.drafts += static_cast<std::int64_t>(drafts.size());
    statistics_.accepted_drafts += static_cast<std::int64_t>(num_right);
    if (num_right < drafts.size()) {
      r.length -= static_cast<std::int64_t>(drafts.size() - num_right);
      cache_.truncate(r.sequence, r.length).value();
    }
    r.num_drafts = 0;
    r.computed = r.length;
    if (!commits_early_ || !drafts.empty()) {
      cache_.commit(r.sequence, r.computed).value();
    }
    if (!chosen.empty() && r.answer().empty() && r.index == 0) {
      fork(r, logits.first(width));
    }
    take_tokens(r, chosen);
  }

  [[nodiscard]] std::vector<token> step_drafts(const row& r) const {
    auto drafts = std::vector<token>(r.num_drafts);
    if (!drafts.empty()) {
      cache_.tokens(r.sequence, r.num_tokens(), drafts).value();
    }
    return drafts;
  }

  /// Starts the other answers to a prompt, on its blocks.
  void fork(row& r, std::span<const float> logits) {
    for (auto i = std::size_t{1}; i < r.options.num_samples; ++i) {
      auto& other = all_.emplace_back();
      static_cast<sample&>(other) = r;
      other.on_token = r.on_token;
      other.index = i;
      other.submitted = true;
      other.random = random_numbers(r.options.sampling.seed + i);
      const auto forked = requests_.fork(r.id);
      if (!forked) {
        other.failure = forked.error();
        other.state = generation_state::failed;
        continue;
      }
      other.id = forked->id;
      other.sequence = forked->sequence;
      other.length = other.computed = r.length;
      running_.push_back(&other);
      take_tokens(other, std::array{choose(logits, other.options.sampling, other.random)});
    }
  }

  void take_tokens(row& r, std::span<const token> chosen) {
    for (const auto next : chosen) {
      r.tokens.push_back(next);
      const bool is_end = !r.options.ignores_end && std::ranges::find(model_.config().end_tokens, next) !=
                                                        model_.config().end_tokens.end();
      const bool is_full = r.answer().size() == r.options.max_tokens;
      if (is_end || is_full) {
        end(r, is_end ? generation_state::ended : generation_state::cut);
      }
      if (r.on_token) {
        r.on_token(r, next, is_end || is_full);
      }
      if (!r.is_open()) {
        return;
      }
    }
  }

  void end(row& r, generation_state how) {
    r.state = how;
    if (r.submitted) {
      (how == generation_state::cancelled ? requests_.cancel(r.id) : requests_.finish(r.id)).value();
    }
  }

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

}  // namespace llama
