"""single_thread costs nothing for the policies that it does not use: no trace of them is in the compiled operations."""

import os
import pathlib
import re
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_GCC"])

PROGRAM = """
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

namespace pagedkv::compiled {{

using cache = kv_cache<{locking}, clock_sweep>;

auto create(cache& c, std::span<const token> tokens) {{ return c.create_sequence(tokens); }}
auto append(cache& c, sequence_id id, token next) {{ return c.append(id, next); }}
auto commit(cache& c, sequence_id id, std::int64_t num_tokens) {{ return c.commit(id, num_tokens); }}
auto fork(cache& c, sequence_id id) {{ return c.fork(id); }}
auto truncate(cache& c, sequence_id id, std::int64_t num_tokens) {{ return c.truncate(id, num_tokens); }}
auto release(cache& c, sequence_id id) {{ return c.release(id); }}
auto find_prefix(cache& c, std::span<const token> tokens) {{ return c.find_prefix(tokens); }}
auto statistics(cache& c) {{ return c.statistics(); }}

}}  // namespace pagedkv::compiled
"""

# Traces of thread safety in the assembly of the machines where tests run.
TRACES = {
    "x86_64": {
        "atomic instruction": r"^\s*(lock\b|xchg\w*\s.*\()",
        "fence": r"^\s*[lms]fence\b",
        "thread-local variable": r"(?i)@(got)?tpoff|@tlsgd|__tls_get_addr",
        "thread library": r"pthread_|sched_yield|\bsyscall\b",
    },
    "aarch64": {
        "atomic instruction": r"^\s*(ld|st)l?a?xrb?\b|^\s*(cas|swp|ldadd|ldclr|ldset)\w*\b|__aarch64_(cas|swp|ld)",
        "fence": r"^\s*dmb\b",
        "thread-local variable": r"tpidr_el0",
        "thread library": r"pthread_|sched_yield|\bsyscall\b",
    },
}


def run(arguments, program=""):
    return subprocess.run(COMPILER + arguments, input=program, capture_output=True, text=True, check=True).stdout


def traces_of(locking):
    """The kinds of traces in the operations of a cache under this policy, each with the first line that shows it."""
    kinds = TRACES.get(run(["-dumpmachine"]).split("-")[0])
    if kinds is None:
        raise unittest.SkipTest("this machine's instructions are not known here")
    options = ["-std=c++20", "-O2", "-DNDEBUG", "-S", "-o", "-", "-x", "c++", f"-I{SOURCE_ROOT / 'include'}", "-"]
    assembly = run(options, PROGRAM.format(locking=locking))
    found = {kind: re.search(pattern + ".*", assembly, re.MULTILINE) for kind, pattern in kinds.items()}
    return {kind: match.group().strip() for kind, match in found.items() if match}


class Costs(unittest.TestCase):
    def test_single_thread_has_no_trace_of_other_policies(self):
        self.assertEqual(traces_of("single_thread"), {})

    def test_the_other_policies_have(self):
        # Without these, the test above would prove nothing.
        for locking, trace in (
            ("rw_lock", "atomic instruction"),
            ("sharded_mutex", "thread library"),
            ("lock_free", "thread-local variable"),
        ):
            with self.subTest(locking):
                found = traces_of(locking)
                self.assertIn("atomic instruction", found)
                self.assertIn(trace, found)


if __name__ == "__main__":
    unittest.main()
