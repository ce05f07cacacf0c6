#include "cache_model.hpp"

#include <algorithm>
#include <array>
#include <iterator>

// The pool and the prefix cache: pins, invalidation, steps, eviction, moves, sizes.

namespace pagedkv::test {

void cache_model::pin(const operation& next) {
  auto text = draw_text(next);
  const auto found = find_all(text);
  const auto pinned = cache_.pin(text.run(), text.salt);
  if (std::ssize(pins_) == config_.max_sequences) {
    return expect_error(pinned, error_code::limit_reached, "pin beyond max_sequences");
  }
  expect_success(pinned, "pin");
  expect_equal(pinned->num_tokens, found, "pinned tokens");
  const auto known = prefixes_.longest(text, text.size());
  expect(exact_ ? found == known : found <= known, "a pin has another length");
  text.cut(found);
  text.add(std::array{token{0}});
  pins_.push_back({.id = pinned->id, .num_tokens = found, .longer = std::move(text)});
}

void cache_model::unpin(std::size_t index) {
  const auto id = pins_[index].id;
  pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(index));
  expect_success(cache_.unpin(id), "unpin");
  const auto again = cache_.unpin(id);
  expect(!again && again.error().code == error_code::unknown_pin, "a pin ended twice");
  unpinned_in_flight_ |= steps_.fence_of(nullptr) != 0;
  dead_pins_.push_back(id);
}

void cache_model::unpin_all() {
  expect_equal(cache_.unpin_all(), std::ssize(pins_), "pins that ended at once");
  unpinned_in_flight_ |= !pins_.empty() && steps_.fence_of(nullptr) != 0;
  std::ranges::transform(pins_, std::back_inserter(dead_pins_), &model_pin::id);
  pins_.clear();
}

/// A prefix, a salt, or blocks.
void cache_model::invalidate(const operation& next) {
  const auto text = draw_text(next);
  invalidated_ = true;
  if (next.b % 3 == 2) {
    return invalidate_blocks(next);
  }
  const bool is_prefix = next.b % 3 == 0;
  const auto count = is_prefix ? cache_.invalidate_prefix(text.run(), text.salt) : cache_.invalidate_salt(text.salt);
  expect(count >= 0, "a negative number of blocks was invalidated");
  expected_.invalidations += count;
  coverage_.invalidated += count;
  if (!is_prefix || text.size() >= shape_.granularity) {
    forget(is_prefix ? &text : nullptr, text.salt);
  }
  expect_equal(find_all(text), 0, "an invalidated prefix");
}

/// Everything that begins like this text, or has this salt.
void cache_model::forget(const named_text* text, salt tag) {
  const auto first_run = text == nullptr ? 0 : text->name(shape_.granularity);
  const auto is_meant = [&](std::uint64_t run, salt of) { return text == nullptr ? of == tag : run == first_run; };
  for (auto& [block, cached] : cached_) {
    const auto known = prefixes_.all.find(cached.name);
    cached.is_hidden |= known != prefixes_.all.end() && is_meant(known->second.first_run, known->second.salt);
  }
  std::erase_if(prefixes_.all, [&](const auto& known) { return is_meant(known.second.first_run, known.second.salt); });
  for (auto& s : live_) {
    if (num_published(s) != 0 && is_meant(s.text.name(shape_.granularity), s.text.salt)) {
      s.is_withdrawn = true;
      s.num_valid = 0;
    }
  }
  for (auto& pinned : pins_) {
    if (pinned.num_tokens != 0 && is_meant(pinned.longer.name(shape_.granularity), pinned.longer.salt)) {
      pinned.num_valid = 0;
    }
  }
}

/// Without groups, any blocks at once; with them, one after the other a block of each table of a sequence.
void cache_model::invalidate_blocks(const operation& next) {
  auto chosen = std::vector<block_id>{};
  if (const auto* const s = pick(next.a); kind_.has_groups && s != nullptr) {
    for (const auto& [num_sinks, first, blocks] : s->tables) {
      if (!blocks.empty() && blocks[next.c % blocks.size()] != no_block) {
        chosen.push_back(blocks[next.c % blocks.size()]);
      }
    }
  }
  for (auto i = std::uint32_t{0}; !kind_.has_groups && i < next.a % 4; ++i) {
    chosen.push_back(to_block((next.c + 7 * i) % static_cast<std::uint32_t>(config_.num_blocks)));
  }
  exact_ = exact_ && chosen.empty();  // the model does not know what was in the prefix cache with them
  auto wrong = chosen;
  wrong.push_back(to_block(static_cast<std::size_t>(config_.num_blocks)));
  expect_error(cache_.invalidate_blocks(wrong), error_code::invalid_argument, "invalidate outside the pool");
  refused_ = false;
  const auto size = kind_.has_groups ? 1 : chosen.size();
  for (auto rest = std::span{chosen}; !rest.empty(); rest = rest.subspan(size)) {
    const auto part = rest.first(size);
    const auto count = cache_.invalidate_blocks(part);
    expect_success(count, "invalidate blocks");
    expect(kind_.has_groups || *count <= std::ssize(part), "more blocks were invalidated than were chosen");
    expected_.invalidations += *count;
    coverage_.invalidated += *count;
    if (*count != 0 || counts_blocks()) {
      std::ranges::for_each(part, [&](block_id block) { hide(block); });
    }
    const auto again = cache_.invalidate_blocks(part);
    expect(again && *again == 0, "a block was invalidated twice");
  }
}

/// Ahead of its release. The model does not know which of its blocks others find elsewhere.
void cache_model::withdraw(const model_sequence& s) {
  const auto count = cache_.withdraw(s.id);
  if (!count) {
    expect(count.error().code == error_code::in_use, "withdraw said: " + count.error().message());
    return;
  }
  const bool may_withdraw = steps_.has_newest();
  expect(*count == 0 || may_withdraw, "withdrawn without an open step");
  const auto again = cache_.withdraw(s.id);
  expect(again && *again == 0, "a block was withdrawn twice");
  expected_.invalidations += *count;
  coverage_.withdrawn += *count;
  exact_ = exact_ && !may_withdraw;  // copies of what others published are not found when these go
  if (*count != 0 && kind_.has_groups) {
    std::ranges::for_each(pins_, [](model_pin& pinned) { pinned.num_valid = 0; });
  }
}

/// A truncation may have hidden what was published ahead of a launch. The model does not know how much.
void cache_model::follow_hiding(const model_sequence& s, std::int64_t keep) {
  const auto num_hidden = cache_.statistics().invalidations - expected_.invalidations;
  expect(num_hidden == 0 || steps_.has_newest(), "hidden without an open step");
  if (num_hidden == 0 && !(kind_.has_groups && steps_.has_newest())) {
    return;  // with groups, nodes may go whose blocks stay
  }
  expected_.invalidations += num_hidden;
  coverage_.withdrawn += num_hidden;
  exact_ = false;
  std::ranges::for_each(pins_, [](model_pin& pinned) { pinned.num_valid = 0; });
  if (kind_.has_groups) {
    return;
  }
  const auto num_kept = static_cast<std::size_t>(keep / config_.block_size);
  for (auto& other : live_) {
    const auto& blocks = other.tables[0].blocks;
    for (auto i = num_kept; i < std::min(blocks.size(), s.tables[0].blocks.size()); ++i) {
      if (blocks[i] == s.tables[0].blocks[i]) {
        other.num_valid = std::min(other.num_valid, static_cast<std::int64_t>(i) * config_.block_size);
      }
    }
  }
}

/// No look-up finds a block any more, nor what continues it; without groups, it finds others with the same contents.
void cache_model::hide(block_id block) {
  if (kind_.has_groups) {
    cached_[block].is_hidden = true;
    std::ranges::for_each(pins_, [](model_pin& pinned) { pinned.num_valid = 0; });
    return;
  }
  const auto found = cached_.find(block);
  if (found == cached_.end()) {
    return;
  }
  found->second.is_hidden = true;
  const auto name = found->second.name;
  for (auto& s : live_) {
    const auto& blocks = s.tables[0].blocks;
    if (const auto place = std::ranges::find(blocks, block) - blocks.begin(); place < std::ssize(blocks)) {
      s.num_valid = std::min(s.num_valid, place * config_.block_size);
    }
  }
  for (auto& pinned : pins_) {  // which does not say what blocks it keeps
    const auto& names = pinned.longer.names;
    if (const auto end = std::ranges::find(names, name) - names.begin(); end < std::ssize(names)) {
      pinned.num_valid = std::min(pinned.num_valid, end - config_.block_size);
    }
  }
  const auto is_twin = [&](const auto& entry) { return entry.second.name == name && !entry.second.is_hidden; };
  if (std::ranges::none_of(cached_, is_twin)) {
    prefixes_.all.erase(name);
  }
}

void cache_model::begin_step(const operation& next) {
  const bool everything = next.a % 3 == 0;
  auto used = std::vector<const model_sequence*>{};
  auto ids = std::vector<sequence_id>{};
  for (auto i = std::size_t{0}; i < live_.size(); ++i) {
    if (everything || (next.b >> i & 1) != 0) {
      used.push_back(&live_[i]);
      ids.push_back(live_[i].id);
    }
  }
  const auto begun = everything ? cache_.begin_step() : cache_.begin_step(ids);
  if (steps_.is_full()) {
    return expect_error(begun, error_code::limit_reached, "begin a 65th step");
  }
  expect_success(begun, "begin step");
  steps_.begin(used, everything);
  expect(*begun == steps_.last(), "a step has another number than the next");
}

void cache_model::retire_step(std::uint32_t number) {
  if (!steps_.empty()) {
    const auto step = steps_.at(number % steps_.size());
    expect_success(cache_.retire_step(step), "retire step");
    steps_.retire(step);
    unpinned_in_flight_ &= !steps_.empty();
  }
}

/// Behind a step of its own, in which a transfer would read the victims.
void cache_model::evict(const operation& next) {
  if (steps_.is_full()) {
    return;
  }
  const auto step = cache_.begin_step(std::span<const sequence_id>{});
  expect_success(step, "begin step of no sequence");
  steps_.begin({}, false);
  auto victims = std::vector<block_id>(next.a % 6, no_block);
  const auto done = cache_.evict(victims, *step);
  expect_success(done, "evict");
  const auto wanted = kind_.evicts ? std::min(std::ssize(victims), seen_.blocks.evictable) : 0;
  // With groups, others become useless with a block, some of which wait for steps.
  expect(counts_blocks() || *done == 0 || (kind_.evicts && *done <= std::ssize(victims)), "evicted ahead of need");
  expect(counts_blocks() ? *done == wanted : *done >= std::min(wanted, std::int64_t{1}),
         "blocks evicted ahead of need");
  victims.resize(static_cast<std::size_t>(*done));
  for (const auto block : victims) {
    expect(cached_.erase(block) == 1 || !counts_blocks(), "a block was evicted that is not cached");
    expect(!held_by_any(block), "a block was evicted while a sequence held it");
    expect(!counts_blocks() || !steps_.has_fence(block), "a block was evicted while a step in flight may touch it");
    expect(!steps_.is_victim(block), "a block was evicted twice");
    steps_.add_victim(block);
  }
  expected_.evictions += *done;
  coverage_.evicted_ahead += *done;
}

void cache_model::compact(const operation& next) {
  // Where nothing is free, blocks in use go down to where cached ones lie once one of these is evicted.
  const auto may_evict = !kind_.moves_to_fit && kind_.evicts && seen_.blocks.free == 0 && seen_.blocks.evictable != 0;
  const auto must_evict = may_evict && is_held_from(seen_.blocks.in_use);
  const auto moves = cache_.compact();
  if (copy_failed(moves)) {
    return;
  }
  if (!steps_.empty()) {
    return expect_error(moves, error_code::in_use, "compact with a step in flight");
  }
  expect_success(moves, "compact");
  const auto num_evicted = cache_.statistics().evictions - expected_.evictions;
  const auto may_be_one = must_evict || (may_evict && !pins_.empty());  // blocks that pins alone hold move, too
  expect(num_evicted == (must_evict ? 1 : 0) || (may_be_one && num_evicted == 1),
         "compaction evicts one block at most");
  expected_.evictions += num_evicted;
  follow_moves(*moves);
  const auto counts = cache_.statistics().blocks;
  const auto end = counts.in_use + (kind_.moves_to_fit ? counts.evictable : 0);
  expect((counts.free == 0 && !kind_.evicts) || !is_held_from(end),
         "compaction left a free or cached block below one in use");
  const auto again = cache_.compact();
  expect(again && again->empty(), "compaction left a free block below another");
  if (next.a % 2 == 0) {
    check();
    cache_.copies_fail = false;                               // one commit may fail, while others change the cache
    for (auto i = std::uint32_t{0}; i < live_.size(); ++i) {  // goes on where blocks have moved
      compute({.what = action::compute, .a = i, .b = 1}, true);
    }
  }
}

void cache_model::resize(const operation& next) {
  const auto before = config_.num_blocks;
  const auto around = next.b % 2 == 0 ? before - static_cast<std::int32_t>(next.b % 16) : 0;
  const auto wanted =
      around > 0 ? around : static_cast<std::int32_t>(next.a % static_cast<std::uint32_t>(config_.capacity() + 2));
  const auto moves = cache_.resize(wanted);
  if (copy_failed(moves)) {
    return expect_equal(cache_.num_blocks(), before, "blocks after a failed resize");
  }
  if (wanted < 1 || wanted > config_.capacity()) {
    return expect_error(moves, error_code::invalid_argument, "resize beyond the capacity");
  }
  const auto num_kept = before - available(seen_.blocks);
  if (wanted < before && (num_kept > wanted || (!moves && !kind_.moves_to_fit && may_hold_beyond(wanted)))) {
    return expect_error(moves, error_code::in_use, "resize below what is in use");
  }
  expect_success(moves, "resize");
  if (wanted < before) {
    const auto num_evicted = num_kept + (kind_.evicts ? seen_.blocks.evictable : 0) - wanted;
    expected_.evictions += std::max(std::int64_t{0}, num_evicted);
    // Where nothing moves, those of cached blocks beyond the new size.
    expected_.evictions = kind_.moves_to_fit ? expected_.evictions : cache_.statistics().evictions;
  }
  coverage_.shrinkings += wanted < before;
  coverage_.growths += wanted > before;
  config_.num_blocks = wanted;
  expect_equal(cache_.num_blocks(), wanted, "blocks of the pool");
  expect(kind_.moves_to_fit || moves->empty(), "a resize moved blocks while other threads may be at work");
  expect(std::ranges::all_of(*moves, [&](const block_pair& pair) { return pair.source >= wanted; }),
         "a resize moved a block that could stay");
  follow_moves(*moves);
  std::erase_if(cached_, [&](const auto& entry) { return entry.first >= block_id{wanted}; });
  expect(!is_held_from(wanted), "a sequence holds a block beyond the new size");
}

/// Whether a sequence holds a block beyond this size, or a pin or a step may keep one there.
bool cache_model::may_hold_beyond(std::int32_t num_blocks) const {
  return !pins_.empty() || seen_.blocks.retiring != 0 || (!kind_.evicts && seen_.blocks.evictable != 0) ||
         is_held_from(num_blocks);
}

/// Renames blocks wherever the model knows them.
void cache_model::follow_moves(std::span<const block_pair> moves) {
  auto names = std::map<block_id, block_id>{};
  auto destinations = std::set<block_id>{};
  for (const auto& [source, destination] : moves) {
    expect(destination < source || !kind_.moves_to_fit, "a block was moved up");
    expect(names.emplace(block_id{source}, block_id{destination}).second, "a block was moved twice");
    expect(destinations.insert(block_id{destination}).second, "two blocks were moved to one place");
  }
  const auto new_name = [&](block_id block) { return names.contains(block) ? names[block] : block; };
  for (auto& s : live_) {
    for (auto& table : s.tables) {
      std::ranges::transform(table.blocks, table.blocks.begin(), new_name);
    }
  }
  for (const auto& [block, cached] : std::exchange(cached_, {})) {
    if (names.contains(block) || !destinations.contains(block)) {
      cached_.emplace(new_name(block), cached);
    }
  }
  steps_.rename(new_name);
  coverage_.moves += std::ssize(moves);
  coverage_.moves_with_states +=
      !moves.empty() && std::ranges::any_of(live_, [](const auto& s) { return s.newest.has_value(); });
}

void cache_model::reset() {
  const auto done = cache_.reset_prefix_cache();
  if (seen_.blocks.in_use + seen_.blocks.retiring != 0) {
    return expect_error(done, error_code::in_use, "reset while blocks are in use");
  }
  expect_success(done, "reset");
  expect_equal(*done, seen_.blocks.evictable, "blocks forgotten by a reset");
  expect_equal(cache_.statistics().blocks.free, config_.num_blocks, "free blocks after a reset");
  expect(cache_.announced.known.empty(), "a prefix is announced after a reset");
  cached_.clear();
  prefixes_.all.clear();
  exact_ = true;
  invalidated_ = false;
}

void cache_model::advance_time(const operation& next) {
  const auto delta = static_cast<std::int64_t>(next.a % 1000) - 200;
  const auto wanted = static_cast<timestamp>(static_cast<std::int64_t>(now_) + delta);
  cache_.advance_time(wanted);
  now_ = std::max(now_, wanted);
}

}  // namespace pagedkv::test
