#pragma once

#include <pagedkv/cache/groups/append.hpp>
#include <pagedkv/cache/groups/append_batch.hpp>
#include <pagedkv/cache/groups/check_invariants.hpp>
#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/groups/create_sequence.hpp>
#include <pagedkv/cache/groups/fork.hpp>
#include <pagedkv/cache/groups/invalidate.hpp>
#include <pagedkv/cache/groups/pin.hpp>
#include <pagedkv/cache/groups/release.hpp>
#include <pagedkv/cache/groups/rename_blocks.hpp>
#include <pagedkv/cache/groups/statistics.hpp>
#include <pagedkv/cache/groups/tables.hpp>
#include <pagedkv/cache/groups/truncate.hpp>
#include <pagedkv/cache/groups/tokens.hpp>
#include <pagedkv/cache/groups/would_fit.hpp>
#include <pagedkv/cache/operations/advance_time.hpp>
#include <pagedkv/cache/operations/begin_step.hpp>
#include <pagedkv/cache/operations/compact.hpp>
#include <pagedkv/cache/operations/evict.hpp>
#include <pagedkv/cache/operations/gain_of_releasing.hpp>
#include <pagedkv/cache/operations/hash_blocks.hpp>
#include <pagedkv/cache/operations/pin.hpp>
#include <pagedkv/cache/operations/reset_prefix_cache.hpp>
#include <pagedkv/cache/operations/resize.hpp>
#include <pagedkv/cache/operations/retire_step.hpp>
#include <pagedkv/cache/operations/statistics.hpp>
#include <pagedkv/cache/operations/tokens.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/policies.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/sequence/batch_view.hpp>
#include <pagedkv/storage/group_storage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv {

/// The paged key/value cache for models with several kinds of layers: `cache_config::groups`. Operations are those of
/// `basic_kv_cache`, with the group as first argument where they concern one.
///
/// A prompt shares the longest cached prefix, a multiple of `cache_config::block_size` tokens, from which every group
/// can continue: all blocks of full and latent groups, the last `window` tokens and the sinks of windows, a state saved
/// at exactly that length. Where it ends inside a group's block, the block is copied.
///
/// Blocks behind a window are released when tokens are committed, never for tokens that are only appended; steps in
/// flight keep them. A state belongs to its sequence; commits save copies at the lengths that
/// `sequence_options::saving` chooses.
///
/// Locking is `single_thread`, `rw_lock` or `sharded_mutex`. Under the last, threads append inside blocks and read
/// tables of different sequences at once, and take turns to look up, take and give back blocks; docs/concurrency.md
/// states the order of the locks. Kinds of layers cost a cache of one kind nothing: that one is `kv_cache`.
///
/// `group_cache<Policies...>` names one.
template <class Defaults, class... Changes>
class basic_group_cache {
  using policies = policy_set<cache_axes, Defaults, Changes...>;

 public:
  using element_type = typename policies::template on<element_axis>;
  using locking_type = typename policies::template on<locking_axis>;
  using eviction_type = typename policies::template on<eviction_axis>;
  using allocator_type = typename policies::template on<allocator_axis>;
  using backend_type = typename policies::template on<backend_axis>;
  using layout_type = typename policies::template on<layout_axis>;
  using hash_type = typename policies::template on<hash_axis>;
  using events_type = typename policies::template on<events_axis>;
  using free_list_type = typename policies::template on<free_list_axis>;
  using stream = typename backend_type::stream;

  static_assert(sizeof(detail::cache_check<Defaults, Changes...>) > 0);
  static_assert(
      detail::has_nodes_mutex<typename locking_type::family> || !locking_type::family::concurrent,
      "a cache with groups changes the blocks of several groups at once, behind a mutex, which lock_free does not "
      "have: use the locking policy `single_thread`, `rw_lock` or `sharded_mutex`");
  static_assert(provides_memory<allocator_type>,
                "a cache with groups lays out blocks that they share in memory of its own: leave `no_memory` out, and "
                "take a backend that copies");

  /// Allocates all block storage, and all metadata except block tables. Throws `exception` for an invalid configuration
  /// or when the allocator is exhausted, `std::bad_alloc` when metadata does not fit.
  explicit basic_group_cache(const cache_config& config, allocator_type memory = allocator_type{},
                             backend_type backend = backend_type{}, events_type events = events_type{})
      : basic_group_cache(storage_of(config, std::move(memory)).value(), config, std::move(backend),
                          std::move(events)) {}
  basic_group_cache(const cache_config& config, events_type events)
      : basic_group_cache(config, allocator_type{}, backend_type{}, std::move(events)) {}

  /// A cache, with what the constructor throws as an error. In a pointer, because caches do not move.
  [[nodiscard]] static result<std::unique_ptr<basic_group_cache>> create(const cache_config& config,
                                                                         allocator_type memory = allocator_type{},
                                                                         backend_type backend = backend_type{},
                                                                         events_type events = events_type{}) noexcept {
    auto storage = storage_of(config, std::move(memory));
    if (!storage) {
      return storage.error();
    }
    const auto construct = [&]() -> result<std::unique_ptr<basic_group_cache>> {
      return std::unique_ptr<basic_group_cache>(
          new basic_group_cache(std::move(*storage), config, std::move(backend), std::move(events)));
    };
    return detail::with_memory(construct, error{error_code::out_of_memory, "number of blocks", config.num_blocks});
  }
  [[nodiscard]] static result<std::unique_ptr<basic_group_cache>> create(const cache_config& config,
                                                                         events_type events) noexcept {
    return create(config, allocator_type{}, backend_type{}, std::move(events));
  }

  [[nodiscard]] const cache_config& config() const noexcept { return state_.config; }
  [[nodiscard]] const memory_plan& plan() const noexcept { return storage_.plan(); }
  /// Blocks of the pool now: `cache_config::num_blocks` until the first `resize`.
  [[nodiscard]] std::int32_t num_blocks() const noexcept {
    const auto guard = shared_guard{mutex_};
    return state_.pool.size();
  }

  /// Starts a sequence with a prompt. Copies blocks that it shares in part, and a saved state, on `on`. Without cached
  /// tokens, the sequence's state holds anything.
  [[nodiscard]] result<admission> create_sequence(const token_run& prompt,
                                                  const sequence_options& options = default_sequence_options,
                                                  stream on = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::create_sequence(state_, prompt, options, copier(on));
  }

  [[nodiscard]] result<void> append(sequence_id id, token next, stream on = {}) noexcept {
    return append(id, token_run{std::span<const token>{&next, 1}}, on);
  }
  /// Extends a sequence; takes a block of a group only when one starts. Copies blocks that others can see, on `on`.
  [[nodiscard]] result<void> append(sequence_id id, const token_run& run, stream on = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return extend(id, run, 0, on);
  }

  /// Takes blocks of every group for `num_ahead` tokens after the last one, as `basic_kv_cache::reserve_slots` does.
  [[nodiscard]] result<void> reserve_slots(sequence_id id, std::int64_t num_ahead, stream on = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return extend(id, {}, num_ahead, on);
  }

  /// Declares K/V and state of the first `num_tokens` written. See the class for windows and states. A state that finds
  /// no room is not saved.
  [[nodiscard]] result<void> commit(sequence_id id, std::int64_t num_tokens, stream on = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::visit_sequence(
        state_, id, [&](group_sequence& s) { return detail::groups::commit(state_, s, num_tokens, copier(on)); });
  }
  /// Releases blocks behind the windows of the token at `num_tokens`, which have no K/V: the tokens before it were
  /// computed elsewhere, and only what later ones read is here. Commit them afterwards. Errors: `invalid_argument`
  /// beyond the length.
  [[nodiscard]] result<void> drop_behind_windows(sequence_id id, std::int64_t num_tokens) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::visit_sequence(state_, id, [&](group_sequence& s) -> result<void> {
      if (num_tokens < 0 || num_tokens > s.num_tokens) {
        return error{error_code::invalid_argument, "start of what is read", num_tokens, s.num_tokens};
      }
      const auto nodes = state_.guard_nodes();
      detail::groups::drop_behind_windows(state_, s, num_tokens);
      return {};
    });
  }
  /// The next length whose commit saves the state, if it is committed exactly: the end of a chunk. The largest number
  /// if there is none.
  [[nodiscard]] result<std::int64_t> next_saved_length(sequence_id id) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::visit_sequence(state_, id, [&](const group_sequence& s) -> result<std::int64_t> {
      return detail::groups::next_saved_length(state_, s);
    });
  }

  /// Commits, appends and maps slots of every group for a batch under one lock, as `basic_kv_cache::append_batch` does.
  /// States are saved as by `commit`.
  [[nodiscard]] result<group_batch_outcome> append_batch(std::span<const batch_entry> entries,
                                                         const group_batch_buffers& out, stream on = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::append_batch(state_, entries, out, copier(on));
  }

  /// A second sequence on the same blocks, with a copy of the state. Everything must be committed.
  [[nodiscard]] result<sequence_id> fork(sequence_id id, stream on = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::fork(state_, id, copier(on));
  }

  /// Keeps the first `num_tokens`. Errors: `invalid_argument` beyond the length, and where a window was released or,
  /// with a state, before the computed tokens.
  [[nodiscard]] result<void> truncate(sequence_id id, std::int64_t num_tokens) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::visit_sequence(
        state_, id, [&](group_sequence& s) { return detail::groups::truncate(state_, s, num_tokens); });
  }

  [[nodiscard]] result<void> release(sequence_id id, const release_hint& hint = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::release(state_, id, hint);
  }

  /// Keeps what a hit of these tokens needs from eviction until `unpin`.
  [[nodiscard]] result<pinning> pin(const token_run& run, salt tag = salt::none) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::pin(state_, run, tag);
  }
  [[nodiscard]] result<void> unpin(pin_id id) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::unpin(state_, static_cast<std::uint64_t>(id));
  }
  /// Ends every pin; returns their number.
  std::int64_t unpin_all() noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::unpin_all(state_, [&](std::uint64_t id) { return detail::groups::unpin(state_, id); });
  }

  /// Invalidates every prompt that begins with the first run of `cache_config::block_size` of these tokens, or all
  /// with a salt, or the tokens in chosen blocks of any group and what continues them; returns how many blocks of all
  /// groups. No look-up that begins afterwards finds them, and sequences that hold them publish nothing that continues
  /// them; new sequences cache anew. Blocks in use stay readable with their users and are freed with the last
  /// reference; others are freed at once. Prefixes are found by the hashes of their tokens, also where a caller gave
  /// others. Reported as evictions. Linear in the tokens that go, for a salt in the pool. Errors: `invalid_argument`
  /// for a block outside the pool; then nothing is invalidated.
  std::int64_t invalidate_prefix(const token_run& run, salt tag = salt::none) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::invalidate_prefix(state_, run, tag);
  }
  std::int64_t invalidate_salt(salt tag) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::invalidate_salt(state_, tag);
  }
  [[nodiscard]] result<std::int64_t> invalidate_blocks(std::span<const block_id> blocks) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::groups::invalidate_blocks(state_, blocks);
  }

  /// Whether `create_sequence` with these arguments would succeed now, or its error. Takes no references and counts no
  /// refusal. Linear in the prompt.
  [[nodiscard]] result<prompt_fit> would_fit(const token_run& prompt,
                                             const sequence_options& options = {}) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::groups::would_fit(state_, prompt, options);
  }

  /// Chained hashes of the runs of `cache_config::block_size` tokens of a prompt, as events name them.
  [[nodiscard]] std::size_t hash_blocks(const token_run& prompt, std::span<std::uint64_t> hashes,
                                        salt tag = salt::none) const noexcept {
    return detail::hash_blocks(state_.nodes.index(), prompt, tag, static_cast<std::size_t>(state_.granularity()),
                               hashes);
  }

  /// Tokens of the longest cached prefix that `create_sequence` would share. Errors: `out_of_memory`.
  [[nodiscard]] result<std::int64_t> find_prefix(const token_run& run, salt tag = salt::none) const noexcept {
    const auto guard = shared_guard{mutex_};
    const auto nodes = state_.guard_nodes();
    const auto found =
        detail::groups::longest_hit_of_prompt(state_, run, tag, static_cast<std::int64_t>(run.tokens.size()));
    if (!found) {
      return found.error();
    }
    return static_cast<std::int64_t>(found->num_nodes) * state_.granularity();
  }

  [[nodiscard]] std::int64_t num_free_blocks() const noexcept {
    const auto guard = shared_guard{mutex_};
    return state_.pool.num_free();
  }
  [[nodiscard]] std::int64_t num_available_blocks() const noexcept {
    const auto guard = shared_guard{mutex_};
    return state_.pool.num_available();
  }

  /// Number of additional blocks, of any group, for an allocation if these sequences were released, beside those that a
  /// sequence created from `prompt` would share; which of the sequences to release for so many. See `basic_kv_cache`.
  [[nodiscard]] result<release_gain> gain_of_releasing(std::span<const sequence_id> ids, const token_run& prompt = {},
                                                       salt tag = salt::none) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::gain_of_releasing(state_, ids, detail::groups::shared_by(state_, prompt, tag));
  }
  [[nodiscard]] result<std::vector<std::size_t>> fewest_to_release(std::span<const sequence_id> ids,
                                                                   std::int64_t num_blocks,
                                                                   const token_run& prompt = {},
                                                                   salt tag = salt::none) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::fewest_to_release(state_, ids, num_blocks, detail::groups::shared_by(state_, prompt, tag));
  }

  /// Opens a step that uses these sequences: blocks that they release are allocated again only when it has retired.
  [[nodiscard]] result<step_id> begin_step(std::span<const sequence_id> ids) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::begin_step(state_, ids);
  }
  /// Opens a step that may use any block in use.
  [[nodiscard]] result<step_id> begin_step() noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::begin_step(state_);
  }
  [[nodiscard]] result<void> retire_step(step_id step) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::retire_step(state_, step);
  }

  /// Sets the time that dates sequences and ends retention. Never goes back.
  void advance_time(timestamp now) noexcept {
    const auto guard = exclusive_guard{mutex_};
    detail::advance_time(state_, now);
  }
  [[nodiscard]] timestamp time() const noexcept {
    const auto guard = shared_guard{mutex_};
    return state_.time();
  }

  [[nodiscard]] result<sequence_info> describe(sequence_id id) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::visit_sequence(state_, id, [&](const group_sequence& s) -> result<sequence_info> {
      return sequence_info{s.num_tokens,        s.num_computed_tokens, s.num_prompt_tokens,
                           s.num_cached_tokens, s.usage().num_blocks,  std::max(s.num_tokens, s.num_reserved),
                           s.created,           s.last_access,         s.options};
    });
  }

  /// Copies the tokens from `first_token` on. Errors: `invalid_argument` outside of them.
  [[nodiscard]] result<void> tokens(sequence_id id, std::int64_t first_token, std::span<token> out) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::groups::copy_tokens(state_, id, first_token, out);
  }
  /// Copies the first of the sequence's keys, as far as there is room, and returns how many it has.
  [[nodiscard]] result<std::size_t> keys(sequence_id id, std::span<prefix_key> out) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::copy_keys(state_, id, out);
  }

  /// Fills `slots` of one group for the tokens from `first_token` on; `skip_slot` where blocks were released behind a
  /// window. Errors: `invalid_argument` outside the tokens, and for a group of states.
  [[nodiscard]] result<void> slot_mapping(std::size_t group, sequence_id id, std::int64_t first_token,
                                          std::span<slot> slots) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::groups::slot_mapping(state_, group, id, first_token, slots);
  }

  /// Copies a group's block table, or the blocks of the sequence's state, and returns how many. Errors:
  /// `invalid_argument` when `blocks` is too short.
  [[nodiscard]] result<std::size_t> block_table(std::size_t group, sequence_id id,
                                                std::span<block_id> blocks) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::groups::block_table(state_, group, id, blocks);
  }

  /// Tokens that a group's table lacks between the sinks and its first kept block: a kernel that reads the table finds
  /// token `i` of the sequence, behind the sinks, at `i - num_skipped_tokens`.
  [[nodiscard]] result<std::int64_t> num_skipped_tokens(std::size_t group, sequence_id id) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::groups::num_skipped_tokens(state_, group, id);
  }

  /// How many full blocks of a group all of these sequences have in common at their start, as
  /// `basic_kv_cache::common_prefix` tells it: 0 behind a window that has released them.
  [[nodiscard]] result<std::int64_t> common_prefix(std::size_t group, std::span<const sequence_id> ids) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::groups::common_prefix(state_, group, ids);
  }

  /// Updates a `padded_batch` or `compressed_batch`, used with this cache and group only, with one row for each of
  /// these sequences: their tables, and their lengths without the skipped tokens.
  template <class Batch>
  [[nodiscard]] result<void> update(std::size_t group, Batch& batch, std::span<const sequence_id> ids) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::groups::update(state_, group, batch, ids);
  }

  /// Writes rows of one layer of a group through a slot mapping, asynchronously on `on`. A latent group takes its
  /// vectors as keys, and no values.
  template <element Rows = float32>
  [[nodiscard]] result<void> write(std::size_t group, std::int32_t layer, std::span<const slot> slots,
                                   const token_rows<const typename Rows::storage>& keys,
                                   const token_rows<const typename Rows::storage>& values = {},
                                   stream on = {}) noexcept {
    static_assert(!Rows::scaled, "rows carry no scales: write them as float32, float16 or bfloat16");
    if (auto checked = detail::groups::check_group(state_, group, true); !checked) {
      return checked;
    }
    return backend_.template append<element_type, Rows>(storage_.view(group), layer, slots, keys, values, on);
  }

  /// Reads rows of one layer of a group; the values of a latent group are the first numbers of its vectors.
  template <element Rows = float32>
  [[nodiscard]] result<void> read(std::size_t group, std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<typename Rows::storage>& keys,
                                  const token_rows<typename Rows::storage>& values, stream on = {}) noexcept {
    static_assert(!Rows::scaled, "rows carry no scales: read them as float32, float16 or bfloat16");
    if (auto checked = detail::groups::check_group(state_, group, true); !checked) {
      return checked;
    }
    return backend_.template gather<element_type, Rows>(storage_.view(group), layer, slots, keys, values, on);
  }

  /// For kernels. Valid as long as the cache.
  [[nodiscard]] const block_storage_view& view(std::size_t group) const noexcept { return storage_.view(group); }
  /// Whole blocks of all groups, as one layer each, for transfers. Valid as long as the cache.
  [[nodiscard]] const block_storage_view& blocks() const noexcept { return storage_.blocks(); }
  /// One part of a state in one of the blocks that `block_table` names.
  [[nodiscard]] std::byte* state_part(std::size_t group, block_id block, std::int32_t part) const noexcept {
    return storage_.state_part(group, block, part);
  }
  [[nodiscard]] backend_type& backend() noexcept { return backend_; }
  [[nodiscard]] events_type& events() noexcept { return state_.events; }

  /// Moves blocks so that all free ones have higher ids than all others; returns the moves. Errors: `in_use` while a
  /// step is in flight, `out_of_memory`, and those of the backend.
  [[nodiscard]] result<std::vector<block_pair>> compact(stream on = {}) noexcept {
    const auto guard = whole_guard{mutex_};
    return detail::compact(
        state_, [&](std::span<const block_pair> moves) { return backend_.move_blocks(storage_.blocks(), moves, on); },
        [&](std::span<const block_pair> moves, std::span<const block_id> names) {
          detail::groups::rename_blocks(state_, moves, names);
        });
  }

  /// Evicts blocks ahead of need, as `basic_kv_cache::evict` does, with the blocks of other groups that become useless.
  /// These are written, too, behind the block that they go with; where `blocks` has no room for all of them, the rest
  /// is evicted, but not written. Errors: `unknown_step`.
  [[nodiscard]] result<std::int64_t> evict(std::span<block_id> blocks, step_id step) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto nodes = state_.guard_nodes();
    return detail::evict(state_, blocks, step);
  }

  /// Changes the number of blocks, between 1 and `cache_config::capacity`, with the memory behind them if the allocator
  /// is a `resizable_allocator`, as `basic_kv_cache::resize` does. Shrinking evicts as many blocks as do not fit, with
  /// those that become useless, and moves others to free ones below; returns the moves. Errors: `in_use` when blocks in
  /// use or retiring do not fit; `invalid_argument`; `out_of_memory` and those of the backend, after which evicted
  /// blocks stay evicted.
  [[nodiscard]] result<std::vector<block_pair>> resize(std::int32_t num_blocks, stream on = {}) noexcept {
    const auto guard = whole_guard{mutex_};
    return detail::resize(
        state_, storage_, num_blocks,
        [&](std::span<const block_pair> moves) { return backend_.move_blocks(storage_.blocks(), moves, on); },
        [&](std::span<const block_pair> moves, std::span<const block_id> names) {
          detail::groups::rename_blocks(state_, moves, names);
        },
        [&] { return backend_.synchronize(on); });
  }

  /// Frees every evictable block; returns how many. Errors: `in_use` while blocks are in use or retiring.
  [[nodiscard]] result<std::int64_t> reset_prefix_cache() noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto nodes = state_.guard_nodes();
    return detail::reset_prefix_cache(state_);
  }

  [[nodiscard]] cache_statistics statistics() const noexcept {
    const auto guard = shared_guard{mutex_};
    auto taken = detail::groups::take_statistics(state_);
    taken.contention += detail::contention_in(mutex_);
    return taken;
  }

  [[nodiscard]] memory_profile memory() const noexcept {
    const auto guard = shared_guard{mutex_};
    auto profile = detail::profile_metadata(state_, state_.nodes);
    profile.payload = storage_.bytes();
    return profile;
  }

  /// A sentence for each broken invariant; empty when all hold. For tests: linear. May throw `std::bad_alloc`.
  [[nodiscard]] std::vector<std::string> check_invariants() const {
    const auto guard = whole_guard{mutex_};
    return detail::groups::invariant_check{state_}.run();
  }

 private:
  using storage_type = group_storage<element_type, layout_type, allocator_type>;
  using state_type = group_state<locking_type, eviction_type, free_list_type, hash_type, events_type>;

  basic_group_cache(storage_type storage, const cache_config& config, backend_type backend, events_type events)
      : storage_(std::move(storage)),
        backend_(std::move(backend)),
        state_(config, storage_.plan(), std::move(events)) {}

  /// Storage for a configuration that the cache supports.
  [[nodiscard]] static result<storage_type> storage_of(const cache_config& config, allocator_type memory) noexcept {
    const auto plan = plan_memory(config.groups, size_of_element<element_type>, config.block_size);
    if (plan) {
      if (const auto checked = state_type::check(config, *plan); !checked) {
        return checked.error();
      }
    }
    return storage_type::create(config, std::move(memory));
  }

  [[nodiscard]] result<void> extend(sequence_id id, const token_run& run, std::int64_t num_ahead,
                                    stream on) noexcept {
    return detail::visit_sequence(state_, id, [&](group_sequence& s) {
      return detail::groups::extend(state_, s, run, num_ahead, copier(on));
    });
  }

  /// Copies whole blocks on a stream.
  [[nodiscard]] auto copier(stream on) noexcept {
    return [this, on](std::span<const block_pair> pairs) { return backend_.copy_blocks(storage_.blocks(), pairs, on); };
  }

  [[no_unique_address]] mutable typename locking_type::cache_mutex mutex_;
  storage_type storage_;
  [[no_unique_address]] backend_type backend_;
  state_type state_;
};

}  // namespace pagedkv
