#pragma once

#include <catch2/catch_get_random_seed.hpp>

namespace pagedkv::test {

/// Whether tests run with the seed of tests/meson.build. Other seeds may miss what is rare, and come as close to a
/// limit as chance has it.
[[nodiscard]] inline bool has_everyday_seed() { return Catch::getSeed() == 1; }

}  // namespace pagedkv::test
