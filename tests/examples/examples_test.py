"""The example programs: what the replay refuses and reports, and how much of a production trace it finds cached."""

import itertools
import json
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import unittest

from replay_program import AGENTS, CONVERSATIONS, EXAMPLES, SOURCE_ROOT, TemporaryFolder, choices, needs_agents, needs_conversations, replay, run


class QuickStart(unittest.TestCase):
    def test_second_request_finds_the_blocks_of_the_first(self):
        done = subprocess.run([EXAMPLES / "quick_start"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "0 of 100 tokens were cached\n96 of 100 tokens were cached\n")

    def test_readme_shows_it_as_it_is(self):
        program = (SOURCE_ROOT / "examples" / "quick_start.cpp").read_text()
        self.assertLessEqual(len(program.splitlines()), 25)
        self.assertIn(f"```cpp\n{program}```\n", (SOURCE_ROOT / "README.md").read_text())


class DeviceCache(unittest.TestCase):
    def test_what_kernels_wrote_is_found_and_read_back(self):
        done = subprocess.run([EXAMPLES / "device_cache"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "48 of 64 tokens were cached; the key of token 40 is 40\n")


class Attend(unittest.TestCase):
    def test_outputs_are_the_means_of_the_tokens(self):
        done = subprocess.run([EXAMPLES / "attend"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, 2 * "20.5 10.5\n20 10\n19.52 9.545\n19.07 9.13\n")


class Tiers(TemporaryFolder):
    """Host memory of 10 times the device, written through, holds as many distinct blocks as a device that large."""

    def check_tier(self, counts):
        came = counts["written"] + counts["adopted"] + counts["loaded_into"]
        self.assertEqual(came, counts["records"] + counts["evictions"] + counts["dropped"])
        self.assertEqual(counts["handed_over"], counts["written"] + counts["lost_writes"] + counts["owed"])

    def check_trace(self, trace, blocks):
        tiered = replay("--trace", trace, "--blocks", blocks, "--host-blocks", 10 * blocks, "--write-policy", "through")
        large = replay("--trace", trace, "--blocks", 10 * blocks)
        self.assertEqual((tiered["refused_requests"], large["refused_requests"]), (0, 0))
        self.assertAlmostEqual(tiered["hit_ratio"], large["hit_ratio"], delta=0.001)
        host = tiered["tiers"]["host"]
        self.assertEqual(tiered["hit_blocks"], tiered["device_hit_blocks"] + host["hit_blocks"])
        self.assertEqual(host["lost_writes"], 0)
        self.check_tier(host)

    @needs_conversations
    def test_conversations(self):
        self.check_trace(CONVERSATIONS, 1000)

    @needs_agents
    def test_agents(self):
        self.check_trace(AGENTS, 1300)

    def test_published_events_change_nothing(self):
        arguments = ["--limit", 50, "--blocks", 300, "--json", "-"]
        published = run(*arguments, "--publish", "tcp://127.0.0.1:*")
        if published.returncode and "ZeroMQ" in published.stderr:
            self.skipTest(published.stderr)
        self.assertEqual(published.returncode, 0, published.stderr)
        self.assertEqual(json.loads(published.stdout)["hit_blocks"], json.loads(run(*arguments).stdout)["hit_blocks"])
        refused = run(*arguments, "--publish", "tcp://nowhere")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--publish tcp://nowhere", refused.stderr)

    def test_files_serve_a_second_run(self):
        file = f"{self.folder / 'records'}:64M"
        arguments = ["--limit", 200, "--blocks", 300, "--host-blocks", 300, "--file", file]
        first = run(*arguments, "--json", "-")
        if first.returncode and "liburing" in first.stderr:
            self.skipTest(first.stderr)
        self.assertEqual(first.returncode, 0, first.stderr)
        counts = json.loads(first.stdout)["tiers"]["file_tier"]
        self.assertGreater(counts["written"], 0)
        self.check_tier(counts)
        second = replay(*arguments)["tiers"]["file_tier"]
        self.assertGreater(second["adopted"], 0)
        self.assertGreater(second["hit_blocks"], 0)
        self.check_tier(second)

    def test_refuses_options_without_host_memory(self):
        self.assertEqual(run("--file", "x:1M").returncode, 2)
        self.assertEqual(run("--host-blocks", 10, "--locking", "rw_lock").returncode, 2)
        self.assertEqual(run("--host-blocks", 10, "--file", "x").returncode, 2)


class EngineStep(unittest.TestCase):
    def test_answers_are_those_without_a_cache(self):
        done = subprocess.run([EXAMPLES / "engine_step"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = "7 of 7 answers are right; 320 tokens were found in the cache, 4 requests were preempted\n"
        self.assertEqual(done.stdout, expected)


class EngineTensors(unittest.TestCase):
    def test_samples_read_their_own_keys(self):
        done = subprocess.run([EXAMPLES / "engine_tensors"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "both samples are right, with 3 blocks in use and 1 copied\n")


class RemoteTier(unittest.TestCase):
    program = EXAMPLES / "remote_tier"

    def setUp(self):
        if not self.program.exists():
            self.skipTest("hiredis is missing")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]

    def tokens_cached(self):
        done = subprocess.run([self.program, f"redis://127.0.0.1:{self.port}"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return re.findall(r"had (\d+) of 200 tokens cached", done.stdout)

    def test_an_engine_has_what_another_computed(self):
        server = shutil.which("valkey-server") or shutil.which("redis-server")
        if not server:
            self.skipTest("neither valkey-server nor redis-server is installed")
        with tempfile.TemporaryDirectory() as folder:
            options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
            with subprocess.Popen([server, *options], stdout=subprocess.PIPE, text=True) as store:
                try:
                    self.assertTrue(any("Ready to accept connections" in line for line in store.stdout))
                    self.assertEqual(self.tokens_cached(), ["0", "192"])
                finally:
                    store.kill()

    def test_engines_without_a_store_compute(self):
        self.assertEqual(self.tokens_cached(), ["0", "0"])

    def test_a_wrong_url_is_refused(self):
        self.assertEqual(subprocess.run([self.program, "http://store"], capture_output=True).returncode, 2)


class Threads(unittest.TestCase):
    def test_threads_leave_nothing_behind(self):
        done = subprocess.run([EXAMPLES / "threads"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^\d+ of 800 requests were answered\n")


class Router(unittest.TestCase):
    """One request at a time, so every run prints the same."""

    def route(self, *arguments):
        done = subprocess.run([EXAMPLES / "router" / "router", *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.rsplit(maxsplit=3) for line in done.stdout.splitlines()[3:]]
        return {name: [float(number) for number in numbers] for name, *numbers in rows}

    def test_an_index_finds_the_worker_with_the_prefix(self):
        rows = self.route("--workers", "8")
        self.assertGreater(rows["by index"][0], 1.3 * rows["in turn"][0])
        self.assertLess(rows["by index"][2], 1.1)  # no worker computes much more than the others

    def test_one_worker_leaves_nothing_to_choose(self):
        rows = self.route("--workers", "1")
        self.assertEqual(rows["by index"], rows["in turn"])

    def test_numbers_without_measure_are_refused(self):
        for option, value in [("--limit", "-1"), ("--limit", "0"), ("--limit", str(2**64)), ("--blocks", "0"), ("--blocks", str(2**31 - 1))]:
            done = subprocess.run([EXAMPLES / "router" / "router", option, value], capture_output=True, text=True)
            self.assertNotIn(done.returncode, (0, 1))
            self.assertIn(option, done.stderr)

    def test_the_names_of_blocks_do_not_matter(self):
        expected = self.route("--limit", "1000")
        for keys in ("dynamo", "llm-d"):
            self.assertEqual(self.route("--limit", "1000", "--keys", keys), expected)


class LendMemory(unittest.TestCase):
    def test_cached_blocks_stay_as_far_as_they_fit(self):
        done = subprocess.run([EXAMPLES / "lend_memory"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = """lent: 36 blocks
batch: 100 blocks, of which 100 in use and 0 cached
chat: 28 blocks, of which 0 in use and 28 cached
given back: 36 blocks
chat: 64 blocks, of which 0 in use and 28 cached
"""
        self.assertEqual(done.stdout, expected)


class BadInput(TemporaryFolder):
    def check(self, *arguments, names):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        for name in names:
            self.assertIn(name, done.stderr)

    def test_bad_options_are_named(self):
        for option, value in [
            ("--blocks", 0),
            ("--blocks", -5),
            ("--blocks", 2**31),
            ("--block-size", "many"),
            ("--concurrency", 0),
            ("--threads", 0),
            ("--limit", 0),
            ("--eviction", "random"),
            ("--locking", "none"),
            ("--element", "float8"),
            ("--trace", ""),
            ("--json", ""),
            ("--log", ""),
        ]:
            with self.subTest(option=option, value=value):
                self.check(option, value, names=[option, str(value)])
        self.check("--nonsense", names=["--nonsense"])
        self.check("--blocks", names=["--blocks"])

    def test_sizes_that_do_not_fit(self):
        self.check("--block-size", 2**31 - 1, names=["block_size", "overflow"])
        self.check("--blocks", 2**31 - 1, "--block-size", 500_000_000, names=["memory"])

    def test_threads_need_a_locking_policy(self):
        self.check("--threads", 2, names=["--threads 2", "single_thread", "rw_lock"])

    def test_threads_need_float16(self):
        self.check("--locking", "rw_lock", "--element", "int8", names=["--element int8", "single_thread", "float16"])

    def test_runs_need_one_thread_and_float16(self):
        for option, value in [("--locking", "lock_free"), ("--element", "int8"), ("--host-blocks", 5)]:
            self.check("--free-list", "contiguous_runs", option, value, names=["--free-list contiguous_runs"])

    def test_unreadable_trace(self):
        self.check("--trace", self.folder / "missing.jsonl", names=["missing.jsonl"])
        self.check("--trace", self.folder, names=[str(self.folder)])

    @unittest.skipUnless(pathlib.Path("/dev/full").exists(), "no /dev/full here")
    def test_report_on_a_full_disk(self):
        done = run("--limit", 5, "--json", "/dev/full")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--json /dev/full: cannot be written", done.stderr)
        self.check("--limit", 5, "--log", "/dev/full", names=["--log /dev/full: cannot be written"])

    def test_unwritable_report(self):
        self.check("--json", self.folder / "no" / "report.json", names=["--json", "report.json"])
        self.check("--log", self.folder / "no" / "cache.log", names=["--log", "cache.log"])

    def test_malformed_lines_are_numbered(self):
        good = '{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}'
        for bad in [
            "",
            "not JSON",
            "[1, 2]",
            good + good,
            good[:-1],
            '{"timestamp": 5}',
            '{"hash_ids": 7}',
            '{"hash_ids": [1, -2]}',
            '{"hash_ids": [1.5]}',
            '{"hash_ids": ["1"]}',
            '{"hash_ids": [18446744073709551616]}',
            '{"hash_ids": [1], "timestamp": -1}',
            '{"hash_ids": [1], "timestamp": 1e300}',
            '{"hash_ids": [1], "output_length": 4294967296}',
            '{"hash_ids": [1], "output_length": true}',
            '{"hash_ids": [' + "[" * 1_000_000 + "]" * 1_000_000 + "]}",
            '{"hash_ids": [1], "timestamp": ' + '{"a":' * 1_000_000 + "1" + "}" * 1_000_001,
        ]:
            with self.subTest(line=bad[:80]):
                path = self.trace(good, good, bad, good)
                self.check("--trace", path, names=[str(path), "line 3:"])


class Report(TemporaryFolder):
    def test_counts_of_a_small_trace(self):
        lines = [{"timestamp": 10 * i, "output_length": 20, "hash_ids": ids}
                 for i, ids in enumerate([[1, 2], [1, 2, 3], [4], [1, 5, 3], [1, 5, 3]])]
        path = self.trace(*map(json.dumps, lines))
        report = replay("--trace", path, "--block-size", 8, "--blocks", 100)
        # The third block of the fourth request has an id seen before, but stands behind another prefix.
        expected = {"requests": 5, "block_references": 12, "hit_blocks": 6, "hit_ratio": 0.5, "bound_hit_ratio": 0.5,
                    "evictions": 0, "refused_requests": 0, "failed_requests": 0, "output_tokens": 0, "blocks_in_use_at_end": 0,
                    "invariant_violations": 0}
        self.assertEqual({key: report[key] for key in expected}, expected)
        self.assertEqual(report["final_blocks"], {"free": 94, "in_use": 0, "evictable": 6, "retiring": 0})
        self.assertEqual(report["peak_blocks"]["in_use"], 4)
        # Each request leaves seven slots behind its own token.
        self.assertAlmostEqual(report["waste"], 5 * 7 / (8 * (12 + 5)))
        self.assertGreater(report["seconds"], 0)
        self.assertGreaterEqual(report["cpu_seconds"], 0)
        self.assertGreater(report["memory_bytes"]["payload"], 0)

        self.assertEqual(replay("--trace", path, "--limit", 2)["requests"], 2)
        decoded = replay("--trace", path, "--block-size", 8, "--blocks", 100, "--decode")
        self.assertEqual(decoded["output_tokens"], 100)
        self.assertEqual(decoded["hit_blocks"], 6)
        # One token of its own and 20 of output are two full blocks more for each request.
        self.assertEqual(decoded["final_blocks"]["evictable"], 6 + 5 * 2)

    def test_what_does_not_fit_is_refused(self):
        path = self.trace('{"hash_ids": [1, 2, 3, 4]}', '{"hash_ids": [1, 2], "output_length": 30}')
        report = replay("--trace", path, "--block-size", 8, "--blocks", 4, "--decode")
        self.assertEqual((report["refused_requests"], report["failed_requests"]), (1, 1))
        self.assertEqual(report["output_tokens"], 2 * 8 - 1)

    def test_requests_alive_at_once(self):
        path = self.trace(*(json.dumps({"hash_ids": [3 * i, 3 * i + 1, 3 * i + 2]}) for i in range(10)))
        for alive in (1, 3, 10, 50):
            with self.subTest(alive=alive):
                report = replay("--trace", path, "--block-size", 8, "--blocks", 100, "--concurrency", alive)
                self.assertEqual(report["peak_blocks"]["in_use"], 4 * min(alive, 10))

    def test_table_and_file(self):
        path = self.folder / "report.json"
        done = run("--limit", 50, "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        report = json.loads(path.read_text())
        self.assertEqual(report["requests"], 50)
        for name in ("requests", "block references", "prefix hits", "bound", "evictions", "refused", "waste", "peak",
                     "at end", "requests/s", "memory"):
            self.assertIn(name, done.stdout)
        self.assertIn(f"{report['hit_ratio']:.4f}", done.stdout)

    def test_log_agrees_with_report(self):
        path = self.folder / "cache.log"
        options = ["--limit", 200, "--blocks", 300, "--concurrency", 4, "--decode"]
        report = replay(*options, "--log", path)
        lines = [line.split() for line in path.read_text().splitlines()]
        events = [(word, dict(field.split("=") for field in fields)) for word, *fields in lines]

        def sum_of(kind, field=None):
            return sum(int(fields[field]) if field else 1 for word, fields in events if word == kind)

        self.assertEqual(sum_of("hit", "blocks"), report["hit_blocks"])
        self.assertEqual(sum_of("evicted"), report["evictions"])
        self.assertGreater(sum_of("evicted"), 0)
        self.assertEqual(sum_of("admitted"), report["requests"] - report["refused_requests"])
        self.assertEqual(sum_of("released"), sum_of("admitted"))
        self.assertGreaterEqual(sum_of("refused"), report["refused_requests"] + report["failed_requests"])

        done = run(*options, "--log", "-", "--json", "-")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(done.stderr.splitlines()), len(lines))

    def test_help(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for option in ("trace", "block-size", "blocks", "eviction", "locking", "element", "threads", "concurrency",
                       "decode", "limit", "hash-seed", "json", "log"):
            self.assertIn(f"--{option} ", done.stdout)


class GeneratedWorkload(unittest.TestCase):
    def check(self, report):
        self.assertGreater(report["hit_blocks"], 0)
        self.assertGreater(report["evictions"] + report["refused_requests"], 0)

    def test_leaves_nothing_behind_under_any_policies(self):
        num_refused = 0
        for locking, eviction in itertools.product(choices("locking"), choices("eviction")):
            with self.subTest(locking=locking, eviction=eviction):
                options = ["--locking", locking, "--eviction", eviction, "--limit", 1000, "--blocks", 1500, "--decode"]
                options += ["--concurrency", 8, "--threads", 1 if locking == "single_thread" else 4]
                if locking == "lock_free" and eviction not in ("clock_sweep", "none"):
                    done = run(*options)
                    self.assertEqual(done.returncode, 2)
                    self.assertIn(f"--eviction {eviction} keeps a strict order", done.stderr)
                    num_refused += 1
                else:
                    self.check(replay(*options))
        self.assertGreater(num_refused, 0)

    def test_leaves_nothing_behind_with_any_free_list(self):
        shares = {}
        for free_list, eviction in itertools.product(choices("free-list"), ("lru", "sieve")):
            with self.subTest(free_list=free_list, eviction=eviction):
                options = ["--eviction", eviction, "--limit", 1000, "--blocks", 1500]
                report = replay("--free-list", free_list, *options)
                self.check(report)
                self.assertEqual(report["in_runs"], report["blocks_in_runs"] / report["blocks_together"])
                shares[free_list, eviction] = report["in_runs"]
        self.assertGreater(shares["contiguous_runs", "lru"], shares["any_free_block", "lru"])

    def test_leaves_nothing_behind_with_any_element(self):
        for element in choices("element"):
            with self.subTest(element=element):
                self.check(replay("--element", element, "--limit", 1000, "--blocks", 1500))


class ConversationTrace(unittest.TestCase):
    @needs_conversations
    def test_hit_ratios_of_lru(self):
        for locking, (blocks, expected) in itertools.product(
            ("single_thread", "rw_lock"), {9_139: 0.1958, 18_279: 0.2789, 50_000: 0.3546}.items()
        ):
            with self.subTest(locking=locking, blocks=blocks):
                report = replay("--trace", CONVERSATIONS, "--locking", locking, "--blocks", blocks)
                self.assertEqual((report["requests"], report["block_references"]), (12_031, 288_500))
                self.assertAlmostEqual(report["hit_ratio"], expected, delta=0.0005)
                self.assertAlmostEqual(report["bound_hit_ratio"], 0.3664, delta=0.0005)


if __name__ == "__main__":
    unittest.main()
