#pragma once

#include "../support/adapted_cache.hpp"
#include "../support/eager_runs.hpp"

#include <pagedkv/pagedkv.hpp>

// Kinds of caches with groups. Their events are followed, and their copies fail.

namespace pagedkv::test {

template <class Locking, class Eviction, class Layout = nhd_layer_major>
[[nodiscard]] cache_kind describe_group_kind() {
  auto kind = describe_kind<float32, Locking, Eviction, Layout>();
  kind.has_groups = true;
  return kind;
}

/// A cache for any policy that evicts, with this one.
template <class Locking, class Layout, class Eviction>
[[nodiscard]] cache_kind make_group_kind() {
  using cache =
      group_cache<float32, Locking, support::chosen_eviction<false>, Layout, failing_backend, followed_events>;
  return made_by_choice<cache, Eviction>(describe_group_kind<Locking, Eviction, Layout>());
}

/// A cache that makes runs.
template <class Locking, class Eviction>
[[nodiscard]] cache_kind make_group_kind_with_runs() {
  auto kind = describe_group_kind<Locking, Eviction>();
  kind.name.append(" ").append(contiguous_runs::name);
  return made_as<group_cache<float32, Locking, Eviction, eager_runs, failing_backend, followed_events>>(kind);
}

/// A cache that never evicts.
template <class Locking>
[[nodiscard]] cache_kind make_group_kind_without_eviction() {
  return made_as<group_cache<float32, Locking, no_eviction, failing_backend, followed_events>>(
      describe_group_kind<Locking, no_eviction>());
}

}  // namespace pagedkv::test
