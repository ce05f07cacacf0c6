#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/cache/groups/group_nodes.hpp>
#include <pagedkv/cache/groups/group_shapes.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/prefix/node_tree.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_store.hpp>
#include <pagedkv/tier/record_table.hpp>
#include <pagedkv/tier/slower_tier.hpp>
#include <pagedkv/tier/tier_config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// The records of the nodes of a cache with groups, which outlive their device blocks. A node has a record for each
/// group that holds tokens, of the block up to the node's end, and one for each block of a state. One thread at a time.
template <locking Locking, block_hash Hash>
class group_directory : public record_table<node_tree<Locking, Hash>, false> {
  using table = record_table<node_tree<Locking, Hash>, false>;

 public:
  using link_type = typename table::link_type;
  using nodes_type = group_nodes<Locking, Hash>;

  /// Throws `std::bad_alloc`.
  group_directory(nodes_type& nodes, const group_shapes& shapes, std::int32_t num_host_records, std::size_t num_tiers)
      : table(nodes, nodes.size(), of_records(shapes, [&](std::size_t g) { return shapes.is_whole(g) ? 1 : 0; }),
              num_tiers),
        nodes_(nodes),
        shapes_(shapes),
        groups_(of_records(shapes, [](std::size_t g) { return static_cast<std::int32_t>(g); })),
        uses_(nodes.size() * groups_.size()) {
    for (std::size_t g = 0; g < shapes.num_groups(); ++g) {
      if (shapes.nodes_in_block(g) > 1 && num_tiers > 1) {
        gathered_.resize(static_cast<std::size_t>(num_host_records));
      }
    }
  }

  /// The first record of a group at a node, and how many there are.
  [[nodiscard]] record_id first_record(node_id node, std::size_t g) const noexcept {
    auto index = std::size_t{0};
    for (std::size_t before = 0; before < g; ++before) {
      index += shapes_.records_of_node(before);
    }
    return table::record_of(node, index);
  }
  [[nodiscard]] std::size_t group_of(record_id record) const noexcept {
    return static_cast<std::size_t>(groups_[table::index_of(record)]);
  }
  /// Calls `visit(record)` on the records of a group at a node.
  template <class Visit>
  void for_each_record(node_id node, std::size_t g, Visit&& visit) const {
    const auto first = static_cast<std::int32_t>(first_record(node, g));
    for (std::size_t i = 0; i < shapes_.records_of_node(g); ++i) {
      visit(static_cast<record_id>(first + static_cast<std::int32_t>(i)));
    }
  }

  [[nodiscard]] static std::uint64_t hash(std::uint64_t before, const block_contents& contents) noexcept {
    return nodes_type::index_type::hash(before, contents);
  }
  void prune(node_id node) noexcept {
    if (nodes_.index().is_published(node)) {
      nodes_.prune(node);
    }
  }

  [[nodiscard]] std::size_t tokens_per_node() const noexcept { return shapes_.tokens_per_node(); }
  [[nodiscard]] bool may_hold(std::int64_t index, std::int64_t position, std::size_t num_tokens) const noexcept {
    if (index < 0 || static_cast<std::size_t>(index) >= groups_.size()) {
      return false;
    }
    const auto g = static_cast<std::size_t>(groups_[static_cast<std::size_t>(index)]);
    const auto size = shapes_.holds_tokens(g) ? shapes_.block_size(g) : shapes_.granularity();
    return position % size == 0 && static_cast<std::int64_t>(num_tokens) <= size;
  }
  [[nodiscard]] record_key key_in_tiers(record_id record) const noexcept {
    auto identity = record_identity{};
    identity.key = table::key(table::node_of(record));
    identity.index = static_cast<std::int64_t>(table::index_of(record));
    return key_in_tier(identity);
  }
  /// The contents of a record, as long as it is held and in this place of host memory.
  [[nodiscard]] record_identity identity(record_id record, std::int32_t host_place) noexcept {
    const auto node = table::node_of(record);
    const auto first = first_node(record);
    return {table::key(node),
            table::parent_key(first),
            table::salt_of(node),
            std::int64_t{nodes_.depth(first)} * shapes_.granularity(),
            first == node ? nodes_.index().contents(node) : gather(node, first, host_place),
            static_cast<std::int64_t>(table::index_of(record))};
  }

  /// The device has the contents of a record, too.
  [[nodiscard]] bool on_device(record_id record) const noexcept {
    return nodes_.attached(table::node_of(record), group_of(record)) != no_block;
  }
  /// Tells which of two records' device blocks has had its contents for longer: that of the smaller number. Blocks that
  /// one operation published have the same.
  [[nodiscard]] std::uint64_t number_of(record_id record) const noexcept { return of(record).number; }
  /// The device got the contents of a record.
  void note_stored(record_id record, std::uint64_t number) noexcept { of(record) = {number, 0}; }
  /// Counts a sequence that shares them; returns how many have since then.
  std::uint32_t count_hit(record_id record) noexcept { return ++of(record).num_hits; }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return table::metadata_bytes() + uses_.size() * sizeof(device_use) + gathered_.size() * sizeof(gathered_contents);
  }

 private:
  /// The contents of a record on the device.
  struct device_use {
    std::uint64_t number = 0;  // of the order in which operations published blocks
    std::uint32_t num_hits = 0;
  };
  /// Contents of several nodes.
  struct gathered_contents {
    std::vector<token> tokens;
    std::vector<prefix_key> keys;
  };

  /// The answers of `of_group(g)` for the group of each record of a node.
  template <class OfGroup>
  [[nodiscard]] static std::vector<std::int32_t> of_records(const group_shapes& shapes, OfGroup&& of_group) {
    auto all = std::vector<std::int32_t>{};
    for (std::size_t g = 0; g < shapes.num_groups(); ++g) {
      all.insert(all.end(), shapes.records_of_node(g), of_group(g));
    }
    return all;
  }

  [[nodiscard]] device_use& of(record_id record) noexcept { return uses_[to_index(record)]; }
  [[nodiscard]] const device_use& of(record_id record) const noexcept { return uses_[to_index(record)]; }

  [[nodiscard]] node_id first_node(record_id record) const noexcept {
    auto node = table::node_of(record);
    const auto size = shapes_.holds_tokens(group_of(record)) ? shapes_.nodes_in_block(group_of(record)) : 1;
    for (auto left = nodes_.depth(node) % size; left > 0; --left) {
      node = nodes_.parent(node);
    }
    return node;
  }
  /// None where memory is exhausted: such a record is not written, or not found whole.
  [[nodiscard]] block_contents gather(node_id last, node_id first, std::int32_t host_place) noexcept {
    auto& to = gathered_[static_cast<std::size_t>(host_place)];
    to.tokens.clear();
    to.keys.clear();
    const auto gather_all = [&] {
      for (auto node = last;; node = nodes_.parent(node)) {
        const auto contents = nodes_.index().contents(node);
        to.tokens.insert(to.tokens.begin(), contents.tokens.begin(), contents.tokens.end());
        to.keys.insert(to.keys.begin(), contents.keys.begin(), contents.keys.end());
        if (node == first) {
          return block_contents{to.tokens, to.keys};
        }
      }
    };
    return detail::with_memory(gather_all, block_contents{std::span<const token>{}});
  }

  nodes_type& nodes_;
  const group_shapes& shapes_;
  std::vector<std::int32_t> groups_;  // of each record of a node
  std::vector<device_use> uses_;
  std::vector<gathered_contents> gathered_;  // for each place of host memory, where blocks hold several nodes
};

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
/// token behind a node from which chains part, or at which one ends. With the first that leaves the device of all that
/// such a hit needs, the rest is written, too.
template <locking Locking, swaps_blocks Backend, block_hash Hash, allocator Allocator, class Queues>
class group_records : public record_store<Backend, group_directory<Locking, Hash>, Allocator, Queues> {
  using base = record_store<Backend, group_directory<Locking, Hash>, Allocator, Queues>;
  using base::config_;
  using base::index_;
  using base::transfers_;

 public:
  using directory_type = group_directory<Locking, Hash>;
  using nodes_type = typename directory_type::nodes_type;
  static constexpr auto heard = event_kinds{event_kind::reset};

  /// Throws `exception`, `std::bad_alloc`.
  group_records(nodes_type& nodes, const group_shapes& shapes, std::int32_t num_blocks, const tier_config& config,
                Backend& backend, const block_storage_view& device, const record_format& format, Allocator memory,
                tier_list tiers)
      : base(config, num_blocks, backend, device, format, std::move(memory), tiers, nodes, shapes,
             static_cast<std::int32_t>(tiers.shapes.front().num_places), tiers.shapes.size()),
        nodes_(nodes),
        shapes_(shapes) {
    path_.reserve(2 * static_cast<std::size_t>(num_blocks));
    committed_.reserve(2 * static_cast<std::size_t>(num_blocks));
  }

  // News of the device's cache.

  void node_added(node_id node, const block_contents& contents, salt salt) noexcept {
    index_.name(node, contents, salt);
    index_.adopt_orphans(node);
  }
  void block_attached(node_id node, std::size_t g) noexcept {
    last_number_ += is_committing_ ? 0 : 1;
    index_.for_each_record(node, g, [&](record_id record) {
      index_.note_stored(record, last_number_);
      if (index_.in_host_memory(record)) {
        index_.unrank(record);
        index_.tidy(record);
      }
    });
    if (is_committing_ && config_.write == write_policy::through && is_complete(node, g) &&
        committed_.size() < committed_.capacity()) {
      committed_.emplace_back(node, g);
    }
  }
  /// Before a block is evicted; of a state, with all its blocks. `is_launched`: its K/V is surely written by now.
  void block_leaves(block_id block, bool is_launched) noexcept {
    if (is_invalidating_) {
      return;  // a reset
    }
    const auto last = nodes_.deepest(block);
    const auto g = nodes_.group_of(block);
    if (!shapes_.holds_tokens(g)) {
      auto part = nodes_.attached(last, g);
      index_.for_each_record(last, g, [&](record_id record) {
        leave_device(record, part, is_launched);
        part = nodes_.next_of_state(part);
      });
      return;
    }
    nodes_.for_each_node(block, [&](node_id node) {
      const auto record = index_.first_record(node, g);
      if (node == last) {
        leave_device(record, block, is_launched);
      } else if (index_.in_host_memory(record)) {
        index_.rank(record);
      }
    });
  }
  void hear(const cache_event& event) noexcept {
    if (event.kind == event_kind::reset) {
      index_.forget_all();  // every block left the device's cache, and the K/V in the tiers is as useless
    }
  }

  /// While a sequence commits, the blocks that it publishes are written through. (Those that a release publishes are
  /// not, because it has no stream.)
  void begin_commit() noexcept {
    is_committing_ = true;
    ++last_number_;
  }
  void end_commit() noexcept {
    for (const auto& [node, g] : committed_) {
      const auto end = end_of_use(node, g);
      const auto is_window = shapes_.holds_tokens(g) && !shapes_.is_whole(g);
      if (end != no_node && (!is_window || is_complete(end))) {  // before that, a hit would need a part of a block
        write_through(node, g, end);
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
    const auto ends = [&](node_id node) { return node == last; };
    for_each_needed(last, ends, true, [&](record_id record, block_id block) {
      const auto is_due = block != no_block && index_.count_hit(record) >= config_.hits_before_write;
      if (is_due && !index_.has_record(record)) {
        add_to_path(record, block);
      }
      return false;
    });
    transfers_.want_path_written(path_, path_.size());
  }

  // Look-ups.

  /// Whether all records of a group at a node are so near.
  [[nodiscard]] bool has(node_id node, std::size_t g, record_reach reach) const noexcept {
    auto all = !nodes_.is_withdrawn(node);
    index_.for_each_record(node, g, [&](record_id record) {
      const auto& here = index_.at(record);
      all = all && (index_.in_host_memory(record) || (reach != record_reach::host_memory && here.loading) ||
                    (reach == record_reach::anywhere && (here.pending || index_.is_reachable(record))));
    });
    return all;
  }

  // Invalidations, around those of the device's cache. Linear in the nodes.

  void begin_invalidation() noexcept { is_invalidating_ = true; }
  void end_invalidation(bool any = true) noexcept {
    is_invalidating_ = false;
    if (any) {
      index_.note_withdrawals();
      index_.end_invalidation();
    }
  }
  void invalidate_prefix(const token_run& run, salt salt) noexcept {
    index_.forget_orphans(salt);
    if constexpr (Queues::has_slower) {
      auto identity = record_identity{};
      identity.key = root_key(salt);
      for (std::size_t i = 0; i < run.tokens.size() / shapes_.tokens_per_node(); ++i) {
        identity.key = chained_key(identity.key, run.block(i, shapes_.tokens_per_node()));
        for (std::size_t index = 0; index < index_.records_per_node(); ++index) {
          identity.index = static_cast<std::int64_t>(index);
          index_.erase_unknown(key_in_tier(identity));
        }
      }
    }
  }
  void invalidate_salt(salt salt) noexcept { index_.forget_orphans(salt); }

 private:
  [[nodiscard]] std::int64_t end_of(node_id node) const noexcept {
    return (nodes_.depth(node) + std::int64_t{1}) * shapes_.granularity();
  }
  /// Whether a group's block has all tokens that it will have.
  [[nodiscard]] bool is_complete(node_id node, std::size_t g) const noexcept {
    return !shapes_.holds_tokens(g) || (nodes_.depth(node) + 1) % shapes_.nodes_in_block(g) == 0;
  }

  /// Whether all groups that every hit needs have complete blocks up to a node's end.
  [[nodiscard]] bool is_complete(node_id node) const noexcept {
    auto all = true;
    for (std::size_t g = 0; g < shapes_.num_groups(); ++g) {
      all = all && (!shapes_.is_whole(g) || is_complete(node, g));
    }
    return all;
  }
  /// Whether hits end at a node: chains part there, one ends, or a state is saved there.
  [[nodiscard]] bool ends_hits(node_id node) const noexcept {
    const auto child = nodes_.first_child(node);
    const auto g = shapes_.group_with_state();
    return child == no_node || nodes_.next(child) != no_node ||
           (g != shapes_.num_groups() && nodes_.attached(node, g) != no_block);
  }
  /// The end of the shortest hit that may need the block up to a node, of a window; of another group, that node.
  /// `no_node` for none.
  [[nodiscard]] node_id end_of_use(node_id last, std::size_t g) const noexcept {
    if (!shapes_.holds_tokens(g) || shapes_.is_whole(g)) {
      return last;
    }
    const auto place = shapes_.place_of_node(g, nodes_.depth(last));
    if (place < shapes_.num_sinks(g)) {
      return last;
    }
    auto node = last;
    for (auto above = nodes_.parent(node); above != no_node && shapes_.place_of_node(g, nodes_.depth(above)) == place;
         above = nodes_.parent(node)) {
      node = above;
    }
    while (node != no_node && shapes_.first_place(g, end_of(node)) <= place) {
      if (ends_hits(node)) {
        return node;
      }
      node = nodes_.first_child(node);
    }
    return no_node;
  }
  /// The first token that windows behind a node read.
  [[nodiscard]] std::int64_t begin_of_windows(node_id end) const noexcept {
    auto begin = end_of(end);
    for (std::size_t g = 0; g < shapes_.num_groups(); ++g) {
      if (shapes_.holds_tokens(g) && !shapes_.is_whole(g)) {
        begin = std::min(begin, shapes_.group(g).first_needed(end_of(end)));
      }
    }
    return begin;
  }

  void write_through(node_id node, std::size_t g, node_id end) noexcept {
    auto block = nodes_.attached(node, g);
    index_.for_each_record(node, g, [&](record_id record) {
      if (block != no_block && !index_.in_host_memory(record)) {
        want_rest_written(record, end);
        transfers_.want_written(record, block);
      }
      block = block == no_block || shapes_.holds_tokens(g) ? block : nodes_.next_of_state(block);
    });
  }
  void leave_device(record_id record, block_id block, bool is_launched) noexcept {
    const auto end = config_.write == write_policy::through_hits || !is_launched
                         ? no_node
                         : end_of_use(index_.node_of(record), index_.group_of(record));
    if (end != no_node) {
      want_rest_written(record, end);
    }
    if (index_.in_host_memory(record)) {
      index_.rank(record);
    } else if (end != no_node) {
      transfers_.want_written(record, block);
    }
  }

  /// Calls `visit(record, block)` on what hits need that end where `ends(node)`, from `last` to the root, with the
  /// device's blocks. If it returns true for a block that every hit needs, what such blocks before it hold is left out.
  /// Where no hit needs all blocks of a group, so are sinks unless `with_sinks`: these are far from a chain's end.
  template <class Ends, class Visit>
  void for_each_needed(node_id last, const Ends& ends, bool with_sinks, Visit&& visit) const noexcept {
    auto end = no_node;
    auto windows_begin = shapes_.has_whole() ? std::numeric_limits<std::int64_t>::max() : std::int64_t{0};
    auto is_known = !shapes_.has_whole() && !(with_sinks && shapes_.has_sinks());
    for (auto node = last; node != no_node && !(is_known && end_of(node) <= windows_begin);
         node = nodes_.parent(node)) {
      if (ends(node)) {
        end = node;
        windows_begin = begin_of_windows(node);
      }
      for (std::size_t g = 0; g < shapes_.num_groups(); ++g) {
        auto block = nodes_.attached(node, g);
        if (!shapes_.holds_tokens(g)) {
          if (node == end) {
            index_.for_each_record(node, g, [&](record_id record) {
              static_cast<void>(visit(record, block));
              block = block == no_block ? no_block : nodes_.next_of_state(block);
            });
          }
          continue;
        }
        const auto place = shapes_.place_of_node(g, nodes_.depth(node));
        const auto is_needed = shapes_.is_whole(g) || place < shapes_.num_sinks(g) ||
                               (end != no_node && place >= shapes_.first_place(g, end_of(end)));
        if (is_needed && (node == end || is_complete(node, g))) {
          const auto knows = visit(index_.first_record(node, g), block);
          is_known = is_known || (knows && shapes_.is_whole(g) && node != last);
        }
      }
    }
  }

  /// A record is of use only with all others that a hit needs. Of a chain whose head the device keeps, because others
  /// share it, and whose tail goes, the head is written, too, as `block_records` does it.
  void want_rest_written([[maybe_unused]] record_id of, [[maybe_unused]] node_id last) noexcept {
    if constexpr (Queues::has_slower) {
      const auto most = transfers_.num_more_writes();
      if (most == 0) {
        return;
      }
      const auto ends = [&](node_id node) { return ends_hits(node); };
      for_each_needed(last, ends, false, [&](record_id record, block_id block) {
        const auto is_known = index_.at(record).pending || index_.has_record(record);
        if (!is_known && block != no_block && record != of && index_.number_of(record) <= index_.number_of(of)) {
          add_to_path(record, block);
        }
        return is_known;
      });
      transfers_.want_path_written(path_, most);
    }
  }
  void add_to_path(record_id record, block_id block) noexcept {
    if (path_.size() < path_.capacity()) {
      path_.emplace_back(record, block);
    }
  }

  nodes_type& nodes_;
  const group_shapes& shapes_;
  bool is_committing_ = false;
  std::uint64_t last_number_ = 0;  // of the operations that published blocks
  bool is_invalidating_ = false;
  std::vector<std::pair<node_id, std::size_t>> committed_;  // by the commit under way, with their groups
  std::vector<std::pair<record_id, block_id>> path_;        // from a node's end up
};

}  // namespace pagedkv
