#pragma once

#include <pagedkv/policy/axis.hpp>

#include <benchmark/benchmark.h>

#include <string>
#include <type_traits>

namespace pagedkv::bench {

/// Registers a benchmark for every policy of a list, in its order. `run(policy, state)` measures one and
/// `configure(policy, benchmark)` sets its arguments and threads; both get the policy as `std::type_identity`.
/// `arguments`, if any, follow the policy in the name.
template <class... Policies, class Run, class Configure>
bool register_over(policy_list<Policies...>, const std::string& name, Run run, Configure configure,
                   const std::string& arguments = {}) {
  (configure(
       std::type_identity<Policies>{},
       benchmark::RegisterBenchmark((name + "<" + std::string{Policies::name} + arguments + ">").c_str(),
                                    [run](benchmark::State& state) { run(std::type_identity<Policies>{}, state); })),
   ...);
  return true;
}

}  // namespace pagedkv::bench
