#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/group_directory.hpp>
#include <pagedkv/tier/host_tier.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_store.hpp>
#include <pagedkv/tier/record_table.hpp>
#include <pagedkv/tier/tier_config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace pagedkv {

namespace detail {

/// Nodes for so many records: of each node, there is a record of each group that every hit needs, or a block.
[[nodiscard]] inline std::int64_t nodes_for_records(const group_shapes& shapes, std::int64_t num_records) noexcept {
  auto least = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  for (std::size_t g = 0; g < shapes.num_groups(); ++g) {
    if (shapes.is_whole(g)) {
      least = std::min(least, static_cast<std::int64_t>(shapes.nodes_in_block(g)));
    }
  }
  return num_records * least;
}

}  // namespace detail

/// Where records are looked for.
enum class record_reach : std::uint8_t {
  host_memory,
  arriving,  // there, or being read
  anywhere,  // in any tier, or evicted from the device by this operation
};

/// The records behind a cache with groups. Its nodes outlive their device blocks while there are records of them, so a
/// look-up of the device's finds what tiers have, too. The cache tells which blocks its nodes get and lose.
///
/// Written are the blocks of groups that every hit needs, saved states, and of windows what the next token reads: of a
/// token behind a node from which chains part, or at which one ends.
template <locking Locking, swaps_blocks Backend, block_hash Hash, class Host, tier... Slower>
class group_tier_store : public record_store<Backend, group_directory<Locking, Hash>, Host, Slower...> {
  using base = record_store<Backend, group_directory<Locking, Hash>, Host, Slower...>;
  using base::catalog_;
  using base::config_;
  using base::pipeline_;

 public:
  using directory_type = group_directory<Locking, Hash>;
  using nodes_type = typename directory_type::nodes_type;
  using base::num_tiers;

  /// Throws `exception`, `std::bad_alloc`.
  group_tier_store(nodes_type& nodes, const group_shapes& shapes, std::int32_t num_blocks, const tier_config& config,
                   Backend& backend, const block_storage_view& device, const record_format& format, Host host_tier,
                   std::tuple<Slower...> slower)
      : base(config, num_blocks, backend, device, format, std::move(host_tier), std::move(slower),
             [&, num_host_records = host_tier.num_records](std::int64_t) {
               return make_directory(nodes, shapes, num_host_records);
             }),
        nodes_(nodes),
        shapes_(shapes) {
    path_.reserve(2 * static_cast<std::size_t>(num_blocks));
    committed_.reserve(2 * static_cast<std::size_t>(num_blocks));
  }

  // News of the device's cache.

  void make_room_for_nodes() noexcept { catalog_.make_room_for_nodes(); }
  void node_added(node_id node, const block_contents& contents, salt tag) noexcept {
    catalog_.directory().name(node, contents, tag);
    catalog_.adopt_orphans(node);
  }
  void block_attached(node_id node, std::size_t g) noexcept {
    auto& directory = catalog_.directory();
    directory.for_each_record(node, g, [&](record_id record) {
      directory.note_stored(record);
      if (catalog_.in_host_memory(record)) {
        catalog_.unrank(record);
        catalog_.tidy(record);
      }
    });
    if (is_committing_ && is_complete(node, g) && committed_.size() < committed_.capacity()) {
      committed_.emplace_back(node, g);
    }
  }
  /// Before a block is evicted; of a state, with all its blocks.
  void block_leaves(block_id block) noexcept {
    if (is_invalidating_) {
      return;  // a reset
    }
    const auto last = nodes_.deepest(block);
    const auto g = nodes_.group_of(block);
    const auto& directory = catalog_.directory();
    if (!shapes_.holds_tokens(g)) {
      auto part = nodes_.attached(last, g);
      directory.for_each_record(last, g, [&](record_id record) {
        leave_device(record, part);
        part = nodes_.next_of_state(part);
      });
      return;
    }
    nodes_.for_each_node(block, [&](node_id node) {
      const auto record = directory.first_record(node, g);
      if (node == last) {
        leave_device(record, block);
      } else if (catalog_.in_host_memory(record)) {
        catalog_.rank(record);
      }
    });
  }
  /// Every block left the device's cache, and the K/V in the tiers is as useless.
  void reset() noexcept { catalog_.forget_all(); }

  /// While a sequence commits, the blocks that it publishes are written through. (Those that a release publishes are not,
  /// because it has no stream.)
  void begin_commit() noexcept { is_committing_ = config_.write == write_policy::through; }
  void end_commit() noexcept {
    for (const auto& [node, g] : committed_) {
      if (is_of_use(node, g)) {
        write_through(node, g);
      }
    }
    committed_.clear();
    is_committing_ = false;
  }

  /// Counts a hit that ends at a node, for `through_hits`.
  void note_hit(node_id last) noexcept {
    if (config_.write != write_policy::through_hits || last == no_node) {
      return;
    }
    auto& directory = catalog_.directory();
    path_.clear();
    for_each_needed(last, [&](record_id record, block_id block) {
      const auto is_due = block != no_block && directory.count_hit(record) >= config_.hits_before_write;
      if (is_due && !directory.has_record(record)) {
        add_to_path(record, block);
      }
      return true;
    });
    base::want_path_written(path_, path_.size());
  }

  // Look-ups.

  /// Whether all records of a group at a node are so near.
  [[nodiscard]] bool has(node_id node, std::size_t g, record_reach reach) const noexcept {
    auto all = !nodes_.is_withdrawn(node);
    catalog_.directory().for_each_record(node, g, [&](record_id record) {
      const auto& here = catalog_.at(record);
      all = all && (catalog_.in_host_memory(record) || (reach != record_reach::host_memory && here.loading) ||
                    (reach == record_reach::anywhere && (here.pending || catalog_.is_reachable(record))));
    });
    return all;
  }
  void hold(record_id record) noexcept { catalog_.hold(record); }

  // Invalidations, around those of the device's cache. Linear in the nodes.

  void begin_invalidation() noexcept { is_invalidating_ = true; }
  void end_invalidation() noexcept {
    is_invalidating_ = false;
    catalog_.note_withdrawals();
    catalog_.end_invalidation();
  }
  void invalidate_prefix(const token_run& run, salt tag) noexcept {
    catalog_.forget_orphans(tag);
    if constexpr (num_tiers != 1) {
      auto identity = record_identity{};
      identity.key = root_key(tag);
      for (std::size_t i = 0; i < run.tokens.size() / shapes_.tokens_per_node(); ++i) {
        identity.key = chained_key(identity.key, run.block(i, shapes_.tokens_per_node()));
        for (std::size_t index = 0; index < catalog_.directory().records_per_node(); ++index) {
          identity.index = static_cast<std::int64_t>(index);
          catalog_.erase_unknown(key_in_tier(identity));
        }
      }
    }
  }
  void invalidate_salt(salt tag) noexcept { catalog_.forget_orphans(tag); }

 private:
  [[nodiscard]] std::int64_t end_of(node_id node) const noexcept {
    return (nodes_.depth(node) + std::int64_t{1}) * shapes_.granularity();
  }
  /// Whether a group's block has all tokens that it will have.
  [[nodiscard]] bool is_complete(node_id node, std::size_t g) const noexcept {
    return !shapes_.holds_tokens(g) || (nodes_.depth(node) + 1) % shapes_.nodes_in_block(g) == 0;
  }

  /// Whether a hit may need the block up to a node.
  [[nodiscard]] bool is_of_use(node_id last, std::size_t g) const noexcept {
    if (!shapes_.holds_tokens(g) || shapes_.is_whole(g)) {
      return true;
    }
    const auto place = shapes_.place_of_node(g, nodes_.depth(last));
    if (place < shapes_.num_sinks(g)) {
      return true;
    }
    auto node = last;
    for (auto above = nodes_.parent(node); above != no_node && shapes_.place_of_node(g, nodes_.depth(above)) == place;
         above = nodes_.parent(node)) {
      node = above;
    }
    for (; shapes_.first_place(g, end_of(node)) <= place; node = nodes_.first_child(node)) {
      const auto child = nodes_.first_child(node);
      if (child == no_node || nodes_.next(child) != no_node) {
        return true;
      }
    }
    return false;
  }

  void write_through(node_id node, std::size_t g) noexcept {
    auto block = nodes_.attached(node, g);
    catalog_.directory().for_each_record(node, g, [&](record_id record) {
      if (block != no_block && !catalog_.in_host_memory(record)) {
        want_ancestors_written(record);
        pipeline_.want_written(record, block);
      }
      block = block == no_block || shapes_.holds_tokens(g) ? block : nodes_.next_of_state(block);
    });
  }
  void leave_device(record_id record, block_id block) noexcept {
    const auto is_wanted = config_.write != write_policy::through_hits &&
                           is_of_use(catalog_.directory().node_of(record), catalog_.directory().group_of(record));
    if (is_wanted) {
      want_ancestors_written(record);
    }
    if (catalog_.in_host_memory(record)) {
      catalog_.rank(record);
    } else if (is_wanted) {
      pipeline_.want_written(record, block);
    }
  }

  /// Calls `visit(record, block)` on what a hit needs that ends at a node, from there to the root, with the device's
  /// blocks; it may return false for no more.
  template <class Visit>
  void for_each_needed(node_id last, Visit&& visit) const noexcept {
    const auto& directory = catalog_.directory();
    const auto end = end_of(last);
    for (auto node = last; node != no_node; node = nodes_.parent(node)) {
      for (std::size_t g = 0; g < shapes_.num_groups(); ++g) {
        auto block = nodes_.attached(node, g);
        if (!shapes_.holds_tokens(g)) {
          if (node == last) {
            directory.for_each_record(node, g, [&](record_id record) {
              static_cast<void>(visit(record, block));
              block = block == no_block ? no_block : nodes_.next_of_state(block);
            });
          }
          continue;
        }
        const auto place = shapes_.place_of_node(g, nodes_.depth(node));
        const auto is_needed = place >= shapes_.first_place(g, end) || place < shapes_.num_sinks(g);
        if (is_needed && (node == last || is_complete(node, g)) && !visit(directory.first_record(node, g), block)) {
          return;
        }
      }
    }
  }

  /// A record is of use only with those that begin it, and with those of windows. Of a chain whose head the device
  /// keeps, because others share it, and whose tail goes, the head is written, too, as `tier_store` does it.
  void want_ancestors_written([[maybe_unused]] record_id of) noexcept {
    if constexpr (num_tiers != 1) {
      const auto& directory = catalog_.directory();
      const auto most = pipeline_.num_more_writes();
      const auto last = directory.node_of(of);
      const auto number = directory.number_of(of);
      path_.clear();
      if (most == 0) {
        return;
      }
      auto windows_begin = end_of(last);
      for (std::size_t g = 0; g < shapes_.num_groups(); ++g) {
        windows_begin = shapes_.holds_tokens(g) && !shapes_.is_whole(g)
                            ? std::min(windows_begin, shapes_.group(g).first_needed(end_of(last)))
                            : windows_begin;
      }
      for_each_needed(last, [&](record_id record, block_id block) {
        const auto is_known = catalog_.at(record).pending || directory.has_record(record);
        const auto node = directory.node_of(record);
        if (!is_known && block != no_block && record != of && directory.number_of(record) < number &&
            is_complete(node, directory.group_of(record))) {
          add_to_path(record, block);
        }
        return !is_known || node == last || !shapes_.is_whole(directory.group_of(record)) ||
               end_of(node) > windows_begin;
      });
      base::want_path_written(path_, most);
    }
  }
  void add_to_path(record_id record, block_id block) noexcept {
    if (path_.size() < path_.capacity()) {
      path_.emplace_back(record, block);
    }
  }

  [[nodiscard]] static directory_type make_directory(nodes_type& nodes, const group_shapes& shapes,
                                                     std::int32_t num_host_records) {
    auto records_per_node = std::int64_t{0};
    for (std::size_t g = 0; g < shapes.num_groups(); ++g) {
      records_per_node += static_cast<std::int64_t>(shapes.records_of_node(g));
    }
    constexpr auto most = std::int64_t{std::numeric_limits<std::int32_t>::max()};
    if (const auto num_nodes = static_cast<std::int64_t>(nodes.size()); num_nodes > most / records_per_node) {
      detail::fail({error_code::size_overflow, "records of all tiers", num_nodes * records_per_node, most});
    }
    return directory_type(nodes, shapes, num_host_records, num_tiers);
  }

  nodes_type& nodes_;
  const group_shapes& shapes_;
  bool is_committing_ = false;
  bool is_invalidating_ = false;
  std::vector<std::pair<node_id, std::size_t>> committed_;  // by the commit under way, with their groups
  std::vector<std::pair<record_id, block_id>> path_;        // from a node's end up
};

}  // namespace pagedkv
