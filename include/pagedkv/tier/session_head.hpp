#pragma once

#include <xxhash.h>
#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/core/error.hpp>
#include <pagedkv/core/group_config.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/sequence/sequence.hpp>
#include <pagedkv/tier/file_descriptor.hpp>
#include <pagedkv/tier/record_format.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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
  state_saving saving;       // of a cache with groups
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

// At the start of the file, little endian; the format's text, keys and tokens follow. The checksum is of the whole
// head.
struct session_numbers {
  static constexpr auto right_magic = std::array<char, 8>{'p', 'a', 'g', 'e', 'd', 'k', 'v', 's'};

  struct range {
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::int64_t priority = 0;
    std::int64_t duration = 0;
  };

  std::array<char, 8> magic = right_magic;
  std::uint64_t version = 1;
  std::uint64_t checksum = 0;  // with this member 0
  std::uint64_t text_bytes = 0;
  std::uint64_t num_keys = 0;
  std::uint64_t num_tokens = 0;
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
  session_tables tables;
};

static_assert(std::is_trivially_copyable_v<session_numbers> &&
              std::has_unique_object_representations_v<session_numbers>);

struct session_parts {
  std::size_t keys;
  std::size_t tokens;
  std::size_t end;
  std::size_t size;  // of the head, a multiple of `record_alignment`
};

[[nodiscard]] inline session_parts parts_of(const session_numbers& numbers) noexcept {
  const auto keys = (sizeof(session_numbers) + numbers.text_bytes + alignof(prefix_key) - 1) / alignof(prefix_key) *
                    alignof(prefix_key);
  const auto tokens = keys + numbers.num_keys * sizeof(prefix_key);
  const auto end = tokens + numbers.num_tokens * sizeof(token);
  return {keys, tokens, end, (end + record_alignment - 1) / record_alignment * record_alignment};
}

[[nodiscard]] inline session_numbers::range numbers_of(const block_retention& retention) noexcept {
  return {0, 0, retention.priority, retention.duration};
}
[[nodiscard]] inline block_retention retention_of(const session_numbers::range& numbers) noexcept {
  return {static_cast<std::uint8_t>(numbers.priority), numbers.duration};
}

[[nodiscard]] inline session_numbers numbers_of(const session_head& head, std::string_view text) noexcept {
  const auto& options = head.options;
  auto numbers = session_numbers{};
  numbers.text_bytes = text.size();
  numbers.num_keys = head.keys.size();
  numbers.num_tokens = head.tokens.size();
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
  numbers.saves_at_branches = head.saving.at_branches ? 1 : 0;
  numbers.saves_at_prompt_end = head.saving.at_prompt_end ? 1 : 0;
  numbers.saves_every = head.saving.every;
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
  return options;
}

struct encoded_head {
  std::vector<std::byte> bytes;
  std::uint64_t checksum = 0;
};

/// May throw `std::bad_alloc`.
[[nodiscard]] inline encoded_head encode_head(const session_head& head, std::string_view text) {
  auto numbers = numbers_of(head, text);
  const auto parts = parts_of(numbers);
  auto bytes = std::vector<std::byte>(parts.size);
  const auto put = [&](std::size_t at, const void* from, std::size_t size) {
    if (size != 0) {
      std::memcpy(bytes.data() + at, from, size);
    }
  };
  put(sizeof(numbers), text.data(), text.size());
  put(parts.keys, head.keys.data(), head.keys.size() * sizeof(prefix_key));
  put(parts.tokens, head.tokens.data(), head.tokens.size() * sizeof(token));
  const auto rest = std::span{bytes}.subspan(sizeof(numbers));
  numbers.checksum = XXH3_64bits_withSeed(&numbers, sizeof(numbers), XXH3_64bits(rest.data(), rest.size()));
  put(0, &numbers, sizeof(numbers));
  return {std::move(bytes), numbers.checksum};
}

/// A head, with its length in the file.
struct session_reading {
  session_head head;
  std::uint64_t checksum = 0;
  std::int64_t size = 0;
};

/// Whether these may be the numbers of a head in `most` bytes.
[[nodiscard]] inline bool fit(const session_numbers& numbers, std::uint64_t most) noexcept {
  return numbers.magic == session_numbers::right_magic && numbers.version == 1 && numbers.text_bytes <= most &&
         numbers.num_keys <= most && numbers.num_tokens <= most && parts_of(numbers).size <= most;
}

/// A head, and the format that it names.
struct decoded_head {
  session_head head;
  std::string text;
  std::uint64_t checksum = 0;
};

/// Errors: `invalid_argument` for bytes that are damaged. May throw `std::bad_alloc`.
[[nodiscard]] inline result<decoded_head> decode_head(std::span<const std::byte> bytes) {
  const auto damaged =
      error{error_code::invalid_argument, "bytes of a session's head, which is damaged,", std::ssize(bytes)};
  auto numbers = session_numbers{};
  if (bytes.size() < sizeof(numbers)) {
    return damaged;
  }
  std::memcpy(&numbers, bytes.data(), sizeof(numbers));
  if (!fit(numbers, bytes.size()) || parts_of(numbers).size != bytes.size()) {
    return damaged;
  }
  const auto parts = parts_of(numbers);
  const auto checksum = std::exchange(numbers.checksum, 0);
  const auto rest = bytes.subspan(sizeof(numbers));
  if (XXH3_64bits_withSeed(&numbers, sizeof(numbers), XXH3_64bits(rest.data(), rest.size())) != checksum) {
    return damaged;
  }
  auto decoded = decoded_head{};
  decoded.checksum = checksum;
  decoded.text.assign(reinterpret_cast<const char*>(rest.data()), numbers.text_bytes);
  auto& head = decoded.head;
  head.tokens.resize(numbers.num_tokens);
  head.keys.resize(numbers.num_keys);
  const auto get = [&](std::size_t at, void* to, std::size_t size) {
    if (size != 0) {
      std::memcpy(to, bytes.data() + at, size);
    }
  };
  get(parts.keys, head.keys.data(), head.keys.size() * sizeof(prefix_key));
  get(parts.tokens, head.tokens.data(), head.tokens.size() * sizeof(token));
  head.options = options_of(numbers);
  head.num_computed_tokens = numbers.num_computed_tokens;
  head.saving = {numbers.saves_at_branches != 0, numbers.saves_at_prompt_end != 0, numbers.saves_every};
  head.tables = numbers.tables;
  return decoded;
}

/// Errors: `invalid_argument` for a file that is damaged or of another format; those of the system. May throw
/// `std::bad_alloc`.
[[nodiscard]] inline result<session_reading> read_head(const file_descriptor& file, std::int64_t file_size,
                                                       std::string_view text) {
  auto numbers = session_numbers{};
  const auto begun = read_at(file, 0, std::as_writable_bytes(std::span{&numbers, 1}));
  if (!begun) {
    return begun.error();
  }
  if (*begun != sizeof(numbers) || !fit(numbers, static_cast<std::uint64_t>(file_size))) {
    return error{error_code::invalid_argument, "bytes of a session's file, which is damaged,", file_size};
  }
  auto bytes = std::vector<std::byte>(parts_of(numbers).size);
  const auto whole = read_at(file, 0, bytes);
  if (!whole) {
    return whole.error();
  }
  auto decoded = decode_head(std::span{bytes}.first(*whole));
  if (!decoded) {
    return decoded.error();
  }
  if (decoded->text != text) {
    return error{error_code::invalid_argument, "bytes of a session's file, which is of another format,", file_size};
  }
  return session_reading{std::move(decoded->head), decoded->checksum, std::ssize(bytes)};
}

}  // namespace pagedkv::detail
