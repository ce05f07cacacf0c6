#pragma once

#include "../support/attention_reference.hpp"

#include <pagedkv/host/instruction_set.hpp>

#include <catch2/catch_test_macros.hpp>

#include <vector>

namespace pagedkv::test {

/// Those that this processor supports.
[[nodiscard]] inline std::vector<host::instruction_set> instruction_sets() {
  auto sets = std::vector<host::instruction_set>{};
  for (auto set = 0; set <= static_cast<int>(host::best_instruction_set()); ++set) {
    sets.push_back(static_cast<host::instruction_set>(set));
  }
  return sets;
}

/// Compares with the reference, for every instruction set.
template <class Attention>
void check_against_reference(Attention& attention, const attention_options& options = {}, double share = 1) {
  const auto expected = attention.expected(options);
  for (const auto set : instruction_sets()) {
    CAPTURE(static_cast<int>(set));
    REQUIRE(attention.attend(options, {}, set));
    CHECK(attention.worst_error(expected) <= share * attention_tolerance<typename Attention::element_type>);
  }
}

}  // namespace pagedkv::test
