"""Events cost nothing when off: no operation of a cache without them names them, and appending is the same code with and without."""

import os
import pathlib
import re
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
# clang calls what g++ inlines, and the text of a call shows nothing.
COMPILER = shlex.split(os.environ["PAGEDKV_GCC"])

PROGRAM = """
#include <pagedkv/events/event_log.hpp>
#include <pagedkv/pagedkv.hpp>

namespace pagedkv::compiled {{

extern "C" void event_was_emitted(const cache_event&) noexcept;

template <event_kinds Kinds>
struct emitting {{
  static constexpr auto kinds = Kinds;
  void emit(const cache_event& event) noexcept {{ event_was_emitted(event); }}
}};
using all_kinds = emitting<all_event_kinds>;
using no_kinds = emitting<event_kinds{{}}>;

using cache = kv_cache<{stream}>;

auto append(cache& c, sequence_id id, token next) {{ return c.append(id, next); }}
auto create(cache& c, std::span<const token> tokens) {{ return c.create_sequence(tokens); }}
auto commit(cache& c, sequence_id id, std::int64_t num_tokens) {{ return c.commit(id, num_tokens); }}
auto fork(cache& c, sequence_id id) {{ return c.fork(id); }}
auto release(cache& c, sequence_id id) {{ return c.release(id); }}
auto begin_step(cache& c) {{ return c.begin_step(); }}
auto retire_step(cache& c, step_id step) {{ return c.retire_step(step); }}
auto reset(cache& c) {{ return c.reset_prefix_cache(); }}
auto preempt(request_tracker<cache>& t, request_id id) {{ return t.preempt(id); }}

}}  // namespace pagedkv::compiled
"""

EMITTED = re.compile(r"event_was_emitted|event_line|cache_event")


def assembly(stream):
    options = ["-std=c++20", "-O2", "-DNDEBUG", "-S", "-o", "-", "-x", "c++", f"-I{SOURCE_ROOT / 'include'}", "-"]
    program = PROGRAM.format(stream=stream)
    return subprocess.run(COMPILER + options, input=program, capture_output=True, text=True, check=True).stdout


def instructions_of(function, text):
    """The instructions of a function of the program, without the names of labels and of types."""
    body = re.search(rf"^_ZN7pagedkv8compiled\d+{function}\w+:[^\n]*\n(.*?)^\s*\.cfi_endproc", text, re.DOTALL | re.MULTILINE)
    lines = [line.split("#")[0].strip() for line in body.group(1).splitlines()]
    lines = [line for line in lines if line and not line.startswith(".")]
    return [re.sub(r"\.L\w+", "label", re.sub(r"_Z\w+", "member", line)) for line in lines]


class Costs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.assembly = {stream: assembly(stream) for stream in ("no_events", "no_kinds", "all_kinds", "event_log")}

    def test_no_trace_of_events_without_them(self):
        for stream in ("no_events", "no_kinds"):
            with self.subTest(stream):
                self.assertIsNone(EMITTED.search(self.assembly[stream]))

    def test_traces_of_events_with_them(self):
        # Otherwise the test above proves nothing.
        for stream in ("all_kinds", "event_log"):
            with self.subTest(stream):
                self.assertIsNotNone(EMITTED.search(self.assembly[stream]))

    def test_appending_is_the_same_code_with_and_without_events(self):
        without = instructions_of("append", self.assembly["no_events"])
        self.assertGreater(len(without), 10)
        self.assertLessEqual(sum("member" in line for line in without), 1)  # the call that starts a block
        for stream in ("no_kinds", "all_kinds", "event_log"):
            with self.subTest(stream):
                self.assertEqual(instructions_of("append", self.assembly[stream]), without)

    def test_releasing_is_other_code_with_events(self):
        # Otherwise the test above compares too little.
        without = instructions_of("release", self.assembly["no_events"])
        self.assertNotEqual(instructions_of("release", self.assembly["all_kinds"]), without)


if __name__ == "__main__":
    unittest.main()
