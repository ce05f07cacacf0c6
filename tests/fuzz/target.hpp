#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pagedkv::fuzz {

using input = std::span<const std::uint8_t>;

/// A reader of bytes that come from outside, or a driver of a cache whose operations the bytes choose.
struct target {
  const char* name;
  std::vector<std::vector<std::uint8_t>> (*seeds)();  // inputs that are taken, to start from
  /// Throws `wrong_answer`; AddressSanitizer and assertions see the rest.
  void (*run)(input bytes);
};

struct wrong_answer : std::logic_error {
  using std::logic_error::logic_error;
};

inline void require(bool right, const std::string& otherwise) {
  if (!right) {
    throw wrong_answer(otherwise);
  }
}

/// Takes numbers from an input; zeros behind its end.
class reader {
 public:
  explicit reader(input bytes) : bytes_(bytes) {}

  [[nodiscard]] bool at_end() const noexcept { return bytes_.empty(); }
  [[nodiscard]] std::uint8_t take() noexcept {
    if (bytes_.empty()) {
      return 0;
    }
    const auto next = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return next;
  }
  /// A number in [0, limit).
  [[nodiscard]] int below(int limit) noexcept { return take() % limit; }

 private:
  input bytes_;
};

extern const target operations_of_caches;
extern const target operations_of_groups;
extern const target operations_without_locks;
extern const target operations_behind_locks;
extern const target operations_of_tiers;
extern const target operations_of_groups_in_tiers;
extern const target operations_of_trackers;
extern const target records;
extern const target sessions;
extern const target offers;
extern const target redis_urls;
extern const target trace_lines;
extern const target http_requests;
#ifdef PAGEDKV_FUZZ_WIRE
extern const target event_batches;
#endif

[[nodiscard]] inline std::vector<const target*> all_targets() {
  return {
      &operations_of_caches,
      &operations_of_groups,
      &operations_without_locks,
      &operations_behind_locks,
      &operations_of_tiers,
      &operations_of_groups_in_tiers,
      &operations_of_trackers,
      &records,
      &sessions,
      &offers,
      &redis_urls,
      &trace_lines,
      &http_requests,
#ifdef PAGEDKV_FUZZ_WIRE
      &event_batches,
#endif
  };
}

}  // namespace pagedkv::fuzz
