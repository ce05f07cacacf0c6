"""Each wrong choice of a cache's policies fails to compile with one error: a sentence that says what to write instead."""

import concurrent.futures
import os
import unittest

from compiling import compile_program

PROGRAM = """
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

using namespace pagedkv;

struct no_policy {};

/// Lacks `rename`.
struct almost_eviction : lru {
  using lru::lru;
  void rename() = delete;
};
struct almost_element : float16 {
  static float decode(storage stored, float scale) { return float16::decode(stored, scale); }
};

/// Lacks `write`.
struct almost_tier {
  static constexpr std::string_view name = "almost_tier";
  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept = delete;
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept;
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept;
};
struct fixed_tier : almost_tier {
  fixed_tier(fixed_tier&&) = delete;
  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept;
};
struct almost_host_tier {
  using allocator_type = host_allocator;
  using eviction_type = lru;
};

struct hash_and_layout : xxh3_hash, nhd_layer_major {};
struct own_hash : xxh3_hash {};
struct own_backend : host_backend {};
struct own_events : no_events {};
struct own_runs : contiguous_runs {};

/// Copies blocks in an engine's own memory.
struct own_copies : host_backend {
  using default_allocator = no_memory;
  static constexpr bool uses_storage = false;
};

/// Stores unscaled elements only.
struct unscaled_backend : host_backend {
  template <element Element, element Rows>
    requires(!Element::scaled)
  result<void> append(const block_storage_view& view, std::int32_t layer, std::span<const slot> slots,
                      const token_rows<const typename Rows::storage>& keys,
                      const token_rows<const typename Rows::storage>& values, stream_type stream) noexcept {
    return host_backend::append<Element, Rows>(view, layer, slots, keys, values, stream);
  }
};

struct declared_eviction;

/// As an engine uses a cache.
template <class Cache>
bool run(Cache blocks) {
  const auto made = blocks.create_sequence({});
  return made && blocks.append(made->id, 1) && blocks.commit(made->id, 1) && blocks.release(made->id) &&
         blocks.statistics().blocks.in_use == 0;
}
"""

STRICT_ORDER = "use the eviction policy `clock_sweep` or `no_eviction` with lock_free, or the locking policy `sharded_mutex`"
TWO = "are given, and a cache has one: leave the other out"
NO_AXIS = "this type models the concept of no axis: write static_assert(pagedkv::eviction_policy<P>)"
CANONICAL = "write kv_cache<Policies...>, which takes them in any order"
NO_ELEMENTS = "a cache without memory stores no elements, in no layout: leave the element and the layout out"
GROUPS = "use the locking policy `single_thread`, `rw_lock` or `sharded_mutex`"
RUNS = "use the locking policy `single_thread` or `rw_lock` with it, or the free list `any_free_block` with this one"
HOST_ONLY = "use `hip_backend` with it, or the allocator `host_allocator` or `hip::pinned_allocator` with this backend"

# Choices that are compiled together, so that each is quick; no two of them have the same sentence.
REFUSED = (
    {
        "kv_cache<lock_free>": STRICT_ORDER,
        "kv_cache<int8, float32>": "two elements are given, and a cache stores one: leave the other out",
        "kv_cache<rw_lock, int8, sharded_mutex>": "two locking policies " + TWO,
        "kv_cache<fifo, sieve>": "two eviction policies " + TWO,
        "kv_cache<huge_page_allocator, host_allocator>": "two allocators " + TWO,
        "kv_cache<own_backend, host_backend>": "two backends " + TWO,
        "kv_cache<nhd_layer_major, hnd_block_major>": "two layouts " + TWO,
        "kv_cache<own_hash, xxh3_hash>": "two hashes " + TWO,
        "kv_cache<own_events, no_events>": "two events policies " + TWO,
        "kv_cache<own_runs, contiguous_runs>": "two free list policies " + TWO,
        "kv_cache<sharded_mutex, contiguous_runs>": RUNS,
        "kv_cache<int8, no_policy>": NO_AXIS,
        "kv_cache<double>": "a type of numbers is no policy: write the element that stores them",
        "kv_cache<std::int8_t>": "`std::int8_t` is a type of numbers and no policy: write the element `int8`",
        "kv_cache<almost_eviction>": "this type is nearly an eviction policy: `rename` is missing, may throw or has another form",
        "kv_cache<almost_element>": "this type is nearly an element: `decode` is missing, may throw or has another form",
        "kv_cache<almost_tier>": "this type is nearly a tier: `write` is missing, may throw or has another form",
        "kv_cache<fixed_tier>": "this type is nearly a tier: it cannot be moved",
        "kv_cache<almost_host_tier>": "this type is nearly host memory as a tier: `num_records` is missing",
        "kv_cache<recompute>": "this is a preemption policy, which decides nothing in a cache: give it to the tracker",
        "kv_cache<void>": "`void` is no policy: leave it out",
        "kv_cache<declared_eviction>": "include its header, below pagedkv/policy/<axis>/",
        "kv_cache<hash_and_layout>": "this type models the concepts of two axes, so its role is not clear: write one type for",
        "kv_cache<int8, unscaled_backend>": "this backend cannot append and gather rows of this element: choose another of",
        "kv_cache<hip::device_allocator>": HOST_ONLY,
        "basic_kv_cache<default_policies, lru>": CANONICAL,
        "kv_cache<const float32>": "a policy is a type of its own: leave out const, volatile and &",
        "kv_cache<no_memory>": "`no_memory` does not provide: add the backend `copy_list`",
        "kv_cache<own_copies, huge_page_allocator>": "this backend uses no memory of the cache's: leave the allocator out",
        "kv_cache<own_copies, int8>": NO_ELEMENTS,
        "kv_cache<float8_latent>": "this element stores latent vectors, which only groups have: add `layer_groups`",
        "group_cache<float8_latent, shuffled_block_major>": "this layout takes them apart: use an nhd or hnd layout",
    },
    {
        "kv_cache<lock_free, fifo>": STRICT_ORDER,
        "kv_cache<lock_free, clock_sweep, own_runs>": RUNS,
        "kv_cache<int8, int8>": "two elements are given, and a cache stores one: leave the other out",
        "kv_cache<float>": "`float` is a type of numbers and no policy: write the element `float32`",
        "basic_kv_cache<default_policies, fifo, int8>": CANONICAL,
        "kv_cache<hnd_block_major, own_copies>": NO_ELEMENTS,
    },
    {"kv_cache<fifo&>": "a policy is a type of its own: leave out const"},
    {
        "group_cache<lock_free, clock_sweep>": GROUPS,
        "kv_cache<one_group, layer_groups>": "two policies for groups " + TWO,
        "group_cache<hip::device_allocator>": HOST_ONLY,
        "basic_kv_cache<default_policies, layer_groups, lru>": CANONICAL,
    },
)

# Operations that a kind of cache has not, each with its sentence: those that need memory, and one that windows replace.
WINDOWS = "groups with a window release their blocks by themselves: give them a window"
REFUSED_USES = {
    "cache.view().base": "this cache has no memory: give kernels the engine's, with block tables and slots",
    "cache.write(0, {}, {}, {}, list)": "this cache has no memory: write K/V to the engine's, at the slots",
    "cache.read(0, {}, {}, {}, list)": "this cache has no memory: read K/V from the engine's, at the slots",
    "cache.append(sequence_id{}, 1)": "with `copy_list`, an operation that may copy blocks needs a list",
}
REFUSED_IN_GROUPS = {"groups.drop_before({}, 0)": WINDOWS}
REFUSED_IN_TIERED_GROUPS = {"tiered_groups.drop_before({}, 0)": WINDOWS}

# The last four are what sentences above name.
ACCEPTED = (
    "kv_cache<>",
    "kv_cache<own_hash, hnd_block_major, own_events, own_backend, huge_page_allocator, sieve, own_runs, rw_lock, int8>",
    "kv_cache<unscaled_backend, float32>",
    "kv_cache<own_copies, no_memory>",
    "basic_kv_cache<default_policies, int8, fifo>",
    "kv_cache<lock_free, clock_sweep>",
    "kv_cache<no_eviction, lock_free>",
    "kv_cache<sharded_mutex, lru>",
    "group_cache<rw_lock, int8, sieve>",
    "group_cache<transposed_layer_major, contiguous_runs>",
    "group_cache<sharded_mutex, lru>",
    "kv_cache<own_copies, layer_groups, int8>",
    "group_cache<float8_latent, hnd_block_major>",
)


def compile_caches(caches):
    """What the compiler says about a program that uses these caches; its exit status comes first."""
    uses = "".join(f"bool use_{i}() {{ return run({cache}{{{{}}}}); }}\n" for i, cache in enumerate(caches))
    return compile_program(PROGRAM + uses)


def compile_uses(uses):
    """The same for a program with these uses of caches without memory, or with groups."""
    body = "".join(f"  static_cast<void>({use});\n" for use in uses)
    caches = (
        "kv_cache<copy_list>& cache, std::vector<block_pair>& list, group_cache<>& groups, "
        "group_cache<host_tier<>>& tiered_groups"
    )
    return compile_program("#include <pagedkv/tier/tiered_cache.hpp>\n" + PROGRAM + f"void use({caches}) {{\n{body}}}\n")


class Policies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            kinds = (REFUSED_USES, REFUSED_IN_GROUPS, REFUSED_IN_TIERED_GROUPS)
            uses = [(kind, workers.submit(compile_uses, kind)) for kind in kinds]
            *cls.refused, cls.accepted = workers.map(compile_caches, (*REFUSED, ACCEPTED))
            cls.refused_uses = [(kind, outcome.result()) for kind, outcome in uses]

    def test_each_wrong_choice_is_refused_with_one_sentence(self):
        for choices, outcome in zip(REFUSED, self.refused):
            self.check_refused(choices, *outcome)

    def test_each_use_of_what_a_cache_has_not_is_refused_with_one_sentence(self):
        for uses, outcome in self.refused_uses:
            self.check_refused(uses, *outcome)

    def check_refused(self, choices, status, text):
        errors = [line for line in text.splitlines() if "error: " in line]
        self.assertNotEqual(status, 0)
        for choice, sentence in choices.items():
            with self.subTest(choice):
                self.assertEqual(sum(sentence in error for error in errors), 1, text)
        self.assertEqual(len(errors), len(choices), "\n".join(errors))

    def test_policies_are_accepted_in_any_order(self):
        status, text = self.accepted
        self.assertEqual(status, 0, text)


if __name__ == "__main__":
    unittest.main()
