#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/axis.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pagedkv {

/// The facts about a block that becomes evictable. Every field but the first is a hint that a policy may ignore.
struct block_release {
  std::uint64_t hash = 0;               // chained hash: equal for equal contents, also after eviction; for ghost lists
  block_id parent = no_block;           // the block that it continues, while its sequence holds that one
  std::uint32_t depth = 0;              // place in its chain; the first block has 0
  std::uint32_t num_chain_blocks = 0;   // published blocks of the sequence that releases it
  std::uint32_t num_prompt_tokens = 0;  // of the request that releases it
  std::uint32_t num_output_tokens = 0;  // appended after the prompt
  std::uint32_t num_cached_blocks = 0;  // prompt blocks that were prefix hits
  block_id last_cached = no_block;      // the deepest of these, if its sequence holds it
  std::uint8_t priority = 0;            // 0 to 100; higher stays longer
  bool ended = false;                   // the caller said that no request will continue the block
  bool as_before = false;               // no request releases it: facts of requests are those told of it before
  std::int64_t expected_return = 0;     // nanoseconds until one will, as the caller said; 0 if it did not
  timestamp retain_until{};             // priority holds until then; 0 for ever
  timestamp released_at{};              // as the caller tells the time
};

/// The answer of the pool when a policy offers a block for eviction.
enum class eviction_answer : std::uint8_t {
  taken,         // the block is no longer evictable: the policy removes it and returns it
  has_children,  // blocks that continue it are still cached: they should go first
  fenced,        // a step in flight or a look-up may touch it: it stays evictable and can be offered again later
  in_use,        // only under concurrent policies: it was referenced or taken meanwhile
};

/// The second argument of an offer that is meant even when blocks which continue it are still cached.
struct evict_anyway_t {};
inline constexpr auto evict_anyway = evict_anyway_t{};

/// The archetype of the callable that `victim` receives.
struct eviction_offer {
  eviction_answer operator()(block_id) const noexcept;
  eviction_answer operator()(block_id, evict_anyway_t) const noexcept;
};

namespace detail {

template <class P>
concept has_insert = requires(P policy, block_id block, const block_release& release) {
  { policy.insert(block, release) } noexcept;
};
template <class P>
concept has_note = requires(P policy, block_id block, const block_release& release) {
  { policy.note(block, release) } noexcept;
};
template <class P>
concept has_remove = requires(P policy, block_id block) {
  { policy.remove(block) } noexcept;
};
template <class P>
concept has_erase = requires(P policy, block_id block) {
  { policy.erase(block) } noexcept;
};
template <class P>
concept has_rename = requires(P policy, block_id block) {
  { policy.rename(block, block) } noexcept;
};
template <class P>
concept has_victim = requires(P policy, const eviction_offer& offer, timestamp now) {
  { policy.victim(offer, now) } noexcept -> std::same_as<block_id>;
};
template <class P>
concept has_metadata_bytes = requires(const P& policy) {
  { policy.metadata_bytes() } noexcept -> std::same_as<std::size_t>;
};
template <class P>
concept has_concurrent = requires {
  { P::concurrent } -> std::convertible_to<bool>;
};

}  // namespace detail

/// Orders evictable blocks. All memory is taken by the constructor; nothing else throws or allocates.
///
/// A block is *tracked* from its first `insert` after it was published until `victim` returns it or `erase` forgets it;
/// meanwhile it is evictable (between `insert` and `remove`) or in use (between `remove` and the next `insert`). A
/// chain is inserted deepest block first.
///
/// | requirement             | meaning                                                                            |
/// |-------------------------|------------------------------------------------------------------------------------|
/// | `P(num_blocks)`         | room for ids in [0, num_blocks)                                                    |
/// | `p.insert(id, release)` | a block became evictable                                                           |
/// | `p.remove(id)`          | an evictable block was hit: it is in use again                                     |
/// | `p.erase(id)`           | a tracked block lost its contents without being a victim                           |
/// | `p.rename(from, to)`    | compaction moved a block, tracked or not, to an untracked id                       |
/// | `p.victim(offer, now)`  | calls `offer(id)` on candidates until one is `taken`; returns it, or `no_block`    |
/// | `p.metadata_bytes()`    | memory held, ghosts included                                                       |
/// | `P::name`               | for tables and options                                                             |
/// | `P::concurrent`         | whether all calls may come from several threads at once                            |
///
/// `victim` prefers blocks whose offer is not `has_children`; once its bounded search for a leaf has failed it calls
/// `offer(id, evict_anyway)`. When all its offers were refused, the pool takes any evictable block and has it erased; a
/// policy that offers nothing evicts nothing. With `layer_groups`, and in `resize` and `compact`, the pool takes any
/// block then, too: it counts what is available before it changes anything.
///
/// | optional member     | meaning                                                                                  |
/// |---------------------|------------------------------------------------------------------------------------------|
/// | `P::evicts`         | false: gives no block up, and evictable blocks are not counted as available              |
/// | `P::twins_first`    | false: of two blocks with equal contents, none goes out of turn                          |
/// | `P::uses_priority`  | true: heeds `priority`, `retain_until` and, for these, `as_before`                       |
/// | `P::orders_by_age`  | true: `contiguous_runs` may take blocks of similar age out of turn                       |
/// | `p.note(id, release)` | a block, tracked or not, is going to lose one of its references: if a pin has another,   |
/// |                     | `insert` comes with `as_before`                                                          |
/// | `P::for_one_thread` | of a concurrent policy: one that orders alike, for caches with one thread                |
/// | `p.next_victims()`  | the two blocks that `victim` would offer next: the pool fetches what evicting them reads |
/// | `p.removals()`      | where blocks that are hit together leave: its `remove(id)` is `p.remove(id)`, at the     |
/// |                     | latest when it is destroyed; not of policies that `sharded_mutex` calls under its mutex  |
///
/// A minimal model:
///
///     struct own_eviction {
///       static constexpr std::string_view name = "own_eviction";
///       static constexpr bool concurrent = false;
///       explicit own_eviction(std::int32_t num_blocks) : evictable(static_cast<std::size_t>(num_blocks)) {}
///       void insert(block_id block, const block_release&) noexcept { evictable[to_index(block)] = true; }
///       void remove(block_id block) noexcept { evictable[to_index(block)] = false; }
///       void erase(block_id block) noexcept { remove(block); }
///       void rename(block_id from, block_id to) noexcept { std::swap(evictable[to_index(from)], evictable[to_index(to)]); }
///       block_id victim(auto&& offer, timestamp) noexcept {
///         for (auto i = std::size_t{0}; i < evictable.size(); ++i) {
///           if (evictable[i] && offer(to_block(i)) == eviction_answer::taken) {
///             evictable[i] = false;
///             return to_block(i);
///           }
///         }
///         return no_block;
///       }
///       std::size_t metadata_bytes() const noexcept { return evictable.size(); }
///       std::vector<char> evictable;
///     };
template <class P>
concept eviction_policy = std::constructible_from<P, std::int32_t> && detail::has_insert<P> && detail::has_remove<P> &&
                          detail::has_erase<P> && detail::has_rename<P> && detail::has_victim<P> &&
                          detail::has_metadata_bytes<P> && detail::has_name<P> && detail::has_concurrent<P>;

/// Whether a policy ever gives a block up. One that never does says so by a member `evicts` that is false: blocks that
/// it holds are then not counted as available.
template <eviction_policy P>
inline constexpr bool evicts = true;

template <eviction_policy P>
  requires requires { requires !P::evicts; }
inline constexpr bool evicts<P> = false;

/// Whether of blocks with equal contents one may go before all others, whatever the policy knows of it. A policy that
/// promises an order to the caller says by a member `twins_first` that is false that it may not.
template <eviction_policy P>
inline constexpr bool twins_first = evicts<P>;

template <eviction_policy P>
  requires requires { requires !P::twins_first; }
inline constexpr bool twins_first<P> = false;

/// Whether priority and retention of a block mean something to a policy. One that heeds `block_release::priority` and
/// `retain_until` says so by a member `uses_priority` that is true; the others ignore them.
template <eviction_policy P>
inline constexpr bool uses_priority = false;

template <eviction_policy P>
  requires requires { requires P::uses_priority; }
inline constexpr bool uses_priority<P> = true;

/// Whether a policy evicts by the time since the last release alone. One that does says so by a member `orders_by_age`
/// that is true; then blocks of similar age may be evicted in another order, which costs few hits.
template <eviction_policy P>
inline constexpr bool orders_by_age = false;

template <eviction_policy P>
  requires requires { requires P::orders_by_age; }
inline constexpr bool orders_by_age<P> = true;

/// Whether a policy that one thread at a time calls tells which two blocks `victim` would offer next, in their order,
/// or `no_block`, at no cost: by a member `next_victims()`. The pool then fetches ahead what their evictions will read.
template <eviction_policy P>
inline constexpr bool foresees_victims = !P::concurrent && requires(const P& policy) {
  { policy.next_victims() } noexcept -> std::same_as<std::array<block_id, 2>>;
};

struct eviction_axis {
  template <class Policy>
  static constexpr bool takes = eviction_policy<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::eviction_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two eviction policies are given, and a cache has one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles =
      requires(Policy policy, block_id block, const block_release& release) { policy.insert(block, release); } ||
      requires(Policy policy, const eviction_offer& offer, timestamp now) { policy.victim(offer, now); };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet(
        {std::constructible_from<Policy, std::int32_t>, detail::has_insert<Policy>, detail::has_remove<Policy>,
         detail::has_erase<Policy>, detail::has_rename<Policy>, detail::has_victim<Policy>,
         detail::has_metadata_bytes<Policy>, detail::has_name<Policy>, detail::has_concurrent<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly an eviction policy: it has no constructor for a number of blocks; write one "
                  "with the parameter `std::int32_t num_blocks`");
    static_assert(unmet != 1,
                  "this type is nearly an eviction policy: `insert` is missing, may throw or has another form; write "
                  "`void insert(block_id block, const block_release& release) noexcept`");
    static_assert(unmet != 2,
                  "this type is nearly an eviction policy: `remove` is missing, may throw or has another form; write "
                  "`void remove(block_id block) noexcept`");
    static_assert(unmet != 3,
                  "this type is nearly an eviction policy: `erase` is missing, may throw or has another form; write "
                  "`void erase(block_id block) noexcept`");
    static_assert(unmet != 4,
                  "this type is nearly an eviction policy: `rename` is missing, may throw or has another form; write "
                  "`void rename(block_id from, block_id to) noexcept`");
    static_assert(unmet != 5,
                  "this type is nearly an eviction policy: `victim` is missing, may throw or has another form; write "
                  "`block_id victim(auto&& offer, timestamp now) noexcept`");
    static_assert(unmet != 6,
                  "this type is nearly an eviction policy: `metadata_bytes` is missing, may throw or has another "
                  "form; write `std::size_t metadata_bytes() const noexcept`");
    static_assert(unmet != 7,
                  "this type is nearly an eviction policy: `name` is missing or has another type; write `static "
                  "constexpr std::string_view name`");
    static_assert(unmet != 8,
                  "this type is nearly an eviction policy: `concurrent` is missing or has another type; write "
                  "`static constexpr bool concurrent`");
  };
};

/// Never gives a block up: the pool is full once every block is cached. Holds no memory.
class no_eviction {
 public:
  static constexpr std::string_view name = "none";
  static constexpr bool concurrent = true;
  static constexpr bool evicts = false;

  explicit no_eviction(std::int32_t /*num_blocks*/) noexcept {}

  void insert(block_id, const block_release&) noexcept {}
  void remove(block_id) noexcept {}
  void erase(block_id) noexcept {}
  void rename(block_id, block_id) noexcept {}

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&&, timestamp) noexcept {
    return no_block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return 0; }
};

static_assert(eviction_policy<no_eviction> && !evicts<no_eviction>);

}  // namespace pagedkv
