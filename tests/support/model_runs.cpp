#include "model_runs.hpp"
#include "cache_model.hpp"
#include "cache_operations.hpp"

#include <catch2/catch_test_macros.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace pagedkv::test {

namespace {

/// Returns the first difference, if there is one, and the coverage.
[[nodiscard]] std::pair<std::optional<std::string>, model_coverage> run_beside(
    const cache_kind& kind, const cache_config& config, const std::vector<operation>& operations) {
  const auto cache = kind.make(config);
  auto model = cache_model{*cache, kind, config};
  auto failure = model.run(operations);
  return {std::move(failure), model.coverage()};
}

}  // namespace

model_coverage run_random(const cache_kind& kind, const cache_config& config, const std::string& name,
                          std::uint64_t seed, std::size_t num_operations) {
  const auto operations = random_operations(seed, num_operations, kind.has_tiers);
  const auto run = [&](const std::vector<operation>& chosen) { return run_beside(kind, config, chosen); };
  auto [failure, coverage] = run(operations);
  if (failure) {
    const auto shrunk = shrink(operations, [&](const auto& fewer) { return run(fewer).first.has_value(); });
    INFO(kind.name << ", " << name << ", seed " << seed << "\n" << to_string(shrunk));
    FAIL(run(shrunk).first.value_or("the failure does not repeat: " + *failure));
  }
  return coverage;
}

}  // namespace pagedkv::test
