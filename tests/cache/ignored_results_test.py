"""The compiler warns where the result of an operation is ignored: a release that was refused leaks blocks."""

import os
import pathlib
import re
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])

BEFORE = """
#include <pagedkv/pagedkv.hpp>
using namespace pagedkv;
void ignore(kv_cache<>& cache, request_tracker<kv_cache<>>& tracker, sequence_id id, request_id request, pin_id pin,
            padded_batch& batch, std::span<const token> tokens, std::span<const sequence_id> ids, std::span<slot> slots,
            std::span<block_id> blocks) {
"""
OPERATIONS = """\
cache.create_sequence(tokens);
cache.append(id, token{1});
cache.append(id, tokens);
cache.commit(id, 1);
cache.fork(id);
cache.truncate(id, 1);
cache.drop_before(id, 1);
cache.release(id);
cache.pin(tokens);
cache.unpin(pin);
cache.gain_of_releasing(ids);
cache.begin_step();
cache.retire_step(step_id{1});
cache.describe(id);
cache.slot_mapping(id, 0, slots);
cache.block_table(id, blocks);
cache.update(batch, ids);
cache.write(0, slots, {}, {});
cache.read(0, slots, {}, {});
cache.compact();
cache.reset_prefix_cache();
tracker.submit(tokens);
tracker.resume(request, tokens);
tracker.append(request, tokens);
tracker.fork(request);
tracker.finish(request);
tracker.cancel(request);
tracker.fail(request, error{});
tracker.preempt(request);
tracker.describe(request);
"""


class IgnoredResults(unittest.TestCase):
    def test_each_draws_a_warning(self):
        command = COMPILER + ["-std=c++20", "-fsyntax-only", "-x", "c++", f"-I{SOURCE_ROOT / 'include'}", "-"]
        program = BEFORE.lstrip() + OPERATIONS + "}\n"
        done = subprocess.run(command, input=program, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        warned = {int(line) for line in re.findall(r"<stdin>:(\d+):\d+: warning: .*nodiscard", done.stderr)}
        for number, line in enumerate(program.splitlines(), start=1):
            if line in OPERATIONS.splitlines():
                with self.subTest(line):
                    self.assertIn(number, warned)


if __name__ == "__main__":
    unittest.main()
