#pragma once

#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/record_format.hpp>
#include <pagedkv/tier/session_head.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// How a session's file sees a sequence of each kind of cache: as tables of blocks. All may throw `std::bad_alloc`.

namespace pagedkv::detail {

template <class Cache>
inline constexpr bool has_groups = Cache::layers_differ;

/// Whether creation may begin loads.
template <class Cache>
inline constexpr bool has_tiers = requires(Cache& cache, sequence_id id) { cache.settle(id); };

/// A sequence's tables, and the ids in them, table after table.
struct held_blocks {
  session_tables tables;
  std::vector<block_id> ids;
};

template <class Cache>
[[nodiscard]] record_format session_format(const Cache& cache, std::string_view model) {
  constexpr auto element = Cache::element_type::name;
  if constexpr (!has_groups<Cache>) {
    return make_record_format(cache.view(), element, model);
  } else {
    const auto view_of = [&](std::size_t g) -> const block_storage_view& { return cache.view(g); };
    return make_record_format(cache.config().groups, cache.plan(), view_of, element, model);
  }
}

/// Without blocks reserved ahead.
template <class Cache>
[[nodiscard]] result<held_blocks> blocks_of(const Cache& cache, sequence_id id) {
  const auto info = cache.describe(id);
  if (!info) {
    return info.error();
  }
  auto held = held_blocks{};
  const auto num_places = [&](std::int64_t size) { return (info->num_tokens + size - 1) / size; };
  auto ids = std::vector<block_id>(static_cast<std::size_t>(info->num_blocks));
  if constexpr (!has_groups<Cache>) {
    if (const auto copied = cache.block_table(id, ids); !copied) {
      return copied.error();
    }
    ids.resize(static_cast<std::size_t>(num_places(cache.config().block_size)));
    const auto first = std::ranges::find_if(ids, [](block_id block) { return block != no_block; });
    held.tables[0] = {ids.end() - first, 0, first - ids.begin()};
    held.ids.assign(first, ids.end());
  } else {
    for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
      const auto copied = cache.block_table(id, ids, 0, g);
      if (!copied) {
        return copied.error();
      }
      auto& table = held.tables[g];
      table.num_entries = static_cast<std::int64_t>(*copied);
      if (const auto& group = cache.config().groups[g]; group.holds_tokens()) {
        const auto size = std::int64_t{cache.plan().groups[g].block_size};
        const auto skipped = cache.num_skipped_tokens(id, g);
        if (!skipped) {
          return skipped.error();
        }
        table.num_leading = *skipped > 0 ? (group.num_sinks + size - 1) / size : 0;
        table.first_place = table.num_leading + *skipped / size;
        table.num_entries = std::min(table.num_entries, num_places(size) - *skipped / size);
      }
      held.ids.insert(held.ids.end(), ids.begin(), ids.begin() + table.num_entries);
    }
  }
  return held;
}

/// Fills a head with the tokens and keys of a sequence. `contents`: of the caller's, where the cache has lost the
/// first. Errors: `invalid_argument` where these differ.
template <class Cache>
[[nodiscard]] result<void> copy_contents(const Cache& cache, sequence_id id, const token_run& contents,
                                         session_head& head) {
  auto num_lost = std::int64_t{0};
  if constexpr (!has_groups<Cache>) {
    const auto size = std::int64_t{cache.config().block_size};
    num_lost = std::min(head.tables[0].first_place * size, head.num_tokens());
  }
  const auto num_keys = cache.keys(id, {});
  if (!num_keys) {
    return num_keys.error();
  }
  head.keys.resize(*num_keys);
  if (const auto copied = cache.keys(id, head.keys); !copied) {
    return copied.error();
  }
  const auto known = std::span{head.tokens}.subspan(static_cast<std::size_t>(num_lost));
  if (auto copied = cache.tokens(id, num_lost, known); !copied) {
    return copied;
  }
  if (num_lost > 0 || !contents.tokens.empty()) {
    const auto given = contents.tokens;
    if (given.size() != head.tokens.size() || !std::ranges::equal(given.last(known.size()), known) ||
        !std::ranges::equal(contents.keys, head.keys)) {
      return error{error_code::invalid_argument, "tokens in contents of a session, which are not the sequence's,",
                   std::ssize(given), head.num_tokens()};
    }
    std::ranges::copy(given, head.tokens.begin());
  }
  return {};
}

/// A session's head, and the blocks that it is about, table by table.
struct described_session {
  session_head head;
  std::vector<block_id> blocks;
};

template <class Cache>
[[nodiscard]] result<described_session> describe_session(const Cache& cache, sequence_id id,
                                                         const token_run& contents) {
  auto held = blocks_of(cache, id);
  if (!held) {
    return held.error();
  }
  const auto info = cache.describe(id);
  if (!info) {
    return info.error();
  }
  if (info->num_prompt_tokens > info->num_tokens) {
    return error{error_code::invalid_argument, "tokens of a session whose prompt is still appended", info->num_tokens,
                 info->num_prompt_tokens};
  }
  auto head = session_head{};
  head.tables = held->tables;
  head.options = info->options;
  head.options.num_prompt_tokens = info->num_prompt_tokens;
  head.num_computed_tokens = info->num_computed_tokens;
  head.tokens.resize(static_cast<std::size_t>(info->num_tokens));
  if (const auto copied = copy_contents(cache, id, contents, head); !copied) {
    return copied.error();
  }
  return described_session{std::move(head), std::move(held->ids)};
}

/// A sequence with blocks for all of a session's tokens. Nothing is loading for it: what no tier has at hand is in the
/// session.
template <class Cache>
[[nodiscard]] result<admission> create_from(Cache& cache, const session_head& head, typename Cache::stream on) {
  auto options = head.options;
  if constexpr (!has_groups<Cache>) {
    options.publish = options.publish && head.tables[0].first_place == 0;  // no blocks without K/V
  }
  auto made = cache.create_sequence(token_run{head.tokens, head.keys}, options, on);
  if constexpr (has_tiers<Cache>) {
    if (const auto settled = made ? cache.settle(made->id, on) : result<std::int64_t>{made.error()}; settled) {
      made->num_cached_tokens = *settled;
      made->num_loading_tokens = 0;
    }
  }
  return made;
}

/// The block that each of a session's records is loaded into: of the new sequence's own, or `no_block`. Errors:
/// `invalid_argument` where the tables do not go together.
template <class Cache>
[[nodiscard]] result<std::vector<block_id>> blocks_to_load(const Cache& cache, const admission& made,
                                                           const session_head& head) {
  auto held = blocks_of(cache, made.id);
  if (!held) {
    return held.error();
  }
  auto targets = std::vector<block_id>(static_cast<std::size_t>(head.num_records()), no_block);
  if (made.num_cached_tokens >= head.num_computed_tokens) {
    return targets;
  }
  auto next = targets.begin();
  auto first = held->ids.begin();
  for (std::size_t g = 0; g < head.tables.size(); ++g) {
    const auto& from = head.tables[g];
    const auto& to = held->tables[g];
    auto num_shared = std::int64_t{0};
    if constexpr (!has_groups<Cache>) {
      num_shared = made.num_cached_tokens / cache.config().block_size;
    } else if (g < cache.config().groups.size() && cache.config().groups[g].holds_tokens()) {
      num_shared = made.num_cached_tokens / cache.plan().groups[g].block_size;
    }
    for (std::int64_t entry = 0; entry < from.num_entries; ++entry, ++next) {
      const auto place = from.place_of(entry);
      const auto index = place < to.num_leading ? place : place - to.first_place + to.num_leading;
      const auto is_held = place < to.num_leading || (place >= to.first_place && index < to.num_entries);
      if (place >= num_shared && !is_held) {
        return error{error_code::invalid_argument, "place in a session's table, which a sequence has not,", place};
      }
      *next = place < num_shared ? no_block : first[index];
    }
    first += to.num_entries;
  }
  return targets;
}

/// Publishes what was loaded, and releases what was not.
template <class Cache>
[[nodiscard]] result<void> finish_loading(Cache& cache, const admission& made, const session_head& head,
                                          typename Cache::stream on) noexcept {
  const auto num_computed = std::max(made.num_cached_tokens, head.num_computed_tokens);
  if constexpr (has_groups<Cache>) {
    const auto dropped = cache.drop_behind_windows(made.id, num_computed);
    return dropped ? cache.commit(made.id, num_computed, on) : dropped;
  } else {
    const auto committed = cache.commit(made.id, num_computed, on);
    return committed ? cache.drop_before(made.id, head.tables[0].first_place * cache.config().block_size) : committed;
  }
}

/// Starts a sequence from a session: `load(blocks)` fills these blocks with its records, but not those that are
/// `no_block`. A failure leaves no sequence. May throw `std::bad_alloc` before it has changed anything.
template <class Cache, class Load>
[[nodiscard]] result<admission> start_from(Cache& cache, const session_head& head, typename Cache::stream on,
                                           const Load& load) {
  const auto made = create_from(cache, head, on);
  if (!made) {
    return made.error();
  }
  const auto fill = [&]() -> result<void> {
    const auto blocks = blocks_to_load(cache, *made, head);
    if (!blocks) {
      return blocks.error();
    }
    const auto loaded = load(std::span{*blocks});
    return loaded ? finish_loading(cache, *made, head, on) : loaded;
  };
  if (const auto filled = with_memory(fill, error{error_code::out_of_memory, "memory to load a session"}); !filled) {
    static_cast<void>(cache.release(made->id));
    return filled.error();
  }
  return *made;
}

}  // namespace pagedkv::detail
