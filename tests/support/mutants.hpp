#pragma once

#include "faulty_atomics.hpp"
#include "scheduled.hpp"

/// Planted bugs: the scheduler's atomics, but each lacks one guarantee. A test of a component is useful only if it
/// fails with these.
namespace pagedkv::testing {

template <class T>
using untagged = faulty<scheduled>::untagged<T>;
template <class T>
using tagged_16 = faulty<scheduled>::tagged_16<T>;
template <class T>
using load_then_store = faulty<scheduled>::load_then_store<T>;
template <class T>
using load_then_store_exchange = faulty<scheduled>::load_then_store_exchange<T>;
template <class T>
using load_then_store_or = faulty<scheduled>::load_then_store_or<T>;
template <class T>
using unreleased = faulty<scheduled>::unreleased<T>;
template <class T>
using unreleased_addition = faulty<scheduled>::unreleased_addition<T>;
template <class T>
using unreleased_exchange = faulty<scheduled>::unreleased_exchange<T>;

template <access... Kinds>
struct no_single_order {
  template <class T>
  using atomic = faulty<scheduled>::no_single_order<T, Kinds...>;
};

}  // namespace pagedkv::testing
