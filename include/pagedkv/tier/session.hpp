#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/sequence/sequence.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/file_descriptor.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/sealed_header.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// The blocks of one group that a session has: leading places of the sequence, then those from a later one on. Of a
/// state: its blocks, and, if `num_leading` counts these, behind them those of the state saved at `first_place` tokens.
struct session_table {
  std::int64_t num_entries = 0;
  std::int64_t num_leading = 0;
  std::int64_t first_place = 0;

  [[nodiscard]] std::int64_t place_of(std::int64_t entry) const noexcept {
    return entry < num_leading ? entry : first_place + entry - num_leading;
  }
};

using session_tables = std::array<session_table, group_list::max_size>;

/// The beginning of a session's file, before its blocks, which follow table by table.
struct session_head {
  std::vector<token> tokens;
  std::vector<prefix_key> keys;
  sequence_options options;  // those that matter after creation
  std::int64_t num_computed_tokens = 0;
  session_tables tables;  // the first one, in a cache without groups

  [[nodiscard]] std::int64_t num_tokens() const noexcept { return std::ssize(tokens); }
  [[nodiscard]] std::int64_t num_records() const noexcept {
    auto sum = std::int64_t{0};
    for (const auto& table : tables) {
      sum += table.num_entries;
    }
    return sum;
  }
};

struct session_numbers {
  static constexpr auto kind = 's';
  static constexpr auto num_parts = std::size_t{4};  // the format's text, keys, tokens, blocks if it is an offer

  struct range {
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::int64_t priority = 0;
    std::int64_t duration = 0;
  };

  std::int64_t num_computed_tokens = 0;
  std::uint64_t salt = 0;
  std::int64_t priority = 0;
  std::int64_t retention = 0;
  std::int64_t expected_return = 0;
  std::int64_t expected_tokens = 0;
  std::int64_t publish = 0;
  std::int64_t num_prompt_tokens = 0;
  std::int64_t has_answer = 0;
  range answer;
  std::array<range, 4> ranges;
  std::int64_t saves_at_branches = 0;
  std::int64_t saves_at_prompt_end = 0;
  std::int64_t saves_every = 0;
  std::int64_t saves_at_end = 0;
  session_tables tables;
};

[[nodiscard]] inline session_numbers::range numbers_of(const block_retention& retention) noexcept {
  return {0, 0, retention.priority, retention.duration};
}
[[nodiscard]] inline block_retention retention_of(const session_numbers::range& numbers) noexcept {
  return {static_cast<std::uint8_t>(numbers.priority), numbers.duration};
}

[[nodiscard]] inline session_numbers numbers_of(const session_head& head) noexcept {
  const auto& options = head.options;
  auto numbers = session_numbers{};
  numbers.num_computed_tokens = head.num_computed_tokens;
  numbers.salt = static_cast<std::uint64_t>(options.salt);
  numbers.priority = options.priority;
  numbers.retention = options.retention;
  numbers.expected_return = options.expected_return;
  numbers.expected_tokens = options.expected_tokens;
  numbers.publish = options.publish ? 1 : 0;
  numbers.num_prompt_tokens = options.num_prompt_tokens;
  numbers.has_answer = options.answer ? 1 : 0;
  numbers.answer = numbers_of(options.answer.value_or(block_retention{}));
  for (std::size_t i = 0; i < options.ranges.size(); ++i) {
    numbers.ranges[i] = numbers_of(options.ranges[i].retention);
    numbers.ranges[i].first = options.ranges[i].first;
    numbers.ranges[i].last = options.ranges[i].last;
  }
  numbers.saves_at_branches = options.saving.at_branches ? 1 : 0;
  numbers.saves_at_prompt_end = options.saving.at_prompt_end ? 1 : 0;
  numbers.saves_every = options.saving.every;
  numbers.saves_at_end = options.saving.at_end ? 1 : 0;
  numbers.tables = head.tables;
  return numbers;
}

[[nodiscard]] inline sequence_options options_of(const session_numbers& numbers) noexcept {
  auto options = sequence_options{};
  options.salt = static_cast<salt>(numbers.salt);
  options.priority = static_cast<std::uint8_t>(numbers.priority);
  options.retention = numbers.retention;
  options.expected_return = numbers.expected_return;
  options.expected_tokens = numbers.expected_tokens;
  options.publish = numbers.publish != 0;
  options.num_prompt_tokens = numbers.num_prompt_tokens;
  if (numbers.has_answer != 0) {
    options.answer = retention_of(numbers.answer);
  }
  for (std::size_t i = 0; i < options.ranges.size(); ++i) {
    options.ranges[i] = {numbers.ranges[i].first, numbers.ranges[i].last, retention_of(numbers.ranges[i])};
  }
  options.saving = {numbers.saves_at_branches != 0, numbers.saves_at_prompt_end != 0, numbers.saves_every,
                    numbers.saves_at_end != 0};
  return options;
}

/// A head with the format that it names and, in an offer, the blocks that hold the K/V.
struct session_reading {
  session_head head;
  std::string format;
  std::vector<block_id> blocks;
  std::uint64_t checksum = 0;
  std::int64_t size = 0;  // of the head's bytes
};

/// May throw `std::bad_alloc`.
[[nodiscard]] inline std::vector<std::byte> encode_head(const session_head& head, std::string_view format,
                                                        std::span<const block_id> blocks = {}) {
  using header = sealed_header<session_numbers>;
  const auto parts = header::parts_type{std::as_bytes(std::span{format}), std::as_bytes(std::span{head.keys}),
                                        std::as_bytes(std::span{head.tokens}), std::as_bytes(blocks)};
  const auto size = (header::least_size(parts) + record_alignment - 1) / record_alignment * record_alignment;
  auto bytes = std::vector<std::byte>(size);
  [[maybe_unused]] const auto fits = header::seal(numbers_of(head), parts, bytes);
  assert(fits && "it has this size");
  return bytes;
}

/// Whether the numbers of a head go together, so that sums and places of its records are right. A head that is whole
/// may be of another program.
[[nodiscard]] inline bool is_consistent(const session_head& head) noexcept {
  constexpr auto limit = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  const auto is_place = [](std::int64_t number) { return number >= 0 && number <= limit; };
  return head.num_computed_tokens >= 0 && head.num_computed_tokens <= head.num_tokens() &&
         std::ranges::all_of(head.tables, [&](const session_table& table) {
           return is_place(table.num_entries) && is_place(table.num_leading) && is_place(table.first_place) &&
                  table.num_leading <= table.num_entries;
         });
}

/// None for bytes that are damaged. May throw `std::bad_alloc`.
[[nodiscard]] inline std::optional<session_reading> decode_head(std::span<const std::byte> bytes) {
  const auto header = sealed_header<session_numbers>::open(bytes);
  if (!header || header->first.size != bytes.size()) {
    return std::nullopt;
  }
  const auto& numbers = header->first.numbers;
  const auto& [text, keys, tokens, blocks] = header->parts;
  auto reading = session_reading{};
  copy_part(text, reading.format);
  copy_part(keys, reading.head.keys);
  copy_part(tokens, reading.head.tokens);
  copy_part(blocks, reading.blocks);
  reading.head.options = options_of(numbers);
  reading.head.num_computed_tokens = numbers.num_computed_tokens;
  reading.head.tables = numbers.tables;
  reading.checksum = header->first.checksum;
  reading.size = std::ssize(bytes);
  return is_consistent(reading.head) ? std::optional{std::move(reading)} : std::nullopt;
}

/// Errors: `invalid_argument` for a file that is damaged; those of the system. May throw `std::bad_alloc`.
[[nodiscard]] inline result<session_reading> read_head(const file_descriptor& file, std::int64_t file_size) {
  const auto damaged = error{error_code::invalid_argument, "bytes of a session's file, which is damaged,", file_size};
  auto bytes = std::vector<std::byte>(sizeof(sealed_header<session_numbers>::fields));
  auto filled = read_at(file, 0, bytes);
  if (!filled) {
    return filled.error();
  }
  const auto fields = sealed_header<session_numbers>::fields_in(std::span{bytes}.first(*filled));
  if (!fields || fields->size > static_cast<std::uint64_t>(file_size)) {
    return damaged;
  }
  bytes.resize(static_cast<std::size_t>(fields->size));
  filled = read_at(file, 0, bytes);
  if (!filled) {
    return filled.error();
  }
  auto reading = decode_head(std::span{bytes}.first(*filled));
  if (!reading) {
    return damaged;
  }
  return std::move(*reading);
}

// How a session sees a sequence of each kind of cache: as tables of blocks. All may throw `std::bad_alloc`.

template <class Cache>
inline constexpr bool has_groups = Cache::layers_differ;

/// Whether creation may begin loads.
template <class Cache>
inline constexpr bool has_tiers = requires(Cache& cache, sequence_id id) { cache.settle(id); };

/// A sequence's tables, and the ids in them, table after table.
struct held_blocks {
  session_tables tables;
  std::vector<block_id> ids;
};

/// Without blocks reserved ahead.
template <class Cache>
[[nodiscard]] result<held_blocks> blocks_of(const Cache& cache, sequence_id id) {
  const auto info = cache.describe(id);
  if (!info) {
    return info.error();
  }
  auto held = held_blocks{};
  const auto num_places = [&](std::int64_t size) { return (info->num_tokens + size - 1) / size; };
  auto ids = std::vector<block_id>(static_cast<std::size_t>(info->num_blocks));
  if constexpr (!has_groups<Cache>) {
    if (const auto copied = cache.block_table(id, ids); !copied) {
      return copied.error();
    }
    ids.resize(static_cast<std::size_t>(num_places(cache.config().block_size)));
    const auto first = std::ranges::find_if(ids, [](block_id block) { return block != no_block; });
    held.tables[0] = {ids.end() - first, 0, first - ids.begin()};
    held.ids.assign(first, ids.end());
  } else {
    for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
      const auto copied = cache.block_table(id, ids, 0, g);
      if (!copied) {
        return copied.error();
      }
      auto& table = held.tables[g];
      table.num_entries = static_cast<std::int64_t>(*copied);
      if (const auto& group = cache.config().groups[g]; group.holds_tokens()) {
        const auto size = std::int64_t{cache.plan().groups[g].block_size};
        const auto skipped = cache.num_skipped_tokens(id, g);
        if (!skipped) {
          return skipped.error();
        }
        table.num_leading = *skipped > 0 ? (group.num_sinks + size - 1) / size : 0;
        table.first_place = table.num_leading + *skipped / size;
        table.num_entries = std::min(table.num_entries, num_places(size) - *skipped / size);
      }
      held.ids.insert(held.ids.end(), ids.begin(), ids.begin() + table.num_entries);
    }
  }
  return held;
}

/// The length of the longest hit of a prompt of so many tokens, whose last one is left to compute.
template <class Cache>
[[nodiscard]] std::int64_t longest_hit_of_length(const Cache& cache, std::int64_t num_tokens) noexcept {
  return std::max(num_tokens - 1, std::int64_t{0}) / cache.plan().hit_granularity * cache.plan().hit_granularity;
}

/// The first place of a group, leading ones that stay aside, that a hit of so many tokens needs.
template <class Cache>
[[nodiscard]] std::int64_t first_place_of_hit(const Cache& cache, std::size_t g, const session_table& table,
                                              std::int64_t num_tokens) noexcept {
  const auto first = cache.config().groups[g].first_needed(num_tokens) / cache.plan().groups[g].block_size;
  return std::max(first, table.num_leading);
}

/// Whether a session has, of windows, what a hit of so many tokens needs.
template <class Cache>
[[nodiscard]] bool has_windows_of_hit(const Cache& cache, const session_tables& tables,
                                      std::int64_t num_tokens) noexcept {
  for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
    if (cache.config().groups[g].holds_tokens() &&
        tables[g].first_place > first_place_of_hit(cache, g, tables[g], num_tokens)) {
      return false;
    }
  }
  return true;
}

/// The length at which a session has a saved state that a new sequence lacks, if a hit of it is possible; 0 if none.
template <class Cache>
[[nodiscard]] std::int64_t saved_length(const Cache& cache, const session_head& head, const admission& made) noexcept {
  for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
    const auto& table = head.tables[g];
    if (!cache.config().groups[g].holds_tokens() && table.num_leading > 0 && head.options.publish &&
        table.first_place > made.num_cached_tokens && table.first_place < head.num_computed_tokens &&
        table.first_place % cache.plan().hit_granularity == 0 &&
        has_windows_of_hit(cache, head.tables, table.first_place)) {
      return table.first_place;
    }
  }
  return 0;
}

/// How many leading elements of two arrays are equal.
template <class Element>
[[nodiscard]] std::size_t num_equal(std::span<const Element> a, std::span<const Element> b) noexcept {
  const auto end = std::ranges::mismatch(a, b).in1;
  return static_cast<std::size_t>(end - a.begin());
}

/// Fills a head with the tokens and keys of a sequence. `contents`: of the caller's, where the cache has lost the
/// first. Errors: `invalid_argument` where these differ.
template <class Cache>
[[nodiscard]] result<void> copy_contents(const Cache& cache, sequence_id id, const token_run& contents,
                                         session_head& head) {
  auto num_lost = std::int64_t{0};
  if constexpr (!has_groups<Cache>) {
    const auto size = std::int64_t{cache.config().block_size};
    num_lost = std::min(head.tables[0].first_place * size, head.num_tokens());
  }
  const auto num_keys = cache.keys(id, {});
  if (!num_keys) {
    return num_keys.error();
  }
  head.keys.resize(*num_keys);
  if (const auto copied = cache.keys(id, head.keys); !copied) {
    return copied.error();
  }
  const auto known = std::span{head.tokens}.subspan(static_cast<std::size_t>(num_lost));
  if (auto copied = cache.tokens(id, num_lost, known); !copied) {
    return copied;
  }
  if (num_lost > 0 || !contents.tokens.empty()) {
    const auto given = contents.tokens;
    if (given.size() != head.tokens.size()) {
      return error{error_code::invalid_argument, "tokens in contents of a session, which are not the sequence's,",
                   std::ssize(given), head.num_tokens()};
    }
    if (const auto equal = num_equal(given.last(known.size()), std::span<const token>{known}); equal < known.size()) {
      return error{error_code::invalid_argument,
                   "position in contents of a session, where the token is not the sequence's,",
                   num_lost + static_cast<std::int64_t>(equal)};
    }
    if (contents.keys.size() != head.keys.size()) {
      return error{error_code::invalid_argument, "keys in contents of a session, which are not the sequence's,",
                   std::ssize(contents.keys), std::ssize(head.keys)};
    }
    const auto keys = std::span<const prefix_key>{head.keys};
    if (const auto equal = num_equal(contents.keys, keys); equal < keys.size()) {
      return error{error_code::invalid_argument,
                   "position of a key in contents of a session, which is not the sequence's,",
                   contents.keys[equal].position};
    }
    std::ranges::copy(given, head.tokens.begin());
  }
  return {};
}

/// A session's head, and the blocks that it is about, table by table.
struct described_session {
  session_head head;
  std::vector<block_id> blocks;
};

template <class Cache>
[[nodiscard]] result<described_session> describe_session(const Cache& cache, sequence_id id,
                                                         const token_run& contents) {
  auto held = blocks_of(cache, id);
  if (!held) {
    return held.error();
  }
  const auto info = cache.describe(id);
  if (!info) {
    return info.error();
  }
  if (info->num_prompt_tokens > info->num_tokens) {
    return error{error_code::invalid_argument, "tokens of a session whose prompt is still appended", info->num_tokens,
                 info->num_prompt_tokens};
  }
  auto head = session_head{};
  head.tables = held->tables;
  head.options = info->options;
  head.options.num_prompt_tokens = info->num_prompt_tokens;
  head.options.first_chunk = head.options.max_cached_tokens = sequence_options::no_limit;  // of that creation alone
  head.num_computed_tokens = info->num_computed_tokens;
  head.tokens.resize(static_cast<std::size_t>(info->num_tokens));
  if (const auto copied = copy_contents(cache, id, contents, head); !copied) {
    return copied.error();
  }
  // Creation takes keys of all its tokens, also behind the end of the prompt, and no start without these tokens can.
  if (!head.keys.empty() && head.keys.back().position >= head.num_tokens()) {
    return error{error_code::invalid_argument, "position of a session's key, whose token is still to be appended,",
                 head.keys.back().position, head.num_tokens() - 1};
  }
  return described_session{std::move(head), std::move(held->ids)};
}

/// Blocks that a sequence does not hold, and that the longest hit of its tokens needs: those behind its windows, and a
/// saved state. Kept from eviction while its session is saved.
template <class Cache>
class blocks_for_hits {
 public:
  explicit blocks_for_hits(Cache& cache) noexcept : cache_(cache) {}
  blocks_for_hits(const blocks_for_hits&) = delete;
  blocks_for_hits& operator=(const blocks_for_hits&) = delete;
  ~blocks_for_hits() { static_cast<void>(let_go()); }

  /// Adds them to the session as far as they are still cached. May throw `std::bad_alloc`.
  void add_to([[maybe_unused]] described_session& session) {
    if constexpr (has_groups<Cache>) {
      const auto& head = session.head;
      const auto length = longest_hit_of_length(cache_, head.num_computed_tokens);
      const bool needs_state = !std::ranges::all_of(cache_.config().groups, &group_config::holds_tokens);
      if (!head.options.publish || (!needs_state && has_windows_of_hit(cache_, head.tables, length))) {
        return;
      }
      const auto prefix =
          token_run{std::span{head.tokens}.first(static_cast<std::size_t>(length)), keys_between(head.keys, 0, length)};
      const auto pinned = cache_.pin(prefix, head.options.salt);
      if (!pinned) {
        return;
      }
      pin_ = pinned->id;
      if (pinned->num_tokens == length || needs_state) {
        add_blocks(session, pinned->num_tokens);
      }
    }
  }

  /// Whether they were kept until now: another thread may have ended all pins.
  [[nodiscard]] bool let_go() noexcept {
    const auto pin = std::exchange(pin_, std::nullopt);
    return !pin || cache_.unpin(*pin).has_value();
  }

 private:
  /// All, or none where windows end before those of the sequence begin.
  void add_blocks(described_session& session, std::int64_t length) {
    auto tables = session.head.tables;
    auto blocks = session.blocks;
    auto end = std::ptrdiff_t{0};  // of the group's blocks
    for (std::size_t g = 0; g < cache_.config().groups.size(); ++g) {
      const bool holds_tokens = cache_.config().groups[g].holds_tokens();
      auto& table = tables[g];
      end += table.num_entries;
      // The pin has the same leading blocks, and those of the hit behind them.
      const auto num_leading = static_cast<std::size_t>(holds_tokens ? table.num_leading : 0);
      const auto num_places = static_cast<std::size_t>(length / cache_.plan().hit_granularity);
      auto pinned = std::vector<block_id>(session.blocks.size() + num_places);
      const auto size = cache_.block_table(*pin_, pinned, num_leading, g);
      if (!size) {
        return;
      }
      const auto num_pinned = static_cast<std::int64_t>(*size - num_leading);
      if (holds_tokens) {
        const auto num_more = table.first_place - first_place_of_hit(cache_, g, table, length);
        if (num_more > num_pinned) {
          return;
        }
        if (num_more > 0) {
          const auto at = blocks.begin() + (end - table.num_entries + table.num_leading);
          blocks.insert(at, pinned.begin(), pinned.begin() + num_more);
          end += num_more;
          table.first_place -= num_more;
          table.num_entries += num_more;
        }
      } else if (num_pinned > 0 && length < session.head.num_computed_tokens) {
        blocks.insert(blocks.begin() + end, pinned.begin(), pinned.begin() + num_pinned);
        end += num_pinned;
        table = {table.num_entries + num_pinned, table.num_entries, length};
      }
    }
    session.head.tables = tables;
    session.blocks = std::move(blocks);
  }

  Cache& cache_;
  std::optional<pin_id> pin_;
};

/// A sequence with blocks for all of a session's tokens. Nothing is loading for it: what no tier has at hand is in the
/// session.
template <class Cache>
[[nodiscard]] result<admission> create_from(Cache& cache, const session_head& head,
                                            typename Cache::stream_type stream) {
  auto options = head.options;
  if constexpr (!has_groups<Cache>) {
    options.publish = options.publish && head.tables[0].first_place == 0;  // no blocks without K/V
  }
  auto made = cache.create_sequence(token_run{head.tokens, head.keys}, options, stream);
  if constexpr (has_tiers<Cache>) {
    if (const auto settled = made ? cache.settle(made->id, stream) : result<std::int64_t>{made.error()}; settled) {
      made->num_cached_tokens = *settled;
      made->num_loading_tokens = 0;
    }
  }
  return made;
}

/// The parts of a session: K/V of tokens, the state saved at some length, the newest state. One sequence holds the two
/// states one after the other.
struct session_parts {
  bool tokens = true;
  bool saved_state = false;
  bool newest_state = true;
};

/// The first of the places from `begin` to `end` of which a session has no block; at least `end` if it has all.
[[nodiscard]] inline std::int64_t first_missing(const session_table& table, std::int64_t begin,
                                                std::int64_t end) noexcept {
  const auto last = table.first_place + table.num_entries - table.num_leading;
  const auto place = std::max(begin, std::min(table.num_leading, end));
  return table.first_place > place ? place : std::max(place, std::min(last, end));
}

/// Whether a session has the blocks that are wanted of one group, with K/V of so many tokens, but for the first
/// `num_shared`. `to`: the new sequence's table. Errors: `invalid_argument`.
template <class Cache>
[[nodiscard]] result<void> check_table(const Cache& cache, std::size_t g, const session_table& from,
                                       const session_table& to, std::int64_t num_tokens, std::int64_t num_shared,
                                       const session_parts& parts) {
  const auto check = [](std::int64_t place, std::int64_t end) -> result<void> {
    return place >= end
               ? result<void>{}
               : error{error_code::invalid_argument, "place of computed tokens, which a session has not,", place};
  };
  if constexpr (!has_groups<Cache>) {
    const auto size = std::int64_t{cache.config().block_size};
    const auto end = (num_tokens + size - 1) / size;
    return check(first_missing(from, std::max(from.first_place, num_shared), end), end);
  } else {
    const auto& group = cache.config().groups[g];
    if (!group.holds_tokens()) {
      const auto num_newest = from.num_leading > 0 ? from.num_leading : from.num_entries;
      const auto saved = parts.saved_state ? check(from.num_entries - num_newest, to.num_entries) : result<void>{};
      return saved && parts.newest_state ? check(num_newest, to.num_entries) : saved;
    }
    if (!parts.tokens) {
      return {};
    }
    const auto size = std::int64_t{cache.plan().groups[g].block_size};
    const auto end = (num_tokens + size - 1) / size;
    const auto end_of_sinks = std::min((group.num_sinks + size - 1) / size, end);
    const auto first = std::max(group.first_needed(num_tokens) / size, num_shared);
    const auto sinks = check(first_missing(from, std::min(num_shared, end_of_sinks), end_of_sinks), end_of_sinks);
    return sinks ? check(first_missing(from, std::min(first, end), end), end) : sinks;
  }
}

/// The block that each of a session's records is loaded into: of the new sequence's own, or `no_block`. Errors:
/// `invalid_argument` where the tables do not go together, or lack blocks of computed tokens.
template <class Cache>
[[nodiscard]] result<std::vector<block_id>> blocks_to_load(const Cache& cache, const admission& made,
                                                           const session_head& head, const session_parts& parts) {
  auto held = blocks_of(cache, made.id);
  if (!held) {
    return held.error();
  }
  auto targets = std::vector<block_id>(static_cast<std::size_t>(head.num_records()), no_block);
  if (made.num_cached_tokens >= head.num_computed_tokens) {
    return targets;
  }
  const auto num_groups = has_groups<Cache> ? cache.config().groups.size() : 1;
  auto next = targets.begin();
  auto first = held->ids.begin();
  for (std::size_t g = 0; g < head.tables.size(); ++g) {
    const auto& from = head.tables[g];
    const auto& to = held->tables[g];
    auto num_shared = std::int64_t{0};
    auto holds_tokens = true;
    if constexpr (!has_groups<Cache>) {
      num_shared = made.num_cached_tokens / cache.config().block_size;
    } else if (g < cache.config().groups.size()) {
      holds_tokens = cache.config().groups[g].holds_tokens();
      num_shared = holds_tokens ? made.num_cached_tokens / cache.plan().groups[g].block_size : 0;
    }
    if (g < num_groups) {
      if (const auto checked = check_table(cache, g, from, to, head.num_computed_tokens, num_shared, parts); !checked) {
        return checked.error();
      }
    }
    for (std::int64_t entry = 0; entry < from.num_entries; ++entry, ++next) {
      const bool is_saved = !holds_tokens && from.num_leading > 0 && entry >= from.num_leading;
      const auto place = is_saved ? entry - from.num_leading : from.place_of(entry);
      const auto index = place < to.num_leading ? place : place - to.first_place + to.num_leading;
      const auto is_held = place < to.num_leading || (place >= to.first_place && index < to.num_entries);
      const bool is_wanted = holds_tokens ? parts.tokens : is_saved ? parts.saved_state : parts.newest_state;
      if (is_wanted && place >= num_shared && !is_held) {
        return error{error_code::invalid_argument, "place in a session's table, which a sequence has not,", place};
      }
      *next = is_wanted && place >= num_shared ? first[index] : no_block;
    }
    first += to.num_entries;
  }
  return targets;
}

/// Releases what lies behind the windows of the token at `first`, and commits. `saves_state`: if these are as many.
template <class Cache>
[[nodiscard]] result<void> commit_from(Cache& cache, sequence_id id, std::int64_t first, std::int64_t num_computed,
                                       typename Cache::stream_type stream, bool saves_state = false) noexcept {
  const auto dropped = cache.drop_behind_windows(id, first, saves_state);
  return dropped ? cache.commit(id, num_computed, stream) : dropped;
}

/// Publishes what was loaded, and releases what was not.
template <class Cache>
[[nodiscard]] result<void> finish_loading(Cache& cache, const admission& made, const session_head& head,
                                          typename Cache::stream_type stream) noexcept {
  const auto num_computed = std::max(made.num_cached_tokens, head.num_computed_tokens);
  if constexpr (has_groups<Cache>) {
    const auto of_hit = longest_hit_of_length(cache, num_computed);  // the windows before it are published, too
    const bool has_windows = has_windows_of_hit(cache, head.tables, of_hit);
    return commit_from(cache, made.id, has_windows ? of_hit : num_computed, num_computed, stream);
  } else {
    const auto committed = cache.commit(made.id, num_computed, stream);
    return committed ? cache.drop_before(made.id, head.tables[0].first_place * cache.config().block_size) : committed;
  }
}

/// Starts a sequence from a session: `load(blocks)` fills these blocks with its records, but not those that are
/// `no_block`. A failure leaves no sequence; what it had published by then stays cached. May throw `std::bad_alloc`
/// before it has changed anything.
template <class Cache, class Load>
[[nodiscard]] result<admission> start_from(Cache& cache, const session_head& head, typename Cache::stream_type stream,
                                           const Load& load) {
  const auto made = create_from(cache, head, stream);
  if (!made) {
    return made.error();
  }
  const auto load_parts = [&](const session_parts& parts) -> result<void> {
    const auto blocks = blocks_to_load(cache, *made, head, parts);
    return blocks ? load(std::span<const block_id>(*blocks)) : blocks.error();
  };
  const auto fill = [&]() -> result<void> {
    auto parts = session_parts{};
    if constexpr (has_groups<Cache>) {
      if (const auto length = saved_length(cache, head, *made); length > 0) {
        if (const auto loaded = load_parts({.saved_state = true, .newest_state = false}); !loaded) {
          return loaded;
        }
        if (const auto saved = commit_from(cache, made->id, length, length, stream, true); !saved) {
          return saved;
        }
        parts = {.tokens = false};
      }
    }
    const auto loaded = load_parts(parts);
    return loaded ? finish_loading(cache, *made, head, stream) : loaded;
  };
  if (const auto filled = with_memory(fill, error{error_code::out_of_memory, "memory to load a session"}); !filled) {
    static_cast<void>(cache.release(made->id));
    return filled.error();
  }
  return *made;
}

}  // namespace pagedkv::detail
