"""The program that answers in the terminal: a conversation that goes on in another process."""

import os
import pathlib
import re
import shutil
import signal
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

    def chat(self, *arguments, tokens="60", input=""):
        model = [] if "--model" in arguments else ["--model", MODEL]
        return subprocess.run([PROGRAM, *model, "--max-tokens", tokens, *arguments], input=input, capture_output=True, text=True)

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

    def test_blank_lines_are_no_questions(self):
        done = self.chat(input="\n \t\r\n  kluge \r\nexit\t\n")
        answered, [figures] = self.answers("kluge")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(FIGURES.sub("", done.stdout), "> > " + answered.replace("> kluge\n", "> ") + "> ")
        self.assertTrue(self.chat(input="kluge\n").stdout.endswith("\n> \n"))

    def test_an_interrupt_loses_no_conversation(self):
        for is_answering in (False, True):
            with self.subTest(is_answering=is_answering):
                command = [PROGRAM, "--model", MODEL, "--session", self.session, "--max-tokens", "480"]
                with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
                    program.stdout.read(2)
                    if is_answering:
                        program.stdin.write(b"What is a hacker?\n")
                        program.stdin.flush()
                        program.stdout.read(20)
                    program.send_signal(signal.SIGINT)
                    _, errors = program.communicate()
                self.assertEqual((program.returncode, errors), (0, b""))
                self.assertTrue(self.session.exists())
        _, [figures] = self.answers("--session", self.session, "kluge")
        self.assertGreater(figures[0], 0)

    def test_sessions_and_blocks_may_lie_beside_the_model(self):
        folder = shutil.copytree(MODEL, self.session.parent / "model")
        blocks = ["--host-blocks", "64", "--file", folder / "blocks", "--file-size", "10MB"]
        for options in (["--session", folder / "session"], blocks):
            for _ in range(2):
                _, [figures] = self.answers("--model", folder, *options, "kluge " * 20)
            self.assertGreater(figures[0], 0)

    def test_a_session_that_is_damaged_is_refused(self):
        self.answers("--session", self.session, "kluge")
        self.session.write_bytes(self.session.read_bytes()[:-1])
        done = self.chat("--session", self.session, "kluge")
        self.assertEqual(done.returncode, 1)
        self.assertIn("damaged", done.stderr)

    def test_a_question_that_fails_is_dropped(self):
        whole, _ = self.answers("What is a hacker?", "kluge", "And who uses it?")
        long = "hacker " * 250
        done = self.chat("--session", self.session, "--blocks", "12", "What is a hacker?", long, "kluge")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        rest, _ = self.answers("--session", self.session, "And who uses it?")
        self.assertEqual(FIGURES.sub("", done.stdout).replace(f"> {long}\n", "") + rest, whole)

    def test_an_answer_that_outgrows_the_pool_ends_its_line(self):
        done = self.chat("--blocks", "2", "What is a hacker?")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"\A> What is a hacker\?\n.+\n\Z")
        self.assertIn("number of blocks is 2", done.stderr)

    def test_what_is_longer_than_the_context_is_refused(self):
        for question, tokens in [("hacker " * 600, "60"), ("kluge", str(2**64 - 1)), ("kluge", "512")]:
            done = self.chat(question, tokens=tokens)
            self.assertEqual(done.returncode, 1)
            self.assertIn("context of 512", done.stderr)
            self.assertEqual(done.stdout, f"> {question}\n")

    def test_temperatures_that_are_no_numbers_are_refused(self):
        for value in ("nan", "inf", "-1", "hot", "1e999"):
            done = self.chat("--temperature", value, "kluge")
            self.assertNotIn(done.returncode, (0, 1))
            self.assertRegex(done.stderr, f"^--temperature: {value} is not a number from 0 on\n")

    def test_numbers_below_zero_are_refused(self):
        done = self.chat("--drafts", "-1", "kluge")
        self.assertNotIn(done.returncode, (0, 1))
        self.assertIn("--drafts", done.stderr)

    def test_guesses_without_measure_are_refused(self):
        for option, values in [("--drafts", ("512", str(2**63), str(2**64 - 1), "1e9", "many")), ("--branches", ("0", "32", str(2**64 - 1)))]:
            for value in values:
                with self.subTest(option=option, value=value):
                    done = self.chat("--drafts", "1", option, value, "kluge") if option == "--branches" else self.chat(option, value, "kluge")
                    self.assertNotIn(done.returncode, (0, 1))
                    self.assertIn(option, done.stderr)
        plain, _ = self.answers("kluge")
        self.assertEqual(self.answers("--drafts", "511", "--branches", "31", "kluge")[0], plain)

    def test_a_file_that_cannot_be_taken_is_named(self):
        file = self.session.parent / "blocks"
        options = ["--host-blocks", "64", "--file", file, "--file-size", "10MB"]
        self.answers(*options, "kluge")
        for wrong in (["--block-size", "8", *options], ["--host-blocks", "64", "--file", file.parent]):
            done = self.chat(*wrong, "kluge")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f": {wrong[wrong.index('--file') + 1]})\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
