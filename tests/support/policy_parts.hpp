#pragma once

#include <pagedkv/policy/axis.hpp>

#include <cstddef>

namespace pagedkv::support {

template <std::size_t Part, std::size_t NumParts, std::size_t Number = 0>
constexpr policy_list<> part_of(policy_list<>) {
  return {};
}

/// Every `NumParts`-th policy of a list, from number `Part` on: for code that is compiled for each policy of a list, in
/// `NumParts` files, side by side, however long the list grows.
template <std::size_t Part, std::size_t NumParts, std::size_t Number = 0, class First, class... Rest>
constexpr auto part_of(policy_list<First, Rest...>) {
  constexpr auto rest = part_of<Part, NumParts, Number + 1>(policy_list<Rest...>{});
  if constexpr (Number % NumParts == Part) {
    return policy_list<First>{} + rest;
  } else {
    return rest;
  }
}

}  // namespace pagedkv::support
