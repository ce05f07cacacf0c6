#include "engine.hpp"

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

namespace llama {

template <class Element>
engine<Element>::engine(model& with, const engine_sizes& sizes)
    : model_(with),
      sizes_(sizes),
      cache_(config_of(with.config(), sizes)),
      requests_(cache_),
      memory_(cache_, with.config(), sizes.max_rows) {}

template <class Element>
pagedkv::result<void> engine<Element>::check(std::span<const pagedkv::token> prompt,
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

template <class Element>
bool engine<Element>::fits(std::size_t num_prompt_tokens, std::size_t max_tokens, std::size_t num_samples) const {
  const auto length = static_cast<std::int64_t>(num_prompt_tokens + max_tokens);
  const auto& groups = cache_.config().groups;
  auto needed = std::int64_t{0};
  for (auto g = std::size_t{0}; g < groups.size(); ++g) {
    const auto& plan = cache_.plan().groups[g];
    const auto each = pagedkv::num_sequence_blocks(groups[g], plan, length);
    const bool keeps_all = groups[g].kind == pagedkv::group_kind::full;
    const auto shared = keeps_all ? static_cast<std::int64_t>(num_prompt_tokens) / plan.block_size : 0;
    needed += shared + static_cast<std::int64_t>(num_samples) * (each - shared);
  }
  return needed <= sizes_.num_blocks;
}

template <class Element>
pagedkv::result<const sample*> engine<Element>::submit(std::vector<pagedkv::token> prompt,
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

template <class Element>
void engine<Element>::cancel(const sample& which) {
  auto& found = *std::ranges::find_if(all_, [&](const row& r) { return &r == &which; });
  if (found.is_open()) {
    std::erase(waiting_, &found);
    end(found, generation_state::cancelled);
    found.tell({});
  }
}

template <class Element>
void engine<Element>::forget(const sample& which) {
  all_.remove_if([&](const row& r) { return &r == &which && !r.is_open(); });
}

template <class Element>
bool engine<Element>::step() {
  const auto watch = stopwatch{statistics_.in_steps};
  const auto opened = timed(cache_)->begin_step().value();
  rows_.clear();
  budget_ = sizes_.token_budget;
  extend_running();
  admit();
  if (rows_.empty() && !running_.empty()) {  // nothing that runs can go on, and nothing is left to preempt
    fail(*running_.back(),
         pagedkv::error{pagedkv::error_code::capacity_exhausted, "number of blocks", sizes_.num_blocks});
  }
  commit_prompts();
  compute();
  timed(cache_)->retire_step(opened).value();
  return !running_.empty() || !waiting_.empty();
}

template <class Element>
void engine<Element>::run() {
  while (step()) {
  }
}

template <class Element>
pagedkv::cache_config engine<Element>::config_of(const model_config& model, const engine_sizes& sizes) {
  auto config = pagedkv::cache_config{.block_size = sizes.block_size, .num_blocks = sizes.num_blocks};
  config.max_sequences = static_cast<std::int32_t>(2 * sizes.max_rows);
  config.groups = model.groups();
  return config;
}

template <class Element>
std::int64_t engine<Element>::end_of_chunk(const row& r) const {
  const auto end = std::min(r.num_tokens(), r.length + budget_);
  return has_states_ ? std::min(end, cache_.next_saved_length(r.sequence).value()) : end;
}

template <class Element>
void engine<Element>::extend_running() {
  auto entries = std::vector<pagedkv::batch_entry>{};
  auto extended = std::vector<row*>{};
  runs_.clear();
  for (auto* const r : running_) {
    const auto end = end_of_chunk(*r);
    if (end == r->length) {
      continue;  // nothing is left of the budget
    }
    auto& run = runs_.emplace_back(r->from(r->length, end).begin(), r->from(r->length, end).end());
    r->drafts = guess(*r);
    run.insert(run.end(), r->drafts.begin(), r->drafts.end());
    budget_ -= static_cast<std::int64_t>(run.size());
    entries.push_back({.id = r->sequence, .run = std::span<const token>(run)});
    extended.push_back(r);
  }
  auto failures = std::vector<pagedkv::batch_failure>(entries.size());
  auto slots = std::vector<pagedkv::slot>(num_slots(entries));
  const auto done = timed(cache_)->append_batch(entries, {.slots = slots, .failures = failures}).value();
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

template <class Element>
std::size_t engine<Element>::num_slots(std::span<const pagedkv::batch_entry> entries) const {
  const auto num_groups = std::ranges::count_if(cache_.config().groups, &pagedkv::group_config::holds_tokens);
  auto count = std::size_t{0};
  for (const auto& entry : entries) {
    count += entry.run.tokens.size();
  }
  return count * static_cast<std::size_t>(num_groups);
}

template <class Element>
std::vector<pagedkv::token> engine<Element>::guess(const row& r) const {
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

template <class Element>
void engine<Element>::take_part(row& r, std::size_t count) {
  r.length += static_cast<std::int64_t>(count);
  rows_.push_back(&r);
}

template <class Element>
bool engine<Element>::append(row& r, std::span<const token> run) {
  const auto appended = timed(requests_)->append(r.id, run);
  put_back(appended.preempted());
  return appended.has_value();
}

template <class Element>
void engine<Element>::put_back(const std::vector<pagedkv::request_id>& preempted) {
  for (const auto id : preempted) {
    auto& r = **std::ranges::find_if(running_, [&](const row* each) { return each->id == id; });
    r.state = generation_state::waiting;
    r.length = r.computed = 0;
    waiting_.push_front(&r);
    std::erase(rows_, &r);
    running_.remove(&r);
    ++statistics_.preemptions;
  }
}

template <class Element>
std::size_t engine<Element>::num_rows() const {
  auto count = std::size_t{0};
  for (const auto* const r : running_) {
    count += r->num_rows();
  }
  return count;
}

template <class Element>
void engine<Element>::admit() {
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

template <class Element>
pagedkv::result<void> engine<Element>::start(row& r) {
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

template <class Element>
void engine<Element>::commit_prompts() {
  const auto watch = stopwatch{statistics_.in_cache};
  for (const auto* const r : rows_) {
    if (commits_early_ && r->drafts.empty()) {
      cache_.commit(r->sequence, r->length).value();
    }
  }
}

template <class Element>
void engine<Element>::compute() {
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
}

template <class Element>
std::span<const float> engine<Element>::run_model() {
  const auto watch = stopwatch{statistics_.in_model};
  return model_.run(step_, memory_);
}

template <class Element>
void engine<Element>::finish_row(row& r, std::span<const float> logits) {
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
  if (!commits_early_ || !drafts.empty()) {
    timed(cache_)->commit(r.sequence, r.computed).value();
  }
  if (!chosen.empty() && r.answer().empty() && r.index == 0) {
    fork(r, logits.first(width));
  }
  take_tokens(r, chosen);
}

template <class Element>
void engine<Element>::fork(row& r, std::span<const float> logits) {
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

template <class Element>
void engine<Element>::take_tokens(row& r, std::span<const token> chosen) {
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

template <class Element>
void engine<Element>::fail(row& r, const pagedkv::error& reason) {
  r.failure = reason;
  end(r, generation_state::failed);
  r.tell({});
}

template <class Element>
void engine<Element>::end(row& r, generation_state how) {
  r.state = how;
  running_.remove(&r);
  if (r.submitted) {
    (how == generation_state::cancelled ? timed(requests_)->cancel(r.id) : timed(requests_)->finish(r.id)).value();
  }
}

template class engine<pagedkv::float32>;
template class engine<pagedkv::int8>;

}  // namespace llama
