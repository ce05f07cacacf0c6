#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace pagedkv::test {

/// Events of a run that the model counts, so that a test can check that it was not idle.
struct model_coverage {
  std::int64_t moves = 0;
  std::int64_t growths = 0;
  std::int64_t shrinkings = 0;
  std::int64_t exact_hits = 0;        // of which the model knew the length
  std::int64_t keyed_hits = 0;        // behind a key
  std::int64_t revivals_checked = 0;  // hits on blocks that no live sequence held
  std::int64_t shortened_hits = 0;    // that a missing state made shorter
  std::int64_t chunks = 0;            // of prompts, appended after creation
  std::int64_t batch_entries = 0;
  std::int64_t batch_failures = 0;
  std::int64_t evicted_ahead = 0;      // blocks
  std::int64_t invalidated = 0;        // blocks
  std::int64_t withdrawn = 0;          // blocks
  std::int64_t moves_with_states = 0;  // while a sequence had a second state
  std::int64_t failed_copies = 0;
  std::int64_t skipped_blocks = 0;  // released behind windows
  std::int64_t refused_cuts = 0;
  cache_statistics statistics;

  void add(const model_coverage& more) noexcept {
    using self = model_coverage;
    for (const auto each : {&self::moves, &self::growths, &self::shrinkings, &self::exact_hits, &self::keyed_hits,
                            &self::revivals_checked, &self::shortened_hits, &self::chunks, &self::batch_entries,
                            &self::batch_failures, &self::evicted_ahead, &self::invalidated, &self::withdrawn,
                            &self::moves_with_states, &self::failed_copies, &self::skipped_blocks, &self::refused_cuts}) {
      this->*each += more.*each;
    }
    using counts = cache_statistics;
    for (const auto each : {&counts::hit_blocks, &counts::evictions, &counts::copies, &counts::refusals}) {
      statistics.*each += more.statistics.*each;
    }
  }
};

/// How the model says that a cache differs from it.
class model_checking {
 protected:
  struct mismatch {
    std::string what;
  };

  static void expect(bool holds, std::string_view what) {
    if (!holds) {
      throw mismatch{std::string(what)};
    }
  }
  static void expect_equal(std::int64_t got, std::int64_t wanted, std::string_view what) {
    if (got != wanted) {
      throw mismatch{std::string(what) + ": " + std::to_string(got) + " where the model has " + std::to_string(wanted)};
    }
  }
  template <class T>
  static void expect_success(const result<T>& got, std::string_view what) {
    if (!got) {
      throw mismatch{std::string(what) + " failed: " + got.error().message()};
    }
  }
  template <class T>
  void expect_error(const result<T>& got, error_code wanted, std::string_view what) {
    refused_ = true;
    if (got || got.error().code != wanted) {
      throw mismatch{std::string(what) + (got ? " succeeded" : " said: " + got.error().message())};
    }
  }

  bool refused_ = false;  // the latest operation was, and so changed nothing
};

}  // namespace pagedkv::test
