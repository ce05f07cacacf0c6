"""Policies that cannot work together do not compile, and the compiler says which to use instead."""

import os
import pathlib
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])

PROGRAM = """
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

using cache = pagedkv::kv_cache<pagedkv::float16, pagedkv::{locking}, pagedkv::{eviction}>;
auto make() {{ return cache{{pagedkv::cache_config{{}}}}; }}
"""


def compile_cache(locking, eviction):
    """What the compiler says about a cache with these policies; its exit status comes first."""
    command = COMPILER + ["-std=c++20", "-fsyntax-only", "-x", "c++", f"-I{SOURCE_ROOT / 'include'}", "-"]
    program = PROGRAM.format(locking=locking, eviction=eviction)
    done = subprocess.run(command, input=program, capture_output=True, text=True)
    return done.returncode, done.stderr


class Combinations(unittest.TestCase):
    def test_a_strict_order_is_refused_under_lock_free(self):
        for eviction in ("lru", "fifo"):
            with self.subTest(eviction):
                status, text = compile_cache("lock_free", eviction)
                self.assertNotEqual(status, 0)
                self.assertIn("use the eviction policy `clock_sweep` or `no_eviction` with lock_free", text)
                self.assertIn("or the locking policy `sharded_mutex` with this one", text)

    def test_what_the_sentence_names_compiles(self):
        combinations = (("lock_free", "clock_sweep"), ("lock_free", "no_eviction"), ("sharded_mutex<>", "lru"))
        for locking, eviction in combinations:
            with self.subTest(f"{locking}, {eviction}"):
                status, text = compile_cache(locking, eviction)
                self.assertEqual(status, 0, text)


if __name__ == "__main__":
    unittest.main()
