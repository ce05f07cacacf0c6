#pragma once

#include <pagedkv/cache/kv_cache.hpp>
#include <pagedkv/cache/operations/prompt.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/detail/random_seed.hpp>
#include <pagedkv/storage/layout.hpp>
#include <pagedkv/storage/memory_plan.hpp>
#include <pagedkv/tier/block_records.hpp>
#include <pagedkv/tier/group_records.hpp>
#include <pagedkv/tier/sequence_loads.hpp>
#include <pagedkv/tier/slower_tier.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>
#include <pagedkv/tier/transfer_queue.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagedkv {

namespace detail {

template <class List>
struct tuple_of;
template <class... Types>
struct tuple_of<policy_list<Types...>> {
  using type = std::tuple<Types...>;
};

/// The host tier in a list of one, or the default.
template <class Defaults, class List>
struct host_tier_in {
  using type = typename Defaults::host_tier_type;
};
template <class Defaults, class Host>
struct host_tier_in<Defaults, policy_list<Host>> {
  using type = Host;
};

/// Whether a backend reaches the host tier's memory: one that reaches only some memory names its allocator.
template <class Backend, class Host>
inline constexpr bool is_reached_by = true;
template <class Backend, class Host>
  requires requires { typename Backend::host_memory; }
inline constexpr bool is_reached_by<Backend, Host> =
    std::is_base_of_v<typename Backend::host_memory, typename Host::allocator_type>;

/// The needs of tiers, and whether a cache's policies meet each.
template <class Defaults, class Host, class Policies>
struct tiers_needs;
template <class Defaults, class Host, class... Policies>
struct tiers_needs<Defaults, Host, policy_list<Policies...>> {
  template <class Axis>
  using on = typename policy_set<cache_axes, Defaults, Policies...>::template on<Axis>;

  static constexpr bool waits = !on<locking_axis>::family::concurrent || on<locking_axis>::waits_for_sequence;
  static constexpr bool swaps = swaps_blocks<on<backend_axis>>;
  static constexpr bool is_reached = is_reached_by<on<backend_axis>, Host>;
  static constexpr bool has_memory = provides_memory<on<allocator_axis>>;
  static constexpr bool hold = waits && swaps && is_reached && has_memory;
};

/// Fails to compile, with a sentence, where a need does not hold.
template <class Needs>
struct tiers_check {
  static_assert(Needs::waits,
                "transfers between tiers lock, so nothing behind them is lock-free: use the locking policy `rw_lock`");
  static_assert(Needs::swaps,
                "this backend copies no blocks to host memory, which tiers need: use `host_backend` or `hip_backend`");
  static_assert(Needs::is_reached,
                "the device reaches only memory that it knows: add host_tier<hip::pinned_allocator>, with an eviction "
                "policy if not `lru`");
  static_assert(Needs::has_memory || !Needs::swaps, "a cache with tiers has memory: leave `no_memory` out");
};

template <class Defaults, class Host, class Queues, class Policies>
struct tiered_types;
template <class Defaults, class Host, class Queues, class... Policies>
struct tiered_types<Defaults, Host, Queues, policy_list<Policies...>> {
  template <class Axis>
  using on = typename policy_set<cache_axes, Defaults, Policies...>::template on<Axis>;

  static constexpr bool layers_differ = on<groups_axis>::layers_differ;
  using memory = typename Host::allocator_type;
  using store = std::conditional_t<layers_differ,
                                   group_records<on<locking_axis>, on<backend_axis>, on<hash_axis>, memory, Queues>,
                                   block_records<on<locking_axis>, on<backend_axis>, on<hash_axis>, memory, Queues>>;
  using loads = std::conditional_t<layers_differ, group_loads<store>, block_loads<store>>;
  using tap = tier_tap<on<events_axis>, store>;
  using cache = kv_cache_of<Defaults, on<element_axis>, on<locking_axis>, on<eviction_axis>, on<allocator_axis>,
                            saving_backend<on<backend_axis>, store>, on<layout_axis>, on<hash_axis>, tap,
                            on<free_list_axis>, on<groups_axis>>;
};

template <class Defaults, class... Policies>
struct tiered_parts {
  using sorted = sorted_policies<Defaults, Policies...>;

  static_assert(std::is_same_v<typename sorted::changes_and_tiers, policy_list<Policies...>>,
                "basic_tiered_cache takes the tiers, then the policies that differ from the defaults, in the order of "
                "cache_axes: write kv_cache<Policies...> or tiered_cache<Policies...>, which take them in any order");

  using host = typename host_tier_in<Defaults, typename sorted::host>::type;
  using slower = typename sorted::slower;
  using queues = std::conditional_t<std::is_same_v<slower, policy_list<>>, no_transfer_queues, transfer_queues>;
  using needs = tiers_needs<Defaults, host, typename sorted::changes>;
  static_assert(sizeof(tiers_check<needs>) > 0);
  /// Where the check has failed, of the defaults, so that compilers report nothing else.
  using types =
      std::conditional_t<needs::hold, tiered_types<Defaults, host, queues, typename sorted::changes>,
                         tiered_types<Defaults, typename Defaults::host_tier_type, no_transfer_queues, policy_list<>>>;
};

}  // namespace detail

/// A paged cache with tiers behind its device: host memory, and slower tiers that read and write through it. Blocks
/// that the device evicts go there and come back, as docs/tiers.md describes. Operations that are not described here
/// are those of `kv_cache`. Those that may evict copy blocks on their stream: new owners write on it, or behind it.
///
/// A tier never fails a request: what cannot be loaded is computed. Nothing but `wait` waits for a tier.
///
/// Thread safety: that of the locking policy, `lock_free` excepted; operations that change the cache lock it whole.
template <class Defaults, class... Policies>
class basic_tiered_cache : private detail::tiered_parts<Defaults, Policies...>::types::cache {
  using parts = detail::tiered_parts<Defaults, Policies...>;
  using device = typename parts::types::cache;
  using store_type = typename parts::types::store;
  using loads_type = typename parts::types::loads;

 public:
  /// The policies of each axis, and the tiers.
  using element_type = typename device::element_type;
  using locking_type = typename device::locking_type;
  using eviction_type = typename device::eviction_type;
  using allocator_type = typename device::allocator_type;
  using layout_type = typename device::layout_type;
  using hash_type = typename device::hash_type;
  using free_list_type = typename device::free_list_type;
  using backend_type = typename parts::types::template on<backend_axis>;
  using events_type = typename parts::types::template on<events_axis>;
  using host_tier_type = typename parts::host;
  using slower_tiers_type = typename detail::tuple_of<typename parts::slower>::type;
  using groups_type = typename device::groups_type;
  using stream_type = typename device::stream_type;
  using copying_stream = stream_type;  // of operations that copy to host memory, where they need no copy in `kv_cache`
  using clock = std::chrono::steady_clock;

  /// Host memory and the slower ones; then as in `kv_cache`.
  static constexpr auto num_tiers = 1 + std::tuple_size_v<slower_tiers_type>;
  static_assert(num_tiers <= store_type::index_type::max_tiers,
                "a tiered_cache has at most eight tiers behind host memory");
  static constexpr bool uses_priority = device::uses_priority;
  static constexpr bool has_memory = true;
  static constexpr bool layers_differ = device::layers_differ;

  /// `slower`: the fastest first. Throws what the constructor of `kv_cache` throws, and `exception` for invalid options
  /// or when the host tier's allocator is exhausted.
  basic_tiered_cache(const cache_config& config, tier_config tiers, host_tier_type host, slower_tiers_type slower = {},
                     allocator_type memory = allocator_type{}, backend_type backend = backend_type{},
                     events_type events = events_type{})
      : device(with_seed(config), num_more_nodes(config, valid(tiers, host), host, slower), std::move(memory),
               typename device::backend_type{std::move(backend)}, typename device::events_type{std::move(events)}),
        store_(make_store(tiers, std::move(host), std::move(slower))),
        loads_(store_) {
    if constexpr (!layers_differ) {
      store_.attach(device::node_index());
    }
    device::backend().attach(store_);
    device::events().attach(store_);
  }

  basic_tiered_cache(const basic_tiered_cache&) = delete;
  basic_tiered_cache& operator=(const basic_tiered_cache&) = delete;

  /// A cache, with what the constructor throws as an error. In a pointer, because caches do not move. An allocator and
  /// a backend that are not given are made here, as by `kv_cache::create`. A program that is compiled without
  /// exceptions ends when memory for the tiers is exhausted. Linear in the blocks and in the records that all tiers
  /// have room for. Errors: those of `kv_cache::create`, and `invalid_argument` for options of tiers.
  [[nodiscard]] static result<std::unique_ptr<basic_tiered_cache>> create(const cache_config& config,
                                                                          const tier_config& tiers, host_tier_type host,
                                                                          slower_tiers_type slower = {}) noexcept {
    return make(config, tiers, host, [&] {
      return std::make_unique<basic_tiered_cache>(config, tiers, std::move(host), std::move(slower));
    });
  }
  [[nodiscard]] static result<std::unique_ptr<basic_tiered_cache>> create(const cache_config& config,
                                                                          const tier_config& tiers, host_tier_type host,
                                                                          slower_tiers_type slower,
                                                                          allocator_type memory) noexcept {
    return make(config, tiers, host, [&] {
      return std::make_unique<basic_tiered_cache>(config, tiers, std::move(host), std::move(slower), std::move(memory));
    });
  }
  [[nodiscard]] static result<std::unique_ptr<basic_tiered_cache>> create(const cache_config& config,
                                                                          const tier_config& tiers, host_tier_type host,
                                                                          slower_tiers_type slower,
                                                                          allocator_type memory, backend_type backend,
                                                                          events_type events = events_type{}) noexcept {
    return make(config, tiers, host, [&] {
      return std::make_unique<basic_tiered_cache>(config, tiers, std::move(host), std::move(slower), std::move(memory),
                                                  std::move(backend), std::move(events));
    });
  }

  /// The records of such a cache, for tiers that are made before it. Linear in the layers. Throws `exception` for an
  /// invalid configuration.
  [[nodiscard]] static record_format format_of(const cache_config& config, std::string_view model) {
    if constexpr (layers_differ) {
      const auto plan = plan_of(config);
      const auto view_of = [&](std::size_t g) {
        return plan_view<layout_type>(config.groups[g], plan.groups[g], size_of_element<element_type>, plan.block_bytes,
                                      config.capacity())
            .value();
      };
      return make_record_format(config.groups, plan, view_of, element_type::name, model);
    } else {
      const auto plan = plan_storage<layout_type>(config, size_of_element<element_type>).value();
      return make_record_format(plan.view, element_type::name, model);
    }
  }

  /// Does what `kv_cache::create_sequence` does. Records in host memory that continue what the device has are copied to
  /// the sequence's own blocks, on `stream`, and count as cached. Records in slower tiers begin to load, up to
  /// `num_loading_tokens` behind the cached ones: see `settle`. Errors: those of `kv_cache`; none of a tier's.
  [[nodiscard]] result<admission> create_sequence(const token_run& prompt,
                                                  const sequence_options& options = default_sequence_options,
                                                  stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    before_hits();
    auto made = device::create_sequence(prompt, options, stream);
    if (made) {
      note_hits(*made, stream);
      if (store_.may_know()) {
        continue_from_tiers(*made, prompt, options, stream);
      }
    }
    store_.transfers().flush(stream);
    return made;
  }

  /// How far a load has come. Zeros when nothing is loaded for the sequence. Linear in the transfers that have ended
  /// since the last call.
  [[nodiscard]] load_progress poll(sequence_id id) noexcept {
    const auto guard = exclusive_guard{mutex_};
    store_.transfers().progress();
    const auto progress = device::visit_sequence(
        id, {}, [&](auto& state, auto& s, auto&&) { return result<load_progress>{loads_.progress_of(state, s, id)}; });
    return progress ? *progress : load_progress{};
  }
  /// Goes on with transfers of all sequences. For a scheduler with nothing else to do: writes begin when the device has
  /// executed the copies before them, and something has to look. Linear in the transfers that have ended.
  void poll() noexcept {
    const auto guard = exclusive_guard{mutex_};
    store_.transfers().progress();
  }

  /// Waits until a sequence's load is done, or the deadline. Linear in the transfers that end meanwhile.
  load_progress wait(sequence_id id, typename clock::time_point deadline = clock::time_point::max()) noexcept {
    return wait_until([&] { return poll(id).done(); }, deadline), poll(id);
  }
  /// Waits until no transfer to or from a slower tier is under way, or the deadline; whether there is none. Linear in
  /// the transfers that end meanwhile.
  bool wait_idle(typename clock::time_point deadline = clock::time_point::max()) noexcept {
    return wait_until([&] { return !is_busy(); }, deadline);
  }
  /// Executes waiting transfers here, where `tier_config::threads` is false; returns how many. Linear in their bytes.
  std::size_t run_transfers() noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto num_run = store_.transfers().run_transfers();
    store_.transfers().progress();
    return num_run;
  }

  /// Ends a load. The sequence shares the device's blocks with what it waited for, where another sequence has published
  /// them by now; its own ones in their place are released. It copies what has arrived behind these, without a gap, to
  /// its own blocks, on `stream`, and commits it. Returns the number of tokens with K/V; those behind are to be
  /// computed. Call it before any of them is. Without a load, it changes nothing. Linear in the blocks of the load.
  /// Errors: `unknown_sequence`, `sequence_busy`.
  [[nodiscard]] result<std::int64_t> settle(sequence_id id, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    store_.transfers().progress();
    auto num_tokens = device::visit_sequence(id, stream, [&](auto& state, auto& s, detail::block_copier copy) {
      loads_.settle(state, s, id, stream, copy);
      return result<std::int64_t>{s.num_computed_tokens};
    });
    store_.transfers().flush(stream);
    return num_tokens;
  }

  /// Does the same as in `kv_cache`; victims are copied to host memory on `stream`.
  [[nodiscard]] result<void> append(sequence_id id, token next, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto saving = victims_saved{store_, stream};
    return device::append(id, next, stream);
  }
  [[nodiscard]] result<void> append(sequence_id id, const token_run& run, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto saving = victims_saved{store_, stream};
    return device::append(id, run, stream);
  }
  /// Does the same as in `kv_cache`; its victims go where those of `append` do.
  [[nodiscard]] result<void> reserve_slots(sequence_id id, std::int64_t num_ahead, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto saving = victims_saved{store_, stream};
    return device::reserve_slots(id, num_ahead, stream);
  }
  /// Does the same as in `kv_cache`; its victims go where those of `append` do.
  [[nodiscard]] result<batch_outcome> append_batch(std::span<const batch_entry> entries, const batch_buffers& out,
                                                   stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto saving = victims_saved{store_, stream};
    const auto committing = commits_heard{store_};
    return device::append_batch(entries, out, stream);
  }
  /// Does what `kv_cache::commit` does; what is written through is copied on `stream`, so its kernels are enqueued
  /// before.
  [[nodiscard]] result<void> commit(sequence_id id, std::int64_t num_tokens, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto saving = victims_saved{store_, stream};
    const auto committing = commits_heard{store_};
    if constexpr (layers_differ) {
      return device::commit(id, num_tokens, stream);
    } else {
      return device::commit(id, num_tokens);
    }
  }
  /// Does the same as in `kv_cache`; its victims go where those of `append` do.
  [[nodiscard]] result<sequence_id> fork(sequence_id id, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto saving = victims_saved{store_, stream};
    return device::fork(id, stream);
  }

  /// Does what `kv_cache::drop_before` does, but keeps the last full block that was committed, which the next one
  /// continues.
  [[nodiscard]] result<void> drop_before(sequence_id id, std::int64_t num_tokens) noexcept {
    static_assert(!layers_differ, "groups with a window release their blocks by themselves: give them a window");
    if constexpr (!layers_differ) {
      const auto guard = exclusive_guard{mutex_};
      return device::visit_sequence(id, {}, [&](auto& state, auto& s, auto&&) -> result<void> {
        const auto num_before = std::max(s.num_computed_tokens / block_size() - 1, std::int64_t{0});
        if (static_cast<std::size_t>(num_before) > s.blocks.num_dropped()) {  // otherwise nothing more goes
          store_.keep_chain(s.blocks[static_cast<std::size_t>(num_before)]);
        }
        const auto first_kept =
            num_tokens <= s.num_computed_tokens ? std::min(num_tokens, num_before * block_size()) : num_tokens;
        return detail::drop_before(state, s, first_kept);
      });
    }
  }

  /// Does the same as in `kv_cache`; ends a load that is under way for the sequence, whose records stay in host memory.
  [[nodiscard]] result<void> release(sequence_id id, const release_hint& hint = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto done = device::release(id, hint);
    if (done) {
      end_load_beyond(id, 0);
    }
    return done;
  }

  /// Does what `kv_cache::withdraw` does, in all tiers. Linear in those blocks; in all records, if there are any.
  [[nodiscard]] result<std::int64_t> withdraw(sequence_id id) noexcept {
    const auto guard = exclusive_guard{mutex_};
    store_.begin_invalidation();
    const auto num_blocks = device::withdraw(id);
    store_.end_invalidation(layers_differ || (num_blocks && *num_blocks != 0));
    return num_blocks;
  }

  /// Does what `kv_cache::truncate` does. A load of more than these tokens ends: they are to be computed.
  [[nodiscard]] result<void> truncate(sequence_id id, std::int64_t num_tokens) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto hide_everywhere = [&](auto&& hide) {
      store_.begin_invalidation();
      const auto num_blocks = hide();
      store_.end_invalidation(layers_differ || num_blocks != 0);  // nodes may go whose blocks others hold
    };
    const auto done = device::visit_sequence(id, {}, [&](auto& state, auto& s, auto&&) {
      return detail::truncate(state, s, num_tokens, hide_everywhere);
    });
    if (done) {
      end_load_beyond(id, num_tokens);
    }
    return done;
  }

  /// Invalidates in all tiers. A store that others write to, too, may offer the contents again: see docs/tiers.md.
  /// Linear in the tokens; in the pool and in all records; and in the blocks. Errors: those of `kv_cache`.
  std::int64_t invalidate_prefix(const token_run& run, salt salt = salt::none) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return invalidate([&] {
      store_.invalidate_prefix(run, salt);
      return device::invalidate_prefix(run, salt);
    });
  }
  std::int64_t invalidate_salt(salt salt) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return invalidate([&] {
      store_.invalidate_salt(salt);
      return device::invalidate_salt(salt);
    });
  }
  [[nodiscard]] result<std::int64_t> invalidate_blocks(std::span<const block_id> blocks) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return invalidate([&] { return device::invalidate_blocks(blocks); });
  }
  /// Forgets the records of all tiers, too. Linear in the pool and in all records. Errors: those of `kv_cache`.
  [[nodiscard]] result<std::int64_t> reset_prefix_cache() noexcept {
    const auto guard = exclusive_guard{mutex_};
    if constexpr (layers_differ) {
      return invalidate([&] { return device::reset_prefix_cache(); });
    } else {
      return device::reset_prefix_cache();
    }
  }

  /// Does the same as in `kv_cache`.
  [[nodiscard]] result<std::vector<block_pair>> compact(stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto moves = device::compact(stream);
    rename(moves);
    return moves;
  }
  /// Does the same as in `kv_cache`; victims are copied to host memory on `stream`.
  [[nodiscard]] result<std::int64_t> evict(std::span<block_id> blocks, step_id step, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto num_evicted = device::evict(blocks, step);
    store_.transfers().flush(stream);
    return num_evicted;
  }
  /// Does what `kv_cache::resize` does; victims are copied to host memory on `stream` before their memory goes to
  /// others. With a `resizable_allocator`, some are not, and count as lost writes.
  [[nodiscard]] result<std::vector<block_pair>> resize(std::int32_t num_blocks, stream_type stream = {}) noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto moves = device::resize(num_blocks, stream);
    if constexpr (resizable_allocator<allocator_type>) {
      store_.transfers().forget_pending();
    } else {
      store_.transfers().flush(stream);
    }
    rename(moves);
    return moves;
  }

  using device::advance_time;
  using device::attend;
  using device::begin_step;
  using device::block_table;
  using device::common_prefix;
  using device::describe;
  using device::hash_blocks;
  using device::keys;
  using device::next_saved_length;
  using device::num_available_blocks;
  using device::num_free_blocks;
  using device::num_skipped_tokens;
  using device::plan;
  using device::read;
  using device::retire_step;
  using device::slot_mapping;
  using device::state_part;
  using device::statistics;
  using device::time;
  using device::tokens;
  using device::update;
  using device::view;
  using device::write;

  /// How much of a prompt `create_sequence` would find now, and where; takes and loads nothing. At most all but the
  /// last token, in whole blocks, or with groups in whole nodes. Linear in the prompt.
  [[nodiscard]] prefix_reach find_prefix_in_tiers(const token_run& run, salt salt = salt::none) const noexcept {
    const auto guard = exclusive_guard{mutex_};
    const auto size = block_size();
    const auto chunks = detail::prompt_plan{std::ssize(run.tokens), size};
    auto reach = std::array<std::size_t, 3>{};
    reach.fill(static_cast<std::size_t>(device::find_prefix(run, salt) / size));
    device::visit_state([&](const auto& state) { loads_.measure(state, run, salt, chunks.max_hits(), reach); });
    const auto length = [&](std::size_t num_blocks) { return static_cast<std::int64_t>(num_blocks) * size; };
    return {length(reach[0]), length(reach[1]), length(reach[2])};
  }
  /// Does the same as in `kv_cache`, with the device's blocks alone.
  [[nodiscard]] std::int64_t find_prefix(const token_run& run, salt salt = salt::none) const noexcept {
    const auto guard = guard_nodes();
    return device::find_prefix(run, salt);
  }
  [[nodiscard]] result<prompt_fit> would_fit(const token_run& prompt,
                                             const sequence_options& options = {}) const noexcept {
    const auto guard = guard_nodes();
    return device::would_fit(prompt, options);
  }
  [[nodiscard]] result<release_gain> gain_of_releasing(std::span<const sequence_id> ids, const token_run& prompt = {},
                                                       salt salt = salt::none) const noexcept {
    const auto guard = guard_nodes();
    return device::gain_of_releasing(ids, prompt, salt);
  }
  [[nodiscard]] result<std::vector<std::size_t>> fewest_to_release(std::span<const sequence_id> ids,
                                                                   std::int64_t num_blocks,
                                                                   const token_run& prompt = {}, salt salt = salt::none,
                                                                   sequence_id beneficiary = {}) const noexcept {
    const auto guard = guard_nodes();
    return device::fewest_to_release(ids, num_blocks, prompt, salt, beneficiary);
  }
  [[nodiscard]] result<pinning> pin(const token_run& run, salt salt = salt::none) noexcept {
    const auto guard = guard_nodes();
    return device::pin(run, salt);
  }
  [[nodiscard]] result<void> unpin(pin_id id) noexcept {
    const auto guard = guard_nodes();
    return device::unpin(id);
  }
  std::int64_t unpin_all() noexcept {
    const auto guard = guard_nodes();
    return device::unpin_all();
  }
  /// Does what `kv_cache::drop_behind_windows` does. A load that is under way for the sequence ends: its tokens were
  /// computed elsewhere.
  [[nodiscard]] result<void> drop_behind_windows(sequence_id id, std::int64_t num_tokens,
                                                 bool saves_state = false) noexcept
    requires layers_differ
  {
    const auto guard = exclusive_guard{mutex_};
    const auto done = device::drop_behind_windows(id, num_tokens, saves_state);
    if (done) {
      end_load_beyond(id, 0);
    }
    return done;
  }

  /// Does the same as in `kv_cache`.
  [[nodiscard]] const cache_config& config() const noexcept { return device::config(); }
  [[nodiscard]] std::int32_t num_blocks() const noexcept { return device::num_blocks(); }
  [[nodiscard]] const block_storage_view& blocks() const noexcept { return device::blocks(); }
  [[nodiscard]] backend_type& backend() noexcept { return device::backend(); }
  [[nodiscard]] events_type& events() noexcept { return device::events().user(); }

  /// Statistics of the tier with this number: 0 is host memory, then the slower ones. Constant time.
  [[nodiscard]] tier_statistics tier(std::size_t number) noexcept {
    const auto guard = exclusive_guard{mutex_};
    return store_.index().statistics(number);
  }
  /// All different: the second of two tiers of one type is "file_tier_2", for example.
  static constexpr std::array<std::string_view, num_tiers> tier_names =
      []<class... Slower>(const std::tuple<Slower...>*) {
        return detail::names_of_tiers<host_tier_type, Slower...>.views();
      }(static_cast<const slower_tiers_type*>(nullptr));

  /// The memory of `kv_cache`, with the metadata of tiers in the index; locks the cache. Linear in the sequences and
  /// pins.
  [[nodiscard]] memory_profile memory() const noexcept {
    const auto guard = exclusive_guard{mutex_};
    auto profile = device::memory();
    profile.index += static_cast<std::int64_t>(store_.index().metadata_bytes());
    return profile;
  }
  /// Bytes of the host tier's records. Constant time.
  [[nodiscard]] std::size_t host_bytes() const noexcept { return store_.transfers().host_bytes(); }

  /// A sentence for each broken invariant, as in `kv_cache`, with those of the tiers. Linear in pool, block tables and
  /// records.
  [[nodiscard]] std::vector<std::string> check_invariants() const {
    const auto guard = exclusive_guard{mutex_};
    auto broken = device::check_invariants();
    for (auto& sentence : store_.check_invariants(loads_.num_held())) {
      broken.push_back(std::move(sentence));
    }
    return broken;
  }

 private:
  using mutex_type = std::conditional_t<std::is_same_v<typename locking_type::cache_mutex, no_mutex> &&
                                            !locking_type::family::concurrent,
                                        no_mutex, std::mutex>;

  /// Flushes at the end of an operation, whose result is then returned without a copy.
  struct [[nodiscard]] victims_saved {
    store_type& store;
    const stream_type& target;

    ~victims_saved() {
      if (store.transfers().has_pending()) [[unlikely]] {
        store.transfers().flush(target);
      }
    }
  };

  /// Where layers differ, tells the store which blocks commits publish. Ends before their victims are saved.
  struct [[nodiscard]] commits_heard {
    store_type& store;

    explicit commits_heard(store_type& of) noexcept : store(of) {
      if constexpr (layers_differ) {
        store.begin_commit();
      }
    }
    ~commits_heard() {
      if constexpr (layers_differ) {
        store.end_commit();
      }
    }
  };

  /// Calls a body that constructs a cache of sizes that are checked here.
  template <class Body>
  [[nodiscard]] static result<std::unique_ptr<basic_tiered_cache>> make(const cache_config& config,
                                                                        const tier_config& tiers,
                                                                        const host_tier_type& host,
                                                                        Body body) noexcept {
    if (const auto checked = check(config, tiers, host); !checked) {
      return checked.error();
    }
    const auto construct = [&]() -> result<std::unique_ptr<basic_tiered_cache>> { return body(); };
    return detail::with_errors(construct, error{error_code::out_of_memory, "number of blocks", config.num_blocks});
  }

  [[nodiscard]] static cache_config with_seed(cache_config config) {
    if (config.hash_seed == 0) {
      config.hash_seed = detail::random_seed() | 1;  // the directory's hashes are the device's
    }
    return config;
  }
  [[nodiscard]] static const tier_config& valid(const tier_config& tiers, const host_tier_type& host) {
    validate_tiers(tiers, host).value();
    return tiers;
  }
  [[nodiscard]] static result<void> validate_tiers(const tier_config& tiers, const host_tier_type& host) noexcept {
    if (host.num_records < 1) {
      return error{error_code::invalid_argument, "host_tier.num_records", host.num_records, 1};
    }
    return validate(tiers, layers_differ);
  }
  [[nodiscard]] static result<memory_plan> plan_of_groups(const cache_config& config) noexcept {
    return plan_memory(config.groups, size_of_element<element_type>, config.block_size);
  }
  [[nodiscard]] static memory_plan plan_of(const cache_config& config) { return plan_of_groups(config).value(); }
  [[nodiscard]] static result<void> check(const cache_config& config, const tier_config& tiers,
                                          const host_tier_type& host) noexcept {
    if constexpr (layers_differ) {
      if (const auto planned = plan_of_groups(config); !planned) {
        return planned.error();
      }
    } else if (const auto planned = plan_storage<layout_type>(config, size_of_element<element_type>); !planned) {
      return planned.error();
    }
    return validate_tiers(tiers, host);
  }
  /// Where layers differ, records are of the cache's nodes.
  [[nodiscard]] static std::int64_t num_more_nodes(const cache_config& config, const tier_config& tiers,
                                                   const host_tier_type& host, const slower_tiers_type& slower) {
    if constexpr (layers_differ) {
      const auto plan = plan_of_groups(config);
      if (!plan) {
        return 0;
      }
      const auto shapes = group_shapes{config.groups, *plan};
      const auto nodes_of = [&]<class Tier>(const Tier& tier) {
        const auto is_known_only = !memory_tier<Tier> && !tier_with_places<Tier>;
        return detail::num_places_of(tier, tiers) *
               (is_known_only ? shapes.nodes_per_known_record() : shapes.nodes_per_block());
      };
      return std::apply([&](const auto&... tier) { return (nodes_of(host) + ... + nodes_of(tier)); }, slower);
    } else {
      return 0;
    }
  }
  [[nodiscard]] store_type make_store(const tier_config& tiers, host_tier_type host, slower_tiers_type slower) {
    const auto format = make_record_format(static_cast<const device&>(*this), tiers.model);
    auto list = detail::make_tier_list(tiers, host, std::move(slower));
    if constexpr (layers_differ) {
      return store_type(device::nodes(), device::shapes(), config().capacity(), tiers, device::backend(),
                        device::blocks(), format, std::move(host.memory), std::move(list));
    } else {
      return store_type({config().capacity(), config().block_size, config().hash_seed}, tiers, device::backend(),
                        device::blocks(), format, std::move(host.memory), std::move(list));
    }
  }

  /// Where layers differ, tiers change the nodes that look-ups search.
  [[nodiscard]] auto guard_nodes() const noexcept {
    if constexpr (layers_differ) {
      return exclusive_guard{mutex_};
    } else {
      return detail::no_guard{};
    }
  }

  void before_hits() noexcept {
    if constexpr (!layers_differ) {
      store_.forget_shared();
    }
  }
  void note_hits([[maybe_unused]] const admission& made, [[maybe_unused]] stream_type stream) noexcept {
    if constexpr (!layers_differ) {
      store_.note_hits();
    } else if (made.num_cached_tokens != 0) {
      visit(made.id, stream, [&](auto&, auto& s, auto&) { store_.note_hit(s.tail.node); });
    }
  }
  void end_load_beyond(sequence_id id, std::int64_t num_tokens) noexcept {
    loads_.end_beyond(id, static_cast<std::size_t>(num_tokens / block_size()));
  }

  [[nodiscard]] std::int64_t block_size() const noexcept { return device::config().block_size; }

  /// Takes from the tiers what continues a new sequence's device blocks.
  [[gnu::noinline]] void continue_from_tiers(admission& made, const token_run& prompt, const sequence_options& options,
                                             stream_type stream) noexcept {
    store_.transfers().progress();
    const auto chunks = detail::prompt_plan{std::ssize(prompt.tokens), device::config().block_size,
                                            options.max_cached_tokens, options.first_chunk};
    auto offer = typename loads_type::offer{};
    visit(made.id, stream,
          [&](auto& state, auto& s, auto&) { offer = loads_.find(state, s, prompt, chunks.max_hits()); });
    if (offer.end > offer.first) {
      lengthen(made, prompt, chunks.length(offer.end), stream);
      store_.transfers().flush(stream);  // victims go before their blocks get other contents
      visit(made.id, stream, [&](auto& state, auto& s, detail::block_copier copy) {
        made.num_cached_tokens += loads_.take(state, s, offer, stream, copy);
        made.num_loading_tokens = loads_.begin(state, s, made.id, offer);
      });
      loads_.let_go(offer);
      const auto num_found = made.num_cached_tokens + made.num_loading_tokens;
      shorten(made, chunks.length(static_cast<std::size_t>(num_found / device::config().block_size)), stream);
    }
    store_.transfers().progress();
  }

  /// Calls `body(state, sequence, copy)` inside a sequence that there is.
  template <class Body>
  void visit(sequence_id id, stream_type stream, Body&& body) noexcept {
    static_cast<void>(
        device::visit_sequence(id, stream, [&](auto& state, auto& s, detail::block_copier copy) -> result<void> {
          body(state, s, copy);
          return {};
        }));
  }

  /// Appends more of the prompt, where the first chunk ends before it, because more is cached. Changes nothing when
  /// there is no room.
  void lengthen(admission& made, const token_run& prompt, std::int64_t num_tokens, stream_type stream) noexcept {
    if (num_tokens <= made.num_tokens) {
      return;
    }
    const auto more = prompt.tokens.subspan(static_cast<std::size_t>(made.num_tokens),
                                            static_cast<std::size_t>(num_tokens - made.num_tokens));
    if (device::append(made.id, token_run{more}, stream)) {
      note_length(made, num_tokens);
    }
  }

  /// Cuts off what no load has begun to bring. The prompt is as long as before, and has its keys.
  void shorten(admission& made, std::int64_t num_tokens, stream_type stream) noexcept {
    if (num_tokens >= made.num_tokens) {
      return;
    }
    visit(made.id, stream, [&](auto& state, auto& s, auto&) {
      const auto num_prompt = s.num_prompt_tokens;
      auto all_keys = std::exchange(s.keys, {});
      static_cast<void>(detail::truncate(state, s, num_tokens, [](auto&& hide) { hide(); }));
      s.num_prompt_tokens = num_prompt;
      s.keys = std::move(all_keys);
    });
    note_length(made, num_tokens);
  }

  void note_length(admission& made, std::int64_t num_tokens) const noexcept {
    const auto num_blocks = device::describe(made.id)->num_blocks;
    made.num_new_blocks += num_blocks - made.num_blocks;
    made.num_blocks = num_blocks;
    made.num_tokens = num_tokens;
  }

  [[nodiscard]] bool is_busy() noexcept {
    const auto guard = exclusive_guard{mutex_};
    store_.transfers().progress();
    return store_.transfers().is_busy();
  }
  template <class Done>
  bool wait_until(Done&& done, typename clock::time_point deadline) noexcept {
    for (;;) {
      const auto seen = store_.transfers().signal().count();
      if (done()) {
        return true;
      }
      if (clock::now() >= deadline) {
        return false;
      }
      if (run_transfers() == 0) {
        // A device's copies end without a signal.
        store_.transfers().signal().wait(seen, std::min(deadline, clock::now() + std::chrono::milliseconds{1}));
      }
    }
  }

  template <class Invalidate>
  auto invalidate(Invalidate&& operation) noexcept {
    store_.begin_invalidation();
    auto answer = operation();
    store_.end_invalidation();
    return answer;
  }

  void rename([[maybe_unused]] const result<std::vector<block_pair>>& moves) noexcept {
    if constexpr (!layers_differ) {
      if (moves) {
        store_.rename_blocks(*moves);
      }
    }
  }

  [[no_unique_address]] mutable mutex_type mutex_;
  store_type store_;
  loads_type loads_;
};

}  // namespace pagedkv
