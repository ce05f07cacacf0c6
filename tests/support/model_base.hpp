#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <cstdint>
#include <string>

namespace pagedkv::test {

/// Events of a run that every model of a cache counts, so that a test can check that it was not idle.
struct common_coverage {
  std::int64_t moves = 0;
  std::int64_t growths = 0;
  std::int64_t shrinkings = 0;
  std::int64_t keyed_hits = 0;  // behind a key
  std::int64_t batch_entries = 0;
  std::int64_t evicted_ahead = 0;  // blocks
  cache_statistics statistics;

  void add(const common_coverage& more) noexcept {
    moves += more.moves;
    growths += more.growths;
    shrinkings += more.shrinkings;
    keyed_hits += more.keyed_hits;
    batch_entries += more.batch_entries;
    evicted_ahead += more.evicted_ahead;
    statistics.hit_blocks += more.statistics.hit_blocks;
    statistics.evictions += more.statistics.evictions;
    statistics.copies += more.statistics.copies;
    statistics.refusals += more.statistics.refusals;
  }
};

/// How a model of a cache says that the cache differs from it.
class model_base {
 protected:
  struct mismatch {
    std::string what;
  };

  static void expect(bool holds, const std::string& what) {
    if (!holds) {
      throw mismatch{what};
    }
  }
  static void expect_equal(std::int64_t got, std::int64_t wanted, const std::string& what) {
    if (got != wanted) {
      throw mismatch{what + ": " + std::to_string(got) + " where the model has " + std::to_string(wanted)};
    }
  }
  template <class T>
  static void expect_success(const result<T>& got, const std::string& what) {
    expect(got.has_value(), what + " failed: " + (got ? "" : got.error().message()));
  }
  template <class T>
  void expect_error(const result<T>& got, error_code wanted, const std::string& what) {
    refused_ = true;
    expect(!got, what + " succeeded");
    expect(got.error().code == wanted, what + " said: " + got.error().message());
  }

  bool refused_ = false;  // the latest operation was, and so changed nothing
};

}  // namespace pagedkv::test
