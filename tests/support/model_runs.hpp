#pragma once

#include "cache_under_test.hpp"
#include "model_checking.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace pagedkv::test {

/// Runs random operations on a cache of this kind beside the model; a failure is shrunk and shown, with a name for what
/// `config` describes. Returns the coverage.
[[nodiscard]] model_coverage run_random(const cache_kind& kind, const cache_config& config, const std::string& name,
                                        std::uint64_t seed, std::size_t num_operations);

}  // namespace pagedkv::test
