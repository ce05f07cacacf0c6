#include "cache_model.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

namespace pagedkv::test {

namespace {

constexpr auto salts = std::array{salt::none, salt{1}, make_salt(1, 7)};

/// Distinct inputs give distinct outputs for all that a test will see (the finaliser of splitmix64).
[[nodiscard]] std::uint64_t mix(std::uint64_t before, std::uint64_t next) {
  auto x = before * 0x9e3779b97f4a7c15 + next + 0x632be59bd9b4e019;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

cache_model::cache_model(cache_under_test& cache, const cache_kind& kind, const cache_config& config)
    : cache_(cache),
      kind_(kind),
      config_(config),
      seen_(cache.statistics()),
      padded_(static_cast<std::size_t>(config.max_sequences), max_table),
      compressed_(static_cast<std::size_t>(config.max_sequences),
                  max_table * static_cast<std::size_t>(config.max_sequences)) {}

std::optional<std::string> cache_model::run(const std::vector<operation>& operations) {
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

void cache_model::apply(const operation& next) {
  fresh_taken_ = 0;
  peak_within_ = 0;
  peak_at_most_ = 0;
  may_free_within_ = false;
  refused_ = false;
  switch (next.what) {
    case action::create: create(next); break;
    case action::append_one: append(next, false); break;
    case action::append_run: append(next, true); break;
    case action::reserve_slots: reserve_slots(next); break;
    case action::append_batch: append_batch(next); break;
    case action::compute: compute(next); break;
    case action::write_ahead: write_ahead(next); break;
    case action::fork: fork(next); break;
    case action::truncate: truncate(next); break;
    case action::drop_before: drop_before(next); break;
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
    case action::unpin_all: unpin_all(); break;
    case action::invalidate: invalidate(next); break;
    case action::find_prefix: find_prefix(next); break;
    case action::begin_step: begin_step(next); break;
    case action::retire_step: retire_step(next); break;
    case action::evict: evict(next); break;
    case action::compact: compact(next); break;
    case action::resize: resize(next); break;
    case action::reset: reset(); break;
    case action::advance_time: advance_time(next); break;
    case action::update_batches: update_batches(next); break;
    case action::ask_wrongly: ask_wrongly(next); break;
    case action::use_dead_id: use_dead_id(next); break;
    case action::number_of_actions: break;
  }
  check();
}

// --- what callers do ---

void cache_model::create(const operation& next) {
  const auto text = draw_prompt(next);
  const auto& tokens = text.tokens;
  const auto size = std::ssize(tokens);
  const auto options = draw_options(next);
  const auto prefixes = name_prefixes(text, options.salt);
  const auto hashes = next.c % 3 == 0 ? hash(text, options.salt) : std::vector<std::uint64_t>{};
  const auto prompt = token_run{tokens, text.keys, hashes};
  const auto found = cache_.find_prefix(prompt, options.salt);
  expect(found >= provably_cached(prefixes), "a prefix that a sequence in use holds was not found");
  const auto num_hits = std::min(found, options.max_cached_tokens) / config_.block_size;
  const auto num_cached = num_hits * config_.block_size;
  const auto length = num_cached + std::min(size - num_cached, options.first_chunk);
  const auto num_fresh = blocks_for(length) - num_hits;

  const auto forecast = cache_.would_fit(prompt, options);
  const auto made = cache_.create_sequence(prompt, options);
  expect(forecast.has_value() == made.has_value(), "would_fit said other than create");
  expect(made || forecast.error().message() == made.error().message(), "would_fit gave another error than create");
  if (live_.size() == static_cast<std::size_t>(config_.max_sequences)) {
    return expect_error(made, error_code::limit_reached, "create beyond max_sequences");
  }
  if (blocks_for(size) > config_.num_blocks) {
    ++expected_.refusals;
    return expect_error(made, error_code::never_fits, "create beyond the pool");
  }
  if (num_fresh > available(seen_.blocks)) {
    ++expected_.refusals;
    return expect_error(made, error_code::capacity_exhausted, "create beyond capacity");
  }
  if (!made && num_fresh + std::min(num_hits, seen_.blocks.evictable) > available(seen_.blocks)) {
    ++expected_.refusals;  // hits on evictable blocks leave fewer to take
    return expect_error(made, error_code::capacity_exhausted, "create beyond capacity");
  }
  expect_success(made, "create");
  expect_equal(made->num_cached_tokens, num_cached, "cached tokens, with the last left to compute");
  expect_equal(made->num_tokens, length, "tokens of a new sequence");
  expect_equal(made->num_blocks, blocks_for(length), "blocks told of a new sequence");
  expect_equal(made->num_new_blocks, num_fresh, "new blocks told of a new sequence");
  expect_equal(forecast->num_cached_tokens, num_cached, "cached tokens of a forecast");
  expect_equal(forecast->num_new_blocks, num_fresh, "new blocks of a forecast");

  auto s = model_sequence{};
  s.id = made->id;
  s.options = options;
  s.keys = text.keys;
  extend_names(s, std::span{tokens}.first(static_cast<std::size_t>(length)));
  s.rest.assign(tokens.begin() + static_cast<std::ptrdiff_t>(length), tokens.end());
  s.num_prompt = std::min(size, options.num_prompt_tokens);
  s.num_computed = s.num_written = s.num_cached = num_cached;
  s.created = s.last_access = now_;
  s.blocks = fetch_table(s.id);
  expect_equal(std::ssize(s.blocks), blocks_for(length), "blocks of a new sequence");
  for (auto i = std::size_t{0}; i < s.blocks.size(); ++i) {
    if (i < static_cast<std::size_t>(num_hits)) {
      expect_hit(s.blocks[i], prefixes[(i + 1) * block_size() - 1]);
    } else {
      take_fresh(s.blocks[i]);
    }
  }
  coverage_.keyed_hits += !text.keys.empty() && text.keys.front().position < num_cached;
  ++expected_.prompts;
  expected_.prompt_blocks += size / config_.block_size;
  expected_.hit_blocks += num_hits;
  expected_.hit_tokens += num_cached;
  live_.push_back(std::move(s));
}

void cache_model::append(const operation& next, bool run) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  auto growth = draw_growth(*s, next.b, next.c, run);
  auto& [tokens, keys] = growth.text;
  if (run && next.b % 31 == 0) {
    tokens.resize((static_cast<std::size_t>(config_.num_blocks) + 1) * block_size());
    keys.clear();
  }
  const auto hashes = run && next.c % 3 == 0 ? hash_grown(*s, growth.text) : std::vector<std::uint64_t>{};
  growth.num_ahead = 0;
  expect_grown(*s, growth, run ? cache_.append(s->id, {tokens, keys, hashes}) : cache_.append(s->id, tokens[0]));
}

void cache_model::reserve_slots(const operation& next) {
  if (auto* const s = pick(next.a)) {
    const auto num_ahead = static_cast<std::int64_t>(next.b % (block_size() + 2));
    expect_grown(*s, {.text = {}, .num_ahead = num_ahead}, cache_.reserve_slots(s->id, num_ahead));
  }
}

/// One entry for each of some sequences, and perhaps one for none. Those that did not fit must not fit behind the
/// batch, either: the others have only taken blocks.
void cache_model::append_batch(const operation& next) {
  auto rows = std::vector<model_sequence*>{};
  auto growths = std::vector<model_growth>{};
  auto commits = std::vector<std::int64_t>{};
  for (auto i = std::size_t{0}; i < live_.size(); ++i) {
    if ((next.a >> i & 1) == 0) {
      rows.push_back(&live_[i]);
    }
  }
  if (next.b % 2 == 0) {
    std::ranges::reverse(rows);
  }
  auto entries = std::vector<batch_entry>{};
  auto num_slots = std::size_t{0};
  for (auto* const s : rows) {
    const auto number = next.c + static_cast<std::uint32_t>(growths.size()) * 7;
    growths.push_back(draw_growth(*s, next.b + number, number, number % 3 == 0));
    commits.push_back(number % 2 == 0 ? s->size() : batch_entry::no_commit);
    if (commits.back() != batch_entry::no_commit) {
      write(*s, s->num_written, s->size());
      s->num_written = s->size();
    }
    num_slots += growths.back().text.tokens.size() + static_cast<std::size_t>(growths.back().num_ahead);
  }
  for (auto i = std::size_t{0}; i < rows.size(); ++i) {
    entries.push_back({.id = rows[i]->id,
                       .run = growths[i].text.run(),
                       .num_computed_tokens = commits[i],
                       .num_ahead = growths[i].num_ahead});
  }
  const auto one = std::vector<token>{1};
  if (next.b % 3 == 0) {
    entries.push_back({.id = dead_.empty() ? sequence_id{next.b} : dead_[next.b % dead_.size()], .run = one});
    ++num_slots;
  }
  auto slots = std::vector<slot>(num_slots);
  auto failures = std::vector<batch_failure>(entries.size());
  auto blocks = std::vector<new_block>(max_table);
  const auto done = cache_.append_batch(entries, {slots, failures, blocks});
  expect_success(done, "append of a batch");
  expect_equal(static_cast<std::int64_t>(done->num_slots), static_cast<std::int64_t>(num_slots), "slots of a batch");
  failures.resize(done->num_failures);
  blocks.resize(done->num_new_blocks);
  coverage_.batch_entries += std::ssize(entries);
  coverage_.batch_failures += std::ssize(failures);

  const auto in_use = seen_.blocks.in_use;
  auto wanted = std::vector<new_block>{};
  auto failed = failures.begin();
  auto first_slot = std::size_t{0};
  for (auto i = std::size_t{0}; i < entries.size(); ++i) {
    const auto mapped = std::span{slots}.subspan(
        first_slot, entries[i].run.tokens.size() + static_cast<std::size_t>(entries[i].num_ahead));
    first_slot += mapped.size();
    if (i < rows.size() && commits[i] != batch_entry::no_commit) {
      mark_committed(*rows[i], commits[i]);
      rows[i]->last_access = now_;
    }
    if (failed != failures.end() && failed->entry == i) {
      expect(std::ranges::count(mapped, skip_slot) == std::ssize(mapped), "an entry that failed has slots");
      const auto code = (failed++)->reason.code;
      expect(code == (i < rows.size() ? error_code::capacity_exhausted : error_code::unknown_sequence) ||
                 (i < rows.size() && code == error_code::never_fits),
             "an entry failed for a reason of its own");
      expected_.refusals += i < rows.size();
      continue;
    }
    expect(i < rows.size(), "an entry with a dead id succeeded");
    const auto first = rows[i]->size();
    for (auto added : grow(*rows[i], growths[i])) {
      added.entry = static_cast<std::uint32_t>(i);
      wanted.push_back(added);
    }
    auto asked = std::vector<slot>(mapped.size());
    expect_success(cache_.slot_mapping(rows[i]->id, first, asked), "slot mapping after a batch");
    expect(std::ranges::equal(asked, mapped), "a batch told other slots than the slot mapping");
  }
  expect(failed == failures.end(), "a batch told a failure twice");
  const auto same = [](const new_block& a, const new_block& b) {
    return a.entry == b.entry && a.index == b.index && a.block == b.block;
  };
  expect(std::ranges::equal(blocks, wanted, same), "a batch told other new blocks than there are");
  peak_within_ = in_use;
  peak_at_most_ = in_use + fresh_taken_;
  may_free_within_ = invalidated_;
  for (const auto& failure : failures) {
    if (failure.entry < rows.size()) {
      auto again = entries[failure.entry];
      again.num_computed_tokens = batch_entry::no_commit;
      auto reason = batch_failure{};
      const auto repeated = cache_.append_batch({&again, 1}, {slots, {&reason, 1}, {}});
      expect(repeated && repeated->num_failures == 1, "an entry did not fit into the batch, but fits behind it");
      ++expected_.refusals;
    }
  }
}

void cache_model::compute(const operation& next) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  const auto rest = static_cast<std::uint32_t>(s->size() - s->num_computed);
  const auto count = next.b % 4 != 0 ? rest : next.c % (rest + 1);
  const auto target = s->num_computed + count;
  write(*s, s->num_written, target);
  s->num_written = std::max(s->num_written, target);
  expect_success(cache_.commit(s->id, target), "commit");
  mark_committed(*s, target);
  s->last_access = now_;
}

void cache_model::write_ahead(const operation& next) {
  if (auto* const s = pick(next.a)) {
    write(*s, s->num_written, s->size());
    s->num_written = s->size();
  }
}

void cache_model::fork(const operation& next) {
  auto* const from = pick(next.a);
  if (from == nullptr) {
    return;
  }
  const auto forked = cache_.fork(from->id);
  if (live_.size() == static_cast<std::size_t>(config_.max_sequences)) {
    return expect_error(forked, error_code::limit_reached, "fork beyond max_sequences");
  }
  if (from->num_computed != from->size()) {
    return expect_error(forked, error_code::invalid_argument, "fork of a sequence with uncommitted tokens");
  }
  expect_success(forked, "fork");
  auto to = *from;
  to.id = *forked;
  to.reuses_slots = from->reuses_slots || from->num_reserved > from->size();
  to.num_reserved = 0;
  to.blocks.resize(static_cast<std::size_t>(blocks_for(to.size())));
  to.created = to.last_access = now_;
  to.steps.clear();
  live_.push_back(std::move(to));
}

void cache_model::truncate(const operation& next) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  const auto start = static_cast<std::int64_t>(s->num_dropped) * config_.block_size;
  const auto keep = s->size() - static_cast<std::int64_t>(next.b) % (s->size() - start + 1);
  expect_success(cache_.truncate(s->id, keep), "truncate");
  while (static_cast<std::int64_t>(s->blocks.size()) > blocks_for(keep)) {
    let_go(s->blocks.back(), *s);
    s->blocks.pop_back();
  }
  if (keep < std::max(s->size(), s->num_reserved) && keep % config_.block_size != 0) {
    s->reuses_slots = true;
    let_go(s->blocks.back(), *s);
  }
  s->num_reserved = 0;
  if (keep < s->size()) {
    s->rest.clear();
    s->num_prompt = std::min(s->num_prompt, keep);
    std::erase_if(s->keys, [&](const auto& key) { return key.position >= keep; });
  }
  s->tokens.resize(static_cast<std::size_t>(keep));
  if (static_cast<std::size_t>(keep) <= std::min(s->num_valid, max_table) * block_size()) {
    s->num_valid = model_sequence::any_number;
  }
  s->prefixes.resize(static_cast<std::size_t>(keep));
  for (auto* const count : {&s->num_computed, &s->num_written, &s->num_cached}) {
    *count = std::min(*count, keep);
  }
}

void cache_model::drop_before(const operation& next) {
  auto* const s = pick(next.a);
  if (s == nullptr) {
    return;
  }
  const auto start = static_cast<std::int64_t>(next.b) % (s->num_computed + 1);
  expect_success(cache_.drop_before(s->id, start), "drop before");
  for (; static_cast<std::int64_t>(s->num_dropped) < start / config_.block_size; ++s->num_dropped) {
    let_go(s->blocks[s->num_dropped], *s);
    s->blocks[s->num_dropped] = no_block;
  }
}

void cache_model::release(std::size_t index, bool ended) {
  auto s = std::move(live_[index]);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  expect_success(cache_.release(s.id, ended), "release");
  std::ranges::for_each(s.blocks, [&](block_id block) { let_go(block, s); });
  dead_.push_back(s.id);
  past_.push_back({std::move(s.tokens), std::move(s.keys)});
}

void cache_model::pin(const operation& next) {
  const auto text = draw_prompt(next);
  const auto tag = salts[next.c % salts.size()];
  auto longer = text;
  longer.tokens.push_back(0);
  const auto found = cache_.find_prefix(longer.run(), tag);
  const auto pinned = cache_.pin(text.run(), tag);
  if (pins_.size() == static_cast<std::size_t>(config_.max_sequences)) {
    return expect_error(pinned, error_code::limit_reached, "pin beyond max_sequences");
  }
  expect_success(pinned, "pin");
  expect_equal(pinned->num_tokens, found, "pinned tokens");
  auto prefixes = name_prefixes(text, tag);
  prefixes.resize(static_cast<std::size_t>(found));
  pins_.push_back({.id = pinned->id, .prefixes = std::move(prefixes)});
}

void cache_model::unpin(std::size_t index) {
  const auto id = pins_[index].id;
  pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(index));
  expect_success(cache_.unpin(id), "unpin");
  unpinned_in_flight_ |= fence_of({}) != 0;
  dead_pins_.push_back(id);
}

void cache_model::unpin_all() {
  expect_equal(cache_.unpin_all(), std::ssize(pins_), "pins that ended at once");
  unpinned_in_flight_ |= !pins_.empty() && fence_of({}) != 0;
  for (const auto& p : pins_) {
    dead_pins_.push_back(p.id);
  }
  pins_.clear();
}

void cache_model::invalidate(const operation& next) {
  auto text = draw_prompt(next);
  const auto tag = salts[next.c % salts.size()];
  const auto named = [&](std::uint64_t prefix) {
    auto blocks = std::vector<block_id>{};
    for (const auto& [block, name] : published_) {
      if (name == prefix) {
        blocks.push_back(block);
      }
    }
    return blocks;
  };
  const auto forget = [&](std::uint64_t prefix) {
    std::ranges::for_each(named(prefix), [&](block_id block) { hide(block); });
    committed_.erase(prefix);
  };
  invalidated_ = true;
  if (next.a / 8 % 3 == 0) {
    const auto count = cache_.invalidate_prefix(text.run(), tag);
    expect(count >= 0, "a negative number of blocks was invalidated");
    expected_.invalidations += count;
    const auto prefixes = name_prefixes(text, tag);
    for (auto end = block_size(); end <= text.tokens.size(); end += block_size()) {
      forget(prefixes[end - 1]);
    }
    text.tokens.push_back(0);
    expect_equal(cache_.find_prefix(text.run(), tag), 0, "an invalidated prefix");
  } else if (next.a / 8 % 3 == 1) {
    const auto count = cache_.invalidate_salt(tag);
    expect(count >= 0, "a negative number of blocks was invalidated");
    expected_.invalidations += count;
    const auto all = committed_;
    for (const auto& [prefix, of] : all) {
      if (of == tag) {
        forget(prefix);
      }
    }
  } else {
    auto chosen = std::vector<block_id>{};
    for (auto i = std::uint32_t{0}; i < next.b % 4; ++i) {
      chosen.push_back(block_id{static_cast<std::int32_t>((next.c + 7 * i) % static_cast<std::uint32_t>(config_.num_blocks))});
    }
    const auto count = cache_.invalidate_blocks(chosen);
    expect_success(count, "invalidate blocks");
    expect(*count <= std::ssize(chosen), "more blocks were invalidated than were chosen");
    expected_.invalidations += *count;
    for (const auto block : chosen) {
      const auto found = published_.find(block);
      if (found != published_.end()) {
        hide(block);
        if (std::ranges::all_of(named(found->second), [&](block_id twin) { return hidden_.contains(twin); })) {
          committed_.erase(found->second);
        }
      }
    }
    const auto outside = std::vector{block_id{config_.num_blocks}};
    expect_error(cache_.invalidate_blocks(outside), error_code::invalid_argument, "invalidate outside the pool");
    refused_ = false;
  }
}

/// No look-up finds a block any more, nor what continues it.
void cache_model::hide(block_id block) {
  hidden_.insert(block);
  for (auto& s : live_) {
    const auto place = static_cast<std::size_t>(std::ranges::find(s.blocks, block) - s.blocks.begin());
    s.num_valid = place < s.blocks.size() ? std::min(s.num_valid, place) : s.num_valid;
  }
  for (auto& p : pins_) {  // which does not say what blocks it keeps
    const auto prefix = published_.at(block);
    for (auto end = block_size(); end <= p.prefixes.size(); end += block_size()) {
      if (p.prefixes[end - 1] == prefix) {
        p.num_valid = std::min(p.num_valid, end - block_size());
      }
    }
  }
}

void cache_model::find_prefix(const operation& next) {
  const auto text = draw_prompt(next);
  const auto& tokens = text.tokens;
  const auto tag = salts[next.c % salts.size()];
  const auto prefixes = name_prefixes(text, tag);
  const auto found = cache_.find_prefix(text.run(), tag);
  expect(found >= 0 && found % config_.block_size == 0 && found <= most_cached(tokens.size()),
         "a prefix that is not a number of blocks was found");
  expect(found >= provably_cached(prefixes), "a prefix that a sequence in use holds was not found");
  const auto known = [&](std::int64_t end) { return committed_.contains(prefixes[static_cast<std::size_t>(end) - 1]); };
  expect(found == 0 || known(found), "a prefix was found that nobody committed");
  const auto longer = found + config_.block_size;
  if (!kind_.evicts && !invalidated_ && longer <= most_cached(tokens.size())) {
    expect(!known(longer), "a committed prefix was lost though nothing is ever evicted");
  }
}

void cache_model::begin_step(const operation& next) {
  const auto oldest = in_flight_.empty() ? last_step_ + 1 : *in_flight_.begin();
  const bool everything = next.a % 3 == 0;
  auto used = std::vector<model_sequence*>{};
  for (auto i = std::size_t{0}; i < live_.size(); ++i) {
    if ((next.b >> i & 1) != 0) {
      used.push_back(&live_[i]);
    }
  }
  auto ids = std::vector<sequence_id>{};
  std::ranges::transform(used, std::back_inserter(ids), [](const auto* s) { return s->id; });
  const auto begun = everything ? cache_.begin_step() : cache_.begin_step(ids);
  if (last_step_ + 1 - oldest >= 64) {
    return expect_error(begun, error_code::limit_reached, "begin a 65th step");
  }
  expect_success(begun, "begin step");
  expect_equal(static_cast<std::int64_t>(*begun), static_cast<std::int64_t>(++last_step_), "number of a step");
  in_flight_.insert(last_step_);
  if (everything) {
    last_of_everything_ = last_step_;
  } else {
    std::ranges::for_each(used, [&](model_sequence* s) { s->steps.insert(last_step_); });
  }
}

void cache_model::retire_step(const operation& next) {
  if (!in_flight_.empty()) {
    auto step = in_flight_.begin();
    std::advance(step, next.a % in_flight_.size());
    retire(step_id{*step});
  }
}

void cache_model::retire(step_id step) {
  expect_success(cache_.retire_step(step), "retire step");
  in_flight_.erase(static_cast<std::uint64_t>(step));
  std::erase_if(fences_, [&](const auto& fence) { return in_flight_.empty() || *in_flight_.begin() > fence.second; });
  unpinned_in_flight_ &= !in_flight_.empty();
}

/// Behind a step of its own, in which a transfer would read the victims.
void cache_model::evict(const operation& next) {
  const auto oldest = in_flight_.empty() ? last_step_ + 1 : *in_flight_.begin();
  if (last_step_ + 1 - oldest >= 64) {
    return;
  }
  const auto step = cache_.begin_step(std::span<const sequence_id>{});
  expect_success(step, "begin step of no sequence");
  in_flight_.insert(++last_step_);
  auto victims = std::vector<block_id>(next.a % 4, no_block);
  const auto wanted = kind_.evicts ? std::min(std::ssize(victims), seen_.blocks.evictable) : 0;
  const auto done = cache_.evict(victims, *step);
  expect_success(done, "evict");
  expect_equal(*done, wanted, "blocks evicted ahead of need");
  victims.resize(static_cast<std::size_t>(*done));
  for (const auto block : victims) {
    expect(published_.erase(block) == 1, "a block was evicted that is not cached");
    hidden_.erase(block);  // it may continue what an invalidation hid
    expect(!held_by_any(block), "a block was evicted while a sequence held it");
    expect(fences_.emplace(block, last_step_).second, "a block was evicted while a step in flight may touch it");
  }
  expected_.evictions += *done;
  coverage_.evicted_ahead += *done;
}

void cache_model::compact(const operation& next) {
  const auto moves = cache_.compact();
  if (!in_flight_.empty()) {
    return expect_error(moves, error_code::in_use, "compact with a step in flight");
  }
  expect_success(moves, "compact");
  follow_moves(*moves);
  const auto again = cache_.compact();
  expect(again && again->empty(), "compaction left a free block below another");
  if (const auto counts = cache_.statistics().blocks; !kind_.moves_to_fit && counts.free != 0) {
    for (const auto& s : live_) {
      for (const auto block : s.blocks) {
        expect(static_cast<std::int64_t>(block) < counts.in_use, "compaction left a cached block below one in use");
      }
    }
  }
  if (next.a % 2 == 0) {
    check();
    for (auto i = std::uint32_t{0}; i < live_.size(); ++i) {  // goes on where blocks have moved
      compute({.what = action::compute, .a = i, .b = 1});
    }
  }
}

void cache_model::resize(const operation& next) {
  const auto capacity = config_.capacity();
  const auto wanted = static_cast<std::int32_t>(next.a % (static_cast<std::uint32_t>(capacity) + 2));
  const auto moves = cache_.resize(wanted);
  if (wanted < 1 || wanted > capacity) {
    return expect_error(moves, error_code::invalid_argument, "resize beyond the capacity");
  }
  const auto& blocks = seen_.blocks;
  const auto num_kept = blocks.in_use + blocks.retiring + (kind_.evicts ? 0 : blocks.evictable);
  if (wanted < config_.num_blocks) {
    const auto held = !kind_.moves_to_fit && may_hold_beyond(wanted);
    if (num_kept > wanted || (held && !moves)) {
      return expect_error(moves, error_code::in_use, "resize below what is in use");
    }
    if (kind_.moves_to_fit) {
      expected_.evictions += std::max(std::int64_t{0}, num_kept + (kind_.evicts ? blocks.evictable : 0) - wanted);
    } else {
      expected_.evictions = cache_.statistics().evictions;  // those of cached blocks beyond the new size
    }
  }
  expect_success(moves, "resize");
  expect(kind_.moves_to_fit || moves->empty(), "a resize moved blocks while other threads may be at work");
  ++(wanted < config_.num_blocks ? coverage_.shrinkings : coverage_.growths);
  config_.num_blocks = wanted;
  expect(std::ranges::all_of(*moves, [&](const block_pair& pair) { return pair.source >= wanted; }),
         "a resize moved a block that could stay");
  expect_equal(cache_.num_blocks(), wanted, "blocks of the pool");
  follow_moves(*moves);
  std::erase_if(published_, [&](const auto& entry) { return entry.first >= block_id{wanted}; });
  std::erase_if(hidden_, [&](block_id block) { return block >= block_id{wanted}; });
}

/// Whether a sequence holds a block beyond this size, or a pin or a step may keep one there.
bool cache_model::may_hold_beyond(std::int32_t num_blocks) const {
  return !pins_.empty() || seen_.blocks.retiring != 0 || (!kind_.evicts && seen_.blocks.evictable != 0) ||
         std::ranges::any_of(live_, [&](const model_sequence& s) {
           return std::ranges::any_of(s.blocks, [&](block_id block) { return block >= block_id{num_blocks}; });
         });
}

/// Renames blocks wherever the model knows them.
void cache_model::follow_moves(std::span<const block_pair> moves) {
  auto names = std::map<block_id, block_id>{};
  auto destinations = std::set<std::int32_t>{};
  for (const auto& [source, destination] : moves) {
    expect(destination < source || !kind_.moves_to_fit, "a block was moved up");
    expect(names.emplace(block_id{source}, block_id{destination}).second, "a block was moved twice");
    expect(destinations.insert(destination).second, "two blocks were moved to one place");
  }
  for (auto& s : live_) {
    for (auto& block : s.blocks) {
      block = names.contains(block) ? names[block] : block;
    }
  }
  auto published = std::map<block_id, std::uint64_t>{};
  for (const auto& [block, prefix] : published_) {
    if (names.contains(block)) {
      published[names[block]] = prefix;
    } else if (!destinations.contains(static_cast<std::int32_t>(block))) {
      published[block] = prefix;
    }
  }
  published_ = std::move(published);
  auto hidden = std::set<block_id>{};
  for (const auto block : hidden_) {
    if (names.contains(block)) {
      hidden.insert(names[block]);
    } else if (!destinations.contains(static_cast<std::int32_t>(block))) {
      hidden.insert(block);
    }
  }
  hidden_ = std::move(hidden);
  auto fences = std::map<block_id, std::uint64_t>{};
  for (const auto& [block, step] : fences_) {
    fences[names.contains(block) ? names[block] : block] = step;
  }
  fences_ = std::move(fences);
  coverage_.moves += static_cast<std::int64_t>(moves.size());
}

void cache_model::reset() {
  const auto done = cache_.reset_prefix_cache();
  if (seen_.blocks.in_use + seen_.blocks.retiring != 0) {
    return expect_error(done, error_code::in_use, "reset while blocks are in use");
  }
  expect_success(done, "reset");
  expect_equal(*done, seen_.blocks.evictable, "blocks forgotten by a reset");
  published_.clear();
  hidden_.clear();
  committed_.clear();
  invalidated_ = false;
}

void cache_model::advance_time(const operation& next) {
  const auto delta = static_cast<std::int64_t>(next.a % 1000) - 200;
  const auto wanted = static_cast<timestamp>(static_cast<std::int64_t>(now_) + delta);
  cache_.advance_time(wanted);
  now_ = std::max(now_, wanted);
}

void cache_model::update_batches(const operation& next) {
  auto rows = std::vector<const model_sequence*>{};
  for (auto i = std::size_t{0}; i < live_.size(); ++i) {
    if ((next.a >> i & 1) == 0 || next.b % 3 != 0) {
      rows.push_back(&live_[i]);
    }
  }
  if (next.b % 4 == 0) {
    std::ranges::reverse(rows);
  }
  auto ids = std::vector<sequence_id>{};
  std::ranges::transform(rows, std::back_inserter(ids), [](const auto* s) { return s->id; });
  expect_success(cache_.update(padded_, ids), "update of a padded batch");
  expect_success(cache_.update(compressed_, ids), "update of a compressed batch");
  check_batches(rows);
}

void cache_model::ask_wrongly(const operation& next) {
  const auto invalid = error_code::invalid_argument;
  const auto few = std::vector<token>(1, 1);
  const bool full = live_.size() == static_cast<std::size_t>(config_.max_sequences);
  const auto refused = full ? error_code::limit_reached : invalid;
  switch (next.a % 4) {
    case 0: return expect_error(cache_.create_sequence(few, {.priority = 101}), refused, "create with priority 101");
    case 1:
      return expect_error(cache_.create_sequence(few, {.retention = -1}), refused, "create with negative retention");
    case 2:
      return expect_error(cache_.create_sequence(few, {.expected_tokens = -1}), refused, "create expecting -1 tokens");
    default:
      if (const auto* const s = pick(next.b)) {
        ask_wrongly_of(*s, next);
      }
  }
}

void cache_model::ask_wrongly_of(const model_sequence& s, const operation& next) {
  const auto invalid = error_code::invalid_argument;
  const auto start = static_cast<std::int64_t>(s.num_dropped) * config_.block_size;
  constexpr auto huge = std::numeric_limits<std::int64_t>::max();
  auto slots = std::vector<slot>(static_cast<std::size_t>(std::max(s.size(), s.num_reserved)) + 1);
  auto blocks = std::vector<block_id>(s.blocks.size());
  switch (next.c % 12) {
    case 0: return expect_error(cache_.commit(s.id, s.size() + 1), invalid, "commit past the end");
    case 1: return expect_error(cache_.commit(s.id, huge), invalid, "commit of everything there is");
    case 2: return expect_error(cache_.commit(s.id, s.num_computed - 1), invalid, "commit backwards");
    case 3: return expect_error(cache_.truncate(s.id, s.size() + 1), invalid, "truncate past the end");
    case 4: return expect_error(cache_.truncate(s.id, start - 1), invalid, "truncate before the window");
    case 5: return expect_error(cache_.drop_before(s.id, s.num_computed + 1), invalid, "drop uncommitted tokens");
    case 6: return expect_error(cache_.drop_before(s.id, -1), invalid, "drop before the start");
    case 7: return expect_error(cache_.slot_mapping(s.id, 0, slots), invalid, "slots past the end");
    case 8: return expect_error(cache_.slot_mapping(s.id, -1, {}), invalid, "slots before the start");
    case 9: return expect_error(cache_.slot_mapping(s.id, huge, slots), invalid, "slots far past the end");
    case 10:
      if (!blocks.empty()) {
        blocks.pop_back();
        expect_error(cache_.block_table(s.id, blocks), invalid, "a block table in too little room");
      }
      return;
    default: return expect_error(cache_.truncate(s.id, -huge), invalid, "truncate far before the start");
  }
}

void cache_model::use_dead_id(const operation& next) {
  auto id = static_cast<sequence_id>(next.b);  // generation 0: never was
  if (next.a % 3 == 0 && !dead_.empty()) {
    id = dead_[next.b % dead_.size()];
  } else if (next.a % 3 == 1) {
    id = static_cast<sequence_id>(~std::uint64_t{next.b});
  }
  const auto unknown = error_code::unknown_sequence;
  auto slots = std::vector<slot>(1);
  auto blocks = std::vector<block_id>(1);
  expect_error(cache_.append(id, 1), unknown, "append to a dead id");
  expect_error(cache_.append(id, std::vector<token>(3)), unknown, "append of a run to a dead id");
  expect_error(cache_.reserve_slots(id, 1), unknown, "slots ahead of a dead id");
  expect_error(cache_.commit(id, 0), unknown, "commit of a dead id");
  expect_error(cache_.fork(id), unknown, "fork of a dead id");
  expect_error(cache_.truncate(id, 0), unknown, "truncate of a dead id");
  expect_error(cache_.drop_before(id, 0), unknown, "drop before of a dead id");
  expect_error(cache_.release(id, false), unknown, "release of a dead id");
  expect_error(cache_.describe(id), unknown, "describe of a dead id");
  expect_error(cache_.slot_mapping(id, 0, slots), unknown, "slot mapping of a dead id");
  expect_error(cache_.block_table(id, blocks), unknown, "block table of a dead id");
  expect_error(cache_.update(padded_, std::vector{id}), unknown, "padded batch with a dead id");
  expect_error(cache_.update(compressed_, std::vector{id}), unknown, "compressed batch with a dead id");
  const auto dead_pin = dead_pins_.empty() ? pin_id{~std::uint64_t{0}} : dead_pins_[next.b % dead_pins_.size()];
  expect_error(cache_.unpin(dead_pin), error_code::unknown_pin, "unpin of a dead id");
  expect_error(cache_.retire_step(step_id{0}), error_code::unknown_step, "retire of step 0");
  expect_error(cache_.retire_step(step_id{last_step_ + 1}), error_code::unknown_step, "retire of a step to come");
  if (last_step_ != 0 && !in_flight_.contains(last_step_)) {
    expect_error(cache_.retire_step(step_id{last_step_}), error_code::unknown_step, "retire of a retired step");
  }
}

void cache_model::finish() {
  while (!live_.empty()) {
    apply({action::release, 0, 0, 0});
  }
  while (!pins_.empty()) {
    apply({action::unpin, 0, 0, 0});
  }
  while (!in_flight_.empty()) {
    apply({action::retire_step, static_cast<std::uint32_t>(in_flight_.size() - 1), 0, 0});
  }
  expect_equal(seen_.blocks.in_use, 0, "blocks in use at the end");
  expect_equal(seen_.blocks.retiring, 0, "blocks retiring at the end");
}

// --- what the model knows ---

std::size_t cache_model::block_size() const { return static_cast<std::size_t>(config_.block_size); }

model_sequence* cache_model::pick(std::uint32_t number) {
  return live_.empty() ? nullptr : &live_[number % live_.size()];
}

/// Three texts that part and meet often, and what sequences held before, so that prefixes really overlap; some with
/// keys.
model_text cache_model::draw_prompt(const operation& next) const {
  const auto room = static_cast<std::size_t>(config_.num_blocks) * block_size();
  const auto max_size = next.b % 16 == 0 ? room + block_size() : room / 2;
  const auto size = next.b / 16 % (max_size + 1);
  auto text = model_text{};
  auto& [tokens, keys] = text;
  const auto sources = past_.size() + live_.size();
  if (next.a % 2 == 0 && sources != 0) {
    const auto from = next.a / 2 % sources;
    text = from < past_.size() ? past_[from]
                               : model_text{live_[from - past_.size()].tokens, live_[from - past_.size()].keys};
    tokens.resize(std::min(size, tokens.size()));
    std::erase_if(keys, [&](const auto& key) { return key.position >= std::ssize(tokens); });
  } else {
    const auto parting = next.a / 4 % (2 * max_size + 1);
    for (auto i = std::size_t{0}; i < size; ++i) {
      tokens.push_back(static_cast<token>((i * i + (i < parting ? 0 : next.a / 64)) % 3));
    }
  }
  for (auto i = std::uint32_t{0}; !tokens.empty() && i < next.a / 128 % 16; i += 5) {  // none mostly, or up to three
    keys.push_back({static_cast<std::int64_t>((next.a / 2048 + 7 * i) % tokens.size()), {next.a / 4096 % 2, i % 2}});
  }
  std::ranges::stable_sort(keys, {}, &prefix_key::position);
  return text;
}

sequence_options cache_model::draw_options(const operation& next) const {
  auto options = sequence_options{};
  options.salt = salts[next.c % salts.size()];
  options.priority = static_cast<std::uint8_t>(next.c / 8 % 101);
  options.retention = next.c % 5 == 0 ? std::numeric_limits<std::int64_t>::max() : next.c % 5;
  options.expected_tokens = next.c % 7;
  switch (next.c / 1024 % 8) {
    case 0: options.max_cached_tokens = static_cast<std::int64_t>(next.c / 8192 % (2 * block_size())); break;
    case 1: options.publish = false; break;
    case 2: options.answer = block_retention{static_cast<std::uint8_t>(next.c / 8192 % 101), next.c % 3}; break;
    case 3: options.ranges[next.c % 4] = {next.c / 64 % 9, next.c / 64 % 9 + next.c / 512 % 9, {90, 5}}; break;
    default: break;
  }
  if (next.c % 7 == 0) {
    options.num_prompt_tokens = static_cast<std::int64_t>(next.c / 16 % (2 * block_size() + 2));
  }
  if (next.c / 65536 % 3 == 0) {
    options.first_chunk = static_cast<std::int64_t>(next.c / 262144 % (2 * block_size() + 1));
  }
  return options;
}

/// The rest of the prompt if there is some, else a few tokens of an answer, sometimes with a key.
model_growth cache_model::draw_growth(const model_sequence& s, std::uint32_t b, std::uint32_t c, bool run) const {
  auto growth = model_growth{};
  auto& [tokens, keys] = growth.text;
  tokens.resize(run ? b % (2 * block_size() + 2) : 1);
  for (auto i = std::size_t{0}; i < tokens.size(); ++i) {
    tokens[i] = i < s.rest.size() ? s.rest[i] : static_cast<token>((c + i) % 3);
  }
  const auto position = s.size() + static_cast<std::int64_t>(c / 8 % std::max(tokens.size(), std::size_t{1}));
  if (run && c % 4 == 0 && !tokens.empty() && (s.keys.empty() || s.keys.back().position <= position)) {
    keys.push_back({position, {c / 256 % 2, 0}});
  }
  growth.num_ahead = c % 5 == 0 ? static_cast<std::int64_t>(c / 16 % (block_size() + 2)) : 0;
  return growth;
}

std::vector<std::uint64_t> cache_model::hash(const model_text& text, salt tag) {
  auto hashes = std::vector<std::uint64_t>(text.tokens.size() / block_size() + 1);
  const auto count = cache_.hash_blocks(text.run(), hashes, tag);
  expect_equal(static_cast<std::int64_t>(count), std::ssize(hashes) - 1, "hashes of full blocks");
  hashes.pop_back();
  return hashes;
}

std::vector<std::uint64_t> cache_model::hash_grown(const model_sequence& s, const model_text& more) {
  auto grown = model_text{s.tokens, s.keys};
  grown.tokens.insert(grown.tokens.end(), more.tokens.begin(), more.tokens.end());
  grown.keys.insert(grown.keys.end(), more.keys.begin(), more.keys.end());
  return hash(grown, s.options.salt);
}

std::vector<std::uint64_t> cache_model::name_prefixes(const model_text& text, salt tag) const {
  auto s = model_sequence{};
  s.options.salt = tag;
  s.keys = text.keys;
  extend_names(s, text.tokens);
  return s.prefixes;
}

void cache_model::extend_names(model_sequence& s, std::span<const token> tokens) {
  for (const auto next : tokens) {
    auto name = s.prefixes.empty() ? mix(0, static_cast<std::uint64_t>(s.options.salt)) : s.prefixes.back();
    for (const auto& [position, value] : s.keys) {
      if (position == s.size()) {
        name = mix(mix(name + 1, value[0]), value[1]);
      }
    }
    s.tokens.push_back(next);
    s.prefixes.push_back(mix(name, static_cast<std::uint64_t>(next)));
  }
}

/// How much of a prompt may come from the cache: whole blocks, and the last token is left to compute.
std::int64_t cache_model::most_cached(std::size_t num_tokens) const {
  return num_tokens == 0 ? 0 : static_cast<std::int64_t>((num_tokens - 1) / block_size() * block_size());
}

/// How much of it is certainly found: some live sequence or pin keeps it from eviction.
std::int64_t cache_model::provably_cached(std::span<const std::uint64_t> prefixes) const {
  auto most = std::size_t{0};
  const auto agree = [&](std::span<const std::uint64_t> held) {
    const auto parted = std::ranges::mismatch(prefixes, held);
    most = std::max(most, static_cast<std::size_t>(parted.in1 - prefixes.begin()) / block_size());
  };
  for (const auto& s : live_) {
    if (s.num_dropped == 0) {
      const auto num_published = static_cast<std::size_t>(s.options.publish ? s.num_computed : s.num_cached);
      const auto num_valid = std::min(s.num_valid, s.blocks.size()) * block_size();
      agree(std::span{s.prefixes}.first(std::min(num_published, num_valid)));
    }
  }
  for (const auto& p : pins_) {
    agree(std::span{p.prefixes}.first(std::min(p.prefixes.size(), p.num_valid)));
  }
  return std::min(static_cast<std::int64_t>(most * block_size()), most_cached(prefixes.size()));
}

std::int64_t cache_model::blocks_for(std::int64_t num_tokens) const {
  return (num_tokens + config_.block_size - 1) / config_.block_size;
}

std::int64_t cache_model::available(const block_counts& counts) const {
  return counts.free + (kind_.evicts ? counts.evictable : 0);
}

bool cache_model::held_by_any(block_id block) const {
  return std::ranges::any_of(live_, [&](const auto& s) { return std::ranges::count(s.blocks, block) != 0; });
}

/// Whether the last block has to be copied before slots behind the end are written.
bool cache_model::must_copy(const model_sequence& s, bool grows) const {
  if (s.size() % config_.block_size == 0 || !grows) {
    return false;
  }
  const auto block = s.blocks[static_cast<std::size_t>(s.size()) / block_size()];
  return (s.reuses_slots && fences_.contains(block)) || published_.contains(block) ||
         std::ranges::any_of(
             live_, [&](const auto& other) { return &other != &s && std::ranges::count(other.blocks, block) != 0; });
}

std::int64_t cache_model::grown_blocks(const model_sequence& s, const model_growth& growth) const {
  return std::max(std::ssize(s.blocks), blocks_for(s.size() + std::ssize(growth.text.tokens) + growth.num_ahead));
}

std::int64_t cache_model::num_fresh_for(const model_sequence& s, const model_growth& growth) const {
  const bool grows = !growth.text.tokens.empty() || growth.num_ahead != 0;
  return grows ? grown_blocks(s, growth) - std::ssize(s.blocks) + must_copy(s, grows) : 0;
}

/// An append ended like this.
void cache_model::expect_grown(model_sequence& s, const model_growth& growth, const result<void>& outcome) {
  const bool grows = !growth.text.tokens.empty() || growth.num_ahead != 0;
  const auto num_fresh = num_fresh_for(s, growth);
  if (grows && grown_blocks(s, growth) - static_cast<std::int64_t>(s.num_dropped) > config_.num_blocks) {
    ++expected_.refusals;
    return expect_error(outcome, error_code::never_fits, "append beyond the pool");
  }
  if (num_fresh > available(seen_.blocks)) {
    ++expected_.refusals;
    return expect_error(outcome, error_code::capacity_exhausted, "append beyond capacity");
  }
  expect_success(outcome, "append");
  peak_within_ = num_fresh == 0 ? 0 : seen_.blocks.in_use + num_fresh;
  grow(s, growth);
}

/// Follows an append that succeeded; returns the new entries of the block table.
std::vector<new_block> cache_model::grow(model_sequence& s, const model_growth& growth) {
  const bool copies = must_copy(s, !growth.text.tokens.empty() || growth.num_ahead != 0);
  const auto old_blocks = s.blocks.size();
  const auto last = static_cast<std::size_t>(s.size()) / block_size();
  const auto num_tokens = s.size() + std::ssize(growth.text.tokens);
  auto added = std::vector<new_block>{};
  const auto blocks = fetch_table(s.id);
  expect_equal(std::ssize(blocks), grown_blocks(s, growth), "blocks after an append");
  for (auto i = std::size_t{0}; i < blocks.size(); ++i) {
    if (i >= old_blocks || (copies && i == last)) {
      take_fresh(blocks[i]);
      added.push_back({0, static_cast<std::uint32_t>(i), blocks[i]});
    } else {
      expect(blocks[i] == s.blocks[i], "an append changed a block that it need not have touched");
    }
  }
  if (copies) {
    let_go(s.blocks[last], s);
    ++expected_.copies;
  }
  s.reuses_slots = s.reuses_slots && !copies && blocks_for(num_tokens) == blocks_for(s.size());
  s.blocks = blocks;
  s.keys.insert(s.keys.end(), growth.text.keys.begin(), growth.text.keys.end());
  coverage_.chunks += !s.rest.empty() && !growth.text.tokens.empty();
  s.rest.erase(s.rest.begin(), s.rest.begin() + std::min(std::ssize(s.rest), std::ssize(growth.text.tokens)));
  extend_names(s, growth.text.tokens);
  if (growth.num_ahead != 0) {
    s.num_reserved = std::max(s.num_reserved, num_tokens + growth.num_ahead);
  }
  s.last_access = now_;
  return added;
}

/// A block was handed out for new contents.
void cache_model::take_fresh(block_id block) {
  const auto name = "block " + std::to_string(static_cast<int>(block));
  expect(block >= block_id{0} && block < block_id{config_.num_blocks}, name + " is not in the pool");
  expect(!held_by_any(block), name + " was handed out while a sequence held it");
  expect(!fences_.contains(block), name + " was handed out while a step in flight may touch it");
  published_.erase(block);
  hidden_.erase(block);
  ++fresh_taken_;
}

/// The newest open step that uses everything or is among these; 0 for none.
std::uint64_t cache_model::fence_of(const std::set<std::uint64_t>& steps) const {
  const bool everything = !in_flight_.empty() && last_of_everything_ >= *in_flight_.begin();
  auto newest = everything ? last_of_everything_ : 0;
  for (const auto step : steps) {
    newest = in_flight_.contains(step) ? std::max(newest, step) : newest;
  }
  return newest;
}

/// A sequence holds a block, or slots of it, no longer.
void cache_model::let_go(block_id block, const model_sequence& s) {
  if (const auto fence = fence_of(s.steps); block != no_block && fence != 0) {
    fences_[block] = std::max(fences_[block], fence);
  }
}

void cache_model::expect_hit(block_id block, std::uint64_t prefix) {
  const auto held = published_.find(block);
  expect(held != published_.end() && held->second == prefix,
         "a hit returned block " + std::to_string(static_cast<int>(block)) + " with other contents");
  expect(!hidden_.contains(block), "a hit returned a block that was invalidated");
  coverage_.revivals_checked += !held_by_any(block);
}

void cache_model::mark_committed(model_sequence& s, std::int64_t num_tokens) {
  for (auto end = s.num_computed / config_.block_size * config_.block_size + config_.block_size; end <= num_tokens;
       end += config_.block_size) {
    if (!s.options.publish) {
      continue;
    }
    const auto prefix = s.prefixes[static_cast<std::size_t>(end) - 1];
    published_[s.blocks[static_cast<std::size_t>(end / config_.block_size) - 1]] = prefix;
    committed_[prefix] = s.options.salt;
  }
  s.num_computed = num_tokens;
}

}  // namespace pagedkv::test
