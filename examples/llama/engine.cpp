#include "engine.hpp"

#include "engine_of.hpp"

#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/file_engine.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <ranges>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace llama {

namespace {

using files_tier = pagedkv::basic_file_tier<pagedkv::thread_files>;

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

/// Blocks of a group that a sequence takes.
template <class Cache>
[[nodiscard]] std::int64_t blocks_of(const Cache& cache, std::size_t group, std::int64_t length) {
  if constexpr (Cache::layers_differ) {
    return pagedkv::num_sequence_blocks(cache.config().groups[group], cache.plan().groups[group], length);
  } else {
    return (length + cache.config().block_size - 1) / cache.config().block_size;
  }
}

}  // namespace

template <class Cache>
engine_of<Cache>::engine_of(model& with, const engine_sizes& sizes, std::unique_ptr<Cache> cache)
    : model_(with),
      sizes_(sizes),
      owned_cache_(std::move(cache)),
      requests_(cache_),
      memory_(cache_, with.config(), sizes.max_rows) {}

template <class Cache>
engine_of<Cache>::~engine_of() {
  if constexpr (has_tiers<Cache>) {
    cache_.wait_idle();
  }
}

template <class Cache>
pagedkv::result<void> engine_of<Cache>::check(std::span<const pagedkv::token> prompt,
                                              const generation_options& options) const {
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
  if (options.num_samples > sizes_.max_rows) {
    return error{error_code::invalid_argument, "number of answers", static_cast<std::int64_t>(options.num_samples),
                 static_cast<std::int64_t>(sizes_.max_rows)};
  }
  return {};
}

template <class Cache>
bool engine_of<Cache>::fits(std::size_t num_prompt_tokens, std::size_t max_tokens, std::size_t num_samples) const {
  const auto length = static_cast<std::int64_t>(num_prompt_tokens + max_tokens);
  const auto groups = model_.config().groups();
  auto needed = std::int64_t{0};
  for (auto g = std::size_t{0}; g < groups.size(); ++g) {
    const auto each = blocks_of(cache_, g, length);
    const bool keeps_all = groups[g].kind == pagedkv::group_kind::full;
    const auto shared = keeps_all ? static_cast<std::int64_t>(num_prompt_tokens) / block_size_of(cache_, g) : 0;
    needed += shared + static_cast<std::int64_t>(num_samples) * (each - shared);
  }
  return needed <= sizes_.num_blocks;
}

template <class Cache>
pagedkv::result<const sample*> engine_of<Cache>::submit(std::vector<pagedkv::token> prompt,
                                                        const generation_options& options, listener on_token) {
  if (const auto checked = check(prompt, options); !checked) {
    return checked.error();
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

template <class Cache>
void engine_of<Cache>::cancel(const sample& which) {
  auto& found = *std::ranges::find_if(all_, [&](const row& r) { return &r == &which; });
  if (found.is_open()) {
    std::erase(waiting_, &found);
    end(found, generation_state::cancelled);
    found.tell({});
  }
}

template <class Cache>
void engine_of<Cache>::forget(const sample& which) {
  all_.remove_if([&](const row& r) { return &r == &which && !r.is_open(); });
}

template <class Cache>
bool engine_of<Cache>::step() {
  const auto watch = stopwatch{statistics_.in_steps};
  const auto preempted_before = statistics_.preemptions;
  rows_.clear();
  budget_ = sizes_.token_budget;
  extend_running();
  admit();
  if (rows_.empty() && !wait_for_loads() && !running_.empty() && statistics_.preemptions == preempted_before) {
    // Nothing that runs can go on, and nothing is left to preempt.
    fail(*running_.back(),
         pagedkv::error{pagedkv::error_code::capacity_exhausted, "number of blocks", sizes_.num_blocks});
  }
  compute();
  return !running_.empty() || !waiting_.empty();
}

template <class Cache>
std::vector<const sample*> engine_of<Cache>::samples() const {
  auto all = std::vector<const sample*>{};
  std::ranges::transform(all_, std::back_inserter(all), [](const row& each) { return &each; });
  return all;
}

template <class Cache>
std::int64_t engine_of<Cache>::end_of_chunk(const row& r) const {
  const auto end = std::min(r.num_tokens(), r.length + budget_);
  if constexpr (Cache::layers_differ) {
    return has_states_ ? std::min(end, cache_.next_saved_length(r.sequence).value()) : end;
  } else {
    return end;
  }
}

template <class Cache>
void engine_of<Cache>::extend_running() {
  entries_.clear();
  extended_.clear();
  ids_of_requests_.clear();
  runs_.resize(running_.size());
  for (auto* const r : running_) {
    if (!has_arrived(*r)) {
      continue;
    }
    auto& run = runs_[entries_.size()];
    const auto known = r->from(r->length, end_of_chunk(*r));  // empty if nothing is left of the budget
    run.assign(known.begin(), known.end());
    r->drafts = guess(*r);
    run.insert(run.end(), r->drafts.begin(), r->drafts.end());
    budget_ -= static_cast<std::int64_t>(run.size());
    entries_.push_back({.id = r->sequence, .run = std::span<const token>(run), .num_computed_tokens = r->computed});
    ids_of_requests_.push_back(r->id);
    extended_.push_back(r);
  }
  failures_.resize(entries_.size());
  slots_.resize(num_slots());
  const auto out = pagedkv::batch_buffers{.slots = slots_, .failures = failures_};
  const auto appended = timed(requests_)->append_batch(ids_of_requests_, entries_, out);
  for (const auto& failure : std::span(failures_).first(appended->num_failures)) {
    extended_[failure.entry] = nullptr;
  }
  put_back(appended.preempted());
  for (auto i = std::size_t{0}; i < extended_.size(); ++i) {
    if (extended_[i] != nullptr && !runs_[i].empty()) {
      take_part(*extended_[i], runs_[i].size());
    }
  }
}

template <class Cache>
std::size_t engine_of<Cache>::num_slots() const {
  auto count = std::size_t{0};
  for (const auto& entry : entries_) {
    count += entry.run.tokens.size();
  }
  return count * static_cast<std::size_t>(num_groups_);
}

template <class Cache>
bool engine_of<Cache>::has_arrived(row& r) {
  if constexpr (has_tiers<Cache>) {
    if (r.is_loading && timed(cache_)->poll(r.sequence).done()) {
      r.is_loading = false;
      const auto settled = timed(cache_)->settle(r.sequence).value();
      timed(cache_)->truncate(r.sequence, settled).value();  // the rest is computed, as the budget allows
      statistics_.cached_tokens += settled - r.computed;
      r.num_cached_tokens += r.answer().empty() ? settled - r.computed : 0;
      r.length = r.computed = settled;
    }
  }
  return !r.is_loading;
}

template <class Cache>
bool engine_of<Cache>::wait_for_loads() {
  const auto found = std::ranges::find_if(running_, [](const row* each) { return each->is_loading; });
  if constexpr (has_tiers<Cache>) {
    if (found != running_.end()) {
      cache_.wait((*found)->sequence, clock::now() + std::chrono::milliseconds(5));
    }
  }
  return found != running_.end();
}

template <class Cache>
std::vector<pagedkv::token> engine_of<Cache>::guess(const row& r) const {
  const auto left = static_cast<std::int64_t>(r.options.max_tokens - r.answer().size()) - 1;
  const auto most = std::min({static_cast<std::int64_t>(sizes_.num_drafts), left, budget_ - 1});
  // A state cannot be taken back.
  if (has_states_ || most <= 0 || r.num_tokens() != r.length + 1 || r.tokens.size() < 4) {
    return {};
  }
  const auto earlier = std::find_end(r.tokens.begin(), r.tokens.end() - 1, r.tokens.end() - 2, r.tokens.end());
  if (earlier == r.tokens.end() - 1) {
    return {};
  }
  const auto first = earlier + 2;
  return {first, first + std::min<std::ptrdiff_t>(most, r.tokens.end() - first)};
}

template <class Cache>
void engine_of<Cache>::take_part(row& r, std::size_t count) {
  r.length += static_cast<std::int64_t>(count);
  rows_.push_back(&r);
}

template <class Cache>
void engine_of<Cache>::put_back(const std::vector<pagedkv::request_id>& preempted) {
  for (const auto id : preempted) {
    auto& r = **std::ranges::find_if(running_, [&](const row* each) { return each->id == id; });
    r.state = generation_state::waiting;
    r.length = r.computed = 0;
    r.is_loading = false;
    waiting_.push_front(&r);
    std::erase(rows_, &r);
    running_.remove(&r);
    ++statistics_.preemptions;
  }
}

template <class Cache>
std::size_t engine_of<Cache>::num_rows() const {
  auto count = std::size_t{0};
  for (const auto* const r : running_) {
    count += r->num_rows();
  }
  return count;
}

template <class Cache>
void engine_of<Cache>::admit() {
  while (!waiting_.empty() && budget_ > 0 && num_rows() + waiting_.front()->num_rows() <= sizes_.max_rows) {
    auto& r = *waiting_.front();
    waiting_.pop_front();  // those that give way to it wait in front of the others
    if (const auto admitted = start(r); admitted) {
      running_.push_back(&r);
    } else if (rows_.empty() && running_.empty()) {
      fail(r, admitted.error());  // it does not fit while no other one runs, so it never will
    } else {
      waiting_.push_front(&r);
      return;
    }
  }
}

template <class Cache>
pagedkv::result<void> engine_of<Cache>::start(row& r) {
  auto options = pagedkv::request_options{};
  options.may_preempt = true;
  options.sequence.salt = r.options.salt;
  options.sequence.priority = r.options.priority;
  options.sequence.first_chunk = 0;  // its length is known when the cached tokens are
  options.sequence.num_prompt_tokens = static_cast<std::int64_t>(r.num_prompt_tokens);
  const auto admitted =
      r.submitted ? timed(requests_)->resume(r.id, r.tokens) : timed(requests_)->submit(r.tokens, options);
  put_back(admitted.preempted());
  if (!admitted) {
    return admitted.error();
  }
  r.id = admitted->id;
  r.sequence = admitted->sequence;
  r.length = r.computed = admitted->num_cached_tokens;
  r.state = generation_state::running;
  if (!std::exchange(r.submitted, true)) {
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
  const auto appended = timed(requests_)->append(r.id, run);
  put_back(appended.preempted());
  if (!appended) {
    timed(requests_)->preempt(r.id).value();
    r.state = generation_state::waiting;
    return appended.error();
  }
  budget_ -= static_cast<std::int64_t>(run.size());
  take_part(r, run.size());
  if (commits_early_) {
    timed(cache_)->commit(r.sequence, r.length).value();
  }
  return {};
}

template <class Cache>
void engine_of<Cache>::compute() {
  if (rows_.empty()) {
    return;
  }
  const auto opened = timed(cache_)->begin_step().value();
  step_ = {};
  ids_.clear();
  for (auto* const r : rows_) {
    const auto end = std::min(r->length, r->num_tokens());
    for (auto i = r->computed; i < r->length; ++i) {
      step_.positions.push_back(static_cast<std::int32_t>(i));
    }
    const auto known = r->from(r->computed, end);
    step_.tokens.insert(step_.tokens.end(), known.begin(), known.end());
    step_.tokens.insert(step_.tokens.end(), r->drafts.begin(), r->drafts.end());
    step_.starts.push_back(static_cast<std::int32_t>(step_.tokens.size()));
    if (end == r->num_tokens()) {
      for (auto i = r->drafts.size() + 1; i > 0; --i) {
        step_.wanted.push_back(static_cast<std::int32_t>(step_.tokens.size() - i));
      }
    }
    ids_.push_back(r->sequence);
  }
  timed(memory_)->prepare(step_, ids_).value();
  const auto logits = run_model();
  ++statistics_.steps;
  statistics_.computed_tokens += static_cast<std::int64_t>(step_.tokens.size());
  const auto width = static_cast<std::size_t>(model_.config().vocabulary);
  auto next = std::size_t{0};
  for (auto* const r : std::vector(rows_)) {
    const bool ends = std::min(r->length, r->num_tokens()) == r->num_tokens();
    const auto count = ends ? r->drafts.size() + 1 : 0;
    finish_row(*r, logits.subspan(next * width, count * width));
    next += count;
  }
  timed(cache_)->retire_step(opened).value();
}

template <class Cache>
std::span<const float> engine_of<Cache>::run_model() {
  const auto watch = stopwatch{statistics_.in_model};
  return model_.run(step_, memory_);
}

template <class Cache>
void engine_of<Cache>::finish_row(row& r, std::span<const float> logits) {
  const auto width = static_cast<std::size_t>(model_.config().vocabulary);
  const auto drafts = std::exchange(r.drafts, {});
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
    timed(cache_)->truncate(r.sequence, r.length).value();
  }
  r.computed = r.length;
  if (has_states_) {
    timed(cache_)->commit(r.sequence, r.computed).value();  // before the state changes
  }
  if (!chosen.empty() && r.answer().empty() && r.index == 0) {
    fork(r, logits.first(width));
  }
  take_tokens(r, chosen);
}

template <class Cache>
void engine_of<Cache>::fork(row& r, std::span<const float> logits) {
  if (r.options.num_samples > 1) {
    timed(cache_)->commit(r.sequence, r.computed).value();
  }
  for (auto i = std::size_t{1}; i < r.options.num_samples; ++i) {
    auto& other = all_.emplace_back();
    static_cast<sample&>(other) = r;
    other.on_token = r.on_token;
    other.index = i;
    other.submitted = true;
    other.random = random_numbers(r.options.sampling.seed + i);
    const auto forked = timed(requests_)->fork(r.id);
    if (!forked) {
      other.submitted = false;
      fail(other, forked.error());
      continue;
    }
    other.id = forked->id;
    other.sequence = forked->sequence;
    other.length = other.computed = r.length;
    running_.push_back(&other);
    take_tokens(other, std::array{choose(logits, other.options.sampling, other.random)});
  }
}

template <class Cache>
void engine_of<Cache>::take_tokens(row& r, std::span<const token> chosen) {
  for (const auto next : chosen) {
    r.tokens.push_back(next);
    const bool is_end = !r.options.ignores_end &&
                        std::ranges::find(model_.config().end_tokens, next) != model_.config().end_tokens.end();
    const bool is_full = r.answer().size() == r.options.max_tokens;
    if (is_end || is_full) {
      end(r, is_end ? generation_state::ended : generation_state::cut);
    }
    r.tell(next);
    if (!r.is_open()) {
      return;
    }
  }
}

template <class Cache>
void engine_of<Cache>::fail(row& r, const pagedkv::error& reason) {
  r.failure = reason;
  end(r, generation_state::failed);
  r.tell({});
}

template <class Cache>
void engine_of<Cache>::end(row& r, generation_state how) {
  r.state = how;
  running_.remove(&r);
  if (r.submitted) {
    if (r.computed > 0 && !r.is_loading) {
      timed(cache_)->commit(r.sequence, r.computed).value();
    }
    (how == generation_state::cancelled ? timed(requests_)->cancel(r.id) : timed(requests_)->finish(r.id)).value();
  }
}

namespace {

template <class Element>
[[nodiscard]] std::unique_ptr<engine> make_without_tiers(model& with, const engine_sizes& sizes) {
  using cache = pagedkv::group_cache<Element>;
  return std::make_unique<engine_of<cache>>(with, sizes,
                                            std::make_unique<cache>(config_of<cache>(with.config(), sizes)));
}

template <class... Slower>
[[nodiscard]] std::unique_ptr<engine> make_with_tiers(model& with, const engine_sizes& sizes, const tier_sizes& tiers,
                                                      Slower... slower) {
  using cache = pagedkv::tiered_cache<pagedkv::float32, Slower...>;
  auto chosen = pagedkv::tier_config{};
  chosen.model = tiers.model;
  chosen.write = pagedkv::write_policy::through;  // so that a restart finds what was never evicted
  auto made =
      std::make_unique<cache>(config_of<cache>(with.config(), sizes), chosen,
                              pagedkv::host_tier<>{tiers.host_blocks, {}}, std::tuple<Slower...>{std::move(slower)...});
  return std::make_unique<engine_of<cache>>(with, sizes, std::move(made));
}

}  // namespace

std::unique_ptr<engine> make_engine(model& with, const engine_sizes& sizes, stored_as stored, const tier_sizes& tiers) {
  if (tiers.host_blocks == 0 && tiers.file.empty()) {
    return stored == stored_as::float32 ? make_without_tiers<pagedkv::float32>(with, sizes)
                                        : make_without_tiers<pagedkv::int8>(with, sizes);
  }
  if (with.config().has(layer_kind::window) || with.config().has(layer_kind::state)) {
    throw std::invalid_argument("tiers stand behind layers that attend to all tokens; this model has others");
  }
  if (stored != stored_as::float32) {
    throw std::invalid_argument("tiers of this program hold float32");
  }
  if (tiers.host_blocks == 0) {
    throw std::invalid_argument("a file is read and written through host memory, which needs blocks");
  }
  if (tiers.file.empty()) {
    return make_with_tiers(with, sizes, tiers);
  }
  using cache = pagedkv::tiered_cache<pagedkv::float32, files_tier>;
  const auto format = cache::format_of(config_of<cache>(with.config(), sizes), tiers.model);
  return make_with_tiers(with, sizes, tiers, files_tier::create({tiers.file}, tiers.file_bytes, format).value());
}

}  // namespace llama
