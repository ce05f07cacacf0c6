#pragma once

#include <pagedkv/cache/block_copier.hpp>
#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/cache/groups/append.hpp>
#include <pagedkv/cache/groups/append_batch.hpp>
#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/groups/create_sequence.hpp>
#include <pagedkv/cache/groups/look_up.hpp>
#include <pagedkv/cache/groups/pin.hpp>
#include <pagedkv/cache/groups/release.hpp>
#include <pagedkv/cache/groups/resize.hpp>
#include <pagedkv/cache/groups/statistics.hpp>
#include <pagedkv/cache/groups/tables.hpp>
#include <pagedkv/cache/groups/withdraw.hpp>
#include <pagedkv/cache/index_model.hpp>
#include <pagedkv/cache/operations/append.hpp>
#include <pagedkv/cache/operations/append_batch.hpp>
#include <pagedkv/cache/operations/commit.hpp>
#include <pagedkv/cache/operations/create_sequence.hpp>
#include <pagedkv/cache/operations/evict.hpp>
#include <pagedkv/cache/operations/gain_of_releasing.hpp>
#include <pagedkv/cache/operations/look_up.hpp>
#include <pagedkv/cache/operations/pin.hpp>
#include <pagedkv/cache/operations/release.hpp>
#include <pagedkv/cache/operations/resize.hpp>
#include <pagedkv/cache/operations/statistics.hpp>
#include <pagedkv/cache/operations/steps.hpp>
#include <pagedkv/cache/operations/tables.hpp>
#include <pagedkv/cache/operations/withdraw.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/policies.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/sequence/batch_view.hpp>
#include <pagedkv/storage/block_storage.hpp>
#include <pagedkv/storage/memory_plan.hpp>

#include <array>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagedkv {

/// The stream of an operation that copies in other kinds of cache and not in this one: all take the same arguments.
/// Unlike `Stream`, it always has a default.
template <class Stream>
class unused_stream {
 public:
  constexpr unused_stream() noexcept = default;

  template <std::convertible_to<Stream> Given>
  constexpr unused_stream(Given&&) noexcept {}  // NOLINT(google-explicit-constructor)
};

/// The paged key/value cache.
///
/// Operations return a value or an error; a failed operation changes nothing but what its comment and docs/testing.md
/// (injected faults) say. Only the constructor throws. Of two concurrent operations on one sequence, the second waits
/// under the locks, and gets `sequence_busy` under a lock-free policy. With a locking policy other than
/// `single_thread`, every operation may be called from any thread; only `compact` and `check_invariants` run alone,
/// which they ensure themselves except under lock-free policies. (So does `resize`, which needs it only to move
/// blocks.)
///
/// Locks are taken in the order that docs/concurrency.md states.
///
/// With `layer_groups`, layers are those of `cache_config::groups`, and the last argument of what concerns one group is
/// its number. Without, there is one, number 0.
///
/// An operation that names a sequence or a batch of them can answer `unknown_sequence`, beside the errors of its own
/// comment. Each comment names the cost to the calling thread, beside copies on a stream and the wait for a lock. An
/// eviction counts as constant time; the policy's header says where it searches. A refusal while steps are open reads
/// one bit more per block of the pool. Where layers differ, costs are times the number of groups.
///
/// `kv_cache<Policies...>` names one: `Changes` are the policies that differ from `Defaults`, in the order of
/// `cache_axes`.
template <class Defaults, class... Changes>
class basic_kv_cache {
  using policies = policy_set<cache_axes, Defaults, Changes...>;

 public:
  /// The policy of each axis, and the stream of the backend.
  using element_type = typename policies::template on<element_axis>;
  using locking_type = typename policies::template on<locking_axis>;
  using eviction_type = typename policies::template on<eviction_axis>;
  using allocator_type = typename policies::template on<allocator_axis>;
  using backend_type = typename policies::template on<backend_axis>;
  using layout_type = typename policies::template on<layout_axis>;
  using hash_type = typename policies::template on<hash_axis>;
  using events_type = typename policies::template on<events_axis>;
  using free_list_type = typename policies::template on<free_list_axis>;
  using groups_type = typename policies::template on<groups_axis>;
  using stream_type = typename backend_type::stream_type;

  /// Whether priorities and retention in `sequence_options` have an effect.
  static constexpr bool uses_priority = pagedkv::uses_priority<eviction_type>;

  /// Whether the cache has memory for K/V, and with it `write`, `read` and `view`. Otherwise K/V is the engine's.
  static constexpr bool has_memory = provides_memory<allocator_type>;

  /// Whether the layers are groups of several kinds.
  static constexpr bool layers_differ = groups_type::layers_differ;

  static_assert(sizeof(detail::cache_check<Defaults, Changes...>) > 0);

  /// The stream of operations that copy only where layers differ.
  using copying_stream = std::conditional_t<layers_differ, stream_type, unused_stream<stream_type>>;

  /// Allocates all block storage, and all metadata except block tables. Throws `exception` for an invalid configuration
  /// or when the allocator is exhausted, `std::bad_alloc` when metadata does not fit.
  explicit basic_kv_cache(const cache_config& config, allocator_type memory = allocator_type{},
                          backend_type backend = backend_type{}, events_type events = events_type{})
      : basic_kv_cache(config, 0, std::move(memory), std::move(backend), std::move(events)) {}
  basic_kv_cache(const cache_config& config, events_type events)
      : basic_kv_cache(config, allocator_type{}, backend_type{}, std::move(events)) {}

  basic_kv_cache(const basic_kv_cache&) = delete;
  basic_kv_cache& operator=(const basic_kv_cache&) = delete;

  /// A cache, with what the constructor throws as an error. In a pointer, because caches do not move. An allocator and
  /// a backend that are not given are made here, and what their constructors throw is an error, too. Linear in
  /// `cache_config::capacity` and `max_sequences`, beside what the allocator does. Errors: `invalid_argument`,
  /// `size_overflow`, `out_of_memory`; of a backend that is made here, `backend_failure` without a device.
  [[nodiscard]] static result<std::unique_ptr<basic_kv_cache>> create(const cache_config& config) noexcept {
    return make(config, [&] { return create(config, allocator_type{}, backend_type{}); });
  }
  [[nodiscard]] static result<std::unique_ptr<basic_kv_cache>> create(const cache_config& config,
                                                                      allocator_type memory) noexcept {
    return make(config, [&] { return create(config, std::move(memory), backend_type{}); });
  }
  [[nodiscard]] static result<std::unique_ptr<basic_kv_cache>> create(const cache_config& config,
                                                                      events_type events) noexcept {
    return make(config, [&] { return create(config, allocator_type{}, backend_type{}, std::move(events)); });
  }
  [[nodiscard]] static result<std::unique_ptr<basic_kv_cache>> create(const cache_config& config, allocator_type memory,
                                                                      backend_type backend,
                                                                      events_type events = events_type{}) noexcept {
    auto storage = storage_of(config, 0, std::move(memory));
    if (!storage) {
      return storage.error();
    }
    const auto construct = [&]() -> result<std::unique_ptr<basic_kv_cache>> {
      return std::unique_ptr<basic_kv_cache>(
          new basic_kv_cache(std::move(*storage), config, 0, std::move(backend), std::move(events)));
    };
    return detail::with_memory(construct, error{error_code::out_of_memory, "number of blocks", config.num_blocks});
  }

  /// The configuration that the constructor was given; `num_blocks()` is the size now. Constant time.
  [[nodiscard]] const cache_config& config() const noexcept { return state_.config; }
  /// How groups share blocks. Constant time.
  [[nodiscard]] const memory_plan& plan() const noexcept
    requires layers_differ
  {
    return storage_.plan();
  }
  /// Blocks of the pool now: `cache_config::num_blocks` until the first `resize`. Constant time.
  [[nodiscard]] std::int32_t num_blocks() const noexcept {
    const auto guard = shared_guard{mutex_};
    return state_.pool.size();
  }

  /// Starts a sequence with a prompt, which may be empty. Allocates blocks for all of the prompt, or for
  /// `sequence_options::first_chunk` of its uncached tokens; all or nothing. At least the last token is left to
  /// compute. Hits, statistics and the eviction policy's hints are those of the whole prompt. Linear in the prompt.
  /// Where layers differ, copies blocks that it shares in part, and a saved state, on `stream`; without cached tokens,
  /// the sequence's state holds anything. Errors: `capacity_exhausted` (not now), `never_fits`, `limit_reached`
  /// (`max_sequences`), `invalid_argument`, `out_of_memory`, and those of the backend where it copies.
  [[nodiscard]] result<admission> create_sequence(const token_run& prompt,
                                                  const sequence_options& options = default_sequence_options,
                                                  copying_stream stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::create_sequence(state_, prompt, options, copier(stream));
  }

  /// Extends a sequence. Takes a block only at the start of one, and first copies the last block, on `stream`, if
  /// others can see it (see `commit`). Otherwise four stores. Constant time for a token; linear in a run. Errors:
  /// `capacity_exhausted` (not now), `never_fits`, `invalid_argument` for keys, `out_of_memory`, and those of the
  /// backend.
  [[nodiscard]] result<void> append(sequence_id id, token next, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::append_inside(state_, id, next) ? result<void>{} : extend(id, next, stream);
  }

  [[nodiscard]] result<void> append(sequence_id id, const token_run& run, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::append_inside(state_, id, run) ? result<void>{} : extend(id, run, stream);
  }

  /// Takes blocks of every group for `num_ahead` tokens after the last one; `slot_mapping` gives their slots, and later
  /// appends use them. Truncation releases them. After a fork within a block, `slot_mapping` refuses slots ahead until
  /// they are reserved again, or the other sequence has gone. Linear in the blocks that it takes. Errors: those of
  /// `append`.
  [[nodiscard]] result<void> reserve_slots(sequence_id id, std::int64_t num_ahead, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::reserve_slots(state_, id, num_ahead, copier(stream));
  }

  /// Declares that the K/V of the first `num_tokens` is written before anything that is enqueued from now on reads it,
  /// and publishes the full blocks among them. So the kernels need not have run: commit may be called as soon as
  /// nothing can keep them from being enqueued ahead of the readers', on one stream or behind an event. Prompts of one
  /// batch share when each is committed before the next is created; begin their step before that, so that `withdraw`
  /// knows what to hide when a writer gives way ahead of the launch. Copies that the cache itself enqueues, on write in
  /// `append` and in `compact`, read committed K/V, too: enqueue the kernels before the call, on its stream or ahead of
  /// an event that its stream waits for. Constant time where no block fills; otherwise linear in the tokens that it
  /// publishes. Errors: `invalid_argument` beyond the length, or before what was committed; `out_of_memory` for keys;
  /// where layers differ, those of the backend, which copies a state that is saved.
  [[nodiscard]] result<void> commit(sequence_id id, std::int64_t num_tokens, copying_stream stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::commit_inside(state_, id, num_tokens) ? result<void>{} : publish(id, num_tokens, stream);
  }

  /// Commits, appends and maps slots for a batch under one lock. Entries get blocks in their order. A failed entry
  /// changes nothing, except that its commit stays if only its append fails; the other entries are executed. Copies on
  /// write run on `stream`. Linear in the entries, their tokens, and the tokens that their commits publish. Errors of
  /// an entry are those of `commit` and `append`. Errors of the call, which then changes nothing: `invalid_argument`
  /// when `out` is too small for slots or failures.
  [[nodiscard]] result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out,
                                                   stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::append_batch(state_, entries, out, copier(stream));
  }

  /// A second sequence on the same blocks, but for those reserved ahead. The first must be committed to its end. Linear
  /// in its blocks and keys. Errors: `invalid_argument` otherwise, `in_use` after `withdraw`, `limit_reached`
  /// (`max_sequences`, or references to one block), `out_of_memory`; where layers differ, also `capacity_exhausted`,
  /// and those of the backend.
  [[nodiscard]] result<sequence_id> fork(sequence_id id, copying_stream stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::fork(state_, id, copier(stream));
  }

  /// Keeps the first `num_tokens` with their keys, and gives back slots ahead. Whole blocks past the end are released;
  /// published ones stay published, but for those that `withdraw` would hide. Unlike `withdraw`, it hides also those
  /// that others share, which still need the launch that writes them. A prompt that is cut ends there. Linear in the
  /// blocks that it releases. Errors: `invalid_argument` beyond the length, and before what the sequence still
  /// holds.
  [[nodiscard]] result<void> truncate(sequence_id id, std::int64_t num_tokens) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::truncate(state_, id, num_tokens);
  }

  /// Releases blocks that end before token `num_tokens`, which must be committed. Call it behind the launch that writes
  /// them: a withdrawal does not hide blocks that the sequence holds no more. Positions of later tokens stay.
  /// Groups with a window do it by themselves. Linear in the blocks that it releases. Errors: `invalid_argument` beyond
  /// the committed tokens.
  [[nodiscard]] result<void> drop_before(sequence_id id, std::int64_t num_tokens) noexcept {
    static_assert(!layers_differ, "groups with a window release their blocks by themselves: give them a window");
    if constexpr (!layers_differ) {
      const auto guard = exclusive_guard{mutex_};
      return detail::drop_before(state_, id, num_tokens);
    }
  }

  /// Releases blocks behind the windows of the token at `num_tokens`, which have no K/V: the tokens before it were
  /// computed elsewhere, and only what later ones read is here: of each block that stays, all tokens. Commit them
  /// afterwards. With `saves_state`, a commit of exactly these tokens saves the state, whatever the sequence's options
  /// are. Linear in the blocks that it releases. Errors: `invalid_argument` beyond the length.
  [[nodiscard]] result<void> drop_behind_windows(sequence_id id, std::int64_t num_tokens,
                                                 bool saves_state = false) noexcept
    requires layers_differ
  {
    const auto guard = exclusive_guard{mutex_};
    return detail::skip_to_windows(state_, id, num_tokens, saves_state);
  }
  /// The next length whose commit saves the state, if it is committed exactly: the end of a chunk. The largest number
  /// if there is none. Constant time. Errors: `unknown_sequence`, `sequence_busy`.
  [[nodiscard]] result<std::int64_t> next_saved_length(sequence_id id) const noexcept
    requires layers_differ
  {
    const auto guard = shared_guard{mutex_};
    return detail::next_saved_length(state_, id);
  }

  /// Ends a sequence and returns its blocks: published ones become evictable, deepest first, the others free. The hint
  /// is for the eviction policy. Linear in its blocks. Errors: `unknown_sequence`, `sequence_busy`.
  [[nodiscard]] result<void> release(sequence_id id, const release_hint& hint = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::release(state_, id, hint);
  }

  /// Before the release of a sequence whose launch will not happen: hides the blocks that it has published for the
  /// newest step, if that is open, by `commit` or by entries of a batch that only commit; returns how many. No look-up
  /// that begins afterwards finds them. Where layers differ, this hides their nodes, with blocks that other sequences
  /// have written there. From then on the sequence publishes nothing, no fork shares it, and its computed tokens are
  /// those that launches have surely written: in an open step, in whole blocks. Linear in those blocks. Errors:
  /// `in_use` while another sequence or a pin holds one, or a block of a fork in that step, and so needs the launch;
  /// `sequence_busy`, also under `sharded_mutex`, while another thread looks one up. After either, blocks may be
  /// hidden.
  [[nodiscard]] result<std::int64_t> withdraw(sequence_id id) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::withdraw(state_, id);
  }

  /// Keeps the longest published prefix of these tokens from eviction until `unpin`. Linear in the tokens. Errors:
  /// `limit_reached` with `cache_config::max_sequences` pins, `out_of_memory`.
  [[nodiscard]] result<pinning> pin(const token_run& run, salt salt = salt::none) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::pin(state_, run, salt);
  }

  /// Ends a pin: its prefix may be evicted again, and counts as just released, with the priority, the retention and the
  /// expected return that the last sequence gave it. Linear in its blocks. Errors: `unknown_pin`; under `lock_free`,
  /// `sequence_busy` while another thread ends it.
  [[nodiscard]] result<void> unpin(pin_id id) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::unpin(state_, static_cast<std::uint64_t>(id));
  }
  /// Ends every pin; returns their number. Ids of pins are stale afterwards, except those of pins made meanwhile. Under
  /// `lock_free`, a pin whose block table another thread copies stays. Linear in `max_sequences` and in the blocks of
  /// all pins.
  std::int64_t unpin_all() noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::unpin_all(state_, [&](std::uint64_t id) { return detail::unpin(state_, id); });
  }

  /// Invalidates the longest cached prefix of these tokens, or the first block of every chain with a salt, or chosen
  /// blocks; returns how many blocks. No look-up that begins afterwards finds them or blocks that continue them, nor,
  /// of a prefix or a salt, any equal block; a commit caches anew. Beside chosen blocks, equal ones stay, and what
  /// continues them. Prefixes are found by the hashes of their tokens, also where a caller gave others. Blocks in use
  /// stay with their users, readable and with the same contents, and are freed when the last reference is released;
  /// others are freed at once. Blocks that continue an invalidated one wait for their eviction. Reported as evictions.
  /// Linear in the tokens, in the pool, and in the blocks. Errors: `invalid_argument` for a block outside the pool;
  /// then nothing is invalidated.
  ///
  /// Where layers differ, tokens are invalidated: their blocks in every group, with all blocks that continue them, of
  /// which each counts. A prefix is found by the hashes that the run has. A salt is linear in the nodes.
  std::int64_t invalidate_prefix(const token_run& run, salt salt = salt::none) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::invalidate_prefix(state_, run, salt);
  }
  std::int64_t invalidate_salt(salt salt) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::invalidate_salt(state_, salt);
  }
  [[nodiscard]] result<std::int64_t> invalidate_blocks(std::span<const block_id> blocks) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::invalidate_blocks(state_, blocks);
  }

  /// Blocks that an allocation takes without evicting any, and those that it can have: free ones, and evictable ones
  /// under a policy that evicts. Constant time in the pool. While other threads are at work, a count is not less than
  /// the true one at some moment of the call; blocks on which a look-up has a lease count as evictable.
  [[nodiscard]] std::int64_t num_free_blocks() const noexcept {
    const auto guard = shared_guard{mutex_};
    return state_.pool.num_free();
  }
  [[nodiscard]] std::int64_t num_available_blocks() const noexcept {
    const auto guard = shared_guard{mutex_};
    return state_.pool.num_available();
  }

  /// Whether `create_sequence` with these arguments would succeed now, or its error. Takes no references and counts no
  /// refusal. Linear in the prompt. Errors: those of `create_sequence`; `out_of_memory` also for the list of hits.
  [[nodiscard]] result<prompt_fit> would_fit(const token_run& prompt,
                                             const sequence_options& options = {}) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::would_fit(state_, prompt, options);
  }

  /// Length, in tokens, of the longest cached prefix that `create_sequence` would share: at most all but the last
  /// token, in whole blocks. Takes no references. Where layers differ, 0 if memory for the search is exhausted. Linear
  /// in the prompt.
  [[nodiscard]] std::int64_t find_prefix(const token_run& run, salt salt = salt::none) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::find_prefix(state_, run, salt);
  }

  /// Chained hashes of the full blocks of a prompt, for `token_run::hashes`: computed once, as it arrives, outside of
  /// every lock. Fills `hashes` as far as there is room; returns how many. Linear in the tokens that it hashes.
  [[nodiscard]] std::size_t hash_blocks(const token_run& prompt, std::span<std::uint64_t> hashes,
                                        salt salt = salt::none) const noexcept {
    return detail::hash_blocks(state_, prompt, salt, hashes);
  }

  /// Number of additional blocks for an allocation if these sequences were released, beside those that a sequence
  /// created from `prompt` would share: the gain of preempting them. Ignores sequences that are gone or busy, and those
  /// which `withdraw` refuses or whose unlaunched blocks `prompt` would share. O(n log n) in their blocks. Errors:
  /// `out_of_memory`.
  [[nodiscard]] result<release_gain> gain_of_releasing(std::span<const sequence_id> ids,
                                                       const token_run& prompt = {},
                                                       salt salt = salt::none) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::gain_of_releasing(state_, ids, detail::shared_by(state_, prompt, salt));
  }
  /// Which of these sequences to release in order to gain so many blocks, at once or with open steps: as positions in
  /// `ids`, ascending. As few as possible from the first on, without those that gain nothing; none when all are not
  /// enough, and for no blocks. For an append to `beneficiary`, a block counts as gained, too, which it would otherwise
  /// copy, because these sequences hold it. O(n log n) in their blocks. Errors: `out_of_memory`.
  [[nodiscard]] result<std::vector<std::size_t>> fewest_to_release(std::span<const sequence_id> ids,
                                                                   std::int64_t num_blocks,
                                                                   const token_run& prompt = {}, salt salt = salt::none,
                                                                   sequence_id beneficiary = {}) const noexcept {
    const auto guard = shared_guard{mutex_};
    const auto visit_ends = [&](const auto& s, auto&& visit) { detail::for_each_shared_end(state_, s, visit); };
    return detail::fewest_to_release(state_, ids, num_blocks, detail::shared_by(state_, prompt, salt), beneficiary,
                                     visit_ends);
  }

  /// Opens a step that uses these sequences. Blocks that they release before it retires are allocated again only when
  /// it and all steps before it have retired. Blocks that no open step uses are available as soon as they are released.
  /// Commits before the call count as launched.
  /// Call it before the step's appends, so that a block that a copy on write replaces waits for the copy, too. Linear
  /// in the sequences. Errors: `limit_reached` with 64 steps from the oldest open one on, which `error::step` names,
  /// `unknown_sequence`, `sequence_busy`.
  [[nodiscard]] result<step_id> begin_step(std::span<const sequence_id> ids) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::begin_step(state_, ids);
  }
  /// Opens a step that may use any block in use, also by later sequences and pins. Where it retires ahead of an older
  /// step, blocks wait for that one, also those that are released in between and that the older step does not use.
  /// Constant time. Errors: `limit_reached` with 64 steps from the oldest open one on, which `error::step` names.
  [[nodiscard]] result<step_id> begin_step() noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::begin_step(state_);
  }
  /// The step's kernels have run. Steps retire in any order; a block waits for its step and all before it. O(blocks
  /// that wait + pool / 64). Errors: `unknown_step`.
  [[nodiscard]] result<void> retire_step(step_id step) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::retire_step(state_, step);
  }

  /// Sets the time that dates sequences and ends retention. Never goes back. Constant time.
  void advance_time(timestamp now) noexcept {
    const auto guard = exclusive_guard{mutex_};
    detail::advance_time(state_, now);
  }
  [[nodiscard]] timestamp time() const noexcept {
    const auto guard = shared_guard{mutex_};
    return state_.time();
  }

  /// Lengths, times and options of a sequence. Constant time. Errors: `unknown_sequence`, `sequence_busy`.
  [[nodiscard]] result<sequence_info> describe(sequence_id id) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::describe(state_, id);
  }

  /// Fills `slots` for the tokens from `first_token` on, reserved ones included; `skip_slot` where blocks were released
  /// behind a window. Linear in the slots. Errors: `invalid_argument` outside of them, for a group that there is not,
  /// and for one of states.
  [[nodiscard]] result<void> slot_mapping(sequence_id id, std::int64_t first_token, std::span<slot> slots,
                                          std::size_t group = 0) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::slot_mapping(state_, id, first_token, slots, group);
  }

  /// Copies a group's block table from the entry at `first_block` on, or the blocks of the sequence's state, and
  /// returns the table's size. An append changes only entries from that of its first token on. Linear in the entries
  /// that it copies. Errors: `invalid_argument` when `blocks` is too short, `first_block` is beyond the table, or there
  /// is no such group.
  [[nodiscard]] result<std::size_t> block_table(sequence_id id, std::span<block_id> blocks, std::size_t first_block = 0,
                                                std::size_t group = 0) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::copy_block_table(state_, id, blocks, first_block, group);
  }
  /// Copies a group's blocks of a pin: those that a hit of its prefix shares, or of which it copies a part; of a
  /// window, those of leading tokens, then those that the next token reads, and the blocks of a saved state. Errors:
  /// `unknown_pin`; under `lock_free`, `sequence_busy` while another thread ends it; those above.
  [[nodiscard]] result<std::size_t> block_table(pin_id id, std::span<block_id> blocks, std::size_t first_block = 0,
                                                std::size_t group = 0) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::copy_block_table(state_, id, blocks, first_block, group);
  }

  /// Tokens that a group's table lacks between the sinks and its first kept block: a kernel that reads the table finds
  /// token `i` of the sequence, behind the sinks, at `i - num_skipped_tokens`. Constant time. Errors:
  /// `unknown_sequence`, `sequence_busy`, and `invalid_argument` for a group that there is not, and for one of states.
  [[nodiscard]] result<std::int64_t> num_skipped_tokens(sequence_id id, std::size_t group = 0) const noexcept
    requires layers_differ
  {
    const auto guard = shared_guard{mutex_};
    return detail::num_skipped_tokens(state_, id, group);
  }

  /// Fills `out` with the tokens from `first_token` on. Linear in them. Errors: `invalid_argument` outside of them, and
  /// where blocks were dropped.
  [[nodiscard]] result<void> tokens(sequence_id id, std::int64_t first_token, std::span<token> out) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::copy_tokens(state_, id, first_token, out);
  }
  /// Copies the first of the sequence's keys, as far as there is room, and returns how many it has. Linear in the keys
  /// that it copies. Errors: `unknown_sequence`, `sequence_busy`.
  [[nodiscard]] result<std::size_t> keys(sequence_id id, std::span<prefix_key> out) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::copy_keys(state_, id, out);
  }

  /// Number of full blocks that all of these sequences share at the start of their tables, for cascade attention; 0
  /// behind a window that has released them. O(common blocks times sequences). Errors: `unknown_sequence`,
  /// `sequence_busy`, and those of `slot_mapping` for the group.
  [[nodiscard]] result<std::int64_t> common_prefix(std::span<const sequence_id> ids,
                                                   std::size_t group = 0) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::common_prefix(state_, ids, group);
  }

  /// Updates a `padded_batch` or `compressed_batch`, used with this cache and group only, with one row for each of
  /// these sequences: their tables, and their lengths without skipped tokens, with up to `num_ahead` of the slots that
  /// are reserved ahead, as if they had tokens. Linear in the rows, in their new and changed entries and, for a
  /// `compressed_batch`, in the entries behind a row that grew. Errors: those of its `update`; `invalid_argument` for
  /// slots that cannot be ahead; those of `slot_mapping` for the group.
  template <class Batch>
  [[nodiscard]] result<void> update(Batch& batch, std::span<const sequence_id> ids, std::size_t group = 0,
                                    std::int64_t num_ahead = 0) const noexcept {
    const auto guard = shared_guard{mutex_};
    return detail::update(state_, batch, ids, group, num_ahead);
  }

  /// Writes keys and values of one layer through a slot mapping, asynchronously on `stream`; negative slots are
  /// skipped. `Rows` is the element of the rows: `write<bfloat16>(…)`. Rows of the cache's own element, unless it is
  /// scaled, are copied bit for bit. A latent group takes its vectors as keys, and no values. Writing slots of blocks
  /// that are not in use is misuse, which debug builds assert if the backend reads slots on the host. Linear in the
  /// rows with `host_backend`; a device's backend enqueues one or two launches. Errors: `invalid_argument` for a layer
  /// or group that there is not, for rows of another shape, and for a slot outside the storage where the backend reads
  /// slots on the host; those of the backend.
  template <element Rows = float32>
  [[nodiscard]] result<void> write(std::int32_t layer, std::span<const slot> slots,
                                   const token_rows<const typename Rows::storage>& keys,
                                   const token_rows<const typename Rows::storage>& values = {}, stream_type stream = {},
                                   std::size_t group = 0) noexcept {
    static_assert(has_memory, "this cache has no memory: write K/V to the engine's, at the slots");
    static_assert(is_unscaled<Rows>, "rows carry no scales: write them as float32, float16 or bfloat16");
    if (auto checked = detail::check_group(state_, group); !checked) {
      return checked;
    }
    if constexpr (has_memory) {
      assert(detail::slots_in_use<backend_type>(state_, mutex_, slots, view(group).block_size) &&
             "slots of a block that nothing holds");
      return backend_.template append<element_type, Rows>(view(group), layer, slots, keys, values, stream);
    }
  }

  /// Reads keys and values of one layer through a slot mapping, asynchronously on `stream`, into rows stored as `Rows`;
  /// rows of negative slots stay unchanged. The values of a latent group are the first numbers of its vectors. Linear
  /// in the rows, as `write`. Errors: those of `write`.
  template <element Rows = float32>
  [[nodiscard]] result<void> read(std::int32_t layer, std::span<const slot> slots,
                                  const token_rows<typename Rows::storage>& keys,
                                  const token_rows<typename Rows::storage>& values, stream_type stream = {},
                                  std::size_t group = 0) noexcept {
    static_assert(has_memory, "this cache has no memory: read K/V from the engine's, at the slots");
    static_assert(is_unscaled<Rows>, "rows carry no scales: read them as float32, float16 or bfloat16");
    if (auto checked = detail::check_group(state_, group); !checked) {
      return checked;
    }
    if constexpr (has_memory) {
      return backend_.template gather<element_type, Rows>(view(group), layer, slots, keys, values, stream);
    }
  }

  /// Attention of a batch's queries to the blocks of one layer, on `stream`: see `attention_options`. `Input` and
  /// `Output` say how queries and outputs are stored. With `host_backend`, include `pagedkv/host/attend.hpp`. There,
  /// linear in the tokens that each query reads, times its heads; a device's backend enqueues. Errors: those of the
  /// backend, and `invalid_argument` for a group that there is not.
  template <element Input = float32, element Output = Input>
    requires attention_backend_for<backend_type, element_type, Input, Output>
  [[nodiscard]] result<void> attend(std::int32_t layer, const attention_batch& batch,
                                    const token_rows<const typename Input::storage>& queries,
                                    const attention_output<typename Output::storage>& output,
                                    const attention_options& options = {}, stream_type stream = {},
                                    std::size_t group = 0) noexcept {
    if (auto checked = detail::check_group(state_, group); !checked) {
      return checked;
    }
    return backend_.template attend<element_type, Input, Output>(view(group), layer, batch, queries, output, options,
                                                                 stream);
  }

  /// The blocks of a group that holds tokens, for kernels. Valid as long as the cache. Constant time.
  [[nodiscard]] const block_storage_view& view([[maybe_unused]] std::size_t group = 0) const noexcept {
    static_assert(has_memory, "this cache has no memory: give kernels the engine's, with block tables and slots");
    if constexpr (layers_differ) {
      return storage_.view(group);
    } else {
      return storage_.view();
    }
  }
  /// Whole blocks, of all groups, for transfers. Valid as long as the cache. Constant time.
  [[nodiscard]] const block_storage_view& blocks() const noexcept {
    static_assert(has_memory, "this cache has no memory: copy the engine's");
    return storage_.blocks();
  }
  /// The address of one part of a state in one of the blocks that `block_table` names. `part` counts within the block,
  /// up to `group_plan::parts_per_block`. Valid as long as the cache. Constant time.
  [[nodiscard]] std::byte* state_part(std::size_t group, block_id block, std::int32_t part) const noexcept
    requires layers_differ
  {
    static_assert(has_memory, "this cache has no memory: the engine keeps states");
    return storage_.state_part(group, block, part);
  }
  /// The backend, and the stream of events. Constant time.
  [[nodiscard]] backend_type& backend() noexcept { return backend_; }
  [[nodiscard]] events_type& events() noexcept { return state_.events; }

  /// Moves blocks so that all free ones have higher ids than all others, and under `lock_free` cached ones higher ids
  /// than those in use, for which it evicts one if no block is free and the policy evicts. Returns the moves: from the
  /// id before to the id after, as if all happened at once. They run on `stream`: order them after all kernels that use
  /// the blocks, those of `commit` included. Callers rebuild slot mappings; batches adapt at their next update. The
  /// eviction policy's knowledge of a block moves with it. Linear in the pool and in all block tables. Errors: `in_use`
  /// while a step is in flight; `out_of_memory` and those of the backend, after which an evicted block stays evicted.
  [[nodiscard]] result<std::vector<block_pair>> compact(stream_type stream = {}) noexcept {
    const auto guard = whole_guard{mutex_};
    return detail::compact(state_, mover(stream), renamer());
  }

  /// Evicts blocks ahead of need: writes at most `blocks.size()` ids, in the order in which they would be evicted, and
  /// returns their number. No look-up finds them any more, but they keep their contents until this step, which is open,
  /// and all before it have retired; then they are free. So K/V can be copied elsewhere before its memory has another
  /// use: begin a step, evict, copy, retire the step. The hashes of the blocks come with the events of kind `evicted`.
  /// Where layers differ, the blocks of other groups that become useless are evicted, too, and written behind the block
  /// that they go with as far as there is room. Linear in the blocks that it evicts. Errors: `unknown_step`.
  [[nodiscard]] result<std::int64_t> evict(std::span<block_id> blocks, step_id step) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::evict(state_, blocks, step);
  }

  /// Changes the number of blocks, between 1 and `cache_config::capacity`. With a `resizable_allocator`, memory comes
  /// and goes with them; addresses and strides stay, so captured kernels go on working. Growing keeps everything where
  /// it is. Shrinking evicts, in the order of the policy, as many blocks as do not fit, and moves those with higher ids
  /// to free ones below, as `compact` does; returns the moves. They run on `stream`: order it after all kernels that
  /// use the blocks, also those of open steps, because the call waits for `stream` before it gives memory back. Callers
  /// rebuild slot mappings; batches adapt at their next update. Linear in the pool and in all block tables if blocks
  /// move, otherwise in the pool.
  ///
  /// Under lock-free policies other threads may be at work, and nothing moves: cached blocks beyond the new size are
  /// evicted. `compact` before, with no other thread at work, gathers the blocks in use below.
  ///
  /// Errors: `in_use` when blocks in use, retiring or under a lease do not fit, or while another thread changes the
  /// size; `invalid_argument`; `out_of_memory` and those of the backend, after which evicted blocks stay evicted.
  [[nodiscard]] result<std::vector<block_pair>> resize(std::int32_t num_blocks, stream_type stream = {}) noexcept {
    const auto guard = whole_guard{mutex_};
    const auto resize_memory = [&](std::int32_t wanted) { return storage_.resize(wanted); };
    const auto wait = [&]() -> result<void> {
      return storage_.bytes_for(num_blocks) == storage_.bytes() ? result<void>{} : backend_.synchronize(stream);
    };
    return detail::resize(state_, num_blocks, mover(stream), renamer(), resize_memory, wait);
  }

  /// Frees every evictable block; returns how many. Linear in the pool. Errors: `in_use` while blocks are in use or
  /// retiring.
  [[nodiscard]] result<std::int64_t> reset_prefix_cache() noexcept {
    const auto guard = exclusive_guard{mutex_};
    return detail::reset_prefix_cache(state_);
  }

  /// Linear in the number of sequences. Delays operations only where a mutex guards the whole cache or its nodes: see
  /// `cache_statistics`.
  [[nodiscard]] cache_statistics statistics() const noexcept {
    const auto guard = shared_guard{mutex_};
    auto taken = detail::take_statistics(state_);
    taken.contention += detail::contention_in(mutex_);
    return taken;
  }

  /// Bytes of blocks and of metadata. Linear in the number of sequences and pins.
  [[nodiscard]] memory_profile memory() const noexcept {
    const auto guard = shared_guard{mutex_};
    auto profile = detail::profile_metadata(state_);
    profile.payload = storage_.bytes_for(state_.pool.size());
    return profile;
  }

  /// A sentence for each broken invariant; empty when all hold. For tests: linear in pool and block tables. Under
  /// lock-free policies, meaningful only while no other thread is at work. May throw `std::bad_alloc`.
  [[nodiscard]] std::vector<std::string> check_invariants() const {
    const auto guard = whole_guard{mutex_};
    return detail::invariant_check{state_}.run();
  }

 protected:
  /// With room for nodes that no device block has; of use where layers differ.
  basic_kv_cache(const cache_config& config, std::int64_t num_more_nodes, allocator_type memory, backend_type backend,
                 events_type events)
      : basic_kv_cache(storage_of(config, num_more_nodes, std::move(memory)).value(), config, num_more_nodes,
                       std::move(backend), std::move(events)) {}

  /// Where blocks are found by their tokens.
  [[nodiscard]] const auto& node_index() const noexcept { return state_.node_index(); }
  /// Where layers differ, the nodes, and the shapes of the groups.
  [[nodiscard]] auto& nodes() noexcept { return state_.nodes; }
  [[nodiscard]] const group_shapes& shapes() const noexcept { return state_; }

  /// Calls `body(state)`.
  template <class Body>
  void visit_state(Body&& body) const noexcept {
    const auto guard = shared_guard{mutex_};
    body(state_);
  }
  /// Calls `body(state, sequence, copy)`, which copies blocks on `stream`, and returns its result.
  template <class Body>
  [[nodiscard]] auto visit_sequence(sequence_id id, stream_type stream, Body&& body) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto copy = copier(stream);
    return detail::visit_sequence(state_, id, [&](auto& s) { return body(state_, s, detail::block_copier{copy}); });
  }

 private:
  using storage_type = std::conditional_t<layers_differ, group_storage<element_type, layout_type, allocator_type>,
                                          block_storage<element_type, layout_type, allocator_type>>;
  using state_type =
      std::conditional_t<layers_differ,
                         group_state<locking_type, eviction_type, free_list_type, hash_type, events_type>,
                         cache_state<locking_type, eviction_type, free_list_type, hash_type, events_type>>;
  // Where the pool has refused the policies, clang would count its sentence as a second error.
  static_assert(!orders_blocks_for<typename locking_type::family, eviction_type> ||
                !searches_runs_for<typename locking_type::family, free_list_type> || index_model<state_type>);

  basic_kv_cache(storage_type storage, const cache_config& config, std::int64_t num_more_nodes, backend_type backend,
                 events_type events)
      : storage_(std::move(storage)),
        backend_(std::move(backend)),
        state_(state_of(config, storage_, num_more_nodes, std::move(events))) {}

  /// Calls a body that constructs what `create` was not given.
  template <class Body>
  [[nodiscard]] static result<std::unique_ptr<basic_kv_cache>> make(const cache_config& config, Body body) noexcept {
    return detail::with_errors(body, error{error_code::out_of_memory, "number of blocks", config.num_blocks});
  }

  /// Storage for a configuration that the cache supports.
  [[nodiscard]] static result<storage_type> storage_of(const cache_config& config,
                                                       [[maybe_unused]] std::int64_t num_more_nodes,
                                                       allocator_type memory) noexcept {
    if constexpr (layers_differ) {
      const auto plan = plan_memory(config.groups, size_of_element<element_type>, config.block_size);
      if (const auto checked = plan ? state_type::check(config, *plan, num_more_nodes) : result<void>{}; !checked) {
        return checked.error();
      }
    }
    return storage_type::create(config, std::move(memory));
  }
  [[nodiscard]] static state_type state_of(const cache_config& config, [[maybe_unused]] const storage_type& storage,
                                           [[maybe_unused]] std::int64_t num_more_nodes, events_type events) {
    if constexpr (layers_differ) {
      return state_type(config, storage.plan(), num_more_nodes, std::move(events));
    } else {
      return state_type(config, std::move(events));
    }
  }

  // Out of line, because appends and commits inside a block do not come here, and then need no stack.

  [[gnu::noinline]] result<void> extend(sequence_id id, const token_run& run, stream_type stream) noexcept {
    return detail::visit_sequence(state_, id,
                                  [&](auto& s) { return detail::extend(state_, s, run, 0, copier(stream)); });
  }
  [[gnu::noinline]] result<void> extend(sequence_id id, token next, stream_type stream) noexcept {
    const auto run = std::array{next};
    return detail::visit_sequence(state_, id,
                                  [&](auto& s) { return detail::extend(state_, s, run, 0, copier(stream)); });
  }
  [[gnu::noinline]] result<void> publish(sequence_id id, std::int64_t num_tokens,
                                         [[maybe_unused]] copying_stream stream) noexcept {
    return detail::visit_sequence(state_, id, [&](auto& s) {
      if constexpr (layers_differ) {
        return detail::commit(state_, s, num_tokens, copier(stream), true);
      } else {
        return detail::commit(state_, s, num_tokens, true);
      }
    });
  }

  // Functions for operations, which get references to them: see `block_copier`.

  [[nodiscard]] auto copier(const stream_type& stream) noexcept {
    return [this, &stream](std::span<const block_pair> pairs) {
      return backend_.copy_blocks(storage_.blocks(), pairs, stream);
    };
  }
  /// Copies for operations that need none.
  [[nodiscard]] static auto copier(const unused_stream<stream_type>&) noexcept {
    return [](std::span<const block_pair>) { return result<void>{}; };
  }
  [[nodiscard]] auto mover(const stream_type& stream) noexcept {
    return [this, &stream](std::span<const block_pair> moves) {
      return backend_.move_blocks(storage_.blocks(), moves, stream);
    };
  }
  [[nodiscard]] auto renamer() noexcept {
    return [this](std::span<const block_pair> moves, std::span<const block_id> names) {
      detail::apply_moves(state_, moves, names);
    };
  }

  [[no_unique_address]] mutable typename locking_type::cache_mutex mutex_;
  storage_type storage_;
  [[no_unique_address]] backend_type backend_;
  state_type state_;
};

}  // namespace pagedkv
