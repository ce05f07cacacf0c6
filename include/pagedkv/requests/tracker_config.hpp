#pragma once

#include <pagedkv/core/result.hpp>

#include <array>
#include <cstdint>
#include <limits>

namespace pagedkv {

/// The number of requests that a tracker follows, and how long it keeps the records of ended ones. It allocates at most
/// `max_open + max_ended` records. A plain value: `validate` checks it.
struct tracker_config {
  std::int32_t max_open = 0;                             // requests not ended; 0: twice the cache's `max_sequences`
  std::int32_t max_ended = 1024;                         // records; the oldest go first
  std::int64_t max_age = std::int64_t{600'000'000'000};  // nanoseconds of the cache's time since the end
};

/// Errors: `invalid_argument` names the first field that is negative; `size_overflow` when an int32 does not count all
/// records.
[[nodiscard]] inline result<void> validate(const tracker_config& config) noexcept {
  struct field {
    const char* subject;
    std::int64_t value;
  };
  const auto fields = std::array{
      field{"tracker_config.max_open", config.max_open},
      field{"tracker_config.max_ended", config.max_ended},
      field{"tracker_config.max_age", config.max_age},
  };
  for (const auto& [subject, value] : fields) {
    if (value < 0) {
      return error{error_code::invalid_argument, subject, value, 0};
    }
  }
  constexpr auto limit = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  const auto num_records = std::int64_t{config.max_open} + config.max_ended;
  if (num_records > limit) {
    return error{error_code::size_overflow, "tracker_config.max_open + max_ended", num_records, limit};
  }
  return {};
}

}  // namespace pagedkv
