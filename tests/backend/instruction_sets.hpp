#pragma once

#include "../support/attention_reference.hpp"

#include <pagedkv/host/instruction_set.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/int8.hpp>

#include <catch2/catch_test_macros.hpp>

#include <concepts>
#include <vector>

namespace pagedkv::test {

/// Whether the set has code of its own for an element.
template <class Element>
[[nodiscard]] constexpr bool differs_for(host::instruction_set set) {
  switch (set) {
    case host::instruction_set::avx512_vnni: return std::same_as<Element, int8>;
    case host::instruction_set::avx512_bf16: return std::same_as<Element, bfloat16>;
    default: return true;
  }
}

/// Those that this processor supports and that differ for an element.
template <class Element>
[[nodiscard]] std::vector<host::instruction_set> instruction_sets() {
  auto sets = std::vector<host::instruction_set>{};
  for (auto number = 0; number <= static_cast<int>(host::best_instruction_set()); ++number) {
    const auto set = static_cast<host::instruction_set>(number);
    if (differs_for<Element>(set)) {
      sets.push_back(set);
    }
  }
  return sets;
}

/// Compares with the reference, for every instruction set.
template <class Attention>
void check_against_reference(Attention& attention, const attention_options& options = {}, double share = 1) {
  const auto expected = attention.expected(options);
  for (const auto set : instruction_sets<typename Attention::element_type>()) {
    CAPTURE(static_cast<int>(set));
    REQUIRE(attention.attend(options, {}, set));
    CHECK(attention.worst_error(expected) <= share * attention_tolerance<typename Attention::element_type>);
  }
}

}  // namespace pagedkv::test
