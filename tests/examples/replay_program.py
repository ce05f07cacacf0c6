"""Runs the replay, for the tests beside this file."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
EXAMPLES = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "examples"
REPLAY = EXAMPLES / "replay" / "replay"
TRACE = SOURCE_ROOT.parent / "shared" / "traces" / "conversation_trace.jsonl"

# The program, not a sanitizer, must refuse sizes that do not fit into memory.
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1", "TSAN_OPTIONS": "allocator_may_return_null=1"}


def run(*arguments, environment=ENVIRONMENT):
    return subprocess.run([REPLAY, *map(str, arguments)], env=environment, capture_output=True, text=True)


def replay(*arguments):
    """The report of a run that must succeed."""
    done = run(*arguments, "--json", "-")
    if done.returncode:
        raise AssertionError(f"{arguments}: status {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def choices(option):
    found = re.search(rf"^ +--{option} .*?\{{(.*?)\}}", run("--help").stdout, re.DOTALL | re.MULTILINE)
    return found.group(1).split(",")


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def trace(self, *lines):
        path = self.folder / "trace.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path
