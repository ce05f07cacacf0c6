#pragma once

#include "cache_operations.hpp"

#include <pagedkv/core/config.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// Runs operations on a cache of this kind beside a model. Returns what was wrong, or nothing, and the model's coverage.
template <class Model, class Kind>
[[nodiscard]] auto run_beside(const Kind& kind, const cache_config& config, const std::vector<operation>& operations) {
  const auto cache = kind.make(config);
  auto model = Model{*cache, kind, config};
  auto failure = model.run(operations);
  return std::pair{std::move(failure), model.coverage()};
}

/// Runs random operations; a failure is shrunk and shown, with a name for what `config` describes. Returns the coverage.
template <class Model, class Kind>
[[nodiscard]] auto run_random(const Kind& kind, const cache_config& config, const std::string& name, std::uint64_t seed,
                              std::size_t num_operations) {
  const auto operations = random_operations(seed, num_operations);
  const auto run = [&](const std::vector<operation>& chosen) { return run_beside<Model>(kind, config, chosen); };
  auto [failure, coverage] = run(operations);
  if (failure) {
    const auto shrunk = shrink(operations, [&](const auto& fewer) { return run(fewer).first.has_value(); });
    INFO(kind.name << ", " << name << ", seed " << seed << "\n" << to_string(shrunk));
    FAIL(run(shrunk).first.value_or("the failure does not repeat: " + *failure));
  }
  return coverage;
}

}  // namespace pagedkv::test
