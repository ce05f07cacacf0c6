#pragma once

#include <pagedkv/cache/groups/group_nodes.hpp>
#include <pagedkv/cache/groups/group_shapes.hpp>
#include <pagedkv/cache/index_model.hpp>
#include <pagedkv/cache/operations/release_blocks.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/step_set.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/detail/random_seed.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/free_list/concept.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/pool/block_pool.hpp>
#include <pagedkv/sequence/group_table.hpp>
#include <pagedkv/sequence/sequence.hpp>
#include <pagedkv/storage/memory_plan.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

using group_tables = std::array<group_table, group_list::max_size>;

/// The tokens of a sequence behind its published nodes, and room for more, which appends fill. The sequence knows how
/// many there are.
class pending_tokens {
 public:
  [[nodiscard]] std::span<token> from(std::size_t first) noexcept { return {memory_.get() + first, size_ - first}; }
  [[nodiscard]] std::span<const token> from(std::size_t first) const noexcept {
    return {memory_.get() + first, size_ - first};
  }
  /// Room for so many in all, of which the first ones are kept. False when memory is exhausted.
  [[nodiscard]] bool try_reserve(std::size_t num_kept, std::size_t size) noexcept {
    const auto grow = [&] {
      const auto larger = std::max(size, 2 * size_);
      auto memory = std::make_unique_for_overwrite<token[]>(larger);
      std::copy_n(memory_.get(), num_kept, memory.get());
      memory_ = std::move(memory);
      size_ = larger;
      return true;
    };
    return size <= size_ || detail::with_memory(grow, false);
  }
  /// Moves those behind the first `count` to the front.
  void drop(std::size_t count, std::size_t num_left) noexcept {
    std::copy_n(memory_.get() + count, num_left, memory_.get());
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(token); }

 private:
  std::unique_ptr<token[]> memory_;
  std::size_t size_ = 0;
};

/// One token stream in a cache with groups.
struct group_sequence : sequence_record {
  using sequence_record::sequence_record;

  std::size_t& num_nodes = hot.num_published;

  group_tables tables;  // of a state group: the blocks of the sequence's own state
  pending_tokens pending;
  std::vector<std::uint64_t> hashes;  // that the caller told, of the nodes behind the published ones
  node_link<node_id> tail;            // link that the next node continues
  std::int64_t branch = 0;  // length at which the state is saved: where the prompt left what is cached; 0: nowhere
  std::int64_t num_branch_tokens = 0;  // at the start: shared with others since creation or fork
  std::int64_t num_elsewhere = 0;  // tokens computed elsewhere: windows have what the one behind them reads
  bool has_copies = false;  // it has blocks of its own at nodes that have others: these may be evicted before its own
  std::vector<block_pair> pairs;  // scratch: blocks to copy
  std::vector<block_id> saved;    // scratch: blocks of the state that a commit saves
  std::vector<block_id> newest;   // blocks of a state of the answer, which the end of the sequence makes findable
  std::size_t newest_nodes = 0;   // its length

  /// Calls `visit(blocks)` on the entries of every table.
  template <class Visit>
  void for_each_run(Visit&& visit) const noexcept {
    for (const auto& table : tables) {
      visit(table.all());
    }
    visit(std::span<const block_id>{newest});
  }

  [[nodiscard]] table_usage usage() const noexcept {
    auto used = table_usage{num_tokens, 0, static_cast<std::int64_t>(pending.bytes())};
    for (const auto& table : tables) {
      used.num_blocks += static_cast<std::int64_t>(table.all().size());
      used.bytes += static_cast<std::int64_t>(table.bytes());
    }
    return used;
  }
};

/// A pinned prefix: references to all blocks that a hit of its length needs.
struct group_pin {
  static constexpr auto unknown_code = error_code::unknown_pin;
  static constexpr auto id_name = "pin id";
  static constexpr auto busy_id_name = "id of a pin that another thread is using";

  group_tables tables;
  node_link<node_id> tail;

  [[nodiscard]] table_usage usage() const noexcept {
    auto used = table_usage{};
    for (const auto& table : tables) {
      used.bytes += static_cast<std::int64_t>(table.bytes());
    }
    return used;
  }
};

/// An events policy that also hears which nodes are added, and of their blocks: that of a cache with tiers, whose
/// records are of the same nodes.
template <class E>
concept hears_nodes =
    requires(E& stream, node_id node, const block_contents& contents, salt salt, std::size_t group, block_id block) {
      stream.make_room_for_nodes();
      stream.node_added(node, contents, salt);
      stream.block_attached(node, group);
      stream.block_leaves(block, true);
    };

/// Everything that a cache with groups knows about blocks, without their contents.
///
/// Where several threads may be inside, each works on sequences and pins that it has entered. The thread with the
/// `guard_nodes()` changes and searches nodes, changes the pool, and uses scratch memory and the peak. A thread takes
/// the guard after it has entered a sequence or pin, and enters none while it has it.
template <locking Locking, eviction_policy Eviction, free_list_policy FreeList, block_hash Hash, events Events>
class group_state : public group_shapes {
 public:
  using locking_type = Locking;
  using events_type = Events;
  using nodes_type = group_nodes<Locking, Hash>;
  using sequence_type = group_sequence;
  static constexpr bool layers_differ = true;

  /// Throws `std::bad_alloc`. Requires what `check` confirms. `num_more_nodes`: beside those of the device's blocks.
  group_state(const cache_config& valid, const memory_plan& planned, std::int64_t num_more_nodes, Events stream)
      : group_shapes(valid.groups, planned),
        config(valid),
        pool(config.num_blocks, config.capacity()),
        nodes(static_cast<std::int32_t>(num_nodes(valid, planned) + num_more_nodes), config.capacity(),
              config.block_size, config.hash_seed != 0 ? config.hash_seed : detail::random_seed(),
              nodes_per_block(valid, planned), has_whole()),
        sequences(config.max_sequences),
        pins(config.max_sequences),
        events(std::move(stream)) {
    useless_.reserve(static_cast<std::size_t>(config.capacity()));
  }

  /// Errors: `invalid_argument` with two groups of states; `size_overflow` when there are more runs of tokens, in the
  /// pool and beside it, than an int32 numbers.
  [[nodiscard]] static result<void> check(const cache_config& config, const memory_plan& plan,
                                          std::int64_t num_more_nodes) noexcept {
    const auto num = num_nodes(config, plan) + num_more_nodes;
    if (const auto num_states = std::ranges::count(config.groups, group_kind::state, &group_config::kind);
        num_states > 1) {
      return error{error_code::invalid_argument, "number of groups with a state", num_states, 1};
    }
    constexpr auto most = std::int64_t{std::numeric_limits<std::int32_t>::max()};
    if (num > most) {
      return error{error_code::size_overflow, "number of hits of the smallest length in the pool", num, most};
    }
    return {};
  }

  /// Where nodes are found by their tokens; blocks are attached to them.
  [[nodiscard]] const auto& node_index() const noexcept { return nodes.index(); }
  [[nodiscard]] std::size_t index_bytes() const noexcept { return nodes.metadata_bytes(); }

  /// Tokens of a sequence behind its published nodes.
  [[nodiscard]] std::size_t num_pending(const group_sequence& s) const noexcept {
    return static_cast<std::size_t>(s.num_tokens) - s.num_nodes * tokens_per_node();
  }
  /// Tokens that a sequence may have; not more than the pool's blocks have, if they are all of one group.
  [[nodiscard]] std::int64_t tokens_expected(const sequence_options& options) const noexcept {
    auto most = std::int64_t{0};
    for (std::size_t g = 0; g < num_groups(); ++g) {
      most = std::max(most, block_size(g) * config.capacity());
    }
    return std::min(options.expected_tokens, most);
  }
  /// Entries of a group's table for these; not more than there are blocks.
  [[nodiscard]] std::size_t entries_expected(std::size_t g, std::int64_t num_tokens) const noexcept {
    return std::min(entries_for(g, num_tokens), static_cast<std::size_t>(config.capacity()));
  }
  [[nodiscard]] timestamp time() const noexcept { return static_cast<timestamp>(now.load(std::memory_order_relaxed)); }

  /// Keeps other threads out of the nodes and the pool during its own lifetime.
  [[nodiscard]] auto guard_nodes() const noexcept { return exclusive_guard{nodes_mutex_}; }
  [[nodiscard]] contention_counts contention() const noexcept { return detail::contention_in(nodes_mutex_); }

  [[nodiscard]] result<void> retire_step(step_id step) noexcept {
    const auto guard = guard_nodes();
    return pool.retire_step(step);
  }

  /// Fills `blocks` with ids that are in use once; with what becomes useless, evicted blocks leave the index. Requires
  /// that so many are available.
  void allocate(std::span<block_id> blocks) noexcept {
    auto watched = chains();
    auto num_evicted = std::int64_t{0};
    const auto removals = nodes.delay_removals();
    if constexpr (FreeList::prefers_runs) {
      if (!pool.allocate(blocks, watched, time(), num_evicted)) {  // the policy offers nothing
        pool.allocate_in_turn(blocks, watched, time(), num_evicted);
      }
    } else {
      pool.allocate_in_turn(blocks, watched, time(), num_evicted);
    }
    nodes.forget_ends(blocks);
    detail::count<&cache_statistics::evictions>(counts, num_evicted);
    if (blocks.size() > 1) {
      detail::count_runs(counts, blocks);
    }
    note_peak();
  }

  /// The node of these contents, made if it is new; `no_node` where there is no room for it. `newest`: nothing
  /// continues the node before it; then, whether this one is new and nothing continues it.
  [[nodiscard]] node_id find_or_add(const node_link<node_id>& before, std::uint64_t hash, const block_contents& contents,
                                    [[maybe_unused]] salt salt, bool& newest) noexcept {
    const auto known = newest ? no_node : nodes.find(before, hash, contents);
    newest = known == no_node;
    if (!newest) {
      return known;
    }
    if (hears_nodes<Events> || nodes.is_full()) {
      hold(before);
      make_room_for_nodes();
      if (before.node != no_node) {
        static_cast<node_tree<Locking, Hash>&>(nodes).let_go(before.node);  // it stays, as it did before
      }
    }
    const auto node = nodes.add(before, hash, contents);
    if constexpr (hears_nodes<Events>) {
      if (node != no_node) {
        events.node_added(node, contents, salt);
        newest = nodes.first_child(node) == no_node;  // tiers may have known what continues it
      }
    }
    return node;
  }
  /// Whether launches have surely written a block that no sequence holds: one that was released in the newest step, if
  /// that is open, may have been committed ahead of its launch.
  [[nodiscard]] bool is_launched(block_id block) const noexcept {
    const auto fence = pool.fence_of(pool.newest_open_step());
    return fence == 0 || pool.state(block).step() != fence;
  }
  /// A node got a block of a group, or the first one of a state.
  void note_attached([[maybe_unused]] node_id node, [[maybe_unused]] std::size_t g) noexcept {
    if constexpr (hears_nodes<Events>) {
      events.block_attached(node, g);
    }
  }

  void note_peak() noexcept { peak_in_use = std::max(peak_in_use, pool.counts().in_use); }

  /// The error of an operation that needs more blocks than there are: counted and reported. `error::step` is the step
  /// whose retirement provides the missing blocks: retiring ones, except those that the operation shares itself; and
  /// those that it writes in place, which need no copy once their step has retired. (One that a hit copies is free for
  /// a prompt that goes without the hit.) Without such a step, the limit counts what retires, too.
  [[nodiscard]] error refuse(std::int64_t num_needed, std::int64_t num_available, const own_blocks& own = {}) noexcept {
    detail::count<&cache_statistics::refusals>(counts, 1);
    detail::report<event_kind::refused>(
        events, [&] { return cache_event{.num_blocks = num_needed, .num_available = num_available}; });
    return refusal(num_needed, num_available, own);
  }
  /// The error, neither counted nor reported.
  [[nodiscard]] error refusal(std::int64_t num_needed, std::int64_t num_available,
                              const own_blocks& own = {}) const noexcept {
    if (num_needed > pool.size()) {
      return {error_code::never_fits, "number of blocks needed, more than the pool has,", num_needed, pool.size()};
    }
    auto refused = error{error_code::capacity_exhausted, "number of blocks needed, more than there are now,",
                         num_needed, num_available};
    const auto coming = pool.step_that_frees(num_needed - num_available, own);
    refused.step = coming.step;
    if (coming.step == step_id{}) {
      refused.limit = std::min(num_available + coming.num_waiting, num_needed - 1);
    }
    return refused;
  }

  /// Reports the nodes of a chain up to `last`, and those that continue them, which hits can reach now and could not
  /// before. Requires that the chain has blocks of all groups that every hit needs. Where there is no such group,
  /// reports nothing if `last` has no block.
  void announce_up_to(node_id last, salt salt) noexcept {
    if (last == no_node || nodes.is_announced(last)) {
      return;
    }
    if (!has_whole()) {
      if (!nodes.has_block(last)) {
        return;
      }
      return nodes.announce_path(last, [&](node_id node) { report_announced(node, salt); });
    }
    if (nodes.first_child(last) == no_node && is_reachable(last)) {
      return announce(last, salt);
    }
    for (auto above = nodes.parent(last); above != no_node && !nodes.is_announced(above); above = nodes.parent(above)) {
      last = above;
    }
    nodes.walk_below(last, [&](node_id node) {
      if (!is_reachable(node)) {
        return false;
      }
      if (!nodes.is_announced(node)) {
        announce(node, salt);
      }
      return true;
    });
  }

  /// Reports a new node that hits can reach. Requires that it has blocks of all groups that every hit needs.
  void announce_new(node_id node, node_id before, salt salt) noexcept {
    if (before == no_node || nodes.is_announced(before)) {
      announce(node, salt);
    }
  }

  /// Gives back one reference. A block that no hit can find any more is freed with its last one.
  [[gnu::always_inline]] void release(block_id block, block_release how, std::uint32_t fence) noexcept {
    if (nodes.is_attached(block)) {
      how.hash = nodes.link(nodes.deepest(block)).hash;
    } else if (const auto seen = pool.state(block); seen.published() && seen.count() == 1) {
      [[maybe_unused]] const auto withdrawn = pool.withdraw(block);
    }
    if (pool.release(block, how, fence)) {
      auto watched = chains();
      pool.free_withdrawn(block, watched);
    }
  }

  /// Releases entries of all tables of a sequence or a pin, `how_at(g, place)` each. Blocks of groups that every
  /// hit needs go first into the eviction order, the deepest ones first; their eviction takes the others along.
  template <class HowAt>
  void release_all(group_tables& tables, HowAt&& how_at, std::uint32_t fence) noexcept {
    for (const bool whole : {true, false}) {
      for (std::size_t g = 0; g < num_groups(); ++g) {
        if (is_whole(g) == whole) {
          release_from(tables[g], g, 0, how_at, fence);
          tables[g].clear();
        }
      }
    }
  }
  /// Releases the entries of one table from a place on, the last one first.
  template <class HowAt>
  void release_from(const group_table& table, std::size_t g, std::size_t place, HowAt&& how_at,
                    std::uint32_t fence) noexcept {
    table.for_each_from(place, [&](block_id block, std::size_t at, block_id above) {
      if (block != no_block) {
        auto how = how_at(g, at);
        how.depth = static_cast<std::uint32_t>(at);
        how.parent = above;
        release(block, how, fence);
      }
    });
  }

  /// The facts about the blocks of a group that a sequence published, and found.
  void note_chain(block_release& how, const group_sequence& s, std::size_t g) const noexcept {
    const auto num_published = static_cast<std::int64_t>(s.num_nodes) * granularity();
    how.num_chain_blocks = static_cast<std::uint32_t>(holds_tokens(g) ? places_for(g, num_published) : s.num_nodes);
    const auto num = holds_tokens(g) ? place_of(g, s.num_cached_tokens) : 0;
    how.num_cached_blocks = static_cast<std::uint32_t>(num);
    how.last_cached = num != 0 && s.tables[g].is_held(num - 1) ? s.tables[g][num - 1] : no_block;
  }
  /// A function: the facts of the block at a place of a group, of a state those of its sequence's last token.
  [[nodiscard]] auto releases_of(const group_sequence& s, const release_hint& hint = {}) const noexcept {
    return [this, &s, branch_ended = hint.branch_complete, common = detail::release_of(s, time(), hint),
            group = num_groups(), trunk = std::size_t{0}](std::size_t g, std::size_t place) mutable noexcept {
      if (g != group) {  // not with each block: it divides
        group = g;
        trunk = branch_ended && holds_tokens(g) ? places_for(g, s.num_branch_tokens) : 0;
        note_chain(common, s, g);
      }
      auto how = common;
      how.ended |= branch_ended && place >= trunk;
      if (s.has_ranges) {
        const auto last = static_cast<std::size_t>(std::max(s.num_computed_tokens, std::int64_t{1}) - 1);
        const auto size = static_cast<std::size_t>(holds_tokens(g) ? block_size(g) : 1);
        detail::apply_ranges(how, s, holds_tokens(g) ? place : last, size, time());
      }
      return how;
    };
  }
  /// Releases the block at a place of a sequence's table. Requires that the table still has the entry before it, unless
  /// that was dropped earlier.
  template <class HowAt>
  void release_place(const group_sequence& s, std::size_t g, std::size_t place, block_id block, HowAt&& how_at,
                     std::uint32_t fence) noexcept {
    auto how = how_at(g, place);
    how.depth = static_cast<std::uint32_t>(place);
    how.parent = place != 0 && s.tables[g].is_held(place - 1) ? s.tables[g][place - 1] : no_block;
    release(block, how, fence);
  }
  /// Releases a block that another one has replaced at a place of a sequence's table.
  void release_replaced(const group_sequence& s, std::size_t g, std::size_t place, block_id block,
                        std::uint32_t fence) noexcept {
    release_place(s, g, place, block, releases_of(s), fence);
  }

  void hold(const node_link<node_id>& tail) noexcept {
    if (tail.node != no_node) {
      nodes.hold(tail.node);
    }
  }
  void let_go(const node_link<node_id>& tail) noexcept {
    if (tail.node != no_node) {
      evictions_in_vain_left_ = std::max(evictions_in_vain_left_, nodes.depth(tail.node) + std::int64_t{1});
      nodes.let_go(tail.node);
    }
  }

  /// The nodes for the pool, which erases blocks that it takes away.
  struct watched_nodes {
    group_state& state;
    bool reports = true;
    bool is_launched = true;  // the blocks that are erased, see there

    [[nodiscard]] bool has_children(block_id block) const noexcept {
      const auto& tree = state.nodes;
      return tree.is_attached(block) && state.is_whole(tree.group_of(block)) && tree.has_children(block);
    }
    /// Children of blocks that every hit needs; losing another one loses no block that continues it.
    [[nodiscard]] std::uint32_t num_children(block_id block) const noexcept {
      const auto& tree = state.nodes;
      return tree.is_attached(block) && state.is_whole(tree.group_of(block)) ? tree.num_children(block) : 0;
    }
    [[nodiscard]] block_id parent(block_id block) const noexcept { return state.nodes.block_before(block); }
    [[nodiscard]] std::int64_t free_useless() const noexcept {
      auto num_freed = std::int64_t{0};
      state.free_useless(0, [&](block_id) { ++num_freed; });
      return num_freed;
    }
    template <class Stays>
    [[nodiscard]] bool has_twin(block_id, Stays&&) const noexcept {
      return false;
    }
    void detach(block_id) const noexcept {}
    void attach(block_id) const noexcept {}
    /// Nothing to do: the guard of the nodes keeps out threads that would invalidate during an eviction.
    void withdraw(block_id) const noexcept {}
    [[gnu::always_inline]] void erase(block_id block) noexcept {
      if (!state.nodes.is_attached(block)) {
        return;
      }
      if constexpr (hears_nodes<Events>) {
        if (reports) {
          state.events.block_leaves(block, is_launched);
        }
      }
      const auto useless = [&](block_id other) {
        if (state.pool.state(other).listed() && state.pool.reference_published(other)) {
          state.useless_.push_back(other);
        }
      };
      const auto retracted = [&](node_id node) {
        if (reports) {
          state.report_eviction(node);
        }
      };
      state.nodes.detach(block, state.is_whole(state.nodes.group_of(block)), useless, retracted);
    }
  };
  static_assert(pruned_chains<watched_nodes> && linked_chains<watched_nodes>);

  [[nodiscard]] watched_nodes chains() noexcept { return {*this}; }
  /// Nodes without events.
  [[nodiscard]] watched_nodes silent_chains() noexcept { return {*this, false}; }

  /// Frees blocks that no hit can need since the last eviction, as soon as the steps up to a fence have retired. Calls
  /// `freed(block)` on them.
  template <class Freed>
  void free_useless(std::uint32_t fence, Freed&& freed) noexcept {
    auto watched = chains();
    while (!useless_.empty()) {
      const auto block = useless_.back();
      useless_.pop_back();
      watched.is_launched = is_launched(block);
      if (pool.withdraw(block) && pool.release(block, detail::release_as_before(time()), fence)) {
        pool.free_withdrawn(block, watched);
      }
      freed(block);
    }
  }

  /// Frees blocks that `withdraw(is_whole, lost, retracted)` takes from nodes, as soon as no sequence or pin holds
  /// them; returns how many it takes.
  template <class Withdraw>
  std::int64_t invalidate(Withdraw&& withdraw) noexcept {
    auto num = std::int64_t{0};
    const auto lost = [&](block_id block) {
      ++num;
      if (pool.reference_published(block)) {
        useless_.push_back(block);
      }
    };
    withdraw([&](std::size_t g) { return is_whole(g); }, lost, [&](node_id node) { report_eviction(node); });
    free_useless(0, [](block_id) {});
    detail::count<&cache_statistics::invalidations>(counts, num);
    return num;
  }

  cache_config config;
  block_pool<Locking, Eviction, FreeList> pool;
  nodes_type nodes;
  record_map<group_sequence, Locking> sequences;
  record_map<group_pin, Locking> pins;
  counters<cache_statistics, Locking> counts;
  std::int64_t peak_in_use = 0;
  typename Locking::template atomic<std::int64_t> now{0};
  typename Locking::template atomic<bool> resizing{false};
  [[no_unique_address]] Events events;

  /// Whether hits that reach the node before this one can go on to its end.
  [[nodiscard]] bool is_reachable(node_id node) const noexcept {
    const auto above = nodes.parent(node);
    auto reachable = above == no_node || nodes.is_announced(above);
    for (std::size_t g = 0; g < num_groups(); ++g) {
      reachable = reachable && (!is_whole(g) || nodes.holds_place(node, g));
    }
    return reachable;
  }

 private:
  /// Blocks that may be evicted for the room of one node. Those of a window that sequences have left free no node.
  static constexpr auto max_evictions_for_node = 16;

  /// Tiers forget records. Behind windows and states alone, nodes can outnumber the pool's blocks: some are evicted.
  /// Where running sequences hold most nodes, that gives none: between two sequences that let go of nodes, no more
  /// blocks are evicted in vain than the longest chain of such a sequence has nodes.
  void make_room_for_nodes() noexcept {
    if constexpr (hears_nodes<Events>) {
      events.make_room_for_nodes();
    }
    if (!has_whole() && nodes.is_full() && evictions_in_vain_left_ > 0) {
      auto watched = chains();
      auto victim = no_block;
      auto num_evicted = std::int64_t{0};
      while (nodes.is_full() && num_evicted < max_evictions_for_node &&
             pool.evict({&victim, 1}, watched, time(), 0) != 0) {
        num_evicted += 1 + watched.free_useless();
      }
      detail::count<&cache_statistics::evictions>(counts, num_evicted);
      evictions_in_vain_left_ -= nodes.is_full() ? std::max(num_evicted, std::int64_t{1}) : 0;
    }
  }

  void announce(node_id node, salt salt) noexcept {
    nodes.announce(node);
    report_announced(node, salt);
  }
  void report_announced(node_id node, salt salt) noexcept {
    detail::report<event_kind::stored>(events, [&] {
      const auto before = nodes.parent(node);
      const auto contents = nodes.index().contents(node);
      return cache_event{.block = block_id{static_cast<std::int32_t>(node)},
                         .origin = block_id{static_cast<std::int32_t>(before)},
                         .hash = nodes.link(node).hash,
                         .parent_hash = before == no_node ? nodes.root(salt).hash : nodes.link(before).hash,
                         .tokens = contents.tokens,
                         .keys = contents.keys,
                         .salt = salt,
                         .group = static_cast<std::int32_t>(anchor()),
                         .layers = group(anchor()).kind};
    });
  }

  void report_eviction(node_id node) noexcept {
    detail::report<event_kind::evicted>(events, [&] {
      return cache_event{.block = block_id{static_cast<std::int32_t>(node)},
                         .hash = nodes.link(node).hash,
                         .group = static_cast<std::int32_t>(anchor()),
                         .layers = group(anchor()).kind};
    });
  }

  [[nodiscard]] static std::vector<std::int32_t> nodes_per_block(const cache_config& config, const memory_plan& plan) {
    auto counts = std::vector<std::int32_t>{};
    for (std::size_t g = 0; g < config.groups.size(); ++g) {
      counts.push_back(plan.groups[g].block_size / config.block_size);
    }
    return counts;
  }

  [[nodiscard]] static std::int64_t num_nodes(const cache_config& config, const memory_plan& plan) noexcept {
    return group_shapes{config.groups, plan}.nodes_per_block() * config.capacity();
  }

  [[no_unique_address]] mutable typename detail::nodes_mutex<typename Locking::family>::type nodes_mutex_;
  std::int64_t evictions_in_vain_left_ = 0;  // see `make_room_for_nodes`
  std::vector<block_id> useless_;            // each of them referenced; room for every block
};

}  // namespace pagedkv
