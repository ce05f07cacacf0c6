#include "cache_model.hpp"
#include "model_rows.hpp"

#include <pagedkv/sequence/block_table.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

// K/V and states, and the checks after every operation.

namespace pagedkv::test {

// --- bytes ---

std::vector<block_id> cache_model::fetch_shown(const model_sequence& s, std::size_t g) const {
  auto blocks = std::vector<block_id>(max_table);
  const auto size = cache_.block_table(s.id, blocks, g);
  expect_success(size, "block table");
  blocks.resize(*size);
  return blocks;
}

/// By place.
std::vector<block_id> cache_model::fetch_table(const model_sequence& s, std::size_t g) const {
  auto blocks = fetch_shown(s, g);
  if (const auto& table = s.tables[g]; kind_.has_groups && table.num_skipped() != 0) {
    expect(blocks.size() >= table.num_sinks, "a table without sinks");
    blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(table.num_sinks), table.num_skipped(), no_block);
  }
  return blocks;
}

std::vector<slot> cache_model::fetch_slots(const model_sequence& s, std::size_t g, std::int64_t first,
                                           std::int64_t last) const {
  auto slots = std::vector<slot>(static_cast<std::size_t>(last - first));
  expect_success(cache_.slot_mapping(s.id, first, slots, g), "slot mapping");
  return slots;
}

slot cache_model::slot_of(const model_sequence& s, std::size_t g, std::int64_t token) const {
  const auto size = static_cast<std::int32_t>(shape_.block_size(g));
  const auto block = s.tables[g].blocks.at(static_cast<std::size_t>(token / size));
  return block == no_block ? skip_slot : make_slot(block, size, token % size);
}

/// The tokens before this one that are not yet written.
void cache_model::write(model_sequence& s, std::int64_t last) {
  for (std::size_t g = 0; last > s.num_written && g < shape_.num_groups(); ++g) {
    if (shape_.holds_tokens(g)) {
      write_group(s, g, last);
    }
  }
  s.num_written = std::max(s.num_written, last);
}

void cache_model::write_group(const model_sequence& s, std::size_t g, std::int64_t last) {
  const auto slots = fetch_slots(s, g, s.num_written, last);
  const auto size = shape_.block_size(g);
  auto names = std::vector<std::uint64_t>{};
  for (auto token = s.num_written; token < last; ++token) {
    const auto block = s.tables[g].blocks.at(static_cast<std::size_t>(token / size));
    names.push_back(s.text.name(token + 1));
    expect(slots[names.size() - 1] == slot_of(s, g, token) && block != no_block, "a token to compute has no slot");
    expect(steps_.allow({s.id, g, block, size, token % size, names.back()}), "a slot was written that a step uses");
  }
  for (auto layer = 0; layer < shape_.groups[g].num_layers; ++layer) {
    auto keys = model_rows{shape_.groups[g], false, names, g, layer, kind_.wide};
    auto values = model_rows{shape_.groups[g], true, names, g, layer, kind_.wide};
    expect_success(cache_.write(layer, slots, keys.view<const float>(), values.view<const float>(), g), "write");
  }
}

/// The parts of a sequence's state.
std::vector<std::span<std::byte>> cache_model::state_of(const model_sequence& s) const {
  auto parts = std::vector<std::span<std::byte>>{};
  const auto g = shape_.with_state;
  for (auto part = 0; shape_.has_state() && part < shape_.groups[g].num_layers * shape_.groups[g].num_kv_heads;
       ++part) {
    const auto per_block = shape_.plans[g].parts_per_block;
    const auto block = s.tables[g].blocks.at(static_cast<std::size_t>(part / per_block));
    expect(steps_.allow({s.id, g, block, 0, 0, 0}), "another sequence's step uses a state");
    parts.emplace_back(cache_.state_part(g, block, part % per_block), shape_.groups[g].state_bytes);
  }
  return parts;
}

/// That behind so many tokens.
void cache_model::write_state(const model_sequence& s, std::int64_t length) {
  const auto parts = state_of(s);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::memset(parts[i].data(), computed_state_byte(s.text.name(length), static_cast<std::int32_t>(i)),
                parts[i].size());
  }
}

void cache_model::check_state(const model_sequence& s) const {
  const auto parts = state_of(s);
  for (std::size_t i = 0; s.num_computed != 0 && i < parts.size(); ++i) {
    const auto wanted = std::byte{computed_state_byte(s.text.name(s.num_computed), static_cast<std::int32_t>(i))};
    expect(std::ranges::all_of(parts[i], [&](std::byte each) { return each == wanted; }),
           "a state has other bytes than were written");
  }
}

/// Reads back the K/V that is held: with groups of one layer, another each time.
void cache_model::check_stored(const model_sequence& s, std::size_t g) {
  const auto slots = fetch_slots(s, g, 0, s.text.size());
  auto held = std::vector<slot>{};
  auto names = std::vector<std::uint64_t>{};
  for (auto token = std::int64_t{0}; token < s.text.size(); ++token) {
    const auto at = slots[static_cast<std::size_t>(token)];
    expect(at == slot_of(s, g, token), "a slot is not that of the table");
    if (at != skip_slot && token < s.num_written) {
      held.push_back(at);
      names.push_back(s.text.name(token + 1));
    }
  }
  const auto num_layers = shape_.groups[g].num_layers;
  const auto step = kind_.has_groups ? num_layers : 1;
  for (auto layer = static_cast<std::int32_t>(num_checks_ % static_cast<std::size_t>(step));
       layer < num_layers && !held.empty(); layer += step) {
    auto keys = model_rows{shape_.groups[g], false, names.size()};
    auto values = model_rows{shape_.groups[g], true, names.size()};
    expect_success(cache_.read(layer, held, keys.view<float>(), values.view<float>(), g), "read");
    const auto is_right = [&](const model_rows& got, bool of_values) {
      return got.equal({shape_.groups[g], of_values, names, g, layer, kind_.wide}, kind_.scaled);
    };
    expect(is_right(keys, false), "keys came back different");
    expect(is_right(values, true), "values came back different");
  }
}

// --- checks ---

void cache_model::note_before() {
  before_.statistics = cache_.statistics();
  before_.hits.clear();
  const auto count = std::min(live_.size(), kind_.has_groups ? std::size_t{3} : std::size_t{1});
  for (std::size_t i = 0; i < count; ++i) {
    before_.hits.push_back(find(live_[i].text));
  }
}

/// The latest operation was refused.
void cache_model::check_unchanged() const {
  const auto now = cache_.statistics();
  const auto& was = before_.statistics;
  const auto num_lost = was.blocks.in_use - now.blocks.in_use;
  expect(num_lost == 0 || (may_lose_state_ && num_lost == shape_.blocks_of_state()),
         "a refused operation took or lost blocks");
  expect_equal(now.blocks.retiring, was.blocks.retiring, "retiring blocks after a refused operation");
  if (copy_failed_) {
    return;  // blocks may have been evicted for the copy
  }
  expect(now.blocks == was.blocks, "an operation that was refused changed the states of blocks");
  expect_equal(now.evictions, was.evictions, "evictions after a refused operation");
  for (std::size_t i = 0; i < before_.hits.size(); ++i) {
    expect_equal(find(live_[i].text), before_.hits[i], "hit after a refused operation");
  }
}

void cache_model::check() {
  ++num_checks_;
  const auto broken = cache_.check_invariants();
  if (!broken.empty()) {
    throw mismatch{"broken invariant: " + broken.front()};
  }
  check_events();
  for (const auto& s : live_) {
    check_sequence(s);
  }
  // Without groups two sequences each time; all of them would take most of the time.
  const auto count = kind_.has_groups ? live_.size() : std::min(live_.size(), std::size_t{2});
  for (std::size_t i = 0; i < count; ++i) {
    const auto& s = live_[(2 * num_checks_ + i) % live_.size()];
    for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
      shape_.holds_tokens(g) ? check_stored(s, g) : check_state(s);
    }
  }
  if (live_.size() >= 2) {
    check_common_prefix(live_[num_checks_ % live_.size()], live_[(num_checks_ + 1) % live_.size()]);
  }
  check_pins();
  const auto now = cache_.statistics();
  check_blocks(now);
  check_statistics(now);
  if (kind_.has_groups) {  // the model does not see every block that is handed out
    std::erase_if(cached_, [&](const auto& entry) { return !held_by_any(entry.first); });
  }
  exact_ = exact_ && now.evictions == seen_.evictions;
  seen_ = now;
}

void cache_model::check_events() const {
  const auto& [known, num_unknown, num_twice, num_orphans] = cache_.announced;
  expect(num_unknown == 0, "an event told of the eviction of what was not stored");
  expect(num_twice == 0 || counts_blocks(), "an event told of a prefix twice");
  // Without groups, blocks behind one that was dropped or invalidated are published, too.
  expect(num_orphans == 0 || counts_blocks(), "an event told of a prefix without the one before it");
}

void cache_model::check_sequence(const model_sequence& s) {
  const auto info = cache_.describe(s.id);
  expect_success(info, "describe");
  expect_equal(info->num_tokens, s.text.size(), "length");
  expect_equal(info->num_computed_tokens, s.num_computed, "computed tokens");
  expect_equal(info->num_prompt_tokens, s.num_prompt, "prompt tokens");
  expect_equal(info->num_cached_tokens, s.num_cached, "cached tokens");
  expect_equal(info->num_blocks, num_entries(s), "blocks");
  expect_equal(info->num_slots, s.num_slots(), "slots");
  expect(info->created == s.created, "time of creation");
  expect(info->last_access == s.last_access, "time of last access");
  expect(info->options.salt == s.options.salt && info->options.priority == s.options.priority &&
             info->options.retention == s.options.retention,
         "options");
  const auto first = counts_blocks() ? start_of(s) : 0;
  auto copied = std::vector<token>(static_cast<std::size_t>(s.text.size() - first));
  expect_success(cache_.tokens(s.id, first, copied), "tokens");
  expect(std::equal(copied.begin(), copied.end(), s.text.tokens.begin() + static_cast<std::ptrdiff_t>(first)),
         "tokens are not those of the sequence");
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    check_table(s, g);
  }
}

void cache_model::check_table(const model_sequence& s, std::size_t g) {
  const auto& table = s.tables[g];
  expect(fetch_table(s, g) == table.blocks, "a block table changed behind its owner's back");
  if (!shape_.holds_tokens(g)) {
    return;
  }
  const auto wanted = std::max(shape_.places_for(g, s.num_slots()), table.first);
  expect_equal(std::ssize(table.blocks), static_cast<std::int64_t>(wanted), "places of a table");
  if (kind_.has_groups) {
    const auto skipped = static_cast<std::int64_t>(table.num_skipped()) * shape_.block_size(g);
    expect_equal(cache_.num_skipped_tokens(s.id, g).value(), skipped, "skipped tokens");
  }
  if (s.num_reserved > s.text.size()) {
    check_slots_ahead(s, g);
  }
}

/// They can be asked for unless a block that others can see has the first of them.
void cache_model::check_slots_ahead(const model_sequence& s, std::size_t g) {
  auto slots = std::vector<slot>(static_cast<std::size_t>(s.num_reserved - s.text.size()));
  const auto mapped = cache_.slot_mapping(s.id, s.text.size(), slots, g);
  const bool may_refuse = counts_blocks() ? must_copy(s) : s.text.size() % shape_.block_size(g) != 0;
  if (!mapped || (counts_blocks() && may_refuse)) {
    return expect(may_refuse && !mapped && mapped.error().code == error_code::invalid_argument,
                  "slots ahead in a shared block");
  }
  for (auto token = s.text.size(); token < s.num_reserved; ++token) {
    expect(slots[static_cast<std::size_t>(token - s.text.size())] == slot_of(s, g, token), "a slot ahead is wrong");
  }
}

void cache_model::check_next_saved(const model_sequence& s) {
  constexpr auto horizon = 200;
  const auto told = cache_.next_saved_length(s.id).value();
  if (!s.branch && shape_.has_state()) {
    return;
  }
  for (auto length = s.num_computed + 1; shape_.has_state() && length < s.num_computed + horizon; ++length) {
    if (saves_at(s, length) || keeps_at(s, length)) {
      return expect_equal(told, length, "next length whose commit saves the state");
    }
  }
  expect(told >= s.num_computed + horizon, "a state is to be saved at a length that nobody chose");
}

/// A hit is at most what was committed and saved, all of it where nothing was evicted, and events have told of it.
/// `run`, unless it is empty, is the text with hashes.
std::int64_t cache_model::check_hit(const named_text& text, const token_run& run) {
  const auto found = run.tokens.empty() ? find(text) : cache_.find_prefix(run, text.salt);
  const auto known = prefixes_.longest(text, std::max(text.size(), std::int64_t{1}) - 1);
  expect(found >= 0 && found % shape_.granularity == 0, "a prefix that is not a number of blocks was found");
  expect(found <= known, "a prefix was found that nobody committed or saved");
  expect(!exact_ || found == known, "a prefix was lost though nothing was evicted");
  expect(found >= provably_cached(text), "a prefix that a sequence in use holds was not found");
  if (kind_.announces) {
    const auto hashes = hash(text);
    for (std::int64_t i = 0; i < found / shape_.granularity; ++i) {
      expect(cache_.announced.known.contains(hashes.at(static_cast<std::size_t>(i))), "no event told of a hit");
    }
  }
  return found;
}

void cache_model::check_pins() const {
  for (const auto& pinned : pins_) {
    expect(find(pinned.longer) >= std::min(pinned.num_tokens, pinned.num_valid), "a pinned prefix was lost");
  }
}

void cache_model::check_common_prefix(const model_sequence& a, const model_sequence& b) {
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    const auto common = cache_.common_prefix(std::array{a.id, b.id}, g);
    if (!shape_.holds_tokens(g)) {
      expect(!common && common.error().code == error_code::invalid_argument, "a common prefix of states");
      continue;
    }
    expect_success(common, "common prefix");
    const auto& [of_a, of_b] = std::tie(a.tables[g], b.tables[g]);
    const auto full = std::min(a.text.size(), b.text.size()) / shape_.block_size(g);
    auto wanted = std::int64_t{0};
    for (auto i = std::size_t{0}; wanted < full && of_a.blocks[i] == of_b.blocks[i] && of_a.first + of_b.first == 0;
         ++i) {
      ++wanted;
    }
    expect_equal(*common, wanted, "common prefix");
  }
}

void cache_model::check_blocks(const cache_statistics& now) {
  auto groups_of = std::map<block_id, std::size_t>{};
  auto num_newest = std::int64_t{0};
  auto num_pinned = std::int64_t{0};
  for (const auto& s : live_) {
    num_newest += s.newest.has_value();
    for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
      for (const auto block : s.tables[g].blocks) {
        if (block != no_block) {
          const auto [found, is_new] = groups_of.emplace(block, g);
          expect(found->second == g, "two groups hold the same block");
          expect(is_new || shape_.holds_tokens(g), "two sequences have the same state");
        }
      }
    }
  }
  for (const auto& pinned : pins_) {
    num_pinned += pinned.num_tokens / shape_.granularity;
  }
  const auto& blocks = now.blocks;
  const auto distinct = std::ssize(groups_of);
  const auto least = distinct + num_newest * shape_.blocks_of_state();
  // Without a hit's length to compare with, the model does not know which states were kept.
  const bool is_known = pins_.empty() && (exact_ || num_newest == 0);
  expect_equal(blocks.in_use, is_known ? least : std::max(blocks.in_use, distinct), "blocks in use");
  expect(!counts_blocks() || blocks.in_use <= distinct + num_pinned, "blocks are in use that nothing holds");
  expect_equal(blocks.free + blocks.in_use + blocks.evictable + blocks.retiring, config_.num_blocks, "blocks in all");
  expect_equal(cache_.num_blocks(), config_.num_blocks, "blocks of the pool");
  expect_equal(cache_.num_free_blocks(), blocks.free, "free blocks");
  expect_equal(cache_.num_available_blocks(), available(blocks), "available blocks");
  expect(!steps_.empty() || blocks.retiring == 0, "blocks are retiring with no step in flight");
  if (counts_blocks()) {
    const auto num_waiting = steps_.num_fences_unless([&](block_id block) { return groups_of.contains(block); });
    expect(unpinned_in_flight_ || blocks.retiring <= num_waiting, "blocks are retiring that no open step may touch");
    expect(blocks.retiring >= num_waiting - num_pinned, "blocks are not retiring though an open step may touch them");
  }
}

void cache_model::check_statistics(const cache_statistics& now) {
  auto num_tokens = std::int64_t{0};
  auto unfilled = std::int64_t{0};
  for (const auto& s : live_) {
    num_tokens += s.text.size();
    for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
      const auto room = std::ssize(s.tables[g].blocks) * shape_.block_size(g);
      unfilled += std::max(room - s.text.size(), std::int64_t{0});
    }
  }
  count_evictions(now);
  count_peak(now);
  expect_equal(now.num_sequences, std::ssize(live_), "sequences");
  expect_equal(now.num_pins, std::ssize(pins_), "pins");
  expect_equal(now.num_tokens, num_tokens, "tokens of all sequences");
  expect_equal(now.unfilled_slots, unfilled, "unfilled slots");
  expect_equal(now.prompts, expected_.prompts, "prompts");
  expect_equal(now.prompt_blocks, expected_.prompt_blocks, "prompt blocks");
  expect_equal(now.hit_blocks, expected_.hit_blocks, "hit blocks");
  expect_equal(now.hit_tokens, expected_.hit_tokens, "hit tokens");
  expect_equal(now.invalidations, expected_.invalidations, "invalidated blocks");
  expect_equal(now.copies, expected_.copies, "copies on write");
  // A creation may be refused the longer chunk that a tier's hit allows.
  expected_.refusals = kind_.has_tiers ? std::max(expected_.refusals, now.refusals) : expected_.refusals;
  expect_equal(now.refusals, expected_.refusals, "refusals");
}

void cache_model::count_evictions(const cache_statistics& now) {
  expect(now.evictions >= seen_.evictions && (kind_.evicts || now.evictions == 0), "evictions");
  expected_.evictions += std::max(std::int64_t{0}, fresh_taken_ - seen_.blocks.free);
  if (copy_failed_ || (kind_.evicts_more && fresh_taken_ > 0)) {
    expected_.evictions = std::max(expected_.evictions, now.evictions);
  }
  // A creation may be refused the longer chunk that a tier's hit allows, behind an eviction for it.
  expected_.evictions = kind_.has_groups || kind_.has_tiers ? now.evictions : expected_.evictions;
  if (in_batch_ && invalidated_) {  // a copy frees a block that was invalidated, which a later entry may take
    const auto least = expected_.evictions - (now.copies - seen_.copies);
    expected_.evictions = std::clamp(now.evictions, least, expected_.evictions);
  }
  expect_equal(now.evictions, expected_.evictions, "evictions");
}

void cache_model::count_peak(const cache_statistics& now) {
  expect(now.peak_in_use >= std::max(now.blocks.in_use, seen_.peak_in_use), "the most blocks in use");
  expected_.peak_in_use = std::max({expected_.peak_in_use, now.blocks.in_use, peak_within_});
  const auto most = copy_failed_ ? std::int64_t{config_.capacity()} : peak_at_most_;
  if (kind_.has_groups || kind_.has_tiers || (most != 0 && now.peak_in_use <= std::max(expected_.peak_in_use, most))) {
    expected_.peak_in_use = std::max(expected_.peak_in_use, now.peak_in_use);
  }
  expect_equal(now.peak_in_use, expected_.peak_in_use, "peak of blocks in use");
}

}  // namespace pagedkv::test
