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


def trace(variable, name):
    """Recorded requests, which are not part of the tree: docs/testing.md says where they are from."""
    return pathlib.Path(os.environ.get(variable) or SOURCE_ROOT.parent / "shared" / "traces" / name)


CONVERSATIONS = trace("PAGEDKV_CONVERSATION_TRACE", "conversation_trace.jsonl")
AGENTS = trace("PAGEDKV_AGENTS_TRACE", "coding_agents.jsonl")
needs_conversations = unittest.skipUnless(CONVERSATIONS.exists(), "no conversation trace: set PAGEDKV_CONVERSATION_TRACE")
needs_agents = unittest.skipUnless(AGENTS.exists(), "no trace of coding agents: set PAGEDKV_AGENTS_TRACE")

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
