#pragma once

#include "drafts.hpp"
#include "engine.hpp"
#include "step.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/session_file.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <iterator>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace llama {

template <class Cache>
[[nodiscard]] pagedkv::cache_config config_of(const model_config& model, const engine_sizes& sizes) {
  auto config = pagedkv::cache_config{.block_size = sizes.block_size, .num_blocks = sizes.num_blocks};
  config.max_sequences = static_cast<std::int32_t>(2 * sizes.max_rows);
  if constexpr (Cache::layers_differ) {
    config.groups = model.groups();
  } else {
    config.num_layers = static_cast<std::int32_t>(model.layers.size());
    config.num_kv_heads = model.num_kv_heads;
    config.head_dim = model.head_dim;
  }
  return config;
}

/// Calls `call` with the type of a cache for every kind of layer.
template <class Call>
[[nodiscard]] auto with_cache(stored_as stored, const Call& call) {
  using pagedkv::group_cache;
  switch (stored) {
    case stored_as::float16: return call(std::type_identity<group_cache<pagedkv::float16>>{});
    case stored_as::bfloat16: return call(std::type_identity<group_cache<pagedkv::bfloat16>>{});
    case stored_as::int8: return call(std::type_identity<group_cache<pagedkv::int8>>{});
    case stored_as::float8:
      return call(std::type_identity<group_cache<pagedkv::basic_float8_e4m3<pagedkv::token_scale>>>{});
    case stored_as::float32: break;
  }
  return call(std::type_identity<group_cache<pagedkv::float32>>{});
}

/// Blocks of a group that a sequence takes.
template <class Cache>
[[nodiscard]] std::int64_t blocks_of(const Cache& cache, std::size_t group, std::int64_t length) {
  if constexpr (Cache::layers_differ) {
    return pagedkv::num_sequence_blocks(cache.config().groups[group], cache.plan().groups[group], length);
  } else {
    return (length + cache.config().block_size - 1) / cache.config().block_size;
  }
}

/// A cache that may find K/V in slower memory than the device's.
template <class Cache>
concept has_tiers = requires(Cache& cache, pagedkv::sequence_id id) { cache.settle(id); };

template <class Cache>
class paged_memory;

/// The model that computes the passes of an engine over one kind of cache, the memory where they find K and V, and the
/// allocator of host memory that the cache's backend reaches.
template <class Cache>
struct passes_over {
  using model = llama::model;
  using memory = paged_memory<Cache>;
  using host_allocator = pagedkv::host_allocator;
};

/// The stream of a model's passes, on which its engine's cache copies.
template <class Cache, class Model>
[[nodiscard]] typename Cache::stream_type stream_of(const Model& with) {
  if constexpr (requires { with.stream(); }) {
    return with.stream();
  } else {
    return {};
  }
}

/// An engine over one kind of cache.
///
/// The step's order: running requests commit what the step before computed and append their last token, in one call, so
/// that blocks go to them first; waiting ones are admitted while they fit; the model runs. Prompts of a model whose
/// layers all attend to all tokens are committed before the model runs, so that those admitted later in the same step
/// share them: the pass writes K and V of a layer for all rows before any row reads them. Windows and states are
/// released and saved by commits, after the pass has read and written them, and a commit copies to tiers what the pass
/// wrote.
///
/// With two steps in flight, all this happens while the pass before computes: a row gets a slot ahead for the token
/// that this one is to choose. Blocks that are released meanwhile wait for the passes that may touch them.
///
/// A request whose K/V comes from a slow tier runs from the step on in which it is there.
template <class Cache>
class engine_of final : public engine {
 public:
  using model = typename passes_over<Cache>::model;
  using memory_type = typename passes_over<Cache>::memory;
  using options_of_session = pagedkv::session_options<typename passes_over<Cache>::host_allocator>;
  using stream_type = typename Cache::stream_type;

  /// `name`: of the model, in sessions.
  engine_of(model& with, const engine_sizes& sizes, std::unique_ptr<Cache> cache, std::string name)
      : model_(with),
        sizes_(sizes),
        name_(std::move(name)),
        owned_cache_(std::move(cache)),
        requests_(cache_, {.max_open = 1 << 20}),  // more than clients that wait
        passes_{pass{memory_type(cache_, with.config(), limits_of(sizes), stream_)},
                pass{memory_type(cache_, with.config(), limits_of(sizes), stream_)}} {}

  engine_of(const engine_of&) = delete;
  engine_of& operator=(const engine_of&) = delete;

  /// Waits until tiers have what they are to keep, but for a device that has failed: nothing leaves it any more.
  ~engine_of() override {
    if (predictions_.valid()) {
      predictions_.wait();
    }
    if constexpr (has_tiers<Cache>) {
      while (cache_.backend().synchronize(stream_) &&
             !cache_.wait_idle(clock::now() + std::chrono::milliseconds(100))) {
      }
    }
  }

  [[nodiscard]] pagedkv::result<void> check(std::span<const pagedkv::token> prompt,
                                            const generation_options& options) const override {
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
    if constexpr (requires { model_.longest(); }) {
      const auto longest = model_.longest();
      if (prompt.size() > longest || options.max_tokens > longest - prompt.size()) {
        const auto most = std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(prompt.size());
        const auto wanted = std::min(options.max_tokens, static_cast<std::size_t>(most));
        return error{error_code::invalid_argument, "tokens of prompt and answer",
                     static_cast<std::int64_t>(prompt.size() + wanted), static_cast<std::int64_t>(longest)};
      }
    }
    if (options.num_samples > sizes_.max_rows) {
      return error{error_code::invalid_argument, "number of answers", static_cast<std::int64_t>(options.num_samples),
                   static_cast<std::int64_t>(sizes_.max_rows)};
    }
    return {};
  }

  [[nodiscard]] bool fits(std::size_t num_prompt_tokens, std::size_t max_tokens,
                          std::size_t num_samples) const override {
    constexpr auto most =
        static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());  // as positions have 32 bits
    if (num_prompt_tokens > most || max_tokens > most - num_prompt_tokens) {
      return false;
    }
    const auto length = static_cast<std::int64_t>(num_prompt_tokens + max_tokens);
    const auto groups = model_.config().groups();
    auto needed = std::int64_t{0};
    const auto samples = static_cast<std::int64_t>(num_samples);
    for (auto g = std::size_t{0}; g < groups.size(); ++g) {
      if (groups[g].kind == pagedkv::group_kind::window) {
        const auto chunk = std::min(length, sizes_.token_budget);
        const auto drafts = static_cast<std::int64_t>(sizes_.num_drafts);
        needed += std::max(blocks_of_window(g, length, chunk), samples * blocks_of_window(g, length, 1 + drafts));
        continue;
      }
      const auto each = blocks_of(cache_, g, length);
      const bool keeps_all = groups[g].kind == pagedkv::group_kind::full;
      const auto shared = keeps_all ? static_cast<std::int64_t>(num_prompt_tokens) / block_size_of(cache_, g) : 0;
      needed += shared + samples * (each - shared);
    }
    return needed <= sizes_.num_blocks;
  }

  pagedkv::result<const sample*> submit(std::vector<pagedkv::token> prompt, const generation_options& options,
                                        listener on_token) override {
    if (const auto checked = check(prompt, options); !checked) {
      return checked.error();
    }
    const bool is_long = model_.config().is_long(std::ssize(prompt));
    const auto enqueued = enqueue(options, is_long);
    if (!enqueued) {
      return enqueued.error();
    }
    auto& added = all_.emplace_back();
    added.is_long = is_long;
    added.id = *enqueued;
    added.num_prompt_tokens = prompt.size();
    added.tokens = std::move(prompt);
    added.options = options;
    added.random = random_numbers(options.sampling.seed);
    added.on_token = std::move(on_token);
    return static_cast<const sample*>(&added);
  }

  void cancel(const sample& which) override {
    auto& found = *std::ranges::find_if(all_, [&](const row& r) { return &r == &which; });
    if (found.is_open()) {
      end(found, generation_state::cancelled);
      found.tell({});
    }
  }

  void forget(const sample& which) override {
    all_.remove_if([&](const row& r) { return &r == &which && !r.is_open(); });
  }

  pagedkv::result<std::vector<pagedkv::token>> restore(const std::string& file) override {
    const auto restored = pagedkv::restore_sequence(cache_, file, options_of_session{.model = name_}, stream_);
    if (!restored) {
      return restored.error();
    }
    auto tokens = std::vector<token>(static_cast<std::size_t>(restored->num_tokens));
    cache_.tokens(restored->id, 0, tokens).value();
    cache_.release(restored->id).value();
    return tokens;
  }

  bool step() override {
    try {
      return compute_step();
    } catch (...) {
      abandon_passes();
      throw;
    }
  }

  [[nodiscard]] std::vector<const sample*> samples() const override {
    auto all = std::vector<const sample*>{};
    std::ranges::transform(all_, std::back_inserter(all), [](const row& each) { return &each; });
    return all;
  }

  [[nodiscard]] std::size_t num_waiting() const noexcept override {
    const auto now = requests_.statistics();
    return static_cast<std::size_t>(now.waiting + now.preempted);
  }
  [[nodiscard]] const engine_statistics& statistics() const noexcept override { return statistics_; }
  [[nodiscard]] pagedkv::tracker_statistics request_statistics() const noexcept override {
    return requests_.statistics();
  }
  [[nodiscard]] pagedkv::cache_statistics cache_statistics() const noexcept override { return cache_.statistics(); }
  [[nodiscard]] pagedkv::memory_profile cache_memory() const noexcept override { return cache_.memory(); }
  [[nodiscard]] std::vector<named_tier> tiers() override {
    auto made = std::vector<named_tier>{};
    if constexpr (has_tiers<Cache>) {
      for (const auto name : Cache::tier_names) {
        made.push_back({name, cache_.tier(made.size())});
      }
    }
    return made;
  }
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
    Part* called;
    stopwatch watch;
    Part* operator->() const noexcept { return called; }
  };
  /// A part of cache management for one call, whose time is added up.
  template <class Part>
  [[nodiscard]] timed_call<Part> timed(Part& called) {
    return {&called, {statistics_.in_cache}};
  }

  struct row : sample {
    pagedkv::request_id id = {};
    pagedkv::sequence_id sequence = {};
    std::int64_t length = 0;     // of the sequence
    std::int64_t scheduled = 0;  // tokens whose K/V passes write, those under way included
    std::int64_t computed = 0;   // tokens whose K/V is written
    std::int64_t committed = 0;
    bool is_loading = false;  // more of them are on their way from a tier
    bool is_long = false;     // the rotation of long texts
    draft_tree drafts;        // appended behind the tokens in this step
    random_numbers random;
    listener on_token;

    void tell(std::optional<token> next) const {
      if (on_token) {
        on_token(*this, next);
      }
    }
    void lose_sequence() {
      state = generation_state::waiting;
      length = scheduled = computed = committed = 0;
      is_loading = false;
      drafts = {};
    }
    /// Rows in a step, those of forks that are still to come included.
    [[nodiscard]] std::size_t num_rows() const { return index == 0 && answer().empty() ? options.num_samples : 1; }
    [[nodiscard]] std::int64_t num_tokens() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::span<const token> from(std::int64_t first, std::int64_t end) const {
      return std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
    }
  };

  /// A row's tokens in a pass.
  struct part {
    row* of;  // none: it has ended or given way
    std::int64_t begin;
    std::int64_t end;
    bool is_ahead;           // the last token is what the pass before chooses
    std::size_t num_wanted;  // logits
  };

  /// A step: its rows, and how they lie in the cache.
  struct pass {
    memory_type memory;
    std::vector<part> parts = {};
    step_tokens tokens = {};
    std::vector<pagedkv::sequence_id> ids = {};
    std::optional<pagedkv::step_id> opened = {};  // from its preparation until it has landed
    std::chrono::nanoseconds in_model = {};
  };

  [[nodiscard]] bool compute_step() {
    const auto watch = stopwatch{statistics_.in_steps};
    if (flying_ != nullptr && !may_overlap()) {
      land();
    }
    const auto preempted_before = statistics_.preemptions;
    next_->parts.clear();
    budget_ = sizes_.token_budget;
    extend_running();
    admit();
    const bool is_idle = next_->parts.empty() && flying_ == nullptr;
    if (is_idle && !wait_for_loads() && !running_.empty() && statistics_.preemptions == preempted_before) {
      // Nothing that runs can go on, and nothing is left to preempt.
      fail(*running_.back(),
           pagedkv::error{pagedkv::error_code::capacity_exhausted, "number of blocks", sizes_.num_blocks});
    }
    prepare();
    land();
    launch();
    if (!overlaps_) {
      land();
    }
    return flying_ != nullptr || !running_.empty() || num_waiting() != 0;
  }

  /// Waits for the pass under way, and forgets both passes, of which one failed.
  void abandon_passes() {
    if (predictions_.valid()) {
      predictions_.wait();
      predictions_ = {};
    }
    flying_ = nullptr;
    for (auto& each : passes_) {
      each.parts.clear();
      if (const auto opened = std::exchange(each.opened, {}); opened) {
        static_cast<void>(cache_.retire_step(*opened));
      }
    }
  }

  /// Blocks for tokens of a step and for those before them that they see, wherever blocks begin.
  [[nodiscard]] std::int64_t blocks_of_window(std::size_t group, std::int64_t length, std::int64_t num_new) const {
    const auto size = block_size_of(cache_, group);
    const auto most = num_new + model_.config().window - 1;
    return std::min((length + size - 1) / size, (most + 2 * size - 2) / size);
  }

  /// Where the row's next chunk ends: within the budget and, with states, where the cache saves one.
  [[nodiscard]] std::int64_t end_of_chunk(const row& r) const {
    const auto end = std::min(r.num_tokens(), r.scheduled + budget_);
    if constexpr (Cache::layers_differ) {
      return has_states_ ? std::min(end, cache_.next_saved_length(r.sequence).value()) : end;
    } else {
      return end;
    }
  }

  /// Commits what the step before computed, and appends the last token of every running request or the next chunk of
  /// its prompt, at the cost of requests that rank below. Those without success wait for the next step.
  void extend_running() {
    entries_.clear();
    extended_.clear();
    ids_of_requests_.clear();
    runs_.resize(running_.size());
    for (auto* const r : running_) {
      if (!has_arrived(*r)) {
        continue;
      }
      auto& run = runs_[entries_.size()];
      // A token that is still to be chosen has a slot ahead, but for the last one, and for one from which answers part.
      const bool is_ahead = flying_ != nullptr && r->scheduled == r->num_tokens() && budget_ > 0 &&
                            r->num_rows() == 1 && r->answer().size() + 1 < r->options.max_tokens &&
                            room_of(*r) > 0;
      const auto end = std::max(r->length, end_of_chunk(*r));
      const auto known = r->from(r->length, end);
      run.assign(known.begin(), known.end());
      r->drafts = guess(*r);
      for (auto i = std::int32_t{0}; i < std::ssize(r->drafts); ++i) {
        run.push_back(r->drafts.token(i));
      }
      entries_.push_back(
          {.id = r->sequence,
           .run = std::span<const token>(run),
           .num_computed_tokens = r->committed = std::max(r->committed, std::min(r->computed, r->length)),
           .num_ahead = is_ahead ? 1 : 0});
      ids_of_requests_.push_back(r->id);
      extended_.push_back({r, r->scheduled, end + std::ssize(r->drafts) + (is_ahead ? 1 : 0), is_ahead, 0});
      budget_ -= extended_.back().end - extended_.back().begin;
    }
    failures_.resize(entries_.size());
    slots_.resize(num_slots());
    const auto out = pagedkv::batch_buffers{.slots = slots_, .failures = failures_};
    const auto appended = timed(requests_)->append_batch(ids_of_requests_, entries_, out, stream_);
    for (const auto& failure : std::span(failures_).first(appended->num_failures)) {
      extended_[failure.entry].of = nullptr;
    }
    put_back(appended.preempted());
    for (auto i = std::size_t{0}; i < extended_.size(); ++i) {
      if (auto* const r = extended_[i].of; r != nullptr) {
        r->length += std::ssize(runs_[i]);
        take_part(*r, extended_[i].end, extended_[i].is_ahead);
      }
    }
  }

  /// Of all entries, in all groups.
  [[nodiscard]] std::size_t num_slots() const {
    auto count = std::size_t{0};
    for (const auto& entry : entries_) {
      count += entry.run.tokens.size() + static_cast<std::size_t>(entry.num_ahead);
    }
    return count * static_cast<std::size_t>(num_groups_);
  }

  /// Whether the row has what tiers loaded for it, and goes on.
  [[nodiscard]] bool has_arrived(row& r) {
    if constexpr (has_tiers<Cache>) {
      if (r.is_loading && timed(cache_)->poll(r.sequence).done()) {
        r.is_loading = false;
        const auto settled = timed(cache_)->settle(r.sequence, stream_).value();
        timed(cache_)->truncate(r.sequence, settled).value();  // the rest is computed, as the budget allows
        statistics_.cached_tokens += settled - r.computed;
        r.num_cached_tokens += r.answer().empty() ? settled - r.computed : 0;
        r.length = r.scheduled = r.computed = r.committed = settled;
      }
    }
    return !r.is_loading;
  }

  /// Whether the step waited a little for a row that is still loading.
  [[nodiscard]] bool wait_for_loads() {
    const auto found = std::ranges::find_if(running_, [](const row* each) { return each->is_loading; });
    if constexpr (has_tiers<Cache>) {
      if (found != running_.end()) {
        cache_.backend().synchronize(stream_).value();  // loads begin behind copies that a device makes
        cache_.wait((*found)->sequence, clock::now() + std::chrono::milliseconds(5));
      }
    }
    return found != running_.end();
  }

  /// Guesses that the tokens repeat what followed their last two before, the latest time or, as a tree, several times.
  [[nodiscard]] draft_tree guess(const row& r) const {
    const auto left = static_cast<std::int64_t>(r.options.max_tokens - r.answer().size()) - 1;
    const auto most = std::min({static_cast<std::int64_t>(sizes_.num_drafts), left, budget_ - 1, room_of(r)});
    auto tree = draft_tree{};
    // A state cannot be taken back, and other samples of the request have the prompt's tokens only.
    if (has_states_ || r.num_rows() > 1 || most <= 0 || r.num_tokens() != r.scheduled + 1 || r.tokens.size() < 4) {
      return tree;
    }
    const auto room = has_trees_ ? std::min<std::int64_t>(budget_ - 1, pagedkv::largest_attention_tree - 1) : most;
    auto end = r.tokens.end() - 1;
    for (auto i = std::size_t{0}; i < (has_trees_ ? sizes_.num_branches : 1); ++i) {
      const auto earlier = std::find_end(r.tokens.begin(), end, r.tokens.end() - 2, r.tokens.end());
      if (earlier == end) {
        break;
      }
      const auto first = earlier + 2;
      tree.add({first, first + std::min<std::ptrdiff_t>(most, r.tokens.end() - first)}, static_cast<std::size_t>(room));
      end = earlier + 1;
    }
    return tree;
  }

  /// The row computes the tokens up to this one in the next pass.
  void take_part(row& r, std::int64_t end, bool is_ahead) {
    if (end > r.scheduled) {
      const auto num_wanted = end < r.num_tokens() ? 0 : r.drafts.size() + 1;
      next_->parts.push_back({&r, r.scheduled, end, is_ahead, num_wanted});
      r.scheduled = end;
    }
  }

  /// They wait again.
  void put_back(const std::vector<pagedkv::request_id>& preempted) {
    for (const auto id : preempted) {
      auto& r = **std::ranges::find_if(running_, [&](const row* each) { return each->id == id; });
      r.lose_sequence();
      leave(r);
      running_.remove(&r);
      ++statistics_.preemptions;
    }
  }

  /// Rows that the running requests take in a step, those of forks that are still to come included.
  [[nodiscard]] std::size_t num_rows() const {
    auto count = std::size_t{0};
    for (const auto* const r : running_) {
      count += r->num_rows();
    }
    return count;
  }

  /// The requests that wait, in the order in which they start or resume.
  [[nodiscard]] std::vector<pagedkv::request_id> waiting() {
    return num_waiting() == 0 ? std::vector<pagedkv::request_id>{} : timed(requests_)->resumable().value();
  }
  [[nodiscard]] bool may_start(const row& r) const { return num_rows() + r.num_rows() <= sizes_.max_rows; }

  /// Starts and resumes requests by their rank, while they fit. One that starts behind another never takes that one's
  /// blocks in the same step, which has published them and is still to compute them. Those that give way are ranked
  /// again in the next step.
  void admit() {
    if (budget_ <= 0 || num_rows() >= sizes_.max_rows) {
      return;
    }
    const auto preempted_before = statistics_.preemptions;
    for (const auto id : waiting()) {
      const auto r = std::ranges::find(all_, id, &row::id);
      if (r == all_.end() || !r->is_open()) {
        continue;  // a listener of one that failed has ended it
      }
      if (budget_ <= 0 || !may_start(*r) || statistics_.preemptions != preempted_before) {
        return;
      }
      if (const auto admitted = start(*r); admitted) {
        running_.push_back(&*r);
      } else if (running_.empty()) {
        fail(*r, admitted.error());  // it does not fit while no other one runs, so it never will
      } else {
        return;
      }
    }
  }

  [[nodiscard]] pagedkv::result<void> start(row& r) {
    const auto admitted = timed(requests_)->resume(r.id, r.tokens, stream_);
    put_back(admitted.preempted());
    if (!admitted) {
      return admitted.error();
    }
    r.sequence = admitted->sequence;
    r.length = r.scheduled = r.computed = r.committed = admitted->num_cached_tokens;
    r.state = generation_state::running;
    if (r.answer().empty() && requests_.describe(r.id)->num_preemptions == 0) {
      r.num_cached_tokens = admitted->num_cached_tokens;
    }
    statistics_.prompt_tokens += r.num_tokens();
    statistics_.cached_tokens += admitted->num_cached_tokens;
    r.is_loading = admitted->num_loading_tokens > 0;
    if (r.is_loading) {
      return {};
    }
    const auto end = end_of_chunk(r);
    const auto run = r.from(r.length, end);
    const auto appended = timed(requests_)->append(r.id, run, stream_);
    put_back(appended.preempted());
    if (!appended) {
      timed(requests_)->preempt(r.id, stream_).value();
      r.lose_sequence();
      return appended.error();
    }
    budget_ -= static_cast<std::int64_t>(run.size());
    r.length = end;
    take_part(r, end, false);
    if (commits_early_) {
      commit(r, r.length);
    }
    return {};
  }

  /// Whether the next pass can be prepared while one is under way: all that run go on, and need no other's blocks.
  [[nodiscard]] bool may_overlap() {
    const auto blocks = cache_.statistics().blocks;
    // A row needs a block for its next token, and chunks of prompts those for all tokens of the step.
    const auto most = std::ssize(running_) * 2 + sizes_.token_budget / cache_.config().block_size;
    const auto next = num_rows() < sizes_.max_rows ? waiting() : std::vector<pagedkv::request_id>{};
    const bool admits = !next.empty() && may_start(*std::ranges::find(all_, next.front(), &row::id));
    return !admits && blocks.free + blocks.evictable >= most * num_groups_;
  }

  /// Finds the rows of the next pass, and where they lie.
  void prepare() {
    auto& [memory, parts, tokens, ids, opened, in_model] = *next_;
    std::erase_if(parts, [](const part& p) { return p.of == nullptr; });
    if (parts.empty()) {
      return;
    }
    tokens = {};
    tokens.is_greedy =
        std::ranges::all_of(parts, [](const part& p) { return p.of->options.sampling.temperature <= 0; });
    ids.clear();
    const bool with_masks = std::ranges::any_of(parts, [](const part& p) { return p.of->drafts.branches(); });
    if (with_masks) {
      std::ranges::stable_partition(parts,
                                    [](const part& p) { return p.end - p.begin <= pagedkv::largest_attention_tree; });
    }
    for (const auto& each : parts) {
      add(each, with_masks);
      ids.push_back(each.of->sequence);
    }
    opened = timed(cache_)->begin_step().value();
    timed(memory)->prepare(tokens, ids).value();
  }

  void add(const part& of, bool with_masks) {
    const auto& r = *of.of;
    auto& to = next_->tokens;
    const auto known = r.from(of.begin, std::min(of.end, r.num_tokens()));
    to.tokens.insert(to.tokens.end(), known.begin(), known.end());
    to.tokens.resize(to.tokens.size() + (of.is_ahead ? 1 : 0));  // known when the pass under way has landed
    const auto end = of.end - std::ssize(r.drafts);
    for (auto i = of.begin; i < end; ++i) {
      to.positions.push_back(static_cast<std::int32_t>(i));
    }
    for (auto i = std::int32_t{0}; i < std::ssize(r.drafts); ++i) {
      to.tokens.push_back(r.drafts.token(i));
      to.positions.push_back(static_cast<std::int32_t>(end - 1 + r.drafts.depth(i)));
    }
    const auto size = static_cast<std::int32_t>(to.tokens.size());
    for (auto i = size - static_cast<std::int32_t>(of.num_wanted); i < size; ++i) {
      to.wanted.push_back(i);
    }
    if (model_.config().most_of_short > 0) {
      to.is_long.resize(to.tokens.size(), r.is_long);
    }
    if (with_masks) {
      to.seen.resize(to.tokens.size(), ~std::uint32_t{0});
      for (auto i = std::int32_t{0}; i < std::ssize(r.drafts); ++i) {
        to.seen[to.tokens.size() - r.drafts.size() + static_cast<std::size_t>(i)] = r.drafts.mask(i);
      }
    }
    to.starts.push_back(size);
  }

  /// Begins the pass that was prepared: on a device, or in a thread if it is to overlap.
  void launch() {
    auto& [memory, parts, tokens, ids, opened, in_model] = *next_;
    if (parts.empty()) {
      return;
    }
    for (auto i = std::size_t{0}; i < parts.size(); ++i) {
      if (parts[i].is_ahead && parts[i].of != nullptr) {
        tokens.tokens[static_cast<std::size_t>(tokens.starts[i + 1] - 1)] = parts[i].of->tokens.back();
      }
    }
    auto* const of = next_;
    if constexpr (requires { model_.begin(of->tokens, of->memory); }) {
      const auto watch = stopwatch{of->in_model};
      model_.begin(of->tokens, of->memory);
      predictions_ = std::async(std::launch::deferred, [this, of] {
        const auto waiting = stopwatch{of->in_model};
        return model_.finish();
      });
    } else {
      predictions_ = std::async(overlaps_ ? std::launch::async : std::launch::deferred, [this, of] {
        const auto watch = stopwatch{of->in_model};
        return model_.predict(of->tokens, of->memory);
      });
    }
    flying_ = of;  // nothing flies if it could not begin
    next_ = of == &passes_[0] && overlaps_ ? &passes_[1] : &passes_[0];
  }

  /// Waits for the pass under way, and does what follows from its predictions.
  void land() {
    if (flying_ == nullptr) {
      return;
    }
    auto& landed = *std::exchange(flying_, nullptr);
    const auto predicted = predictions_.get();
    timed(cache_)->retire_step(*std::exchange(landed.opened, {})).value();
    ++statistics_.steps;
    statistics_.in_model += std::exchange(landed.in_model, {});
    statistics_.computed_tokens += std::ssize(landed.tokens.tokens);
    auto next = std::size_t{0};
    for (const auto& each : landed.parts) {
      if (each.of != nullptr) {
        finish_row(each, predicted.part(next, each.num_wanted));
      }
      next += each.num_wanted;
    }
  }

  /// The row is no longer in passes.
  void leave(const row& r) {
    for (auto& each : passes_) {
      for (auto& p : each.parts) {
        p.of = p.of == &r ? nullptr : p.of;
      }
    }
  }

  void commit(row& r, std::int64_t num_tokens) {
    if (num_tokens > r.committed) {
      timed(cache_)->commit(r.sequence, num_tokens, stream_).value();
      r.committed = num_tokens;
    }
  }

  /// Takes the predicted tokens: one, and one more for each draft that was right. Wrong ones are cut off.
  void finish_row(const part& of, const predictions& predicted) {
    auto& r = *of.of;
    const auto drafts = std::exchange(r.drafts, {});
    auto chosen = std::vector<token>{};
    auto right = std::vector<std::int32_t>{};
    for (auto node = std::optional{draft_tree::root}; node && !predicted.empty();) {
      chosen.push_back(predicted.choose(static_cast<std::size_t>(*node + 1), r.options.sampling, r.random));
      node = is_end_of(r, chosen.back()) ? std::nullopt : drafts.child(*node, chosen.back());
      if (node) {
        right.push_back(*node);
      }
    }
    statistics_.drafts += static_cast<std::int64_t>(drafts.size());
    statistics_.accepted_drafts += static_cast<std::int64_t>(right.size());
    r.computed = of.end;
    if (right.size() < drafts.size()) {
      keep_drafts(r, drafts, right);
      r.scheduled = r.computed = r.length;
    }
    if (has_states_) {
      commit(r, r.computed);  // before the state changes
    }
    if (!chosen.empty() && r.answer().empty() && r.index == 0) {
      fork(r, predicted);
    }
    take_tokens(r, chosen);
  }

  /// Leaves these drafts of a row, and moves their K/V to where it would be without the others.
  void keep_drafts(row& r, const draft_tree& drafts, std::span<const std::int32_t> right) {
    const auto watch = stopwatch{statistics_.in_cache};
    const auto first = r.length - static_cast<std::int64_t>(drafts.size());
    auto from = std::vector<std::int64_t>{};
    auto to = std::vector<std::int64_t>{};
    auto tokens = std::vector<token>{};
    for (auto i = std::int32_t{0}; i < std::ssize(right); ++i) {
      const auto node = right[static_cast<std::size_t>(i)];
      if (node != i) {  // it is not in the first chain
        from.push_back(first + node);
        to.push_back(first + i);
        tokens.push_back(drafts.token(node));
      }
    }
    r.length = first + std::ssize(right);
    if (tokens.empty()) {
      cache_.truncate(r.sequence, r.length).value();
      return;
    }
    if constexpr (memory_type::takes_trees) {
      passes_[0].memory.take(r.sequence, from);
      cache_.truncate(r.sequence, to.front()).value();
      cache_.append(r.sequence, tokens, stream_).value();  // at most the blocks that were given back
      passes_[0].memory.put(r.sequence, to);
    }
  }

  /// `is_long`: such texts have other K than short ones, and share none with them.
  [[nodiscard]] pagedkv::result<pagedkv::request_id> enqueue(const generation_options& options, bool is_long) {
    constexpr auto salt_of_long = std::uint64_t{1} << 63;
    auto of_request = pagedkv::request_options{};
    of_request.may_preempt = true;
    of_request.sequence.salt =
        is_long ? pagedkv::salt{static_cast<std::uint64_t>(options.salt) ^ salt_of_long} : options.salt;
    of_request.sequence.priority = options.priority;
    of_request.sequence.first_chunk = 0;  // its length is known when the cached tokens are
    return requests_.enqueue(of_request);
  }

  /// Starts the other answers to a prompt, on its blocks. One without room, as for a copy of the state, waits as a
  /// request of its own.
  void fork(row& r, const predictions& predicted) {
    if (r.options.num_samples > 1) {
      commit(r, r.computed);
    }
    for (auto i = std::size_t{1}; i < r.options.num_samples; ++i) {
      auto& other = all_.emplace_back();
      static_cast<sample&>(other) = r;
      other.on_token = r.on_token;
      other.index = i;
      other.is_long = r.is_long;
      other.random = random_numbers(r.options.sampling.seed + i);
      const auto forked = timed(requests_)->fork(r.id, stream_);
      if (!forked && forked.error().code != pagedkv::error_code::capacity_exhausted) {
        fail(other, forked.error());
        continue;
      }
      if (forked) {
        other.id = forked->id;
        other.sequence = forked->sequence;
        other.length = other.scheduled = other.computed = other.committed = r.length;
        running_.push_back(&other);
      }
      take_tokens(other, std::array{predicted.choose(0, other.options.sampling, other.random)});
      if (!forked && other.is_open()) {
        wait_alone(other);
      }
    }
  }

  /// The answer starts when its prompt and its first token fit.
  void wait_alone(row& r) {
    const auto enqueued = enqueue(r.options, r.is_long);
    if (!enqueued) {
      fail(r, enqueued.error());
      return;
    }
    r.id = *enqueued;
    r.state = generation_state::waiting;
  }

  /// Whether an answer ends with such a token.
  [[nodiscard]] bool is_end_of(const row& r, token last) const {
    const auto& ends = model_.config().end_tokens;
    return !r.options.ignores_end && std::ranges::find(ends, last) != ends.end();
  }

  void take_tokens(row& r, std::span<const token> chosen) {
    for (const auto next : chosen) {
      r.tokens.push_back(next);
      const bool is_end = is_end_of(r, next);
      const bool is_full = r.answer().size() == r.options.max_tokens;
      if (is_end || is_full) {
        end(r, is_end ? generation_state::ended : generation_state::cut);
      }
      r.tell(next);
      if (!r.is_open()) {
        return;
      }
    }
    if (room_of(r) < 0) {
      begin_as_long(r);
    }
  }

  /// Tokens behind a row's last one that have its rotation.
  [[nodiscard]] std::int64_t room_of(const row& r) const {
    const auto most = std::int64_t{model_.config().most_of_short};
    return most == 0 || r.is_long ? std::numeric_limits<std::int64_t>::max() : most - r.num_tokens();
  }

  /// All tokens of a text that has become long are computed anew, with the rotation of long ones.
  void begin_as_long(row& r) {
    r.is_long = true;
    if (r.id != pagedkv::request_id{}) {  // none where a fork was refused
      keep(r);
      leave(r);
      running_.remove(&r);
      timed(requests_)->finish(std::exchange(r.id, {})).value();
      r.lose_sequence();
      wait_alone(r);
    }
  }

  void fail(row& r, const pagedkv::error& reason) {
    r.failure = reason;
    end(r, generation_state::failed);
    r.tell({});
  }

  /// Publishes what the row computed, and saves it if that is wished.
  void keep(row& r) {
    if (r.computed == 0 || r.is_loading) {
      return;
    }
    if (r.length < r.computed) {
      timed(cache_)->append(r.sequence, r.from(r.length, r.computed), stream_).value();  // into slots that it has
    }
    commit(r, r.computed);
    const bool is_answer = r.state == generation_state::ended || r.state == generation_state::cut;
    if (is_answer && r.index == 0 && !r.options.save_to.empty()) {
      const auto options = options_of_session{.model = name_};
      if (const auto saved = pagedkv::save_sequence(cache_, r.sequence, r.options.save_to, options, stream_); !saved) {
        r.failure = saved.error();
      }
    }
  }

  void end(row& r, generation_state how) {
    r.state = how;
    leave(r);
    running_.remove(&r);
    if (r.id != pagedkv::request_id{}) {  // none where a fork was refused
      keep(r);
      (how == generation_state::cancelled ? timed(requests_)->cancel(r.id) : timed(requests_)->finish(r.id)).value();
    }
  }

  model& model_;
  engine_sizes sizes_;
  std::string name_;
  std::unique_ptr<Cache> owned_cache_;
  Cache& cache_ = *owned_cache_;
  stream_type stream_ = stream_of<Cache>(model_);
  pagedkv::request_tracker<Cache> requests_;
  std::ptrdiff_t num_groups_ =
      std::ranges::count_if(model_.config().groups().all(), &pagedkv::group_config::holds_tokens);
  bool overlaps_ = sizes_.overlaps && sizes_.num_drafts == 0 && !model_.config().has(layer_kind::state);
  bool has_trees_ = memory_type::takes_trees && sizes_.num_branches > 1 && !model_.config().has(layer_kind::window);
  bool has_states_ = model_.config().has(layer_kind::state);
  bool commits_early_ = model_.config().attends_to_all() && !has_tiers<Cache>;

  std::list<row> all_;
  std::list<row*> running_;
  std::array<pass, 2> passes_;
  pass* next_ = &passes_[0];
  pass* flying_ = nullptr;  // the one under way
  std::future<predictions> predictions_;
  std::int64_t budget_ = 0;
  std::vector<std::vector<token>> runs_;
  std::vector<pagedkv::batch_entry> entries_;  // of running requests, with these runs
  std::vector<pagedkv::request_id> ids_of_requests_;
  std::vector<part> extended_;  // of these entries
  std::vector<pagedkv::batch_failure> failures_;
  std::vector<pagedkv::slot> slots_;
  engine_statistics statistics_;
};

/// An engine with host memory behind the cache, and what else is asked for behind that. Throws what `make_engine` does.
[[nodiscard]] std::unique_ptr<engine> make_tiered_engine(model& with, const engine_sizes& sizes, stored_as stored,
                                                         const tier_sizes& tiers);

}  // namespace llama
