#pragma once

#include <pagedkv/router/worker_feed.hpp>
#include <pagedkv/wire/batch.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

namespace pagedkv {

/// Applies a worker's batch to its feed. Blocks of other groups of layers than `group`, and those on another medium
/// than `medium`, are left out; a worker that names no medium means this one. So are blocks of an adapter that has a
/// number only, because no key function knows it: `num_foreign` counts them.
template <block_keys Keys, class Index>
void apply(const wire_batch& batch, worker_feed<Keys, Index>& feed, std::string_view medium = "GPU",
           std::int64_t group = 0) {
  for (const auto& event : batch.events) {
    if (event.kind == wire_kind::cleared) {
      feed.clear();
      continue;
    }
    if (event.group != group || (!event.medium.empty() && event.medium != medium)) {
      continue;
    }
    const bool is_stored = event.kind == wire_kind::stored;
    if (is_stored && event.adapter_id && event.adapter.empty()) {
      feed.stored_without_name(std::ssize(event.hashes));
      continue;
    }
    if (is_stored && event.tokens.empty()) {
      continue;
    }
    auto parent = event.parent;
    for (std::size_t i = 0; i < event.hashes.size(); ++i) {
      if (event.kind == wire_kind::removed) {
        feed.removed(event.hashes[i]);
      } else {
        const auto size = static_cast<std::size_t>(event.block_size);
        feed.stored(event.hashes[i], parent, std::span(event.tokens).subspan(i * size, size), event.adapter);
        parent = event.hashes[i];
      }
    }
  }
}

}  // namespace pagedkv
