#include "cache_model.hpp"

#include <algorithm>
#include <iterator>

// Operations on sequences.

namespace pagedkv::test {

void cache_model::create(const operation& next) {
  auto text = draw_text(next);
  const auto options = draw_options(next, text.salt, sizes_);
  const auto hashes = next.c % 3 == 0 ? hash(text) : std::vector<std::uint64_t>{};
  const auto prompt = token_run{text.tokens, text.keys, hashes};
  const auto found = check_hit(text, prompt);
  const auto hit = std::min(found, options.max_cached_tokens) / shape_.granularity * shape_.granularity;
  const auto forecast = cache_.would_fit(prompt, options);
  const auto made = cache_.create_sequence(prompt, options);
  if (copy_failed(made)) {
    return;
  }
  expect(forecast.has_value() == made.has_value(), "would_fit said other than create");
  expect(made || forecast.error().message() == made.error().message(), "would_fit gave another error than create");
  if (is_full()) {
    return expect_error(made, error_code::limit_reached, "create beyond max_sequences");
  }
  if (lacks_blocks(made)) {
    return check_refused_prompt(text, options, hit, made.error().code);
  }
  expect_success(made, "create");
  check_admission(text, options, hit, *forecast, *made);
  const auto cached = made->num_cached_tokens;
  coverage_.keyed_hits += !text.keys.empty() && text.keys.front().position < cached;
  ++expected_.prompts;
  expected_.prompt_blocks += text.size() / shape_.granularity;
  expected_.hit_blocks += cached / shape_.granularity;
  expected_.hit_tokens += cached;
  auto s = admit(std::move(text), options, *made, hit);
  if (!kind_.has_tiers) {
    expect_equal(made->num_new_blocks, fresh_taken_, "new blocks told of a new sequence");
    expect_equal(forecast->num_new_blocks, fresh_taken_, "new blocks of a forecast");
    expect(fresh_taken_ <= available(seen_.blocks), "create took more blocks than there are");
    expect_equal(made->num_blocks, num_entries(s), "blocks told of a new sequence");
  }
  live_.push_back(std::move(s));
  check_next_saved(live_.back());
}

/// There must not be the blocks that it takes: with groups, those without a hit.
void cache_model::check_refused_prompt(const named_text& text, const sequence_options& options, std::int64_t hit,
                                       error_code code) {
  const auto unshared = shape_.blocks_for(std::min(text.size(), options.first_chunk));
  const auto chunk = hit + std::min(text.size() - hit, options.first_chunk);
  const auto num_hits = hit / shape_.granularity;
  // Hits on evictable blocks leave fewer to take.
  const auto most =
      counts_blocks() ? shape_.blocks_for(chunk) - num_hits + std::min(num_hits, seen_.blocks.evictable) : unshared;
  const bool fits_some_time =
      std::max(unshared, shape_.most_for(0, text.size(), options.first_chunk)) <= config_.num_blocks;
  expect(most > available(seen_.blocks) || !fits_some_time, "create was refused although there are blocks");
  expect(code != error_code::never_fits || !fits_some_time, "a prompt fits some time");
  expect(!counts_blocks() || code == error_code::never_fits || fits_some_time, "a prompt never fits");
}

/// Compares the hit with the forecast, and with the longest that there can be.
void cache_model::check_admission(const named_text& text, const sequence_options& options, std::int64_t hit,
                                  const prompt_fit& forecast, const admission& made) {
  const auto cached = made.num_cached_tokens;
  const auto most = std::min(std::max(text.size(), std::int64_t{1}) - 1, options.max_cached_tokens);
  const auto known = prefixes_.longest(text, most);
  expect(shape_.most_for(cached, text.size(), options.first_chunk) <= config_.num_blocks,
         "a prompt was admitted that never fits");
  expect(cached <= most && cached % shape_.granularity == 0, "create hit more than it may");
  if (kind_.has_tiers) {
    expect(forecast.num_cached_tokens <= cached, "a tier took a hit from the device");
    expect(cached <= known, "create hit what nobody committed or saved");
  } else {
    expect_equal(forecast.num_cached_tokens, cached, "cached tokens of a forecast");
    expect(cached <= hit, "create hit more than find_prefix");
  }
  coverage_.exact_hits += exact_;
  if (counts_blocks()) {
    // Tiers have what was evicted.
    expect(cached >= hit, "create hit less than find_prefix");
    return expect_equal(kind_.has_tiers && !exact_ ? hit : cached, hit, "cached tokens, with the last left to compute");
  }
  if (exact_) {
    // A hit that copies needs its source and its destination at once.
    const auto enough =
        shape_.blocks_for(known + std::min(text.size() - known, options.first_chunk)) + shape_.blocks_for(known);
    // Without its hit, a sequence of a cache with tiers takes what its first chunk has of it.
    expect(cached == known || ((cached == 0 || kind_.has_tiers) && available(seen_.blocks) < enough),
           "create did not share what is cached");
    coverage_.shortened_hits += known < prefixes_.longest(text, most, false);
  }
}

/// A new sequence, as it was told.
model_sequence cache_model::admit(named_text text, const sequence_options& options, const admission& made,
                                  std::int64_t on_device) {
  const auto cached = made.num_cached_tokens;
  auto s = model_sequence{};
  s.id = made.id;
  s.options = options;
  s.num_computed = s.num_written = s.num_cached = s.num_shared = cached;
  s.num_prompt = std::min(text.size(), options.num_prompt_tokens);
  if (exact_) {
    const auto known = prefixes_.longest(text, std::min(text.size() - 1, options.max_cached_tokens), false);
    if (known == cached || shape_.num_groups() > shape_.has_state()) {
      s.branch = known > cached ? known : 0;
    } else {
      exact_ = false;  // nodes without states may have gone with their sequences: the branch is unknown
    }
  }
  const auto chunk = cached + std::min(text.size() - cached, options.first_chunk);
  // A load may bring less than the chunk was made for, and there may be no room for a longer one.
  const auto length = kind_.has_tiers ? std::max(made.num_tokens, cached) : chunk;
  expect_equal(made.num_tokens, length, "tokens of a new sequence");
  s.rest.assign(text.tokens.begin() + static_cast<std::ptrdiff_t>(length), text.tokens.end());
  text.take_back_to(length);
  s.text = std::move(text);
  s.created = s.last_access = now_;
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    s.tables.push_back({.num_sinks = shape_.sinks_of(g), .first = shape_.first_place(g, cached), .blocks = {}});
    take_table(s, g, kind_.has_tiers ? on_device : cached);
  }
  return s;
}

/// The cached tokens are in shared blocks, or behind those `on_device` in fresh ones that tiers have filled; the others
/// and states are in fresh ones, also those of a block that is shared in part, which was copied.
void cache_model::take_table(model_sequence& s, std::size_t g, std::int64_t on_device) {
  auto& table = s.tables[g];
  table.blocks = fetch_table(s, g);
  const auto size = shape_.block_size(g);
  const auto wanted = shape_.holds_tokens(g) ? static_cast<std::int64_t>(shape_.places_for(g, s.text.size()))
                                             : shape_.blocks_of_state();
  expect_equal(std::ssize(table.blocks), wanted, "blocks of a new sequence");
  for (std::size_t place = 0; place < table.blocks.size(); ++place) {
    const auto end = static_cast<std::int64_t>(place + 1) * size;
    if (table.blocks[place] == no_block) {
      continue;
    }
    const auto is_cached = shape_.holds_tokens(g) && end <= s.num_cached;
    if (is_cached && (end <= on_device || !is_from_tier(table.blocks[place], s.text.name(end)))) {
      expect_hit(table.blocks[place], s.text.name(end));
      continue;
    }
    take_fresh(table.blocks[place]);
    if (is_cached) {
      if (s.options.publish) {
        cached_[table.blocks[place]] = {s.text.name(end)};
      } else {
        s.num_shared = std::min(s.num_shared, end - size);
      }
    }
  }
}

void cache_model::append(const operation& next, bool run) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  auto growth = draw_growth(*s, next.b, next.c, run, sizes_);
  growth.num_ahead = 0;
  auto& [tokens, keys, num_ahead] = growth;
  if (const auto longest = shape_.longest_in(config_.num_blocks, 256); run && next.b % 31 == 0 && longest < 256) {
    const auto beyond = std::max(longest - s->text.size(), std::int64_t{0}) + shape_.granularity;
    tokens.resize(static_cast<std::size_t>(beyond));
    keys.clear();
  }
  auto hashes = std::vector<std::uint64_t>{};
  if (run && next.c % 3 == 0) {
    auto grown = s->text;
    grown.keys.insert(grown.keys.end(), keys.begin(), keys.end());
    grown.add(tokens);
    hashes = hash(grown);
  }
  follow_growth(*s, growth, run ? cache_.append(s->id, {tokens, keys, hashes}) : cache_.append(s->id, tokens[0]));
}

void cache_model::reserve_slots(const operation& next) {
  if (auto* const s = pick(next.a)) {
    const auto num_ahead = static_cast<std::int64_t>(next.b % static_cast<std::uint32_t>(sizes_.ahead));
    follow_growth(*s, {.tokens = {}, .keys = {}, .num_ahead = num_ahead}, cache_.reserve_slots(s->id, num_ahead));
  }
}

/// An append ended like this.
void cache_model::follow_growth(model_sequence& s, const model_growth& growth, const result<void>& outcome) {
  if (copy_failed(outcome)) {
    return;
  }
  const auto length = s.text.size() + std::ssize(growth.tokens) + growth.num_ahead;
  const auto [least, most] = growth.is_empty() ? std::pair{std::int64_t{0}, std::int64_t{0}} : fresh_for(s, length);
  const auto num_copied = counts_blocks() ? must_copy(s) : 0;
  if (!growth.is_empty() && num_held(s) + least - num_copied > config_.num_blocks) {
    expect(lacks_blocks(outcome), "append beyond the pool succeeded");
    return expect_error(outcome, error_code::never_fits, "append beyond the pool");
  }
  if (least > available(seen_.blocks) || (most > available(seen_.blocks) && !outcome)) {
    expect(lacks_blocks(outcome), "append beyond capacity succeeded");
    return expect_error(outcome, error_code::capacity_exhausted, "append beyond capacity");
  }
  expect_success(outcome, "append");
  peak_within_ = least == 0 ? 0 : seen_.blocks.in_use + least;
  grow(s, growth);
}

/// Follows an append that succeeded; returns the new entries of the block tables.
std::vector<new_block> cache_model::grow(model_sequence& s, const model_growth& growth) {
  auto added = std::vector<new_block>{};
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    if (shape_.holds_tokens(g)) {
      grow_table(s, g, growth, added);
    }
  }
  const auto length = s.text.size() + std::ssize(growth.tokens);
  s.text.keys.insert(s.text.keys.end(), growth.keys.begin(), growth.keys.end());
  coverage_.chunks += !s.rest.empty() && !growth.tokens.empty();
  s.rest.erase(s.rest.begin(), s.rest.begin() + std::min(std::ssize(s.rest), std::ssize(growth.tokens)));
  s.text.add(growth.tokens);
  if (growth.num_ahead != 0) {
    s.num_reserved = std::max(s.num_reserved, length + growth.num_ahead);
  }
  s.last_access = now_;
  return added;
}

void cache_model::grow_table(model_sequence& s, std::size_t g, const model_growth& growth,
                             std::vector<new_block>& added) {
  auto& table = s.tables[g];
  const auto length = s.text.size() + std::ssize(growth.tokens) + growth.num_ahead;
  const auto last = static_cast<std::size_t>(s.text.size() / shape_.block_size(g));
  const bool is_inside = s.text.size() % shape_.block_size(g) != 0;
  const bool may_copy = is_inside && !growth.is_empty();
  const bool must = may_copy && counts_blocks() && must_copy(s);
  const auto blocks = fetch_table(s, g);
  const auto end =
      growth.is_empty() ? table.blocks.size() : std::max(shape_.places_for(g, length), table.blocks.size());
  expect_equal(std::ssize(blocks), static_cast<std::int64_t>(end), "blocks after an append");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const bool is_new = i >= table.blocks.size();
    if (is_new || blocks[i] != table.blocks[i]) {
      expect(is_new || (may_copy && i == last), "an append changed a block that it need not have touched");
      take_fresh(blocks[i]);
      const auto num_hidden = kind_.has_groups ? table.num_skipped() : 0;
      added.push_back({0, static_cast<std::uint32_t>(i - num_hidden), blocks[i], static_cast<std::uint32_t>(g)});
    }
  }
  const bool copied = last < table.blocks.size() && blocks[last] != table.blocks[last];
  expect(!counts_blocks() || copied == must, "an append copied a block that others cannot see, or none that they can");
  if (copied) {
    steps_.let_go(table.blocks[last], s);
    ++expected_.copies;
  }
  s.reuses_slots = s.reuses_slots && !copied && shape_.places_for(g, length - growth.num_ahead) == last + is_inside;
  table.blocks = blocks;
}

void cache_model::compute(const operation& next, bool to_end) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  const auto rest = s->text.size() - s->num_computed;
  const auto target = s->num_computed + (to_end ? rest : next.c % (rest + 1));
  do {
    const auto saved = cache_.next_saved_length(s->id).value();
    commit(*s, next.c % 5 == 0 ? target : std::min(target, saved));
  } while (s->num_computed < target && !refused_);
}

void cache_model::write_ahead(const operation& next) {
  if (auto* const s = pick(next.a)) {
    write(*s, s->text.size());
  }
}

void cache_model::commit(model_sequence& s, std::int64_t length) {
  write(s, length);
  if (length > s.num_computed) {
    write_state(s, length);
  }
  note_before();
  const auto num_available = cache_.num_available_blocks();
  const auto done = cache_.commit(s.id, length);
  if (copy_failed(done)) {
    if (keeps_at(s, length)) {
      may_lose_state_ = true;
      // The copy overwrites it, and may have begun to; behind an eviction, it may have been that of a branch instead.
      if (s.branch || cache_.statistics().blocks.in_use < before_.statistics.blocks.in_use) {
        s.newest = std::nullopt;
      }
    }
    return write_state(s, s.num_computed);
  }
  expect_success(done, "commit");
  follow_commit(s, length, num_available);
  check_next_saved(s);
}

void cache_model::follow_commit(model_sequence& s, std::int64_t length, std::int64_t available) {
  const bool moved = length > s.num_computed;
  const bool has_room = available >= shape_.blocks_of_state();
  if (s.options.publish) {
    publish(s, length, has_room);
  }
  if (moved && keeps_at(s, length) && (s.newest || has_room)) {
    s.newest = length;
  }
  s.num_computed = length;
  s.last_access = now_;
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    const auto first = std::min(shape_.first_place(g, length), s.tables[g].blocks.size());
    coverage_.skipped_blocks += static_cast<std::int64_t>(drop_to(s, g, first));
  }
}

/// Look-ups find nothing behind an invalidated block.
void cache_model::publish(model_sequence& s, std::int64_t length, bool has_room) {
  const auto granularity = shape_.granularity;
  for (auto end = num_published(s) + granularity; end <= length; end += granularity) {
    if (counts_blocks()) {
      const auto block = s.tables[0].blocks[static_cast<std::size_t>(end / granularity) - 1];
      cached_[block] = {s.text.name(end), s.is_withdrawn};
    }
    if (!s.is_withdrawn) {
      prefixes_.publish(s.text, end);
    }
  }
  if (!s.is_withdrawn && length > s.num_computed && length % granularity == 0 && shape_.has_state() &&
      (!exact_ || (saves_at(s, length) && has_room))) {
    prefixes_.save_state(s.text.name(length));
  }
}

/// Releases blocks before this place, but for sinks; returns how many.
std::size_t cache_model::drop_to(model_sequence& s, std::size_t g, std::size_t first) {
  auto& table = s.tables[g];
  const auto begin = std::max(table.first, table.num_sinks);
  if (first <= begin) {
    return 0;
  }
  for (auto place = begin; place < first; ++place) {
    steps_.let_go(std::exchange(table.blocks[place], no_block), s);
  }
  table.first = first;
  return first - begin;
}

void cache_model::fork(const operation& next) {
  auto* const from = pick(next.a);
  if (from == nullptr) {
    return;
  }
  const auto forked = cache_.fork(from->id);
  if (copy_failed(forked)) {
    return;
  }
  if (is_full()) {
    return expect_error(forked, error_code::limit_reached, "fork beyond max_sequences");
  }
  if (from->num_computed != from->text.size()) {
    return expect_error(forked, error_code::invalid_argument, "fork of a sequence with uncommitted tokens");
  }
  if (lacks_blocks(forked)) {
    return expect(available(seen_.blocks) < shape_.blocks_of_state(), "fork was refused although there are blocks");
  }
  expect_success(forked, "fork");
  auto to = *from;
  to.id = *forked;
  to.reuses_slots = from->reuses_slots || from->num_reserved > from->text.size();
  to.num_reserved = 0;
  to.branch = 0;
  to.newest = std::nullopt;
  to.created = to.last_access = now_;
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    auto& table = to.tables[g];
    if (shape_.holds_tokens(g)) {
      table.blocks.resize(std::max(shape_.places_for(g, to.text.size()), table.first));
    } else {
      take_table(to, g, to.num_cached);
    }
  }
  live_.push_back(std::move(to));
}

void cache_model::truncate(const operation& next) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  const auto size = s->text.size();
  const auto back = next.b % 8 < 4 ? next.c % 9 : next.c % (size - start_of(*s) + 1);
  const auto keep = next.b % 8 == 0 ? next.c % (size + 3) : std::max(size - back, std::int64_t{0});
  const auto done = cache_.truncate(s->id, keep);
  if (!can_cut(*s, keep)) {
    coverage_.refused_cuts += keep <= size;
    return expect_error(done, error_code::invalid_argument, "truncate to what is not held");
  }
  expect_success(done, "truncate");
  follow_hiding(*s, keep);
  remember(s->text);
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    auto& blocks = s->tables[g].blocks;
    const auto end = shape_.holds_tokens(g) ? std::max(shape_.places_for(g, keep), s->tables[g].first) : blocks.size();
    for (; blocks.size() > end; blocks.pop_back()) {
      steps_.let_go(blocks.back(), *s);
    }
    if (shape_.holds_tokens(g) && keep < s->num_slots() && keep % shape_.block_size(g) != 0) {
      s->reuses_slots = true;
      steps_.let_go(blocks.back(), *s);
    }
  }
  s->num_reserved = 0;
  if (keep < size) {
    s->rest.clear();
    s->text.cut(keep);
    for (auto* const count : {&s->num_prompt, &s->num_computed, &s->num_written, &s->num_cached, &s->num_shared}) {
      *count = std::min(*count, keep);
    }
  }
  s->is_withdrawn = s->is_withdrawn && num_published(*s) != 0;
  s->num_valid = num_published(*s) <= s->num_valid ? model_sequence::all_tokens : s->num_valid;
}

void cache_model::drop_before(const operation& next) {
  if (auto* const s = pick(next.a)) {
    const auto start = next.b % (s->num_computed + 1);
    expect_success(cache_.drop_before(s->id, start), "drop before");
    // With tiers, the last full block that was committed stays.
    const auto most = std::max(s->num_computed / config_.block_size - kind_.has_tiers, std::int64_t{0});
    drop_to(*s, 0, static_cast<std::size_t>(std::min(start / config_.block_size, most)));
  }
}

void cache_model::release(std::size_t index, bool ended) {
  auto s = std::move(live_[index]);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  expect_success(cache_.release(s.id, ended), "release");
  if (s.newest && s.options.publish && !s.is_withdrawn) {
    prefixes_.save_state(s.text.name(*s.newest));
  }
  for (const auto& table : s.tables) {
    std::ranges::for_each(table.blocks, [&](block_id block) { steps_.let_go(block, s); });
  }
  dead_.push_back(s.id);
  remember(std::move(s.text));
}

/// A prompt from its start to its end. Each part is an operation of its own.
void cache_model::serve(const operation& next) {
  const auto count = live_.size();
  apply({action::create, next.a, next.b, next.c});
  if (live_.size() > count) {
    apply({action::compute, static_cast<std::uint32_t>(count), 1, next.c});
    apply({action::release, static_cast<std::uint32_t>(count), 4 + next.b % 2, next.c});
  }
  refused_ = false;
}

/// For prompts to come.
void cache_model::remember(named_text text) {
  past_.push_back(std::move(text));
  if (past_.size() > 24) {
    past_.erase(past_.begin());
  }
}

}  // namespace pagedkv::test
