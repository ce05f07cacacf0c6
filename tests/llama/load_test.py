"""The benchmarks of the engine: their counts over a small load, and the files that they write."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

PROGRAMS = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "bench" / "engine"
PROGRAM = PROGRAMS / "engine_load"


class Load(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_load(self, requests, *options):
        trace = self.folder / "trace.jsonl"
        trace.write_text("".join(json.dumps(request) + "\n" for request in requests))
        done = subprocess.run([PROGRAM, "--trace", trace, *options], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def report(self, requests, *options):
        file = self.folder / "report.json"
        self.run_load(requests, *options, "--json", file)
        rows = json.loads(file.read_text())
        for row in rows:
            self.assertEqual(row["blocks_in_use_at_end"], 0)
        return rows

    def test_counts_of_a_small_trace(self):
        # Three prompts of 48, 40 and 33 tokens at once, and the same a long time later, when nothing is left to do.
        prompts = [([1, 2, 3], 1536), ([1, 2, 4], 1280), ([5, 6, 7], 1056)]
        requests = [{"timestamp": time, "input_length": length, "output_length": 320, "hash_ids": ids}
                    for time in (0, 3_600_000) for ids, length in prompts]
        (row,) = self.report(requests)
        self.assertEqual((row["requests"], row["refused"], row["failed"]), (6, 0, 0))
        self.assertEqual(row["output_tokens"], 6 * 10)
        cached = 32 + (32 + 32 + 32)  # of the second prompt; then of all three, less a token to compute
        self.assertAlmostEqual(row["hit_ratio"], cached / (2 * (48 + 40 + 33)))
        self.assertAlmostEqual(row["offered_requests_per_second"], 6 / 3600)
        self.assertGreaterEqual(row["seconds"], 3600)
        self.assertGreater(row["first_token_ms"]["p99"], 0)
        self.assertLess(row["first_token_ms"]["p99"], 3_600_000)
        self.assertLessEqual(row["between_tokens_ms"]["p50"], row["between_tokens_ms"]["p99"])
        self.assertLess(row["cache_share"], 1)

    def test_a_small_pool_refuses_and_preempts(self):
        requests = [{"output_length": 1600, "input_length": 32 * (i + 1), "hash_ids": [i]} for i in range(6)]
        requests.append({"output_length": 32, "input_length": 512 * 40, "hash_ids": list(range(40))})
        (row,) = self.report(requests, "--blocks", "12")
        self.assertEqual((row["requests"], row["refused"], row["failed"]), (7, 1, 0))
        self.assertEqual(row["output_tokens"], 6 * 50)
        self.assertGreater(row["preemptions"], 0)

    def test_several_speeds_and_a_plot(self):
        requests = [{"timestamp": 10 * i, "output_length": 64, "hash_ids": [i]} for i in range(4)]
        script = self.folder / "load.gnuplot"
        rows = self.report(requests, "--speed", "1,2", "--plot", script)
        self.assertEqual([row["speed"] for row in rows], [1, 2])
        self.assertAlmostEqual(2 * rows[0]["offered_requests_per_second"], rows[1]["offered_requests_per_second"])
        if not shutil.which("gnuplot"):
            self.skipTest("gnuplot is not here: scripts/install takes it from Debian")
        subprocess.run(["gnuplot", script], check=True)
        self.assertIn("time to first token", pathlib.Path(f"{script}.svg").read_text())

    def test_bad_input_is_named(self):
        missing = subprocess.run([PROGRAM, "--trace", self.folder / "missing"], capture_output=True, text=True)
        self.assertEqual(missing.returncode, 2)
        self.assertIn("missing: cannot be read", missing.stderr)
        for name, value in [("--speed", "0"), ("--speed", "nan"), ("--speed", "1,inf"), ("--rows", "4611686018427387905")]:
            wrong = subprocess.run([PROGRAM, "--trace", "x", name, value], capture_output=True, text=True)
            self.assertNotIn(wrong.returncode, (0, 2))
            self.assertIn(name, wrong.stderr)


class Turns(unittest.TestCase):
    def test_each_turn_computes_its_own_tokens(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            options = ["--turns", "4", "--repeats", "1", "--file", folder / "blocks", "--json", folder / "json", "--plot", folder / "plot"]
            done = subprocess.run([PROGRAMS / "engine_turns", *options], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = json.loads((folder / "json").read_text())
            self.assertIn("$turns using 1:4", (folder / "plot").read_text())
        for turn, row in enumerate(rows):
            self.assertEqual(row["prompt_tokens"], 24 + 64 * turn)
            self.assertTrue(row["cached"]["same_answer"] and row["restarted"]["same_answer"])
            # The last token of an answer was never computed, and a block has 16.
            self.assertEqual(row["cached"]["cached_tokens"], max(64 * turn - 1, 0) // 16 * 16)
            self.assertEqual(row["restarted"]["cached_tokens"], row["cached"]["cached_tokens"])
            self.assertEqual(row["computed"]["cached_tokens"], 0)
            for part in ("cached", "restarted", "computed"):
                self.assertLessEqual(row[part]["in_model_ms"] + row[part]["in_cache_ms"], row[part]["first_token_ms"])


class Stored(unittest.TestCase):
    def test_fewer_bits_are_farther_from_float32(self):
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "json"
            done = subprocess.run([PROGRAMS / "engine_stored", "--tokens", "40", "--json", file], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = json.loads(file.read_text())
        self.assertEqual([row["stored_as"] for row in rows], ["float16", "bfloat16", "int8", "float8"])
        largest = [row["largest"] for row in rows]
        self.assertGreater(largest[0], 0)
        self.assertLess(largest[0], min(largest[1:]))
        self.assertEqual(max(largest), largest[3])
        for row in rows:
            self.assertIn(f"{row['largest']:.2e}", done.stdout)


if __name__ == "__main__":
    unittest.main()
