#include "cache_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace pagedkv::test {

namespace {

/// The K/V that the model's "computation" gives a token: it depends on everything before it, as a transformer's does.
/// Eighths up to 16 with four significant bits, which every element but int8 represents exactly.
[[nodiscard]] float computed_number(std::uint64_t prefix, std::int64_t layer, bool value, std::int64_t place) {
  const auto where = static_cast<std::uint64_t>(layer * 512 + place * 2 + value);
  const auto bits = (prefix ^ where * 0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93;
  return static_cast<float>((static_cast<int>(bits >> 59) - 16) * (1 << (bits >> 57 & 3))) / 8.0f;
}

/// Keys and values of a run of tokens, `[token][head][dim]` without gaps.
struct rows {
  rows(std::int64_t tokens, const cache_config& config)
      : num_tokens(tokens),
        head_dim(config.head_dim),
        width(std::int64_t{config.num_kv_heads} * config.head_dim),
        keys(static_cast<std::size_t>(tokens * width)),
        values(keys.size()) {}

  template <class Number>
  [[nodiscard]] token_rows<Number> view(std::vector<float>& numbers) const {
    return {numbers.data(),
            width,
            head_dim,
            num_tokens,
            static_cast<std::int32_t>(width / head_dim),
            static_cast<std::int32_t>(head_dim)};
  }

  std::int64_t num_tokens;
  std::int64_t head_dim;
  std::int64_t width;
  std::vector<float> keys;
  std::vector<float> values;
};

[[nodiscard]] rows compute_rows(const model_sequence& s, std::int64_t layer, std::int64_t first, std::int64_t last,
                                const cache_config& config) {
  auto made = rows{last - first, config};
  for (auto i = std::size_t{0}; i < made.keys.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i) % made.width;
    const auto prefix = s.prefixes[static_cast<std::size_t>(first + static_cast<std::int64_t>(i) / made.width)];
    made.keys[i] = computed_number(prefix, layer, false, place);
    made.values[i] = computed_number(prefix, layer, true, place);
  }
  return made;
}

/// Whether every number came back: exactly, or within half of its row's scale.
[[nodiscard]] bool came_back(const std::vector<float>& got, const std::vector<float>& wanted, bool scaled,
                             std::size_t head_dim) {
  if (!scaled) {
    return got == wanted;
  }
  for (auto row = std::size_t{0}; row < wanted.size(); row += head_dim) {
    auto largest = 0.0f;
    for (auto i = row; i < row + head_dim; ++i) {
      largest = std::max(largest, std::abs(wanted[i]));
    }
    const auto tolerance = largest / 127 / 2 * 1.0001f;
    for (auto i = row; i < row + head_dim; ++i) {
      if (!(std::abs(got[i] - wanted[i]) <= tolerance)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

void cache_model::check() {
  const auto broken = cache_.check_invariants();
  expect(broken.empty(), broken.empty() ? "" : "broken invariant: " + broken.front());
  for (const auto& s : live_) {
    check_sequence(s);
  }
  // Two sequences each time; all of them would take most of the time.
  for (auto i = 0; i < 2 && !live_.empty(); ++i) {
    check_stored(live_[num_checks_++ % live_.size()]);
  }
  const auto now = cache_.statistics();
  check_statistics(now);
  seen_ = now;
}

void cache_model::check_sequence(const model_sequence& s) {
  const auto info = cache_.describe(s.id);
  expect_success(info, "describe");
  expect_equal(info->num_tokens, s.size(), "length");
  expect_equal(info->num_computed_tokens, s.num_computed, "computed tokens");
  expect_equal(info->num_prompt_tokens, s.num_prompt, "prompt tokens");
  expect_equal(info->num_cached_tokens, s.num_cached, "cached tokens");
  expect_equal(info->num_blocks, static_cast<std::int64_t>(s.blocks.size()), "blocks");
  expect_equal(info->num_slots, std::max(s.size(), s.num_reserved), "slots");
  expect(info->created == s.created, "time of creation");
  expect(info->last_access == s.last_access, "time of last access");
  expect(info->options.salt == s.options.salt && info->options.priority == s.options.priority &&
             info->options.retention == s.options.retention,
         "options");
  expect(fetch_table(s.id) == s.blocks, "a block table changed behind its owner's back");
  if (s.num_reserved > s.size()) {
    check_slots_ahead(s);
  }
}

/// They can be asked for unless a block that others can see has the first of them.
void cache_model::check_slots_ahead(const model_sequence& s) {
  auto slots = std::vector<slot>(static_cast<std::size_t>(s.num_reserved - s.size()));
  const auto mapped = cache_.slot_mapping(s.id, s.size(), slots);
  if (must_copy(s, true)) {
    return expect(!mapped && mapped.error().code == error_code::invalid_argument, "slots ahead in a shared block");
  }
  expect_success(mapped, "slots ahead");
  for (auto i = std::size_t{0}; i < slots.size(); ++i) {
    const auto at = s.tokens.size() + i;
    expect(slots[i] == make_slot(s.blocks[at / block_size()], config_.block_size, std::int64_t(at % block_size())),
           "a slot ahead is wrong");
  }
}

/// Reads back everything that was written and is still held.
void cache_model::check_stored(const model_sequence& s) {
  auto slots = std::vector<slot>(s.tokens.size());
  expect_success(cache_.slot_mapping(s.id, 0, slots), "slot mapping");
  for (auto i = std::size_t{0}; i < slots.size(); ++i) {
    const auto block = s.blocks[i / block_size()];
    const auto wanted =
        block == no_block ? skip_slot : make_slot(block, config_.block_size, std::int64_t(i % block_size()));
    expect(slots[i] == wanted, "the slot of token " + std::to_string(i) + " is wrong");
  }
  const auto first = static_cast<std::int64_t>(s.num_dropped * block_size());
  if (s.num_written <= first) {
    return;
  }
  const auto held =
      std::span{slots}.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(s.num_written - first));
  for (auto layer = 0; layer < config_.num_layers; ++layer) {
    auto got = rows{s.num_written - first, config_};
    expect_success(cache_.read(layer, held, got.view<float>(got.keys), got.view<float>(got.values)), "read");
    const auto wanted = compute_rows(s, layer, first, s.num_written, config_);
    const auto dim = static_cast<std::size_t>(config_.head_dim);
    expect(came_back(got.keys, wanted.keys, kind_.scaled, dim), "keys came back different");
    expect(came_back(got.values, wanted.values, kind_.scaled, dim), "values came back different");
  }
}

void cache_model::write(const model_sequence& s, std::int64_t first, std::int64_t last) {
  if (last <= first) {
    return;
  }
  auto slots = std::vector<slot>(static_cast<std::size_t>(last - first));
  expect_success(cache_.slot_mapping(s.id, first, slots), "slot mapping");
  for (auto layer = 0; layer < config_.num_layers; ++layer) {
    auto made = compute_rows(s, layer, first, last, config_);
    expect_success(cache_.write(layer, slots, made.view<const float>(made.keys), made.view<const float>(made.values)),
                   "write");
  }
}

void cache_model::check_statistics(const cache_statistics& now) {
  auto held = std::set<block_id>{};
  auto num_tokens = std::int64_t{0};
  auto unfilled = std::int64_t{0};
  auto pinned = std::int64_t{0};
  for (const auto& s : live_) {
    held.insert(s.blocks.begin(), s.blocks.end());
    num_tokens += s.size();
    unfilled += static_cast<std::int64_t>(s.blocks.size()) * config_.block_size - s.size();
  }
  held.erase(no_block);
  for (const auto& p : pins_) {
    pinned += static_cast<std::int64_t>(p.prefixes.size()) / config_.block_size;
  }
  const auto distinct = static_cast<std::int64_t>(held.size());
  const auto& blocks = now.blocks;
  expect_equal(blocks.free + blocks.in_use + blocks.evictable + blocks.retiring, config_.num_blocks, "blocks in all");
  expect(blocks.in_use >= distinct && blocks.in_use <= distinct + pinned,
         std::to_string(blocks.in_use) + " blocks are in use where sequences hold " + std::to_string(distinct));
  expect(!in_flight_.empty() || blocks.retiring == 0, "blocks are retiring with no step in flight");
  const auto num_waiting =
      std::ranges::count_if(fences_, [&](const auto& fence) { return !held.contains(fence.first); });
  expect(unpinned_in_flight_ || blocks.retiring <= num_waiting, "blocks are retiring that no open step may touch");
  expect(blocks.retiring >= num_waiting - pinned, "blocks are not retiring though an open step may touch them");
  if (live_.size() >= 2) {
    check_common_prefix(live_[num_checks_ % live_.size()], live_[(num_checks_ + 1) % live_.size()]);
  }
  expect_equal(cache_.num_free_blocks(), blocks.free, "free blocks");
  expect_equal(cache_.num_available_blocks(), available(blocks), "available blocks");
  if (refused_) {
    expect(blocks == seen_.blocks, "an operation that failed changed the states of blocks");
  }
  expected_.evictions += std::max(std::int64_t{0}, fresh_taken_ - seen_.blocks.free);
  if (kind_.evicts_more && fresh_taken_ > 0) {
    expected_.evictions = std::max(expected_.evictions, now.evictions);
  }
  if (may_free_within_) {  // a copy frees a block that was invalidated, which a later entry of the batch may take
    const auto least = expected_.evictions - (now.copies - seen_.copies);
    expected_.evictions = std::clamp(now.evictions, least, expected_.evictions);
  }
  expected_.peak_in_use = std::max({expected_.peak_in_use, blocks.in_use, peak_within_});
  if (peak_at_most_ != 0 && now.peak_in_use <= std::max(expected_.peak_in_use, peak_at_most_)) {
    expected_.peak_in_use = std::max(expected_.peak_in_use, now.peak_in_use);
  }
  expect_equal(now.num_sequences, static_cast<std::int64_t>(live_.size()), "sequences");
  expect_equal(now.num_pins, static_cast<std::int64_t>(pins_.size()), "pins");
  expect_equal(now.num_tokens, num_tokens, "tokens of all sequences");
  expect_equal(now.unfilled_slots, unfilled, "unfilled slots");
  expect_equal(now.peak_in_use, expected_.peak_in_use, "peak of blocks in use");
  expect_equal(now.prompts, expected_.prompts, "prompts");
  expect_equal(now.prompt_blocks, expected_.prompt_blocks, "prompt blocks");
  expect_equal(now.hit_blocks, expected_.hit_blocks, "hit blocks");
  expect_equal(now.hit_tokens, expected_.hit_tokens, "hit tokens");
  expect_equal(now.evictions, expected_.evictions, "evictions");
  expect_equal(now.invalidations, expected_.invalidations, "invalidated blocks");
  expect_equal(now.copies, expected_.copies, "copies on write");
  expect_equal(now.refusals, expected_.refusals, "refusals");
}

void cache_model::check_common_prefix(const model_sequence& a, const model_sequence& b) {
  const auto common = cache_.common_prefix(std::array{a.id, b.id});
  expect_success(common, "common prefix");
  const auto full = static_cast<std::size_t>(std::min(a.size(), b.size()) / config_.block_size);
  auto wanted = std::size_t{0};
  while (wanted < full && a.blocks[wanted] == b.blocks[wanted] && a.blocks[wanted] != no_block) {
    ++wanted;
  }
  expect_equal(*common, static_cast<std::int64_t>(wanted), "common prefix");
}

void cache_model::check_batches(std::span<const model_sequence* const> wanted) {
  expect_equal(static_cast<std::int64_t>(padded_.num_rows()), std::ssize(wanted), "rows of the padded batch");
  expect_equal(static_cast<std::int64_t>(compressed_.num_rows()), std::ssize(wanted), "rows of the compressed batch");
  auto start = std::int32_t{0};
  for (auto i = std::size_t{0}; i < wanted.size(); ++i) {
    auto blocks = wanted[i]->blocks;
    blocks.resize(static_cast<std::size_t>(blocks_for(wanted[i]->size())));
    auto padded = blocks;
    padded.resize(padded_.row_stride(), no_block);
    const auto row = padded_.block_tables().subspan(i * padded_.row_stride(), padded_.row_stride());
    expect(std::ranges::equal(row, padded), "a row of the padded batch is wrong");
    expect_equal(padded_.lengths()[i], wanted[i]->size(), "a length in the padded batch");
    expect_equal(compressed_.indptr()[i], start, "the start of a row of the compressed batch");
    const auto compressed = compressed_.indices().subspan(static_cast<std::size_t>(start), blocks.size());
    expect(std::ranges::equal(compressed, blocks), "a row of the compressed batch is wrong");
    const auto last = wanted[i]->size() == 0 ? 0 : (wanted[i]->size() - 1) % config_.block_size + 1;
    expect_equal(compressed_.last_block_len()[i], last, "the length of the last block in the compressed batch");
    start += static_cast<std::int32_t>(blocks.size());
  }
  expect_equal(compressed_.indptr()[wanted.size()], start, "the end of the compressed batch");
}

std::vector<block_id> cache_model::fetch_table(sequence_id id) {
  auto blocks = std::vector<block_id>(max_table);
  const auto size = cache_.block_table(id, blocks);
  expect_success(size, "block table");
  blocks.resize(*size);
  return blocks;
}

}  // namespace pagedkv::test
