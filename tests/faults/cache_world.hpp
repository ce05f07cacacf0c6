#pragma once

#include "injection.hpp"

namespace pagedkv::test {

inline constexpr auto row_size_of_one_group = std::size_t{2};

[[nodiscard]] inline cache_config config_of_one_group() {
  auto made = cache_config{};
  made.block_size = 4;
  made.num_blocks = 24;
  made.head_dim = row_size_of_one_group;
  made.max_sequences = 16;
  made.hash_seed = 1;
  return made;
}

inline constexpr auto number_of_groups = std::size_t{3};
inline constexpr auto row_size_of_groups = std::size_t{6};

[[nodiscard]] inline cache_config config_of_groups() {
  auto made = cache_config{.block_size = 4, .num_blocks = 80, .max_sequences = 16};
  made.groups = {
      {.num_layers = 2, .key_dim = 6, .value_dim = 6},
      {.kind = group_kind::window, .num_layers = 5, .key_dim = 6, .value_dim = 6, .window = 7},
      {.kind = group_kind::state, .num_layers = 2, .num_kv_heads = 3, .state_bytes = 300},
  };
  made.hash_seed = 1;
  return made;
}

template <class... Policies>
struct cache_of_one_group {
  using cache_type = kv_cache<float32, failing_allocator<>, failing_backend, Policies...>;
  static constexpr auto num_groups = std::size_t{1};
  static constexpr auto row_size = row_size_of_one_group;

  [[nodiscard]] static auto make(fault_plan& plan) {
    return cache_type::create(config_of_one_group(), failing_allocator<>{plan.memory}, failing_backend{plan.backend});
  }
  explicit cache_of_one_group(fault_plan& plan)
      : cache(config_of_one_group(), failing_allocator<>{plan.memory}, failing_backend{plan.backend}) {}

  cache_type cache;
};

template <class... Policies>
struct cache_of_groups {
  using cache_type = group_cache<float32, failing_allocator<>, failing_backend, Policies...>;
  static constexpr auto num_groups = number_of_groups;
  static constexpr auto row_size = row_size_of_groups;

  [[nodiscard]] static auto make(fault_plan& plan) {
    return cache_type::create(config_of_groups(), failing_allocator<>{plan.memory}, failing_backend{plan.backend});
  }
  explicit cache_of_groups(fault_plan& plan)
      : cache(config_of_groups(), failing_allocator<>{plan.memory}, failing_backend{plan.backend}) {}

  cache_type cache;
};

using one_group_cache = cache_of_one_group<>;

/// A cache with a committed sequence, its fork, one that is not committed, an evictable chain and a pin; and the
/// operations on it. `Made` constructs the cache and has the number of groups.
template <class Made>
struct cache_world : Made {
  explicit cache_world(fault_plan& plan) : Made(plan), committed_tokens(text(0, 22)) {
    first = committed(committed_tokens);
    second = cache.fork(first).value();
    third = cache.create_sequence(text(200, 10)).value().id;
    const auto ended = committed(text(500, 12));
    REQUIRE(cache.release(ended));
    held = cache.pin(text(0, 8)).value().id;
    ids = {first, second, third};
    longest = text(900, longest_that_fits());
  }

  [[nodiscard]] std::vector<sequence_id> live() const {
    auto found = ids;
    std::erase_if(found, [&](sequence_id id) { return !cache.describe(id); });
    return found;
  }
  [[nodiscard]] std::vector<std::int64_t> observe() const { return test::observe(cache, live(), Made::num_groups); }
  [[nodiscard]] std::vector<std::string> check_invariants() { return cache.check_invariants(); }

  using Made::cache;
  std::vector<token> committed_tokens;
  std::vector<token> longer = text(0, 30);
  std::vector<token> run = text(300, 9);
  std::vector<token> unknown = text(300, 22);
  std::vector<prefix_key> keys = {{.position = 12, .value = {1, 2}}};
  std::vector<std::uint64_t> hashes = {1, 2, 3, 4};  // of the full blocks of the third sequence with the run
  std::vector<token> ended_tokens = text(500, 12);
  std::vector<token> longest;
  std::vector<sequence_id> ids;
  sequence_id first{}, second{}, third{};
  pin_id held{};
  step_id step{};
  std::array<slot, 256> slots{};
  std::array<batch_failure, 4> failures{};
  std::array<block_id, 64> blocks{};
  std::array<token, 64> copied{};
  std::array<prefix_key, 4> copied_keys{};
  padded_batch padded{4, 64};
  compressed_batch compressed{4, 256};

 private:
  [[nodiscard]] sequence_id committed(const std::vector<token>& prompt) {
    const auto id = cache.create_sequence(prompt).value().id;
    REQUIRE(cache.commit(id, std::ssize(prompt)));
    return id;
  }
  [[nodiscard]] std::size_t longest_that_fits() const {
    auto length = std::size_t{1};
    while (length < 200 && cache.would_fit(text(900, length + 1))) {
      ++length;
    }
    return length;
  }
};

/// The error of a batch, or of its first entry that failed.
template <class World>
[[nodiscard]] std::optional<error> error_of(const World& w, const result<batch_outcome>& outcome) noexcept {
  if (!outcome) {
    return outcome.error();
  }
  return outcome->num_failures == 0 ? std::nullopt : std::optional<error>{w.failures[0].reason};
}

template <class... Values>
[[nodiscard]] std::optional<error> no_error(const Values&...) noexcept {
  return std::nullopt;
}

/// Whether evicted blocks are copied.
template <class Cache>
inline constexpr bool has_tiers = requires(Cache& cache) {
  cache.run_transfers();
};

/// Frees blocks below cached ones.
template <class World>
void leave_holes(World& w) {
  REQUIRE(w.cache.release(w.third));
}

template <class World>
[[nodiscard]] std::int32_t num_full_blocks(const World& w) noexcept {
  const auto counts = w.cache.statistics().blocks;
  return static_cast<std::int32_t>(counts.in_use + counts.evictable);
}

/// Operations of every cache. Their names begin with the verb, as tests/structure expects.
template <class W>
[[nodiscard]] constexpr auto operations_of_caches() {
  using operation = faulty_operation<W>;
  constexpr auto moves = detail::runs_alone<typename W::cache_type::locking_type>;  // otherwise it evicts more
  return std::array{
      operation{"create_sequence with a hit", [](W& w) { return error_of(w.cache.create_sequence(w.longer)); }},
      operation{"create_sequence without a hit", [](W& w) { return error_of(w.cache.create_sequence(w.unknown)); }},
      operation{"create_sequence, which evicts", [](W& w) { return error_of(w.cache.create_sequence(w.longest)); }},
      operation{"append, which copies on write", [](W& w) { return error_of(w.cache.append(w.second, token{7})); }},
      operation{"append of a run, which copies on write",
                [](W& w) { return error_of(w.cache.append(w.second, w.run)); }},
      operation{"append of a run", [](W& w) { return error_of(w.cache.append(w.third, w.run)); }},
      operation{"append of a run with keys and hashes",
                [](W& w) {
                  return error_of(w.cache.append(w.third, token_run{w.run, w.keys, w.hashes}));
                }},
      operation{"reserve_slots", [](W& w) { return error_of(w.cache.reserve_slots(w.second, 9)); }},
      without_faults(operation{"commit", [](W& w) { return error_of(w.cache.commit(w.third, 10)); }}),
      operation{"append_batch of one",
                [](W& w) {
                  const auto entries = std::array{batch_entry{.id = w.second, .run = w.run, .num_ahead = 5}};
                  return error_of(w, w.cache.append_batch(entries, {.slots = w.slots, .failures = w.failures}));
                }},
      operation{"append_batch",
                [](W& w) {
                  const auto entries = std::array{batch_entry{.id = w.third, .run = w.run, .num_computed_tokens = 10},
                                                  batch_entry{.id = w.second, .run = w.run}};
                  return error_of(w, w.cache.append_batch(entries, {.slots = w.slots, .failures = w.failures}));
                },
                [](W&) {}, false},
      operation{"fork", [](W& w) { return error_of(w.cache.fork(w.first)); }},
      without_faults(operation{"truncate", [](W& w) { return error_of(w.cache.truncate(w.third, 3)); }}),
      without_faults(operation{"release of shared blocks", [](W& w) { return error_of(w.cache.release(w.first)); }}),
      without_faults(operation{"release", [](W& w) { return error_of(w.cache.release(w.third)); }}),
      operation{"pin", [](W& w) { return error_of(w.cache.pin(w.committed_tokens)); }},
      without_faults(operation{"unpin", [](W& w) { return error_of(w.cache.unpin(w.held)); }}),
      without_faults(operation{"unpin_all", [](W& w) { return no_error(w.cache.unpin_all()); }}),
      without_faults(
          operation{"invalidate_prefix", [](W& w) { return no_error(w.cache.invalidate_prefix(w.committed_tokens)); }}),
      without_faults(operation{"invalidate_salt", [](W& w) { return no_error(w.cache.invalidate_salt(salt::none)); }}),
      without_faults(operation{"invalidate_blocks",
                               [](W& w) { return error_of(w.cache.invalidate_blocks(std::span{w.blocks}.first(1))); },
                               [](W& w) { REQUIRE(w.cache.block_table(w.first, w.blocks)); }}),
      without_faults(operation{"withdraw", [](W& w) { return error_of(w.cache.withdraw(w.third)); },
                               [](W& w) {
                                 w.step = w.cache.begin_step().value();
                                 REQUIRE(w.cache.commit(w.third, w.cache.describe(w.third)->num_tokens));
                               }}),
      without_faults(operation{"begin_step", [](W& w) { return error_of(w.cache.begin_step(w.ids)); }}),
      without_faults(operation{"begin_step of all", [](W& w) { return error_of(w.cache.begin_step()); }}),
      without_faults(operation{"retire_step", [](W& w) { return error_of(w.cache.retire_step(w.step)); },
                               [](W& w) {
                                 w.step = w.cache.begin_step().value();
                                 REQUIRE(w.cache.release(w.second));
                               }}),
      without_faults(
          operation{"evict", [](W& w) { return error_of(w.cache.evict(std::span{w.blocks}.first(2), w.step)); },
                    [](W& w) { w.step = w.cache.begin_step().value(); }},
          !has_tiers<typename W::cache_type>),
      operation{"compact", [](W& w) { return error_of(w.cache.compact()); }, leave_holes<W>},
      without_faults(
          operation{"resize to fewer", [](W& w) { return error_of(w.cache.resize(w.cache.num_blocks() - 3)); }}),
      without_faults(operation{"resize, which moves", [](W& w) { return error_of(w.cache.resize(num_full_blocks(w))); },
                               leave_holes<W>},
                     !moves),
      without_faults(
          operation{"resize, which evicts", [](W& w) { return error_of(w.cache.resize(num_full_blocks(w) - 2)); },
                    leave_holes<W>, false},
          !moves),
      without_faults(operation{"reset_prefix_cache", [](W& w) { return error_of(w.cache.reset_prefix_cache()); },
                               [](W& w) {
                                 w.cache.unpin_all();
                                 for (const auto id : w.ids) {
                                   REQUIRE(w.cache.release(id));
                                 }
                               }}),
      operation{"write",
                [](W& w) {
                  static const auto number = std::array<float, 64>{};
                  const auto rows = contiguous_rows(number, 1, W::row_size);
                  return error_of(w.cache.write(0, std::span{w.slots}.first(1), rows, rows));
                },
                [](W& w) { w.slots[0] = skip_slot; }},
      operation{"read",
                [](W& w) {
                  static auto number = std::array<float, 64>{};
                  const auto rows = contiguous_rows(number, 1, W::row_size);
                  return error_of(w.cache.read(0, std::span{w.slots}.first(1), rows, rows));
                },
                [](W& w) { w.slots[0] = skip_slot; }},
  };
}

/// Operations that read a cache, or change what no failure can undo.
template <class W>
[[nodiscard]] constexpr auto queries_of_caches() {
  using operation = faulty_operation<W>;
  return std::array{
      operation{"would_fit", [](W& w) { return error_of(w.cache.would_fit(w.longer)); }},
      operation{"gain_of_releasing", [](W& w) { return error_of(w.cache.gain_of_releasing(w.ids, w.longer)); }},
      operation{"fewest_to_release", [](W& w) { return error_of(w.cache.fewest_to_release(w.ids, 1, w.longer)); }},
      without_faults(operation{"num_blocks", [](W& w) { return no_error(w.cache.num_blocks()); }}),
      without_faults(operation{"num_free_blocks", [](W& w) { return no_error(w.cache.num_free_blocks()); }}),
      without_faults(operation{"num_available_blocks", [](W& w) { return no_error(w.cache.num_available_blocks()); }}),
      without_faults(operation{"find_prefix", [](W& w) { return no_error(w.cache.find_prefix(w.longer)); }},
                     W::num_groups == 1),
      without_faults(operation{"hash_blocks", [](W& w) { return no_error(w.cache.hash_blocks(w.longer, w.hashes)); }}),
      without_faults(operation{"time", [](W& w) { return no_error(w.cache.time()); }}),
      without_faults(operation{"advance_time",
                               [](W& w) {
                                 w.cache.advance_time(timestamp{7});
                                 return no_error();
                               }}),
      without_faults(operation{"describe", [](W& w) { return error_of(w.cache.describe(w.first)); }}),
      without_faults(
          operation{"slot_mapping",
                    [](W& w) { return error_of(w.cache.slot_mapping(w.first, 3, std::span{w.slots}.first(9))); }}),
      without_faults(operation{"block_table", [](W& w) { return error_of(w.cache.block_table(w.first, w.blocks)); }}),
      without_faults(
          operation{"block_table of a pin", [](W& w) { return error_of(w.cache.block_table(w.held, w.blocks)); }}),
      without_faults(
          operation{"tokens", [](W& w) { return error_of(w.cache.tokens(w.first, 5, std::span{w.copied}.first(9))); }}),
      without_faults(operation{"keys", [](W& w) { return error_of(w.cache.keys(w.third, w.copied_keys)); },
                               [](W& w) {
                                 REQUIRE(w.cache.append(w.third, token_run{w.run, w.keys, w.hashes}));
                               }}),
      without_faults(
          operation{"common_prefix", [](W& w) { return error_of(w.cache.common_prefix(std::span{w.ids}.first(2))); }}),
      without_faults(
          operation{"update of padded rows", [](W& w) { return error_of(w.cache.update(w.padded, w.ids)); }}),
      without_faults(operation{"update of compressed rows",
                               [](W& w) { return error_of(w.cache.update(w.compressed, w.ids, 0, 2)); }}),
      without_faults(operation{"statistics", [](W& w) { return no_error(w.cache.statistics()); }}),
      without_faults(operation{"memory", [](W& w) { return no_error(w.cache.memory()); }}),
      operation{"check_invariants",
                [](W& w) {
                  const auto check = [&]() -> result<bool> { return w.cache.check_invariants().empty(); };
                  return error_of(detail::with_memory(check, error{error_code::out_of_memory, "sentences", 0}));
                }},
  };
}

}  // namespace pagedkv::test
