#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/eviction/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pagedkv {

/// Doubly linked lists, from oldest to newest, of block ids that share one array of links: an id is in one list at
/// most. `Beside` is what the owner keeps for a block, in the cache line of its links. Every operation is constant
/// time; 8 bytes per block and those of `Beside`.
template <class Beside>
class basic_block_lists {
 public:
  using list_index = std::uint32_t;

  basic_block_lists(std::int32_t num_blocks, list_index num_lists)
      : first_list_(static_cast<std::uint32_t>(num_blocks)), nodes_(first_list_ + std::size_t{num_lists}) {
    for (auto i = std::size_t{0}; i < nodes_.size(); ++i) {
      detach(i);
    }
  }

  [[nodiscard]] Beside& beside(block_id block) noexcept { return nodes_[to_index(block)].beside; }
  [[nodiscard]] const Beside& beside(block_id block) const noexcept { return nodes_[to_index(block)].beside; }

  [[nodiscard]] bool linked(block_id block) const noexcept { return nodes_[to_index(block)].newer != to_index(block); }
  [[nodiscard]] bool empty(list_index list = 0) const noexcept { return oldest(list) == no_block; }
  [[nodiscard]] block_id oldest(list_index list = 0) const noexcept { return to_id(nodes_[head(list)].newer); }

  [[nodiscard]] block_id newest(list_index list = 0) const noexcept { return to_id(nodes_[head(list)].older); }

  /// The next newer id in the same list, or `no_block`. The id is linked.
  [[nodiscard]] block_id newer(block_id block) const noexcept { return to_id(nodes_[to_index(block)].newer); }

  /// The id is not linked.
  void push_newest(block_id block, list_index list = 0) noexcept {
    link(nodes_[head(list)].older, block, head(list));
  }
  void push_oldest(block_id block, list_index list = 0) noexcept {
    link(head(list), block, nodes_[head(list)].newer);
  }

  /// Does nothing when the id is not linked.
  void unlink(block_id block) noexcept {
    // Two loads: one of both halves would wait for the store of one by the neighbour that was unlinked just before.
    const auto older = nodes_[to_index(block)].older;
    const auto newer = nodes_[to_index(block)].newer;
    nodes_[older].newer = newer;
    nodes_[newer].older = older;
    detach(to_index(block));
  }

  /// Puts `to`, which is not linked, in the place of `from`, if that is linked.
  void replace(block_id from, block_id to) noexcept {
    if (linked(from)) {
      link(to_node(from), to, nodes_[to_index(from)].newer);
      unlink(from);
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return nodes_.capacity() * sizeof(node); }

 private:
  // A list is a ring through a node of its own, behind the nodes of the blocks: no case is special.
  struct node {
    std::uint32_t older = 0;
    std::uint32_t newer = 0;
    [[no_unique_address]] Beside beside{};
  };

  void detach(std::size_t i) noexcept { nodes_[i].older = nodes_[i].newer = static_cast<std::uint32_t>(i); }
  [[nodiscard]] static std::uint32_t to_node(block_id block) noexcept { return static_cast<std::uint32_t>(block); }
  [[nodiscard]] std::uint32_t head(list_index list) const noexcept { return first_list_ + list; }
  [[nodiscard]] block_id to_id(std::uint32_t i) const noexcept { return i < first_list_ ? to_block(i) : no_block; }

  void link(std::uint32_t older, block_id block, std::uint32_t newer) noexcept {
    nodes_[to_index(block)].older = older;
    nodes_[to_index(block)].newer = newer;
    nodes_[older].newer = to_node(block);
    nodes_[newer].older = to_node(block);
  }

  std::uint32_t first_list_;
  std::vector<node> nodes_;
};

struct nothing_beside {};

using block_lists = basic_block_lists<nothing_beside>;

/// Lists of tracked blocks from which leaves are taken. Most eviction policies are made of them. `Beside` is what the
/// policy keeps for a block, tracked or not, in the cache line of its links. 16 bytes per block and those of `Beside`;
/// every operation is amortised constant time.
///
/// A block whose turn comes while blocks which continue it are cached is *parked*: set aside until the last of those
/// is gone, and *due* from then on. A block that is in use may be *held*: it keeps its place, unless a search meets
/// it there. Then it is detached, so that no later search passes it, and comes back as the oldest.
template <class Beside>
class basic_chain_lists {
 public:
  using list_index = std::uint16_t;  // below 8,192

  basic_chain_lists(std::int32_t num_blocks, list_index num_lists)
      : lists_(num_blocks, num_lists + 2U),
        parked_list_(num_lists),
        due_list_(num_lists + 1U),
        sizes_(num_lists, 0) {}

  [[nodiscard]] bool tracked(block_id block) const noexcept { return at(block).where() != place::none; }

  /// Whether a tracked block is held.
  [[nodiscard]] bool in_use(block_id block) const noexcept {
    return at(block).where() == place::held || at(block).where() == place::detached;
  }

  /// A number that the policy keeps for a block, tracked or not.
  [[nodiscard]] std::uint16_t note(block_id block) const noexcept { return at(block).note; }
  void set_note(block_id block, std::uint16_t number) noexcept { at(block).note = number; }

  [[nodiscard]] Beside& beside(block_id block) noexcept { return at(block).beside; }
  [[nodiscard]] const Beside& beside(block_id block) const noexcept { return at(block).beside; }

  /// The list of a tracked block.
  [[nodiscard]] list_index list_of(block_id block) const noexcept { return at(block).list(); }

  /// Tracked blocks that belong to the list: wherever they are.
  [[nodiscard]] std::int32_t size(list_index list) const noexcept { return sizes_[list]; }

  /// Held blocks are met here, but not those parked, due or detached.
  [[nodiscard]] block_id oldest(list_index list) const noexcept { return lists_.oldest(list); }

  /// An untracked or held block becomes evictable, as the newest of the list.
  void insert(block_id block, block_id parent, list_index list) noexcept {
    place_newest(block, list);
    at(block).parent = parent;
  }

  /// A held block becomes evictable where it was.
  void restore(block_id block, block_id parent) noexcept {
    if (at(block).where() == place::detached) {
      lists_.push_oldest(block, at(block).list());
    }
    at(block).put(place::linked);
    at(block).parent = parent;
  }

  /// An evictable block is in use.
  void hold(block_id block) noexcept {
    if (at(block).where() != place::linked) {
      detach(block);
    } else {
      at(block).put(place::held);
    }
  }

  /// Moves a tracked block, held or not, to the newest end of a list.
  void move_newest(block_id block, list_index list) noexcept {
    const auto held = in_use(block);
    place_newest(block, list);
    at(block).put(held ? place::held : place::linked);
  }

  /// The block is no longer tracked; its parent is due if it was parked.
  void erase(block_id block) noexcept {
    if (tracked(block)) {
      lists_.unlink(block);
      --sizes_[at(block).list()];
    }
    at(block).put(place::none);
    const auto parent = std::exchange(at(block).parent, no_block);
    if (parent != no_block && at(parent).where() == place::parked) {
      lists_.unlink(parent);
      lists_.push_newest(parent, due_list_);
      at(parent).put(place::due);
    }
  }

  void rename(block_id from, block_id to) noexcept {
    lists_.replace(from, to);
    at(to) = std::exchange(at(from), entry{});
  }

  /// Takes the oldest leaf of a list; `no_block` when there is none, and then the list is empty.
  template <class Offer>
  [[nodiscard]] block_id take_oldest(list_index list, Offer& offer) noexcept {
    for (auto block = oldest_evictable(list); block != no_block; block = oldest_evictable(list)) {
      if (take(block, offer)) {
        return block;
      }
    }
    return no_block;
  }

  /// The oldest block of a list that is evictable, parents included.
  [[nodiscard]] block_id oldest_evictable(list_index list) noexcept {
    auto block = lists_.oldest(list);
    for (; block != no_block && at(block).where() == place::held; block = lists_.oldest(list)) {
      detach(block);
    }
    return block;
  }

  /// The newest block of a list that is evictable, parents included.
  [[nodiscard]] block_id newest_evictable(list_index list) noexcept {
    auto block = lists_.newest(list);
    for (; block != no_block && at(block).where() == place::held; block = lists_.newest(list)) {
      detach(block);
    }
    return block;
  }

  /// Offers an evictable block. Takes it, or parks it.
  template <class Offer>
  [[nodiscard]] bool take(block_id block, Offer& offer) noexcept {
    if (offer(block) == eviction_answer::taken) {
      erase(block);
      return true;
    }
    lists_.unlink(block);
    lists_.push_newest(block, parked_list_);
    at(block).put(place::parked);
    return false;
  }

  /// Takes a block whose turn had come before. One parked block a call is offered again, each in turn, as children
  /// that go may still name their parent by an id from before it was renamed.
  template <class Offer>
  [[nodiscard]] block_id take_due(Offer& offer) noexcept {
    for (auto block = lists_.oldest(due_list_); block != no_block; block = lists_.oldest(due_list_)) {
      if (take(block, offer)) {
        return block;
      }
    }
    return take_parked(offer);
  }

  /// Takes a block when every evictable one is parked: a leaf if one is among the first, or else the longest parked.
  template <class Offer>
  [[nodiscard]] block_id take_any(Offer& offer) noexcept {
    for (auto tries = 0; tries < max_tries; ++tries) {
      if (const auto block = take_parked(offer); block != no_block) {
        return block;
      }
    }
    const auto block = lists_.oldest(parked_list_);
    if (block == no_block || offer(block, evict_anyway) != eviction_answer::taken) {
      return no_block;
    }
    erase(block);
    return block;
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return lists_.bytes() + sizes_.capacity() * sizeof(std::int32_t);
  }

 private:
  static constexpr auto max_tries = 64;

  enum class place : std::uint16_t { none, linked, parked, due, held, detached };

  struct entry {
    block_id parent = no_block;
    std::uint16_t note = 0;
    std::uint16_t list_and_place = 0;  // no bit-fields: the load of a word would wait for the store of one of its bytes
    [[no_unique_address]] Beside beside{};

    [[nodiscard]] place where() const noexcept { return static_cast<place>(list_and_place & 7U); }
    [[nodiscard]] list_index list() const noexcept { return static_cast<list_index>(list_and_place >> 3); }
    void put(place where_now) noexcept { put(where_now, list()); }
    void put(place where_now, list_index of) noexcept {
      list_and_place = static_cast<std::uint16_t>(static_cast<unsigned>(of) << 3U | static_cast<unsigned>(where_now));
    }
  };

  [[nodiscard]] entry& at(block_id block) noexcept { return lists_.beside(block); }
  [[nodiscard]] const entry& at(block_id block) const noexcept { return lists_.beside(block); }

  template <class Offer>
  [[nodiscard]] block_id take_parked(Offer& offer) noexcept {
    const auto block = lists_.oldest(parked_list_);
    return block != no_block && take(block, offer) ? block : no_block;
  }

  void detach(block_id block) noexcept {
    lists_.unlink(block);
    at(block).put(place::detached);
  }

  void place_newest(block_id block, list_index list) noexcept {
    if (!tracked(block)) {
      ++sizes_[list];
    } else {
      lists_.unlink(block);
      if (const auto before = at(block).list(); before != list) {
        --sizes_[before];
        ++sizes_[list];
      }
    }
    lists_.push_newest(block, list);
    at(block).put(place::linked, list);
  }

  basic_block_lists<entry> lists_;
  block_lists::list_index parked_list_;
  block_lists::list_index due_list_;
  std::vector<std::int32_t> sizes_;
};

using chain_lists = basic_chain_lists<nothing_beside>;

}  // namespace pagedkv
