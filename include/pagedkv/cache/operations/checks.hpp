#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>

// Checks of arguments that several operations share.

namespace pagedkv::detail {

[[nodiscard]] inline error no_such_group(std::size_t group, std::size_t num_groups) noexcept {
  return bad_index("index of a group", static_cast<std::int64_t>(group), static_cast<std::int64_t>(num_groups));
}

/// Errors: `invalid_argument` for a group that there is not.
template <class State>
[[nodiscard]] result<void> check_group(const State&, std::size_t group) noexcept {
  return group == 0 ? result<void>{} : result<void>{no_such_group(group, 1)};
}

/// Whether `size` tokens from `first_token` on lie in [least, end). Errors: `invalid_argument`, under these names.
[[nodiscard]] inline result<void> check_range(std::int64_t first_token, std::size_t size, std::int64_t least,
                                              std::int64_t end, const char* first_name, const char* end_name) noexcept {
  if (first_token < least) {
    return error{error_code::invalid_argument, first_name, first_token, least};
  }
  if (first_token > end) {
    return error{error_code::invalid_argument, first_name, first_token, end};
  }
  if (static_cast<std::int64_t>(size) > end - first_token) {
    return error{error_code::invalid_argument, end_name, first_token + static_cast<std::int64_t>(size), end};
  }
  return {};
}

/// Whether there is room for another sequence. Errors: `limit_reached`.
template <class State>
[[nodiscard]] result<void> check_num_sequences(const State& state) noexcept {
  if (const auto capacity = state.sequences.capacity(); state.sequences.size() >= capacity) {
    return error{error_code::limit_reached, "number of sequences, at most cache_config.max_sequences,",
                 std::int64_t{capacity} + 1, capacity};
  }
  return {};
}

[[nodiscard]] inline result<void> check_slots_ahead(std::int64_t num_ahead) noexcept {
  constexpr auto most = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (num_ahead < 0 || num_ahead > most) {
    return error{error_code::invalid_argument, "number of slots ahead", num_ahead, num_ahead < 0 ? 0 : most};
  }
  return {};
}

/// Errors: `invalid_argument` for keys out of order, before `least`, or not before `end`; for any if these are equal.
[[nodiscard]] inline result<void> check_keys_within(std::span<const prefix_key> keys, std::int64_t least,
                                                    std::int64_t end) noexcept {
  if (!keys.empty() && least == end) {  // no position would do
    return error{error_code::invalid_argument, "number of keys without tokens", std::ssize(keys), 0};
  }
  for (const auto& key : keys) {
    if (key.position < least || key.position >= end) {
      return error{error_code::invalid_argument, "position of a key", key.position,
                   key.position < least ? least : end - 1};
    }
    least = key.position;
  }
  return {};
}

/// Keys of a sequence come behind its end and its last key. Errors: `invalid_argument`.
template <class Sequence>
[[nodiscard]] result<void> check_keys(std::span<const prefix_key> keys, const Sequence& s, std::int64_t end) noexcept {
  const auto least = s.keys.empty() ? s.num_tokens : std::max(s.num_tokens, s.keys.back().position);
  return check_keys_within(keys, least, end);
}

[[nodiscard]] inline bool is_valid(const block_retention& asked) noexcept {
  return asked.priority <= 100 && asked.duration >= 0;
}

/// Whether every option but the ranges has a value that means something.
[[nodiscard]] inline bool is_valid(const sequence_options& options) noexcept {
  return is_valid(block_retention{options.priority, options.retention}) && options.expected_return >= 0 &&
         options.expected_tokens >= 0 && options.max_cached_tokens >= 0 && options.first_chunk >= 0 &&
         options.num_prompt_tokens >= 0;
}

[[nodiscard]] inline bool has_valid_ranges(const sequence_options& options) noexcept {
  return is_valid(options.answer.value_or(block_retention{})) &&
         std::all_of(options.ranges.begin(), options.ranges.end(), [](const range_retention& range) {
           return 0 <= range.first && range.first <= range.last && is_valid(range.retention);
         });
}

/// Out of line, since what is asked for is nearly always right.
[[nodiscard]] [[gnu::cold]] [[gnu::noinline]] inline error invalid_option(const sequence_options& options) noexcept {
  struct field {
    const char* subject;
    std::int64_t value;
    std::int64_t least;
    std::int64_t most;
  };
  constexpr auto any = sequence_options::no_limit;
  auto wrong = error{error_code::invalid_argument};
  const auto finds_wrong = [&](std::initializer_list<field> fields) {
    for (const auto& [subject, value, least, most] : fields) {
      if (value < least || value > most) {
        wrong = {error_code::invalid_argument, subject, value, value < least ? least : most};
        return true;
      }
    }
    return false;
  };
  if (finds_wrong({{"sequence_options.priority", options.priority, 0, 100},
                   {"sequence_options.retention", options.retention, 0, any},
                   {"sequence_options.expected_return", options.expected_return, 0, any},
                   {"sequence_options.expected_tokens", options.expected_tokens, 0, any},
                   {"sequence_options.max_cached_tokens", options.max_cached_tokens, 0, any},
                   {"sequence_options.first_chunk", options.first_chunk, 0, any},
                   {"sequence_options.num_prompt_tokens", options.num_prompt_tokens, 0, any}})) {
    return wrong;
  }
  for (const auto& [first, last, given] : options.ranges) {
    if (finds_wrong({{"range_retention.first", first, 0, any},
                     {"range_retention.last, before the first,", last, first, any},
                     {"range_retention.retention.priority", given.priority, 0, 100},
                     {"range_retention.retention.duration", given.duration, 0, any}})) {
      return wrong;
    }
  }
  const auto given = options.answer.value_or(block_retention{});
  finds_wrong({{"sequence_options.answer->priority", given.priority, 0, 100},
               {"sequence_options.answer->duration", given.duration, 0, any}});
  return wrong;
}

}  // namespace pagedkv::detail
