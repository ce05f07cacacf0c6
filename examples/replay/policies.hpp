#pragma once

#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/eviction/all.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/locking/all.hpp>

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

// The command line offers every policy of these axes.
namespace pagedkv::replay {

template <class... Policies>
[[nodiscard]] std::vector<std::string> names_of(policy_list<Policies...>) {
  return {std::string{Policies::name}...};
}

/// Calls `visit(std::type_identity<Policy>{})` for the policy of this name, which is in the list.
template <class First, class... Rest, class Visit>
auto with_policy(policy_list<First, Rest...>, std::string_view name, Visit&& visit) {
  if constexpr (sizeof...(Rest) != 0) {
    if (First::name != name) {
      return with_policy(policy_list<Rest...>{}, name, visit);
    }
  }
  return visit(std::type_identity<First>{});
}

}  // namespace pagedkv::replay
