#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/tier/record.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace pagedkv {

/// The state of one record, beside its places.
struct record_facts {
  std::uint32_t num_holders = 0;
  std::int8_t source = 0;    // tier that its host record was loaded from
  std::uint8_t due = 0;      // bit t: its host record should be written to slower tier 1 + t
  bool loading : 1 = false;  // it is being read
  bool sealed : 1 = false;   // its host record has a header
  bool writing : 1 = false;  // its host record is being written to slower tiers
  bool pending : 1 = false;  // it is to be copied from the device to host memory
};

/// The records of each node of a tree: facts, places in every tier, and names. A node stays in the tree while one of
/// its records is in a tier or is held. `OnePerNode`: a node has one record. Not thread-safe; only the constructor
/// allocates.
///
/// A tier's record *begins* others if records of the same tier continue it: of a `whole` one, which every hit behind it
/// needs, those at later nodes, and those of its own node that are not whole.
template <class Tree, bool OnePerNode>
class record_table {
 public:
  using link_type = typename Tree::link_type;
  static constexpr auto no_place = std::int32_t{-1};

  /// Throws `exception`, `std::bad_alloc`. `are_whole`: not 0 for each record of a node that is. The tree may be
  /// constructed later.
  record_table(Tree& tree, std::size_t num_nodes, std::span<const std::int32_t> are_whole, std::size_t num_tiers)
      : tree_(&tree),
        num_tiers_(num_tiers),
        are_whole_(are_whole.begin(), are_whole.end()),
        facts_(num_records(num_nodes, are_whole.size())),
        uses_(facts_.size() * num_tiers),
        names_(num_tiers > 1 ? num_nodes : 0) {}
  record_table(const record_table&) = delete;
  record_table& operator=(const record_table&) = delete;

  [[nodiscard]] Tree& tree() noexcept { return *tree_; }
  [[nodiscard]] const Tree& tree() const noexcept { return *tree_; }

  [[nodiscard]] std::size_t records_per_node() const noexcept { return OnePerNode ? 1 : are_whole_.size(); }
  [[nodiscard]] record_id record_of(node_id node, std::size_t index = 0) const noexcept {
    return static_cast<record_id>(to_index(node) * records_per_node() + index);
  }
  [[nodiscard]] node_id node_of(record_id record) const noexcept {
    return OnePerNode ? static_cast<node_id>(record) : to_node(to_index(record) / records_per_node());
  }
  /// Which of its node's records it is.
  [[nodiscard]] std::size_t index_of(record_id record) const noexcept {
    return OnePerNode ? 0 : to_index(record) % records_per_node();
  }

  [[nodiscard]] record_facts& at(record_id record) noexcept { return facts_[to_index(record)]; }
  [[nodiscard]] const record_facts& at(record_id record) const noexcept { return facts_[to_index(record)]; }

  [[nodiscard]] link_type link(record_id record) const noexcept { return tree_->link(node_of(record)); }
  [[nodiscard]] bool is_withdrawn(record_id record) const noexcept { return tree_->is_withdrawn(node_of(record)); }

  [[nodiscard]] std::uint32_t num_holders(record_id record) const noexcept { return at(record).num_holders; }
  void hold(record_id record) noexcept {
    ++at(record).num_holders;
    tree_->hold(node_of(record));
  }
  /// Prune the node next, as after `clear_place`.
  void let_go(record_id record) noexcept {
    --at(record).num_holders;
    tree_->let_go(node_of(record));
  }

  [[nodiscard]] std::int32_t place_of(record_id record, std::size_t tier) const noexcept {
    return use_of(record, tier).place;
  }
  void set_place(record_id record, std::size_t tier, std::int32_t place) noexcept {
    use_of(record, tier).place = place;
    tree_->hold(node_of(record));
    for (auto node = node_of(record); node != no_node && use_of(record_of(node), tier).num_uses++ == 0;) {
      node = tree_->parent(node);
    }
  }
  void clear_place(record_id record, std::size_t tier) noexcept {
    use_of(record, tier).place = no_place;
    tree_->let_go(node_of(record));
    for (auto node = node_of(record); node != no_node && --use_of(record_of(node), tier).num_uses == 0;) {
      node = tree_->parent(node);
    }
  }
  /// Prefetches for a record that gets its first place, or loses its last one.
  [[gnu::always_inline]] void prefetch(record_id record) const noexcept {
    __builtin_prefetch(&at(record), 1);
    __builtin_prefetch(&use_of(record, 0), 1);
  }
  /// Prefetches for the end of a record and of its node.
  [[gnu::always_inline]] void prefetch_removal(record_id record) const noexcept {
    prefetch(record);
    tree_->prefetch_removal(node_of(record));
  }
  /// Whether the record begins others of its tier, see above.
  [[nodiscard]] bool has_children(record_id record, std::size_t tier) const noexcept {
    const auto node = node_of(record);
    const auto num_uses = use_of(record_of(node), tier).num_uses;
    if constexpr (OnePerNode) {
      return num_uses > (place_of(record, tier) != no_place ? 1U : 0U);
    }
    auto num_whole = std::uint32_t{0};
    for (std::size_t index = 0; index < are_whole_.size(); ++index) {
      num_whole += are_whole_[index] != 0 && place_of(record_of(node, index), tier) != no_place;
    }
    return are_whole_[index_of(record)] != 0 && num_uses > num_whole;
  }
  /// Whether a record is in any tier.
  [[nodiscard]] bool has_record(record_id record) const noexcept {
    const auto first = uses_.begin() + static_cast<std::ptrdiff_t>(to_index(record) * num_tiers_);
    return std::any_of(first, first + static_cast<std::ptrdiff_t>(num_tiers_),
                       [](const record_use& use) { return use.place != no_place; });
  }

  /// The key of the chain up to a node's end, and its salt, if there are tiers beside host memory.
  [[nodiscard]] record_key key(node_id node) const noexcept {
    return names_.empty() ? record_key{} : names_[to_index(node)].key;
  }
  [[nodiscard]] salt salt_of(node_id node) const noexcept {
    return names_.empty() ? salt::none : names_[to_index(node)].salt;
  }
  /// The key before a node's contents.
  [[nodiscard]] record_key parent_key(node_id node) const noexcept {
    const auto above = tree_->parent(node);
    return above == no_node ? root_key(salt_of(node)) : key(above);
  }
  /// The node with these contents, made and named if it is new; `no_node` when there are no more, or no memory for its
  /// keys.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash, const block_contents& contents,
                                    salt salt) noexcept {
    if (names_.empty()) {
      return tree_->find_or_add(before, hash, contents);
    }
    const auto num_before = tree_->num_alive();
    const auto node = tree_->find_or_add(before, hash, contents);
    if (tree_->num_alive() != num_before) {
      name(node, contents, salt);
    }
    return node;
  }
  /// Names a new node. The one before it has its name.
  void name(node_id node, const block_contents& contents, salt salt) noexcept {
    if (!names_.empty()) {
      names_[to_index(node)].salt = salt;
      names_[to_index(node)].key = chained_key(parent_key(node), contents);
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return facts_.size() * sizeof(record_facts) + uses_.size() * sizeof(record_use) +
           names_.size() * sizeof(chain_name);
  }

 private:
  struct record_use {
    std::int32_t place = no_place;
    std::uint32_t num_uses = 0;  // of a node's first record: the node's records in the tier, and children with uses
  };
  struct chain_name {
    record_key key;
    pagedkv::salt salt{};
  };

  [[nodiscard]] static std::size_t num_records(std::size_t num_nodes, std::size_t per_node) {
    constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
    if (num_nodes > most / per_node) {
      detail::fail({error_code::size_overflow, "records of all tiers", static_cast<std::int64_t>(num_nodes * per_node),
                    static_cast<std::int64_t>(most)});
    }
    return num_nodes * per_node;
  }
  [[nodiscard]] record_use& use_of(record_id record, std::size_t tier) noexcept {
    return uses_[to_index(record) * num_tiers_ + tier];
  }
  [[nodiscard]] const record_use& use_of(record_id record, std::size_t tier) const noexcept {
    return uses_[to_index(record) * num_tiers_ + tier];
  }

  Tree* tree_;
  std::size_t num_tiers_;
  std::vector<std::int32_t> are_whole_;
  std::vector<record_facts> facts_;
  std::vector<record_use> uses_;   // [record][tier]
  std::vector<chain_name> names_;  // of each node, if there are slower tiers
};

}  // namespace pagedkv
