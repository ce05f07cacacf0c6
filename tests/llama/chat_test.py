"""The program that answers in the terminal: a conversation that goes on in another process."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

PROGRAM = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "examples" / "llama" / "llama_chat"
MODEL = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "examples" / "llama" / "model"
FIGURES = re.compile(r"^\[.* (\d+) of (\d+) prompt tokens were cached; .*\]$", re.MULTILINE)


class Sessions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.session = pathlib.Path(folder.name) / "session"

    def chat(self, *arguments):
        return subprocess.run([PROGRAM, "--model", MODEL, "--max-tokens", "60", *arguments], capture_output=True, text=True)

    def answers(self, *arguments):
        """What was printed without figures, and the figures: tokens that were cached, and those of the prompt."""
        done = self.chat(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return FIGURES.sub("", done.stdout), [tuple(map(int, each)) for each in FIGURES.findall(done.stdout)]

    def test_a_conversation_goes_on_in_another_process(self):
        whole, _ = self.answers("What is a hacker?", "kluge", "And who uses it?")
        parts = [self.answers("--session", self.session, *questions)
                 for questions in (["What is a hacker?"], ["kluge"], ["And who uses it?"])]
        self.assertEqual("".join(text for text, _ in parts), whole)
        for before, after in zip(parts, parts[1:]):
            self.assertGreater(after[1][0][0], before[1][0][1] - 16)  # whole blocks of the history

    def test_a_session_that_is_damaged_is_refused(self):
        self.answers("--session", self.session, "kluge")
        self.session.write_bytes(self.session.read_bytes()[:-1])
        done = self.chat("--session", self.session, "kluge")
        self.assertEqual(done.returncode, 1)
        self.assertIn("damaged", done.stderr)


if __name__ == "__main__":
    unittest.main()
