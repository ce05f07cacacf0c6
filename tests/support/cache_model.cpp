#include "cache_model.hpp"

#include <algorithm>
#include <array>
#include <iterator>

namespace pagedkv::test {

// --- runs ---

cache_model::cache_model(cache_under_test& cache, const cache_kind& kind, const cache_config& config)
    : cache_(cache),
      kind_(kind),
      config_(config),
      shape_(cache, config),
      sizes_{config.block_size, shape_.longest_in(config.num_blocks, 200),
             std::max(2 * config.block_size + 2, kind.has_groups ? 16 : 0),
             std::max(config.block_size + 2, kind.has_groups ? 12 : 0)},
      prefixes_{config.block_size, shape_.has_state()},
      seen_(cache.statistics()) {
  const auto rows = static_cast<std::size_t>(config.max_sequences);
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    padded_.emplace_back(rows, max_table);
    compressed_.emplace_back(rows, max_table * rows);
  }
}

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
  refused_ = copy_failed_ = may_lose_state_ = in_batch_ = false;
  fresh_taken_ = peak_within_ = peak_at_most_ = 0;
  note_before();
  cache_.copies_fail = next.c / 4096 % 8 == 0;
  perform(next);
  cache_.copies_fail = false;
  if (refused_) {
    check_unchanged();
  }
  check();
}

void cache_model::perform(const operation& next) {
  switch (next.what) {
    case action::create: return create(next);
    case action::append_one: return append(next, false);
    case action::append_run: return append(next, true);
    case action::reserve_slots: return reserve_slots(next);
    case action::append_batch: return append_batch(next);
    case action::compute: return compute(next, next.b % 4 != 0);
    case action::write_ahead: return write_ahead(next);
    case action::fork: return fork(next);
    case action::truncate: return truncate(next);
    case action::drop_before: return kind_.has_groups ? compute(next, true) : drop_before(next);
    case action::release:
      if (!live_.empty() && next.b % 8 < 3) {
        withdraw(live_[next.a % live_.size()]);
      }
      return live_.empty() ? void() : release(next.a % live_.size(), next.b % 2 == 0);
    case action::pin: return pin(next);
    case action::unpin: return pins_.empty() ? void() : unpin(next.a % pins_.size());
    case action::unpin_all: return unpin_all();
    case action::invalidate: return invalidate(next);
    case action::find_prefix: return void(check_hit(draw_text(next), {}));
    case action::begin_step: return begin_step(next);
    case action::retire_step: return retire_step(next.a);
    case action::evict: return evict(next);
    case action::compact: return compact(next);
    case action::resize: return resize(next);
    case action::reset: return reset();
    case action::advance_time: return advance_time(next);
    case action::update_batches: return update_batches(next);
    case action::ask_wrongly: return ask_wrongly(next);
    case action::use_dead_id: return use_dead_id(next);
    case action::serve: return serve(next);
    case action::number_of_actions: return;
  }
}

void cache_model::finish() {
  while (!live_.empty()) {
    apply({action::release, 0, 0, 1});
  }
  while (!pins_.empty()) {
    apply({action::unpin, 0, 0, 1});
  }
  while (!steps_.empty()) {
    apply({action::retire_step, static_cast<std::uint32_t>(steps_.size() - 1), 0, 1});
  }
  expect_equal(seen_.blocks.in_use, 0, "blocks in use at the end");
  expect_equal(seen_.blocks.retiring, 0, "blocks retiring at the end");
}

// --- the knowledge of a caller ---

model_sequence* cache_model::pick(std::uint32_t number) {
  return live_.empty() ? nullptr : &live_[number % live_.size()];
}

named_text cache_model::draw_text(const operation& next) const {
  auto sources = std::vector<const named_text*>{};
  std::ranges::transform(past_, std::back_inserter(sources), [](const named_text& text) { return &text; });
  std::ranges::transform(live_, std::back_inserter(sources), [](const model_sequence& s) { return &s.text; });
  return draw_prompt(next, sources, sizes_);
}

std::vector<std::uint64_t> cache_model::hash(const named_text& text) {
  auto hashes = std::vector<std::uint64_t>(static_cast<std::size_t>(text.size() / shape_.granularity) + 1);
  const auto count = cache_.hash_blocks(text.run(), hashes, text.salt);
  expect_equal(static_cast<std::int64_t>(count), std::ssize(hashes) - 1, "hashes of full blocks");
  hashes.pop_back();
  return hashes;
}

std::int64_t cache_model::find(const named_text& text) const { return cache_.find_prefix(text.run(), text.salt); }

/// Also the whole text, where a look-up leaves the last token to compute.
std::int64_t cache_model::find_all(named_text text) const {
  text.add(std::array{token{0}});
  return find(text);
}

/// How much of a text is certainly found, without groups: some live sequence or pin keeps it from eviction.
std::int64_t cache_model::provably_cached(const named_text& text) const {
  auto most = std::int64_t{0};
  const auto agree = [&](const named_text& held, std::int64_t size) {
    const auto end = text.names.begin() + 1 + std::min({size, held.size(), text.size() - 1});
    const auto parted = std::mismatch(text.names.begin(), end, held.names.begin()).first;
    most = std::max(most, static_cast<std::int64_t>(parted - text.names.begin()) - 1);
  };
  if (kind_.has_groups || text.size() == 0) {
    return 0;
  }
  for (const auto& s : live_) {
    agree(s.text, s.tables[0].first == 0 ? std::min(num_published(s), s.num_valid) : 0);
  }
  for (const auto& pinned : pins_) {
    agree(pinned.longer, std::min(pinned.num_tokens, pinned.num_valid));
  }
  return most / shape_.granularity * shape_.granularity;
}

/// Tokens of a sequence that it published, or shared.
std::int64_t cache_model::num_published(const model_sequence& s) const {
  return (s.options.publish ? s.num_computed : s.num_shared) / shape_.granularity * shape_.granularity;
}

std::int64_t cache_model::available(const block_counts& counts) const {
  return counts.free + (kind_.evicts ? counts.evictable : 0);
}

std::int64_t cache_model::num_held(const model_sequence& s) const {
  auto count = std::int64_t{0};
  for (const auto& table : s.tables) {
    count += std::ranges::count_if(table.blocks, [](block_id block) { return block != no_block; });
  }
  return count;
}

/// Of the tables that a caller sees: without groups, they have entries for dropped blocks.
std::int64_t cache_model::num_entries(const model_sequence& s) const {
  return counts_blocks() ? std::ssize(s.tables[0].blocks) : num_held(s);
}

/// Whether a sequence holds this block, or one behind it.
bool cache_model::is_held_from(std::int64_t first) const {
  return std::ranges::any_of(live_, [&](const model_sequence& s) {
    return std::ranges::any_of(s.tables, [&](const model_table& table) {
      return std::ranges::any_of(table.blocks,
                                 [&](block_id block) { return static_cast<std::int64_t>(block) >= first; });
    });
  });
}

bool cache_model::held_by_any(block_id block) const {
  return std::ranges::any_of(live_, [&](const model_sequence& s) { return s.holds(block); });
}

/// Whether the last block of a sequence without groups has to be copied before slots behind the end are written.
bool cache_model::must_copy(const model_sequence& s) const {
  if (s.text.size() % config_.block_size == 0) {
    return false;
  }
  const auto block = s.tables[0].blocks[static_cast<std::size_t>(s.text.size() / config_.block_size)];
  return (s.reuses_slots && steps_.has_fence(block)) || cached_.contains(block) ||
         std::ranges::any_of(live_, [&](const model_sequence& other) { return &other != &s && other.holds(block); });
}

/// Blocks that a sequence takes at least and at most to have slots for so many tokens. With groups, each last block may
/// have to be copied.
std::pair<std::int64_t, std::int64_t> cache_model::fresh_for(const model_sequence& s, std::int64_t length) const {
  auto count = std::int64_t{0};
  auto num_partial = std::int64_t{0};
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    if (shape_.holds_tokens(g)) {
      const auto end = s.tables[g].blocks.size();
      count += static_cast<std::int64_t>(std::max(shape_.places_for(g, length), end) - end);
      num_partial += s.text.size() % shape_.block_size(g) != 0;
    }
  }
  if (counts_blocks()) {
    count += must_copy(s);
    return {count, count};
  }
  return {count, count + num_partial};
}

/// The first token that is held; without groups.
std::int64_t cache_model::start_of(const model_sequence& s) const {
  return static_cast<std::int64_t>(s.tables[0].first) * config_.block_size;
}

/// Whether every group still holds what the next token reads, and a state is of exactly the computed tokens.
bool cache_model::can_cut(const model_sequence& s, std::int64_t length) const {
  if (length > s.text.size() || counts_blocks()) {
    return length <= s.text.size() && length >= start_of(s);
  }
  auto reads = length >= s.num_computed || !shape_.has_state();
  for (std::size_t g = 0; length < s.num_computed && g < shape_.num_groups(); ++g) {
    const auto start = static_cast<std::int64_t>(s.tables[g].first) * shape_.block_size(g);
    reads = reads && (s.tables[g].num_skipped() == 0 || shape_.groups[g].first_needed(length) >= start);
  }
  return reads;
}

namespace {

[[nodiscard]] std::int64_t end_of_prompt(const model_sequence& s, std::int64_t granularity) {
  return s.options.saving.at_prompt_end ? std::max(s.num_prompt - 1, std::int64_t{0}) / granularity * granularity : 0;
}

}  // namespace

bool cache_model::saves_at(const model_sequence& s, std::int64_t length) const {
  const auto& saving = s.options.saving;
  return shape_.has_state() && s.options.publish && length > s.num_cached && length % shape_.granularity == 0 &&
         (length == end_of_prompt(s, shape_.granularity) || (saving.at_branches && s.branch && length == *s.branch) ||
          (saving.every != 0 && length % saving.every == 0));
}

bool cache_model::keeps_at(const model_sequence& s, std::int64_t length) const {
  return shape_.has_state() && s.options.publish && s.options.saving.at_end && length % shape_.granularity == 0 &&
         length >= std::max(s.num_prompt, std::int64_t{1}) && length != end_of_prompt(s, shape_.granularity) &&
         !saves_at(s, length);
}

/// The entries of a table that a batch shows: with groups, not those of released blocks.
std::vector<block_id> cache_model::shown(const model_sequence& s, std::size_t g) const {
  auto blocks = s.tables[g].blocks;
  blocks.resize(std::max(shape_.places_for(g, s.text.size()), s.tables[g].first));
  if (kind_.has_groups) {
    std::erase(blocks, no_block);
  }
  return blocks;
}

/// A block was handed out for new contents.
void cache_model::take_fresh(block_id block) {
  expect(block >= block_id{0} && block < block_id{config_.num_blocks},
         "a block was handed out that is not in the pool");
  expect(!held_by_any(block), "a block was handed out while a sequence held it");
  expect(!steps_.has_fence(block), "a block was handed out while a step in flight may touch it");
  cached_.erase(block);
  ++fresh_taken_;
}

/// Whether a tier filled a block that a new sequence has behind the device's hit: without groups, the model knows.
bool cache_model::is_from_tier(block_id block, std::uint64_t name) const {
  const auto found = cached_.find(block);
  return counts_blocks() && (found == cached_.end() || found->second.name != name || found->second.is_hidden);
}

/// A block was shared for these contents.
void cache_model::expect_hit(block_id block, std::uint64_t name) {
  const auto found = cached_.find(block);
  expect(!counts_blocks() || (found != cached_.end() && found->second.name == name),
         "a hit returned a block with other contents");
  expect(found == cached_.end() || !found->second.is_hidden, "a hit returned a block that was invalidated");
  coverage_.revivals_checked += !held_by_any(block);
}

}  // namespace pagedkv::test
