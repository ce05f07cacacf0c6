#include "group_model.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>

namespace pagedkv::test {

namespace {

constexpr auto salts = std::array{salt::none, salt{1}, make_salt(1, 7)};
constexpr auto max_table = std::size_t{1024};

/// Distinct inputs give distinct outputs for all that a test will see (the finaliser of splitmix64).
[[nodiscard]] std::uint64_t mix(std::uint64_t before, std::uint64_t next) {
  auto x = before * 0x9e3779b97f4a7c15 + next + 0x632be59bd9b4e019;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

/// The number that stands at one place of the K or V of the last token of a prefix.
[[nodiscard]] float number(std::uint64_t name, std::size_t g, std::int32_t layer, bool is_value, std::size_t i) {
  return static_cast<float>(mix(name, 64 * (8 * i + g) + 2 * static_cast<std::uint64_t>(layer) + is_value) >> 40);
}

[[nodiscard]] std::uint8_t state_byte(std::uint64_t name, std::int32_t part) {
  return static_cast<std::uint8_t>(mix(name, static_cast<std::uint64_t>(part)));
}

/// Rows of K and V of one layer for so many tokens.
struct rows {
  rows(const group_config& group, std::size_t num_tokens)
      : key_size(static_cast<std::size_t>(group.num_kv_heads) * static_cast<std::size_t>(group.key_dim)),
        value_size(static_cast<std::size_t>(group.num_kv_heads) * static_cast<std::size_t>(group.value_dim)),
        is_latent(group.kind == group_kind::latent),
        keys(num_tokens * key_size),
        values(num_tokens * value_size) {}

  void fill(std::size_t row, std::uint64_t name, std::size_t g, std::int32_t layer) {
    for (std::size_t i = 0; i < key_size; ++i) {
      keys[row * key_size + i] = number(name, g, layer, false, i);
    }
    for (std::size_t i = 0; i < value_size; ++i) {
      values[row * value_size + i] = number(name, g, layer, !is_latent, i);
    }
  }
  template <class Number>
  [[nodiscard]] static token_rows<Number> view(std::vector<float>& of, std::size_t size, std::int32_t dim) {
    const auto count = size == 0 ? 0 : static_cast<std::int64_t>(of.size() / size);
    return {
        of.data(), static_cast<std::int64_t>(size), dim, count, dim == 0 ? 0 : static_cast<std::int32_t>(size) / dim,
        dim};
  }

  std::size_t key_size;
  std::size_t value_size;
  bool is_latent;
  std::vector<float> keys;
  std::vector<float> values;
};

}  // namespace

named_text::named_text(pagedkv::salt tag) : salt(tag), names{mix(0, static_cast<std::uint64_t>(tag))} {}

void named_text::add(token next) {
  auto name = names.back();
  for (const auto& [position, value] : keys) {
    if (position == size()) {
      name = mix(mix(name + 1, value[0]), value[1]);
    }
  }
  tokens.push_back(next);
  names.push_back(mix(name, static_cast<std::uint64_t>(next)));
}

void named_text::cut(std::size_t length) {
  tokens.resize(length);
  names.resize(length + 1);
  std::erase_if(keys, [&](const prefix_key& key) { return key.position >= size(); });
}

group_model::group_model(groups_under_test& cache, const group_kind_under_test& kind, const cache_config& config)
    : cache_(cache), kind_(kind), config_(config), granularity_(config.block_size), seen_(cache.statistics()) {
  const auto groups = config_.groups.all();
  with_state_ =
      static_cast<std::size_t>(std::ranges::find(groups, group_kind::state, &group_config::kind) - groups.begin());
  for (std::size_t g = 0; g < num_groups(); ++g) {
    batches_.emplace_back(static_cast<std::size_t>(config.max_sequences), max_table);
  }
}

std::optional<std::string> group_model::run(const std::vector<operation>& operations) {
  try {
    for (const auto& next : operations) {
      apply(next);
    }
    finish();
    coverage_.statistics = seen_;
    return std::nullopt;
  } catch (const mismatch& found) {
    return found.what;
  }
}

void group_model::apply(const operation& next) {
  refused_ = copy_failed_ = may_lose_state_ = false;
  note_before();
  cache_.copies_fail = next.c / 4096 % 8 == 0;
  switch (next.what) {
    case action::create: create(next); break;
    case action::append_one: append(next, 1); break;
    case action::append_run: append(next, next.b % 16); break;
    case action::reserve_slots: reserve_slots(next); break;
    case action::append_batch: append_batch(next); break;
    case action::compute: compute(next, next.b % 2 == 0); break;
    case action::write_ahead:
    case action::drop_before: compute(next, true); break;
    case action::fork: fork(next); break;
    case action::truncate: truncate(next); break;
    case action::release:
      if (!live_.empty()) {
        release(next.a % live_.size(), next.b % 2 == 0);
      }
      break;
    case action::pin: pin(next); break;
    case action::unpin:
      if (!pins_.empty()) {
        unpin(next.a % pins_.size());
      }
      break;
    case action::unpin_all:
      expect_equal(cache_.unpin_all(), std::ssize(pins_), "number of pins that ended");
      pins_.clear();
      break;
    case action::find_prefix: find_prefix(next); break;
    case action::begin_step: begin_step(next); break;
    case action::retire_step: retire_step(next); break;
    case action::evict: evict(next); break;
    case action::compact: compact(); break;
    case action::reset: reset(); break;
    case action::advance_time:
      now_ = timestamp{static_cast<std::int64_t>(now_) + next.a % 10};
      cache_.advance_time(now_);
      break;
    case action::update_batches: update_batches(next); break;
    case action::ask_wrongly: ask_wrongly(next); break;
    case action::use_dead_id: use_dead_id(next); break;
    case action::resize: resize(next); break;
    case action::invalidate: invalidate(next); break;
    case action::number_of_actions: break;
  }
  cache_.copies_fail = false;
  if (refused_) {
    check_unchanged();
  }
  check();
}

void group_model::note_before() {
  before_ = {cache_.statistics(), {}};
  for (std::size_t i = 0; i < std::min(live_.size(), std::size_t{3}); ++i) {
    before_.hits.push_back(cache_.find_prefix(live_[i].text.run(), live_[i].options.salt));
  }
  for (auto& s : live_) {
    fetch_tables(s);
  }
}

// --- what callers do ---

void group_model::create(const operation& next) {
  auto text = draw_prompt(next);
  auto options = draw_options(next);
  options.salt = text.salt;
  if (!text.keys.empty()) {
    options.first_chunk = sequence_options::no_limit;
  }
  options.saving = state_saving{next.b % 3 != 0, next.b % 5 != 0,
                                next.b % 7 == 0 ? 2 * granularity_ + next.b % 3 : 0, next.b / 8 % 2 == 0};
  auto hashes = std::vector<std::uint64_t>(static_cast<std::size_t>(text.size() / granularity_));
  if (next.c % 3 == 0) {
    hashes.resize(cache_.hash_blocks(text.run(), hashes, text.salt));
  } else {
    hashes.clear();
  }
  const auto prompt = token_run{text.tokens, text.keys, hashes};
  const auto most = std::min(std::max(text.size(), std::int64_t{1}) - 1, options.max_cached_tokens);
  const auto found = cache_.find_prefix(prompt, text.salt);
  check_hit(text);
  const auto available = cache_.num_available_blocks();
  const auto length_without = std::min(text.size(), options.first_chunk);
  const auto forecast = cache_.would_fit(prompt, options);
  const auto made = cache_.create_sequence(prompt, options);
  if (copy_failed(made)) {
    return;
  }
  expect(forecast.has_value() == made.has_value(), "would_fit said other than create");
  if (std::ssize(live_) == config_.max_sequences) {
    return expect_error(made, error_code::limit_reached, "create beyond max_sequences");
  }
  if (lacks_blocks(made)) {
    const auto needed = blocks_for(length_without);
    const bool fits_some_time = std::max(needed, least_for(0, text.size())) <= cache_.num_blocks();
    expect(available < needed || !fits_some_time, "create was refused although there are blocks");
    expect(made.error().code != error_code::never_fits || !fits_some_time, "a prompt fits some time");
    return expect(forecast.error().message() == made.error().message(), "would_fit gave another error than create");
  }
  expect_success(made, "create");
  const auto cached = made->num_cached_tokens;
  expect(least_for(cached, text.size()) <= cache_.num_blocks(), "a prompt was admitted that never fits");
  if (kind_.has_tiers) {
    expect(forecast->num_cached_tokens <= cached, "a tier took a hit from the device");
    expect(cached <= longest_known(text, most, true), "create hit what nobody committed or saved");
  } else {
    expect_equal(forecast->num_cached_tokens, cached, "cached tokens that would_fit tells");
    expect(cached <= found, "create hit more than find_prefix");
  }
  expect(cached <= most && cached % granularity_ == 0, "create hit more than it may");
  if (exact_) {
    const auto wanted = longest_known(text, most, true);
    // A hit that copies needs its source and its destination at once.
    const auto enough = blocks_for(wanted + std::min(text.size() - wanted, options.first_chunk)) + blocks_for(wanted);
    // Without its hit, a sequence of a cache with tiers takes what its first chunk has of it.
    expect(cached == wanted || ((cached == 0 || kind_.has_tiers) && available < enough),
           "create did not share what is cached");
    ++coverage_.exact_hits;
    coverage_.shortened_hits += wanted < longest_known(text, most, false);
  }
  const auto keyed = std::ranges::any_of(text.keys, [&](const auto& key) { return key.position < cached; });
  coverage_.keyed_hits += keyed;
  expected_.prompts += 1;
  expected_.prompt_blocks += text.size() / granularity_;
  expected_.hit_blocks += cached / granularity_;
  expected_.hit_tokens += cached;

  auto s = group_member{};
  s.id = made->id;
  s.options = options;
  s.num_computed = s.num_cached = cached;
  s.num_prompt = std::min(text.size(), options.num_prompt_tokens);
  if (exact_) {
    const auto known = longest_known(text, most, false);
    s.branch = known > cached ? known : 0;
  }
  const auto least = cached + std::min(text.size() - cached, options.first_chunk);
  // A load may bring less than the chunk was made for, and there may be no room for a longer one.
  const auto length = kind_.has_tiers ? std::max(made->num_tokens, cached) : least;
  text.cut(static_cast<std::size_t>(length));
  s.text = std::move(text);
  s.created = s.last_access = now_;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const auto& group = config_.groups[g];
    const auto first = group.holds_tokens() ? static_cast<std::size_t>(group.first_needed(cached) / block_size(g)) : 0;
    s.first.push_back(group.holds_tokens() && first > sinks_of(g) ? first : 0);
  }
  expect_equal(made->num_tokens, length, "length of a new sequence");
  live_.push_back(std::move(s));
  check_next_saved(live_.back());
  fetch_tables(live_.back());
  for (const auto& table : live_.back().tables) {
    expect(std::ranges::none_of(table, [&](block_id block) { return hidden_.contains(block); }),
           "a hit shares an invalidated block");
  }
}

void group_model::append(const operation& next, std::size_t num_tokens) {
  if (auto* const s = pick(next.a)) {
    const auto run = draw_run(next.c, num_tokens);
    const auto available = cache_.num_available_blocks();
    expect_grown(*s, run, 0, cache_.append(s->id, run), available);
  }
}

void group_model::reserve_slots(const operation& next) {
  if (auto* const s = pick(next.a)) {
    const auto num_ahead = static_cast<std::int64_t>(next.b % 12);
    const auto available = cache_.num_available_blocks();
    expect_grown(*s, {}, num_ahead, cache_.reserve_slots(s->id, num_ahead), available);
  }
}

/// Compares the outcome of an append, and follows it.
void group_model::expect_grown(group_member& s, const std::vector<token>& run, std::int64_t num_ahead,
                               const result<void>& outcome, std::int64_t available) {
  const auto length = s.text.size() + std::ssize(run) + num_ahead;
  if (copy_failed(outcome)) {
    return;
  }
  if (lacks_blocks(outcome)) {
    const auto held = blocks_for(length);
    return expect(growth_at_most(s, length) > available || held > cache_.num_blocks(),
                  "append was refused although there are blocks");
  }
  expect_success(outcome, "append");
  for (const auto next : run) {
    s.text.add(next);
  }
  s.last_access = now_;
  if (num_ahead != 0) {
    s.num_reserved = std::max(s.num_reserved, length);
  }
}

void group_model::append_batch(const operation& next) {
  auto entries = std::vector<batch_entry>{};
  auto rows = std::vector<group_member*>{};
  auto runs = std::vector<std::vector<token>>{};
  runs.reserve(live_.size());
  auto num_slots = std::size_t{0};
  for (std::size_t i = 0; i < live_.size(); ++i) {
    if ((next.a >> i & 1) != 0) {
      auto& s = live_[i];
      auto entry = batch_entry{.id = s.id, .run = {}};
      runs.push_back(draw_run(next.b + static_cast<std::uint32_t>(i), (next.b >> i) % 5));
      entry.run = runs.back();
      if ((next.c >> i & 1) != 0) {
        write(s, s.num_computed, s.text.size());
        entry.num_computed_tokens = s.text.size();
      }
      num_slots += runs.back().size();
      entries.push_back(entry);
      rows.push_back(&s);
    }
  }
  cache_.copies_fail = false;  // an entry whose commit succeeds may fail later
  const auto num_with_tokens = num_groups() - (with_state_ != num_groups());
  auto slots = std::vector<slot>(num_slots * num_with_tokens);
  auto failures = std::vector<batch_failure>(entries.size());
  const auto done = cache_.append_batch(entries, {.slots = slots, .failures = failures});
  expect_success(done, "append_batch");
  expect_equal(static_cast<std::int64_t>(done->num_slots), static_cast<std::int64_t>(num_slots), "slots of a batch");
  failures.resize(done->num_failures);
  auto offset = std::size_t{0};
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto& s = *rows[i];
    const auto first = s.text.size();
    if (entries[i].num_computed_tokens != batch_entry::no_commit) {
      note_commit(s, entries[i].num_computed_tokens, std::numeric_limits<std::int64_t>::max());
      exact_ = false;  // the model does not know how many blocks were left for states
    }
    const auto failed = std::ranges::find(failures, i, &batch_failure::entry);
    const auto outcome = failed == failures.end() ? result<void>{} : result<void>{failed->reason};
    expect_grown(s, runs[i], 0, outcome, outcome ? 0 : -1);
    auto found = std::vector<slot>(runs[i].size());
    for (std::size_t g = 0, row = 0; g < num_groups(); ++g) {
      if (g == with_state_) {
        continue;
      }
      const auto told = std::span{slots}.subspan(row++ * num_slots + offset, found.size());
      if (outcome) {
        expect_success(cache_.slot_mapping(g, s.id, first, found), "slots of an entry");
        expect(std::ranges::equal(found, told), "append_batch told other slots");
      } else {
        expect(std::ranges::count(told, skip_slot) == std::ssize(told), "slots of an entry that failed");
      }
    }
    offset += found.size();
    ++coverage_.batch_entries;
  }
  refused_ = false;  // one entry, while others changed the cache
}

void group_model::compute(const operation& next, bool to_end) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  const auto left = s->text.size() - s->num_computed;
  const auto end = to_end ? s->text.size() : s->num_computed + next.b / 2 % (left + 1);
  while (s->num_computed < end && !refused_) {
    const auto saved = cache_.next_saved_length(s->id).value();
    commit(*s, next.c % 5 == 0 ? end : std::min(end, saved));
  }
}

void group_model::commit(group_member& s, std::int64_t length) {
  write(s, s.num_computed, length);
  note_before();
  const auto available = cache_.num_available_blocks();
  const auto done = cache_.commit(s.id, length);
  if (copy_failed(done)) {
    if (keeps_at(s, length)) {
      may_lose_state_ = true;
      // The copy overwrites it, and may have begun to; behind an eviction, it may have been that of a branch instead.
      if (s.branch || cache_.statistics().blocks.in_use < before_.statistics.blocks.in_use) {
        s.newest = std::nullopt;
      }
    }
    write_state(s, s.num_computed);
    return;
  }
  expect_success(done, "commit");
  note_commit(s, length, available);
  check_next_saved(s);
}

void group_model::note_commit(group_member& s, std::int64_t length, std::int64_t available) {
  const bool moved = length > s.num_computed;
  const bool has_room = available >= blocks_of_state();
  if (s.options.publish && !s.is_withdrawn) {
    for (auto end = granularity_; end <= length; end += granularity_) {
      published_.emplace(s.text.name(end), origin{s.text.name(granularity_), s.text.salt});
    }
    if (moved && length % granularity_ == 0 &&
        (exact_ ? saves_at(s, length) && has_room : with_state_ != num_groups())) {
      saved_.insert(s.text.name(length));
    }
  }
  if (moved && keeps_at(s, length) && (s.newest || has_room)) {
    s.newest = length;
  }
  s.num_computed = length;
  s.last_access = now_;
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (g == with_state_) {
      continue;
    }
    const auto wanted = static_cast<std::size_t>(config_.groups[g].first_needed(length) / block_size(g));
    const auto place = std::min(wanted, end_of_table(s, g));
    if (place > std::max(s.first[g], sinks_of(g))) {
      coverage_.skipped_blocks += static_cast<std::int64_t>(place - std::max(s.first[g], sinks_of(g)));
      s.first[g] = place;
    }
  }
}

void group_model::fork(const operation& next) {
  const auto* const from = pick(next.a);
  if (from == nullptr) {
    return;
  }
  const auto available = cache_.num_available_blocks();
  const auto made = cache_.fork(from->id);
  if (copy_failed(made)) {
    return;
  }
  if (from->num_computed != from->text.size()) {
    // Both errors hold where there is no room for a sequence.
    refused_ = true;
    return expect(!made, "a sequence was forked that is not computed");
  }
  if (std::ssize(live_) == config_.max_sequences) {
    return expect_error(made, error_code::limit_reached, "fork beyond max_sequences");
  }
  if (lacks_blocks(made)) {
    return expect(available < blocks_of_state(), "fork was refused although there are blocks");
  }
  expect_success(made, "fork");
  auto to = *from;
  to.id = *made;
  to.branch = 0;
  to.newest = std::nullopt;
  to.num_reserved = 0;
  to.created = to.last_access = now_;
  fetch_tables(to);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    for (std::size_t i = 0; i < to.tables[g].size(); ++i) {
      expect((to.tables[g][i] == from->tables[g][i]) == (g != with_state_), "a fork shares all but its state");
    }
  }
  live_.push_back(std::move(to));
}

void group_model::truncate(const operation& next) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  const auto length = next.b % 8 == 0 ? std::int64_t{next.c} % (s->text.size() + 3)
                                      : std::max(s->text.size() - next.c % 9, std::int64_t{0});
  const auto done = cache_.truncate(s->id, length);
  auto possible = length <= s->text.size();
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const auto& group = config_.groups[g];
    const auto start = static_cast<std::int64_t>(s->first.at(g)) * std::max(block_size(g), std::int64_t{1});
    const bool reads = group.holds_tokens() && (skipped_tokens(*s, g) == 0 || group.first_needed(length) >= start);
    possible = possible && (length >= s->num_computed || reads);
  }
  if (!possible) {
    coverage_.refused_cuts += length <= s->text.size();
    return expect_error(done, error_code::invalid_argument, "truncate to what is not held");
  }
  expect_success(done, "truncate");
  if (length >= std::max(s->text.size(), s->num_reserved)) {
    return;
  }
  past_.push_back(s->text);
  s->text.cut(static_cast<std::size_t>(length));
  s->num_reserved = 0;
  s->num_prompt = std::min(s->num_prompt, length);
  s->num_computed = std::min(s->num_computed, length);
  s->num_cached = std::min(s->num_cached, length);
  s->is_withdrawn = s->is_withdrawn && num_published(*s) != 0;
}

void group_model::release(std::size_t index, bool ended) {
  auto& s = live_[index];
  expect_success(cache_.release(s.id, ended), "release");
  if (s.newest && s.options.publish && !s.is_withdrawn) {
    saved_.insert(s.text.name(*s.newest));
  }
  dead_.push_back(s.id);
  past_.push_back(std::move(s.text));
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  if (past_.size() > 24) {
    past_.erase(past_.begin());
  }
}

void group_model::pin(const operation& next) {
  auto text = draw_prompt(next);
  const auto pinned = cache_.pin(text.run(), text.salt);
  if (std::ssize(pins_) == config_.max_sequences) {
    return expect_error(pinned, error_code::limit_reached, "pin beyond max_sequences");
  }
  expect_success(pinned, "pin");
  const auto wanted = longest_known(text, text.size(), true);
  expect(exact_ ? pinned->num_tokens == wanted : pinned->num_tokens <= wanted, "a pin has another length");
  text.cut(static_cast<std::size_t>(pinned->num_tokens));
  pins_.push_back({pinned->id, std::move(text)});
}

void group_model::unpin(std::size_t index) {
  const auto id = pins_[index].id;
  expect_success(cache_.unpin(id), "unpin");
  pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(index));
  const auto again = cache_.unpin(id);
  expect(!again && again.error().code == error_code::unknown_pin, "a pin ended twice");
}

void group_model::find_prefix(const operation& next) { check_hit(draw_prompt(next)); }

void group_model::use_in_step(step_id step, const group_member& s) {
  auto& used = steps_[step];
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (g == with_state_) {
      for (const auto block : s.tables[g]) {
        used.emplace(block, use{g, 0, s.id, 0});
      }
      continue;
    }
    for (std::int64_t i = 0; i < std::max(s.text.size(), s.num_reserved); ++i) {
      const auto place = static_cast<std::size_t>(i / block_size(g));
      if (is_held(s, g, place)) {
        const auto skipped = place < s.first[g] ? 0 : skipped_tokens(s, g) / block_size(g);
        const auto name = i < s.text.size() ? s.text.name(i + 1) : 0;
        used.emplace(s.tables[g].at(place - static_cast<std::size_t>(skipped)), use{g, i % block_size(g), s.id, name});
      }
    }
  }
}

void group_model::begin_step(const operation& next) {
  if (steps_.size() >= 3) {
    retire_step({});
  }
  const bool everything = next.a % 3 == 0;
  auto ids = std::vector<sequence_id>{};
  for (std::size_t i = 0; i < live_.size(); ++i) {
    if (everything || (next.b >> i & 1) != 0) {
      ids.push_back(live_[i].id);
    }
  }
  const auto begun = everything ? cache_.begin_step() : cache_.begin_step(ids);
  expect_success(begun, "begin step");
  steps_[*begun];
  for (const auto& s : live_) {
    if (std::ranges::count(ids, s.id) != 0) {
      use_in_step(*begun, s);
    }
  }
}

void group_model::retire_step(const operation& next) {
  if (!steps_.empty()) {
    auto step = steps_.begin();
    std::advance(step, next.a % steps_.size());
    expect_success(cache_.retire_step(step->first), "retire step");
    steps_.erase(step);
  }
}

/// Behind a step of its own, in which a transfer would read the victims.
void group_model::evict(const operation& next) {
  if (steps_.size() >= 3) {
    retire_step({});
  }
  const auto step = cache_.begin_step(std::span<const sequence_id>{});
  expect_success(step, "begin step of no sequence");
  auto& used = steps_[*step];
  auto victims = std::vector<block_id>(next.a % 6, no_block);
  const auto evictable = cache_.statistics().blocks.evictable;
  const auto done = cache_.evict(victims, *step);
  expect_success(done, "evict");
  const auto wanted = std::ssize(victims);
  expect(kind_.evicts ? *done >= std::min(wanted, std::min(evictable, std::int64_t{1})) : *done == 0,
         "nothing was evicted ahead of need");
  victims.resize(static_cast<std::size_t>(*done));
  for (const auto block : victims) {
    for (const auto& s : live_) {
      for (const auto& table : s.tables) {
        expect(std::ranges::count(table, block) == 0, "a block was evicted while a sequence held it");
      }
    }
    expect(used.count(block) == 0, "a block was evicted twice");
    used.emplace(block, use{num_groups(), 0, {}, 0});
  }
  coverage_.evicted_ahead += *done;
}

void group_model::compact() {
  const auto moves = cache_.compact();
  if (copy_failed(moves)) {
    return;
  }
  if (!steps_.empty()) {
    return expect_error(moves, error_code::in_use, "compact with a step in flight");
  }
  expect_success(moves, "compact");
  follow_moves(*moves);
  const auto counts = cache_.statistics().blocks;
  for (const auto& s : live_) {
    for (const auto& table : s.tables) {
      for (const auto block : table) {
        expect(static_cast<std::int64_t>(block) < counts.in_use + counts.evictable,
               "a block was left behind free ones");
      }
    }
  }
  const auto again = cache_.compact();
  expect(again && again->empty(), "compaction left a free block below another");
}

void group_model::resize(const operation& next) {
  const auto before = cache_.num_blocks();
  const auto around = next.b % 2 == 0 ? before - static_cast<std::int32_t>(next.b % 16) : 0;
  const auto wanted =
      around > 0 ? around : static_cast<std::int32_t>(next.a % static_cast<std::uint32_t>(config_.capacity() + 2));
  const auto available = cache_.num_available_blocks();
  const auto moves = cache_.resize(wanted);
  if (copy_failed(moves)) {
    return expect_equal(cache_.num_blocks(), before, "blocks after a failed resize");
  }
  if (wanted < 1 || wanted > config_.capacity()) {
    return expect_error(moves, error_code::invalid_argument, "resize beyond the capacity");
  }
  if (before - available > wanted) {
    return expect_error(moves, error_code::in_use, "resize below what stays");
  }
  expect_success(moves, "resize");
  follow_moves(*moves);
  expect_equal(cache_.num_blocks(), wanted, "blocks after a resize");
  coverage_.growths += wanted > before;
  coverage_.shrinkings += wanted < before;
  for (const auto& s : live_) {
    for (const auto& table : s.tables) {
      expect(std::ranges::all_of(table, [&](block_id block) { return static_cast<std::int32_t>(block) < wanted; }),
             "a sequence holds a block beyond the new size");
    }
  }
}

void group_model::follow_moves(std::span<const block_pair> moves) {
  coverage_.moves += std::ssize(moves);
  auto names = std::map<block_id, block_id>{};
  for (const auto& [from, to] : moves) {
    names[block_id{from}] = block_id{to};
  }
  const auto new_name = [&](block_id block) {
    const auto moved = names.find(block);
    return moved == names.end() ? block : moved->second;
  };
  for (auto& [step, used] : steps_) {
    auto renamed = std::multimap<block_id, use>{};
    for (const auto& [block, each] : used) {
      renamed.emplace(new_name(block), each);
    }
    used = std::move(renamed);
  }
  auto hidden = std::set<block_id>{};
  std::ranges::transform(hidden_, std::inserter(hidden, hidden.end()), new_name);
  hidden_ = std::move(hidden);
  coverage_.moves_with_states +=
      !moves.empty() && std::ranges::any_of(live_, [](const auto& s) { return s.newest.has_value(); });
  for (auto& s : live_) {
    auto expected = s.tables;
    for (auto& table : expected) {
      std::ranges::transform(table, table.begin(), new_name);
    }
    fetch_tables(s);
    expect(s.tables == expected, "tables do not follow the moves");
  }
}

/// Whole prefixes, a salt, or a block of a sequence.
void group_model::invalidate(const operation& next) {
  const auto before = cache_.statistics().invalidations;
  auto count = std::int64_t{0};
  const auto text = draw_prompt(next);
  if (next.a % 4 == 0) {
    count = cache_.invalidate_salt(text.salt);
    forget(std::nullopt, text.salt);
    expect_equal(cache_.find_prefix(text.run(), text.salt), 0, "hit after an invalidation");
  } else if (next.a % 2 == 0) {
    count = cache_.invalidate_prefix(text.run(), text.salt);
    if (text.size() >= granularity_) {
      forget(text.name(granularity_), text.salt);
    }
    expect_equal(cache_.find_prefix(text.run(), text.salt), 0, "hit after an invalidation");
  } else if (const auto* const s = pick(next.a / 4)) {
    for (const auto& table : s->tables) {
      const auto blocks = std::array{table.empty() ? block_id{0} : table[next.b % table.size()]};
      const auto done = cache_.invalidate_blocks(blocks);
      expect_success(done, "invalidate blocks");
      if (*done != 0 && !table.empty()) {
        hidden_.insert(blocks.front());
      }
      count += *done;
      const auto again = cache_.invalidate_blocks(blocks);
      expect(again && *again == 0, "a block was invalidated twice");
    }
    exact_ = false;  // the model does not know what was in the prefix cache with them
    std::ranges::for_each(pins_, [](group_pinning& pinned) { pinned.is_valid = false; });
  }
  expect_equal(cache_.statistics().invalidations - before, count, "number of invalidations");
  coverage_.invalidated += count;
  const auto outside = std::array{to_block(static_cast<std::size_t>(cache_.num_blocks()))};
  expect(!cache_.invalidate_blocks(outside), "a block outside the pool was invalidated");
}

/// Everything with this salt, or what begins with this run.
void group_model::forget(std::optional<std::uint64_t> first_run, salt tag) {
  std::erase_if(published_, [&](const auto& entry) {
    const auto& [name, from] = entry;
    const bool gone = first_run ? from.first_run == *first_run : from.salt == tag;
    if (gone) {
      saved_.erase(name);
    }
    return gone;
  });
  const auto is_meant = [&](const named_text& text) {
    return first_run ? text.name(granularity_) == *first_run : text.salt == tag;
  };
  for (auto& s : live_) {
    s.is_withdrawn = s.is_withdrawn || (num_published(s) != 0 && is_meant(s.text));
  }
  for (auto& pinned : pins_) {
    pinned.is_valid = pinned.is_valid && pinned.text.size() != 0 && !is_meant(pinned.text);
  }
}

/// Tokens of a sequence that it published, or shared.
std::int64_t group_model::num_published(const group_member& s) const {
  return (s.options.publish ? s.num_computed : s.num_cached) / granularity_ * granularity_;
}

void group_model::reset() {
  const auto counts = cache_.statistics().blocks;
  const auto done = cache_.reset_prefix_cache();
  if (counts.in_use + counts.retiring != 0) {
    return expect_error(done, error_code::in_use, "reset of a cache in use");
  }
  expect_success(done, "reset");
  expect_equal(*done, counts.evictable, "blocks freed by a reset");
  expect_equal(cache_.statistics().blocks.free, cache_.num_blocks(), "free blocks after a reset");
  expect(cache_.announced.known.empty(), "a prefix is announced after a reset");
  published_.clear();
  saved_.clear();
  hidden_.clear();
  if (live_.empty()) {
    exact_ = true;
  }
}

void group_model::update_batches(const operation& next) {
  auto rows = std::vector<const group_member*>{};
  auto ids = std::vector<sequence_id>{};
  for (std::size_t i = 0; i < live_.size(); ++i) {
    if ((next.a >> i & 1) != 0) {
      rows.push_back(&live_[i]);
      ids.push_back(live_[i].id);
    }
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const auto updated = cache_.update(g, batches_[g], ids);
    if (g == with_state_) {
      expect(!updated && updated.error().code == error_code::invalid_argument, "a batch of states");
      continue;
    }
    expect_success(updated, "update");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto& s = *rows[i];
      const auto num_skipped = static_cast<std::size_t>(skipped_tokens(s, g) / block_size(g));
      const auto size = std::max(places_for(g, s.text.size()), s.first[g]) - num_skipped;
      const auto row = batches_[g].block_tables().subspan(i * max_table, size);
      expect(std::ranges::equal(row, std::span{s.tables[g]}.first(size)), "a batch has another table");
      expect_equal(batches_[g].lengths()[i], s.text.size() - skipped_tokens(s, g), "length in a batch");
    }
  }
}

void group_model::ask_wrongly(const operation& next) {
  refused_ = true;
  const auto invalid = [&](const auto& got, const char* what) {
    expect(!got, std::string(what) + " succeeded");
    expect(got.error().code == error_code::invalid_argument, std::string(what) + " said: " + got.error().message());
  };
  if (std::ssize(live_) < config_.max_sequences) {
    invalid(cache_.create_sequence({}, {.priority = 101}), "create with a priority of 101");
    invalid(cache_.create_sequence({}, {.saving = {.every = -1}}), "create that saves every -1 tokens");
  }
  if (const auto* const s = pick(next.a)) {
    auto slots = std::vector<slot>(1);
    const auto length = s->text.size();
    const auto key = prefix_key{.position = length + 1};
    invalid(cache_.commit(s->id, length + 1), "commit beyond the length");
    if (s->num_computed > 0) {
      invalid(cache_.commit(s->id, s->num_computed - 1), "commit of less than before");
    }
    invalid(cache_.append(s->id, token_run{draw_run(0, 1), {&key, 1}}), "append with a key outside");
    invalid(cache_.reserve_slots(s->id, -1), "reserve a negative number");
    invalid(cache_.slot_mapping(0, s->id, std::max(length, s->num_reserved), slots), "slots beyond the length");
    invalid(cache_.slot_mapping(num_groups(), s->id, 0, slots), "slots of no group");
    invalid(cache_.append_batch(std::array{batch_entry{s->id, {draw_run(0, 1)}}}, {}), "append_batch without room");
  }
  expect(cache_.retire_step(step_id{~std::uint64_t{0}}).error().code == error_code::unknown_step, "an unknown step");
}

void group_model::use_dead_id(const operation& next) {
  if (dead_.empty()) {
    return;
  }
  const auto id = dead_[next.a % dead_.size()];
  refused_ = true;
  auto slots = std::vector<slot>(0);
  for (const auto& code :
       {cache_.append(id, draw_run(0, 1)).error().code, cache_.commit(id, 0).error().code,
        cache_.truncate(id, 0).error().code, cache_.release(id, false).error().code, cache_.fork(id).error().code,
        cache_.describe(id).error().code, cache_.slot_mapping(0, id, 0, slots).error().code,
        cache_.begin_step(std::array{id}).error().code}) {
    expect(code == error_code::unknown_sequence, "a sequence that has ended was found");
  }
}

void group_model::finish() {
  while (!steps_.empty()) {
    retire_step({});
  }
  while (!live_.empty()) {
    release(live_.size() - 1, false);
  }
  while (!pins_.empty()) {
    unpin(0);
  }
  check();
  expect_equal(seen_.blocks.in_use + seen_.blocks.retiring, 0, "blocks in use in the end");
}

// --- numbers that a caller can work out ---

std::size_t group_model::places_for(std::size_t g, std::int64_t num_tokens) const {
  return static_cast<std::size_t>((num_tokens + block_size(g) - 1) / block_size(g));
}

std::size_t group_model::sinks_of(std::size_t g) const { return places_for(g, config_.groups[g].num_sinks); }

/// Blocks of a sequence of so many tokens, none of them released.
std::int64_t group_model::blocks_for(std::int64_t num_tokens) const {
  auto count = blocks_of_state();
  for (std::size_t g = 0; g < num_groups(); ++g) {
    count += g == with_state_ ? 0 : static_cast<std::int64_t>(places_for(g, num_tokens));
  }
  return count;
}

/// Blocks that a prompt takes at some moment, if it is computed token by token behind the cached ones.
std::int64_t group_model::least_for(std::int64_t num_cached, std::int64_t num_tokens) const {
  auto most = blocks_of_state();
  for (auto length = num_cached + 1; length <= num_tokens; ++length) {
    auto count = blocks_of_state();
    for (std::size_t g = 0; g < num_groups(); ++g) {
      if (const auto& group = config_.groups[g]; group.holds_tokens()) {
        const auto end = static_cast<std::int64_t>(places_for(g, length));
        const auto first = std::min(group.first_needed(length - 1) / block_size(g), end);
        count += end - first + std::min(static_cast<std::int64_t>(sinks_of(g)), first);
      }
    }
    most = std::max(most, count);
  }
  return most;
}

std::int64_t group_model::blocks_of_state() const {
  return with_state_ == num_groups() ? 0 : cache_.plan().groups[with_state_].blocks_per_state;
}

std::size_t group_model::end_of_table(const group_member& s, std::size_t g) const {
  return std::max(places_for(g, std::max(s.text.size(), s.num_reserved)), s.first[g]);
}

bool group_model::is_held(const group_member& s, std::size_t g, std::size_t place) const {
  return place >= s.first[g] || place < sinks_of(g);
}

std::int64_t group_model::skipped_tokens(const group_member& s, std::size_t g) const {
  return s.first[g] > sinks_of(g) ? static_cast<std::int64_t>(s.first[g] - sinks_of(g)) * block_size(g) : 0;
}

group_member* group_model::pick(std::uint32_t number) {
  return live_.empty() ? nullptr : &live_[number % live_.size()];
}

std::vector<token> group_model::draw_run(std::uint32_t number, std::size_t count) const {
  auto run = std::vector<token>{};
  for (std::size_t i = 0; i < count; ++i) {
    run.push_back(static_cast<token>((number + i) % 2));
  }
  return run;
}

named_text group_model::draw_prompt(const operation& next) const {
  const auto size = next.b % 5 == 0 ? next.b / 16 % 200 : next.b / 16 % 45;
  auto text = named_text{salts[next.c / 16 % 8 < 6 ? 0 : next.c / 256 % salts.size()]};
  const auto sources = past_.size() + live_.size();
  const auto* from = static_cast<const named_text*>(nullptr);
  if (next.a % 4 != 0 && sources != 0) {
    const auto at = next.a / 4 % sources;
    from = at < past_.size() ? &past_[at] : &live_[at - past_.size()].text;
    text = named_text{from->salt};
  }
  auto kept = std::size_t{0};
  if (from != nullptr) {
    kept = next.a / 64 % 3 == 0 ? next.a / 256 % (from->tokens.size() + 1) : from->tokens.size();
    text.keys = from->keys;
    std::erase_if(text.keys, [&](const prefix_key& key) { return key.position >= static_cast<std::int64_t>(kept); });
  } else if (next.a / 128 % 4 == 0 && size != 0) {
    text.keys.push_back({static_cast<std::int64_t>(next.a / 512 % size), {next.a / 4096 % 2, 1}});
  }
  for (std::size_t i = 0; i < kept; ++i) {
    text.add(from->tokens[i]);
  }
  for (const auto more : draw_run(next.a / 8192, from == nullptr ? size : size % 12)) {
    text.add(more);
  }
  return text;
}

sequence_options group_model::draw_options(const operation& next) const {
  auto options = sequence_options{};
  options.priority = static_cast<std::uint8_t>(next.c / 8 % 101);
  options.retention = next.c % 5 == 0 ? std::numeric_limits<std::int64_t>::max() : next.c % 5;
  options.expected_tokens = next.c % 7;
  options.publish = next.c / 1024 % 8 != 0;
  if (next.c / 1024 % 8 == 1) {
    options.max_cached_tokens = static_cast<std::int64_t>(next.c / 8192 % 30);
  }
  if (next.c % 7 == 0) {
    options.num_prompt_tokens = static_cast<std::int64_t>(next.c / 16 % 40);
  }
  if (next.c / 1024 % 8 == 2) {
    options.answer = block_retention{static_cast<std::uint8_t>(next.c / 8192 % 101), next.c % 3};
    options.ranges[next.c % 4] = {next.c / 64 % 30, next.c / 64 % 30 + next.c / 512 % 30, {90, 5}};
  }
  if (next.c / 65536 % 3 == 0) {
    options.first_chunk = static_cast<std::int64_t>(next.c / 262144 % 20);
  }
  return options;
}

/// The longest prefix of at most so many tokens from which every group can continue, if nothing was evicted.
std::int64_t group_model::longest_known(const named_text& text, std::int64_t most, bool with_states) const {
  auto longest = std::int64_t{0};
  for (auto end = granularity_; end <= std::min(most, text.size()); end += granularity_) {
    if (!published_.contains(text.name(end))) {
      break;
    }
    if (!with_states || with_state_ == num_groups() || saved_.contains(text.name(end))) {
      longest = end;
    }
  }
  return longest;
}

/// Blocks for so many tokens, with a copy of each group's last block.
std::int64_t group_model::growth_at_most(const group_member& s, std::int64_t num_tokens) const {
  auto count = std::int64_t{0};
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (g != with_state_) {
      const auto end = end_of_table(s, g);
      count += static_cast<std::int64_t>(std::max(places_for(g, num_tokens), end) - end);
      count += s.text.size() % block_size(g) != 0;
    }
  }
  return count;
}

std::int64_t group_model::end_of_prompt(const group_member& s, std::int64_t granularity) {
  return s.options.saving.at_prompt_end ? std::max(s.num_prompt - 1, std::int64_t{0}) / granularity * granularity : 0;
}

bool group_model::saves_at(const group_member& s, std::int64_t length) const {
  return with_state_ != num_groups() && s.options.publish && length > s.num_cached && length % granularity_ == 0 &&
         (length == end_of_prompt(s, granularity_) || (s.options.saving.at_branches && s.branch && length == *s.branch) ||
          (s.options.saving.every != 0 && length % s.options.saving.every == 0));
}

bool group_model::keeps_at(const group_member& s, std::int64_t length) const {
  return with_state_ != num_groups() && s.options.publish && s.options.saving.at_end && length % granularity_ == 0 &&
         length >= std::max(s.num_prompt, std::int64_t{1}) && length != end_of_prompt(s, granularity_) &&
         !saves_at(s, length);
}

void group_model::check_next_saved(const group_member& s) {
  constexpr auto horizon = 200;
  const auto told = cache_.next_saved_length(s.id).value();
  if (!s.branch) {
    return;
  }
  for (auto length = s.num_computed + 1; length < s.num_computed + horizon; ++length) {
    if (saves_at(s, length) || keeps_at(s, length)) {
      return expect_equal(told, length, "next length whose commit saves the state");
    }
  }
  expect(told >= s.num_computed + horizon, "a state is to be saved at a length that nobody chose");
}

// --- bytes ---

void group_model::fetch_tables(group_member& s) {
  s.tables.assign(num_groups(), std::vector<block_id>(max_table));
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const auto size = cache_.block_table(g, s.id, s.tables[g]);
    expect_success(size, "block table");
    s.tables[g].resize(*size);
  }
}

/// No open step uses a slot that this sequence writes, unless the step is to write the same there.
void group_model::check_writable(const group_member& s, std::size_t g, block_id block, std::int64_t offset,
                                 std::uint64_t name) const {
  for (const auto& [step, used] : steps_) {
    const auto [begin, end] = used.equal_range(block);
    for (auto other = begin; other != end; ++other) {
      const auto& [group, at, id, used_name] = other->second;
      const bool is_own = id == s.id && (used_name == 0 || used_name == name);
      expect(group == g && (at != offset || is_own), "a slot was written that an open step uses");
    }
  }
}

void group_model::write(const group_member& s, std::int64_t first, std::int64_t last) {
  if (first == last) {
    return;
  }
  const auto count = static_cast<std::size_t>(last - first);
  auto slots = std::vector<slot>(count);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const auto& group = config_.groups[g];
    if (g == with_state_) {
      for (const auto block : s.tables[g]) {
        check_writable(s, g, block, 0, 0);
      }
      write_state(s, last);
      continue;
    }
    expect_success(cache_.slot_mapping(g, s.id, first, slots), "slots to write");
    for (std::size_t i = 0; i < count; ++i) {
      expect(slots[i] != skip_slot, "a token to compute has no slot");
      const auto place = static_cast<std::int64_t>(slots[i]);
      check_writable(s, g, to_block(static_cast<std::size_t>(place / block_size(g))), place % block_size(g),
                     s.text.name(first + static_cast<std::int64_t>(i) + 1));
    }
    auto written = rows{group, count};
    for (auto layer = 0; layer < group.num_layers; ++layer) {
      for (std::size_t i = 0; i < count; ++i) {
        written.fill(i, s.text.name(first + static_cast<std::int64_t>(i) + 1), g, layer);
      }
      expect_success(
          cache_.write(g, layer, slots, rows::view<const float>(written.keys, written.key_size, group.key_dim),
                       rows::view<const float>(written.values, written.value_size, group.value_dim)),
          "write");
    }
  }
}

void group_model::write_state(const group_member& s, std::int64_t length) {
  if (with_state_ == num_groups()) {
    return;
  }
  const auto& group = config_.groups[with_state_];
  const auto per_block = cache_.plan().groups[with_state_].parts_per_block;
  for (auto part = 0; part < group.num_layers * group.num_kv_heads; ++part) {
    auto* const bytes = cache_.state_part(
        with_state_, s.tables[with_state_].at(static_cast<std::size_t>(part / per_block)), part % per_block);
    std::memset(bytes, state_byte(s.text.name(length), part), static_cast<std::size_t>(group.state_bytes));
  }
}

void group_model::check_contents(const group_member& s, std::size_t g) {
  const auto& group = config_.groups[g];
  if (g == with_state_) {
    const auto per_block = cache_.plan().groups[g].parts_per_block;
    for (auto part = 0; s.num_computed != 0 && part < group.num_layers * group.num_kv_heads; ++part) {
      const auto* const bytes =
          cache_.state_part(g, s.tables[g].at(static_cast<std::size_t>(part / per_block)), part % per_block);
      const auto wanted = std::byte{state_byte(s.text.name(s.num_computed), part)};
      expect(std::all_of(bytes, bytes + group.state_bytes, [&](std::byte each) { return each == wanted; }),
             "a state has other bytes than were written");
    }
    return;
  }
  auto slots = std::vector<slot>(static_cast<std::size_t>(s.text.size()));
  expect_success(cache_.slot_mapping(g, s.id, 0, slots), "slots");
  auto held = std::vector<slot>{};
  auto names = std::vector<std::uint64_t>{};
  for (std::int64_t i = 0; i < s.text.size(); ++i) {
    const auto at = slots[static_cast<std::size_t>(i)];
    const auto place = static_cast<std::size_t>(i / block_size(g));
    if (!is_held(s, g, place)) {
      expect(at == skip_slot, "a released block has slots");
      continue;
    }
    // Sinks keep their place in front; other tokens stand as many places earlier as were skipped.
    const auto entry = place < s.first[g] ? i : i - skipped_tokens(s, g);
    const auto block = s.tables[g].at(static_cast<std::size_t>(entry / block_size(g)));
    const auto size = static_cast<std::int32_t>(block_size(g));
    expect(at == make_slot(block, size, entry % block_size(g)), "a slot is not that of the table");
    if (i < s.num_computed) {
      held.push_back(at);
      names.push_back(s.text.name(i + 1));
    }
  }
  if (held.empty()) {
    return;
  }
  const auto layer = static_cast<std::int32_t>(num_checks_ % static_cast<std::size_t>(group.num_layers));
  auto wanted = rows{group, held.size()};
  auto found = rows{group, held.size()};
  for (std::size_t i = 0; i < held.size(); ++i) {
    wanted.fill(i, names[i], g, layer);
  }
  expect_success(cache_.read(g, layer, held, rows::view<float>(found.keys, found.key_size, group.key_dim),
                             rows::view<float>(found.values, found.value_size, group.value_dim)),
                 "read");
  expect(found.keys == wanted.keys, "K of group " + std::to_string(g) + " is not what was written");
  expect(found.values == wanted.values, "V of group " + std::to_string(g) + " is not what was written");
}

// --- what holds after every operation ---

void group_model::check() {
  ++num_checks_;
  const auto broken = cache_.check_invariants();
  expect(broken.empty(), broken.empty() ? "" : broken.front());
  expect(cache_.announced.num_wrong == 0, "an event contradicts those before");
  const auto now = cache_.statistics();
  for (auto& s : live_) {
    const auto before = s.tables;
    fetch_tables(s);
    expect(!refused_ || before == s.tables, "a refused operation changed a block table");
  }
  for (const auto& s : live_) {
    check_sequence(s);
  }
  check_statistics(now);
  if (!hidden_.empty()) {
    std::erase_if(hidden_, [&](block_id block) {
      return std::ranges::none_of(live_, [&](const group_member& s) {
        return std::ranges::any_of(s.tables, [&](const auto& table) { return std::ranges::count(table, block) != 0; });
      });
    });
  }
  exact_ = exact_ && now.evictions == seen_.evictions;
  for (const auto& pinned : pins_) {
    if (!pinned.is_valid) {
      continue;
    }
    auto longer = pinned.text;
    longer.add(0);
    expect(cache_.find_prefix(longer.run(), longer.salt) >= pinned.text.size(), "a pinned prefix was lost");
  }
  seen_ = now;
}

void group_model::check_sequence(const group_member& s) {
  const auto told = cache_.describe(s.id);
  expect_success(told, "describe");
  auto num_blocks = std::int64_t{0};
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const auto size = std::ssize(s.tables[g]);
    num_blocks += size;
    if (g == with_state_) {
      expect_equal(size, blocks_of_state(), "blocks of a state");
    } else {
      const auto wanted = static_cast<std::int64_t>(end_of_table(s, g)) - skipped_tokens(s, g) / block_size(g);
      expect_equal(size, wanted, "blocks of group " + std::to_string(g));
      expect_equal(cache_.num_skipped_tokens(g, s.id).value(), skipped_tokens(s, g), "skipped tokens");
    }
    check_contents(s, g);
  }
  expect_equal(told->num_tokens, s.text.size(), "number of tokens");
  expect_equal(told->num_computed_tokens, s.num_computed, "number of computed tokens");
  expect_equal(told->num_prompt_tokens, s.num_prompt, "number of the prompt's tokens");
  expect_equal(told->num_cached_tokens, s.num_cached, "number of cached tokens");
  expect_equal(told->num_slots, std::max(s.text.size(), s.num_reserved), "number of slots");
  expect_equal(told->num_blocks, num_blocks, "number of blocks");
  expect(told->created == s.created && told->last_access == s.last_access, "times of a sequence");
  auto copied = std::vector<token>(s.text.tokens.size());
  expect_success(cache_.tokens(s.id, 0, copied), "tokens");
  expect(copied == s.text.tokens, "tokens are not those of the sequence");
}

void group_model::check_statistics(const cache_statistics& now) {
  auto groups_of = std::map<block_id, std::size_t>{};
  auto num_newest = std::int64_t{0};
  auto num_tokens = std::int64_t{0};
  auto unfilled = std::int64_t{0};
  for (const auto& s : live_) {
    num_newest += s.newest.has_value();
    num_tokens += s.text.size();
    for (std::size_t g = 0; g < num_groups(); ++g) {
      for (const auto block : s.tables[g]) {
        const auto [found, is_new] = groups_of.emplace(block, g);
        expect(found->second == g, "two groups hold the same block");
        expect(is_new || g != with_state_, "two sequences have the same state");
      }
      if (g != with_state_) {
        const auto room = static_cast<std::int64_t>(end_of_table(s, g)) * block_size(g);
        unfilled += std::max(room - s.text.size(), std::int64_t{0});
      }
    }
  }
  const auto least = std::ssize(groups_of) + num_newest * blocks_of_state();
  const auto& blocks = now.blocks;
  // Without a hit's length to compare with, the model does not know which states were kept.
  expect(pins_.empty() && (exact_ || num_newest == 0) ? blocks.in_use == least : blocks.in_use >= std::ssize(groups_of),
         "blocks in use: " + std::to_string(blocks.in_use) + " instead of " + std::to_string(least));
  expect_equal(blocks.free + blocks.in_use + blocks.evictable + blocks.retiring, cache_.num_blocks(), "all blocks");
  expect(!steps_.empty() || blocks.retiring == 0, "blocks retire without a step");
  expect_equal(now.num_sequences, std::ssize(live_), "number of sequences");
  expect_equal(now.num_pins, std::ssize(pins_), "number of pins");
  expect_equal(now.num_tokens, num_tokens, "tokens of all sequences");
  expect_equal(now.unfilled_slots, unfilled, "unfilled slots");
  expect_equal(now.prompts, expected_.prompts, "number of prompts");
  expect_equal(now.prompt_blocks, expected_.prompt_blocks, "blocks of prompts");
  expect_equal(now.hit_blocks, expected_.hit_blocks, "blocks of hits");
  expect_equal(now.hit_tokens, expected_.hit_tokens, "tokens of hits");
  // A creation may be refused the longer chunk that a tier's hit allows.
  expect(kind_.has_tiers ? now.refusals >= num_refusals_ : now.refusals == num_refusals_, "number of refusals");
  expect(now.evictions >= seen_.evictions && (kind_.evicts || now.evictions == 0), "number of evictions");
  expect(now.peak_in_use >= std::max(blocks.in_use, seen_.peak_in_use), "the most blocks in use");
}

/// A hit is at most what was committed and saved, all of it where nothing was evicted, and events have told of it.
void group_model::check_hit(const named_text& text) {
  const auto found = cache_.find_prefix(text.run(), text.salt);
  const auto known = longest_known(text, std::max(text.size(), std::int64_t{1}) - 1, true);
  expect(found % granularity_ == 0 && found <= known, "a prefix was found that nobody committed or saved");
  expect(!exact_ || found == known, "a prefix was lost though nothing was evicted");
  auto hashes = std::vector<std::uint64_t>(static_cast<std::size_t>(text.size() / granularity_));
  hashes.resize(cache_.hash_blocks(text.run(), hashes, text.salt));
  for (std::int64_t i = 0; i < found / granularity_; ++i) {
    expect(cache_.announced.known.contains(hashes.at(static_cast<std::size_t>(i))), "no event told of a hit");
  }
}

void group_model::check_unchanged() const {
  const auto now = cache_.statistics();
  const auto& was = before_.statistics;
  const auto num_lost = was.blocks.in_use - now.blocks.in_use;
  expect(num_lost == 0 || (may_lose_state_ && num_lost == blocks_of_state()),
         "a refused operation took or lost blocks");
  expect_equal(now.blocks.retiring, was.blocks.retiring, "retiring blocks after a refused operation");
  if (copy_failed_) {
    return;  // blocks may have been evicted for the copy
  }
  expect_equal(now.blocks.free, was.blocks.free, "free blocks after a refused operation");
  expect_equal(now.evictions, was.evictions, "evictions after a refused operation");
  for (std::size_t i = 0; i < before_.hits.size(); ++i) {
    expect_equal(cache_.find_prefix(live_[i].text.run(), live_[i].options.salt), before_.hits[i],
                 "hit after a refused operation");
  }
}

}  // namespace pagedkv::test
