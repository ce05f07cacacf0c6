#pragma once

#include <pagedkv/core/result.hpp>

#include <cstdint>

#include <sys/random.h>

namespace pagedkv::detail {

/// From the operating system, since `<random>` takes longer to compile than a cache's state. Throws `exception` when
/// the system has none.
[[nodiscard]] inline std::uint64_t random_seed() {
  auto seed = std::uint64_t{0};
  if (getentropy(&seed, sizeof seed) != 0) {
    fail({error_code::backend_failure, "the operating system's random numbers"});
  }
  return seed;
}

}  // namespace pagedkv::detail
