"""Which axes of a cache work with which: the table in the README, from what compiles. A "no" has its sentence."""

import concurrent.futures
import os
import pathlib
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_GCC"])

PROGRAM = """
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/caller_memory.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

using namespace pagedkv;
"""

NODES_MUTEX = "a cache with groups changes the blocks of several groups at once, behind a mutex"
NO_LOCK_FREE_TIERS = "transfers between tiers lock, so nothing behind them is lock-free: use the locking policy `rw_lock`"
NO_RUNS = "use the locking policy `single_thread` or `rw_lock` with it, or the free list `any_free_block` with this one"
NO_SWAPS = "this backend copies no blocks to host memory, which tiers need"

COLUMNS = {
    "`one_group`": "",
    "`layer_groups`": "layer_groups",
    "tiers": "host_tier<>",
    "`contiguous_runs`": "contiguous_runs",
}
# The policies of each row, and the sentence of each column that refuses them.
ROWS = {
    "`single_thread`": ("single_thread", {}),
    "`rw_lock`": ("rw_lock", {}),
    "`sharded_mutex`": ("sharded_mutex", {"`contiguous_runs`": NO_RUNS}),
    "`lock_free`": (
        "lock_free, clock_sweep",
        {"`layer_groups`": NODES_MUTEX, "tiers": NO_LOCK_FREE_TIERS, "`contiguous_runs`": NO_RUNS},
    ),
    "`caller_memory`": ("caller_memory", {}),
    "`copy_list`, the engine's tensors": ("copy_list", {"tiers": NO_SWAPS}),
    "`reserving_allocator`, to resize memory": ("reserving_allocator", {}),
    "tiers": ("host_tier<>", {}),
}


def cache_of(row, column):
    """The type that stands for a cell."""
    policies = [policy for policy in (ROWS[row][0], COLUMNS[column]) if policy and row != column]
    return f"kv_cache<{', '.join(policies or ['host_tier<>'])}>"


def compile_caches(caches):
    """The errors of a program that has these types."""
    body = "".join(f"static_assert(sizeof({cache}) > 0);\n" for cache in caches)
    command = [*COMPILER, "-std=c++20", "-fsyntax-only", f"-I{SOURCE_ROOT / 'include'}", "-x", "c++", "-"]
    done = subprocess.run(command, input=PROGRAM + body, capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if "error: " in line]


class Abilities(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cells = [(row, column) for row in ROWS for column in COLUMNS]
        cls.refused = [cell for cell in cells if cell[1] in ROWS[cell[0]][1]]
        cls.accepted = [cell for cell in cells if cell not in cls.refused]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            cls.accepted_errors = workers.submit(compile_caches, [cache_of(*cell) for cell in cls.accepted])
            cls.refused_errors = list(workers.map(compile_caches, [[cache_of(*cell)] for cell in cls.refused]))

    def test_every_yes_compiles(self):
        self.assertEqual(self.accepted_errors.result(), [])

    def test_every_no_has_its_sentence(self):
        for (row, column), errors in zip(self.refused, self.refused_errors):
            with self.subTest(cache_of(row, column)):
                self.assertEqual(len(errors), 1, "\n".join(errors))
                self.assertIn(ROWS[row][1][column], errors[0])

    def test_the_readme_shows_the_table(self):
        lines = ["| with | " + " | ".join(COLUMNS) + " |", "| --- |" + " --- |" * len(COLUMNS)]
        for row in ROWS:
            lines.append(f"| {row} | " + " | ".join("no" if column in ROWS[row][1] else "yes" for column in COLUMNS) + " |")
        print("\n".join("# " + line for line in lines))
        self.assertIn("\n".join(lines), (SOURCE_ROOT / "README.md").read_text())


if __name__ == "__main__":
    unittest.main()
