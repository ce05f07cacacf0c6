#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/group_config.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/sequence/sequence.hpp>
#include <pagedkv/tier/file_descriptor.hpp>
#include <pagedkv/tier/record_format.hpp>
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

/// The blocks of one group that a session has: leading places of the sequence, then those from a later one on.
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

/// Whether the numbers of a head go together, so that sums and places of its records are right. A head that is whole may
/// be of another program.
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

/// Errors: `invalid_argument` for a file that is damaged or of another format; those of the system. May throw
/// `std::bad_alloc`.
[[nodiscard]] inline result<session_reading> read_head(const file_descriptor& file, std::int64_t file_size,
                                                       std::string_view format) {
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
  if (reading->format != format) {
    return error{error_code::invalid_argument, "bytes of a session's file, which is of another format,", file_size};
  }
  return std::move(*reading);
}

}  // namespace pagedkv::detail
