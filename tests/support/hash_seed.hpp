#pragma once

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/interfaces/catch_interfaces_capture.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace pagedkv::test {

/// A seed for a cache's prefix index. One that the cache draws by itself would not come back with --rng-seed; this
/// does, also when the test case runs alone. Each call has another, as processes have. Not thread safe.
[[nodiscard]] inline std::uint64_t hash_seed() {
  static auto test_case = std::string{};
  static auto num_calls = std::uint64_t{0};
  if (auto running = Catch::getResultCapture().getCurrentTestName(); running != test_case) {
    test_case = std::move(running);
    num_calls = 0;
  }
  return std::uint64_t{Catch::getSeed()} << 32 | ++num_calls;
}

}  // namespace pagedkv::test
