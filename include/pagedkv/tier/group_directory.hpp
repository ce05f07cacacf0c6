#pragma once

#include <pagedkv/cache/groups/group_nodes.hpp>
#include <pagedkv/cache/groups/group_shapes.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/prefix/node_tree.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
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

  [[nodiscard]] nodes_type& nodes() noexcept { return nodes_; }
  [[nodiscard]] const nodes_type& nodes() const noexcept { return nodes_; }
  [[nodiscard]] const group_shapes& shapes() const noexcept { return shapes_; }

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
  void for_each_record(node_id node, std::size_t g, Visit&& visit) const noexcept {
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
  /// Tells which of two records' device blocks has had its contents for longer: that of the smaller number.
  [[nodiscard]] std::uint64_t number_of(record_id record) const noexcept { return of(record).number; }
  /// The device got the contents of a record.
  void note_stored(record_id record) noexcept { of(record) = {++last_number_, 0}; }
  /// Counts a sequence that shares them; returns how many have since then.
  std::uint32_t count_hit(record_id record) noexcept { return ++of(record).num_hits; }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return table::metadata_bytes() + uses_.size() * sizeof(device_use) + gathered_.size() * sizeof(gathered_contents);
  }

 private:
  /// The contents of a record on the device.
  struct device_use {
    std::uint64_t number = 0;  // of the order in which blocks got their contents
    std::uint32_t num_hits = 0;
  };
  /// Contents of several nodes.
  struct gathered_contents {
    std::vector<token> tokens;
    std::vector<prefix_key> keys;
  };

  /// For each record of a node, what `of_group(g)` tells of its group.
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
  std::uint64_t last_number_ = 0;
  std::vector<device_use> uses_;
  std::vector<gathered_contents> gathered_;  // for each place of host memory, where blocks hold several nodes
};

}  // namespace pagedkv
