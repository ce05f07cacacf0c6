"""The replay's comparison of eviction policies: its figures, its files, what it refuses."""

import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import unittest
import xml.etree.ElementTree

from replay_program import CONVERSATIONS, ENVIRONMENT, REPLAY, TemporaryFolder, choices, needs_conversations, replay, run

needs_gnuplot = unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not here")

SVG = "{http://www.w3.org/2000/svg}"


def hit_ratios(points):
    return {point["blocks"]: point["hit_ratio"] for point in points}


class Figures(TemporaryFolder):
    def check_bounds(self, report):
        for policy, points in report["policies"].items():
            for point, oracle, bound in zip(points, report["oracle"], report["bound"], strict=True):
                self.assertEqual((point["blocks"], point["blocks"]), (oracle["blocks"], bound["blocks"]))
                self.assertLessEqual(point["hit_blocks"], bound["hit_blocks"], (policy, point["blocks"]))
                if point["refused_requests"] == oracle["refused_requests"]:
                    self.assertLessEqual(point["hit_blocks"], oracle["hit_blocks"], (policy, point["blocks"]))

    def test_generated_workload(self):
        report = replay("--compare", "--limit", 2000)
        self.assertEqual(list(report["policies"]), choices("eviction"))
        self.assertEqual(len(report["capacities"]), 12)
        self.assertEqual(report["capacities"], sorted(set(report["capacities"])))
        self.assertEqual(report["capacities"][-1], report["distinct_blocks"])
        self.check_bounds(report)
        for policy, points in report["policies"].items():
            with self.subTest(policy=policy):
                self.assertEqual([point["blocks"] for point in points], report["capacities"])
                self.assertGreater(points[-1]["hit_ratio"], points[0]["hit_ratio"])
                if policy != "none":
                    self.assertGreater(points[0]["evictions"], 0)
                    self.assertEqual(points[0]["refused_requests"], 0)

    def test_generated_workload_tells_policies_apart(self):
        report = replay("--compare", "lru,slru,arc,hit_density", "--blocks", "1000,4000")
        for column in range(2):
            found = {policy: points[column]["hit_ratio"] for policy, points in report["policies"].items()}
            self.assertGreater(found["hit_density"], found["lru"] + 0.03)
            self.assertGreater(report["bound"][column]["hit_ratio"], max(found.values()) + 0.05)
            ratios = sorted(found.values())
            self.assertGreater(min(b - a for a, b in zip(ratios, ratios[1:])), 0.0005)

    def check_agrees_with_the_replay(self, *options):
        """Every policy, to the last block: both count the same hits, evictions and refusals."""
        found = {}
        for policy, (point,) in replay("--compare", *options)["policies"].items():
            with self.subTest(policy=policy):
                replayed = replay("--eviction", policy, *options)
                for figure in ("hit_blocks", "evictions", "refused_requests"):
                    self.assertEqual(point[figure], replayed[figure], figure)
            found[policy] = point["hit_blocks"]
        return found

    def test_agrees_with_the_replay(self):
        options = ["--limit", 1000, "--blocks", 1500]
        first = self.check_agrees_with_the_replay(*options)
        second = self.check_agrees_with_the_replay(*options, "--hash-seed", 2)
        # The hash decides which blocks a sketch confuses, and which ones a sample has.
        self.assertNotEqual(first["tiny_lfu"], second["tiny_lfu"])
        self.assertEqual(first["lru"], second["lru"])

    @needs_conversations
    def test_agrees_with_the_replay_of_a_trace(self):
        self.check_agrees_with_the_replay("--trace", CONVERSATIONS, "--limit", 4000, "--blocks", 3000)

    def test_locking_changes_no_victim(self):
        options = ["--eviction", "hit_density", "--blocks", 2000]
        single, sharded = [replay(*options, "--locking", locking)["hit_ratio"]
                           for locking in ("single_thread", "sharded_mutex")]
        self.assertEqual(single, sharded)

    def test_does_not_depend_on_threads(self):
        reports = [replay("--compare", "--limit", 300, "--threads", threads) for threads in (1, 4)]
        for part in ("capacities", "policies", "oracle", "bound"):
            self.assertEqual(reports[0][part], reports[1][part])

    def test_small_trace_by_hand(self):
        lines = [{"timestamp": 10 * i, "hash_ids": ids} for i, ids in enumerate([[1, 2], [3, 4], [1, 2], [3, 4]])]
        path = self.trace(*map(json.dumps, lines))
        report = replay("--trace", path, "--compare", "lru,fifo", "--blocks", "5,2,3,4,3,1000000000")
        self.assertEqual((report["requests"], report["block_references"], report["distinct_blocks"]), (4, 8, 4))
        self.assertEqual(report["capacities"], [2, 3, 4, 5, 1_000_000_000])
        self.assertEqual(list(report["policies"]), ["lru", "fifo"])
        self.assertEqual(report["trace"], str(path))
        # A prompt takes a block more, for a token of its own: two are too few, three hold nothing of the prompt before,
        # in four the first block of that one stays.
        for points in (*report["policies"].values(), report["oracle"]):
            self.assertEqual([point["hit_blocks"] for point in points], [0, 0, 2, 4, 4])
            self.assertEqual([point["refused_requests"] for point in points], [4, 0, 0, 0, 0])
        # A cache that may skip the second prompt keeps the first, or a block of each of two.
        self.assertEqual([point["hit_blocks"] for point in report["bound"]], [0, 2, 3, 4, 4])

    def test_table(self):
        path = self.folder / "report.json"
        done = run("--compare", "lru", "fifo", "--limit", 500, "--blocks", "700,2000", "--json", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(path.read_text())
        rows = {fields[0]: fields[1:] for fields in map(str.split, done.stdout.splitlines()) if fields}
        self.assertEqual(rows["blocks"], ["700", "2000"])
        for column in range(2):
            hits = {policy: points[column] for policy, points in report["policies"].items()}
            most = max(point["hit_blocks"] for point in hits.values())
            for policy, point in hits.items():
                mark = "*" if point["hit_blocks"] == most else ""
                self.assertEqual(rows[policy][column], f"{point['hit_ratio']:.4f}{mark}")
            for name in ("oracle", "bound"):
                self.assertEqual(rows[name][column], f"{report[name][column]['hit_ratio']:.4f}")

    def test_progress_on_a_terminal(self):
        ours, theirs = pty.openpty()
        command = [REPLAY, "--compare", "lru", "fifo", "--limit", "100", "--json", self.folder / "report.json"]
        program = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        shown = b""
        with open(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # so ends a terminal
            while part := terminal.read(4096):
                shown += part
        self.assertEqual(program.wait(), 0)
        percentages = [int(number) for number in re.findall(rb"(\d+) %", shown)]
        self.assertEqual(percentages, sorted(set(percentages)))
        self.assertEqual(percentages[-1], 100)
        self.assertTrue(shown.endswith(b"\r\033[K"))

    def test_empty_trace(self):
        report = replay("--trace", self.trace(), "--compare", "lru")
        self.assertEqual((report["requests"], report["capacities"]), (0, [1]))
        self.assertEqual(report["policies"]["lru"][0]["hit_ratio"], 0)

    @needs_conversations
    def test_conversation_trace(self):
        report = replay("--trace", CONVERSATIONS, "--compare", "--blocks", "9139,18279,50000")
        self.assertEqual((report["requests"], report["block_references"]), (12_031, 288_500))
        self.assertEqual(report["distinct_blocks"], 182_790)
        found = {policy: hit_ratios(points) for policy, points in report["policies"].items()}
        for blocks, ratio in {9_139: 0.1958, 18_279: 0.2789, 50_000: 0.3546}.items():
            self.assertAlmostEqual(found["lru"][blocks], ratio, delta=0.0005)
        # Published for a FIFO that evicts a block before those which continue it; to take leaves first does better.
        for blocks, ratio in {9_139: 0.175, 18_279: 0.248}.items():
            self.assertGreater(found["fifo"][blocks], ratio)
            self.assertLess(found["fifo"][blocks], found["lru"][blocks])
        self.assertAlmostEqual(hit_ratios(report["oracle"])[18_279], 0.366, delta=0.0005)
        self.check_bounds(report)


class Plot(TemporaryFolder):
    def draw(self, *arguments):
        prefix = self.folder / "hits of 'mine'"
        done = run("--compare", *arguments, "--plot", prefix)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [pathlib.Path(f"{prefix}.{suffix}") for suffix in ("svg", "png")]

    def check_svg(self, path, policies, title):
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertEqual(root.tag, f"{SVG}svg")
        curves = [group for group in root.iter(f"{SVG}g") if re.fullmatch(r"gnuplot_plot_\d+", group.get("id", ""))]
        self.assertCountEqual([curve.find(f"{SVG}title").text for curve in curves], [*policies, "oracle", "bound"])
        for curve in curves:
            self.assertTrue(list(curve.iter(f"{SVG}path")))
        texts = ["".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")]
        for name in (*policies, "oracle", "bound"):
            self.assertIn(name, texts)
        for part in (title, "capacity of the pool", "hit ratio"):
            self.assertTrue(any(part in text for text in texts), (part, texts))

    @needs_gnuplot
    def test_every_policy(self):
        svg, png = self.draw("--limit", 500)
        self.check_svg(svg, choices("eviction"), "generated requests")
        head = png.read_bytes()[:24]
        self.assertEqual(head[:8], b"\x89PNG\r\n\x1a\n")
        self.assertGreaterEqual(struct.unpack(">II", head[16:24]), (960, 600))

    @needs_gnuplot
    def test_names_the_trace(self):
        path = self.trace('{"hash_ids": [1]}', '{"hash_ids": [1, 2]}').rename(self.folder / "it's <a> & {b}_c.jsonl")
        svg, _ = self.draw("lru", "--trace", path)
        self.check_svg(svg, ["lru"], path.name)

    @needs_gnuplot
    def test_lines_differ_without_colours(self):
        svg, _ = self.draw("--limit", 200)
        script = svg.with_suffix(".gnuplot").read_text()
        looks = re.findall(r"pointtype (\d+) pointsize \S+ dashtype (\S+)", script)
        self.assertEqual(len(looks), len(choices("eviction")))
        for part in zip(*looks):
            self.assertEqual(len(set(part)), len(part))

    def test_without_gnuplot(self):
        prefix, report = self.folder / "plot", self.folder / "report.json"
        path = {**ENVIRONMENT, "PATH": str(self.folder)}
        done = run("--compare", "lru", "--limit", 100, "--json", report, "--plot", prefix, environment=path)
        self.assertEqual(done.returncode, 3)
        self.assertRegex(done.stderr, r"\Areplay: --plot needs gnuplot, which is not installed.*\n\Z")
        self.assertIn("lru", done.stdout)
        self.assertIn("lru", json.loads(report.read_text())["policies"])

    def test_unwritable(self):
        prefix = self.folder / "no" / "plot"
        done = run("--compare", "lru", "--limit", 100, "--plot", prefix)
        self.assertEqual(done.returncode, 3)
        self.assertIn(str(prefix), done.stderr)
        self.assertIn("lru", done.stdout)


class BadInput(TemporaryFolder):
    def check(self, *arguments, names):
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        for name in names:
            self.assertIn(name, done.stderr)

    def test_names_and_capacities(self):
        self.check("--compare", "lru,random", names=["--compare", "random", "fifo"])
        for capacities in ("0", "100,0", "100,-5", "100,many", str(2**31)):
            with self.subTest(capacities=capacities):
                self.check("--compare", "lru", "--blocks", capacities, names=["--blocks", capacities.split(",")[-1]])

    def test_options_that_do_not_go_together(self):
        for option in ("--eviction=lru", "--locking=rw_lock", "--element=int8", "--concurrency=2", "--decode",
                       "--block-size=16"):
            with self.subTest(option=option):
                self.check("--compare", "lru", option, names=["--compare", option.split("=")[0]])
        self.check("--plot", self.folder / "plot", names=["--plot", "--compare"])
        self.check("--blocks", "100,200", names=["--blocks", "--compare"])

    def test_unreadable_trace(self):
        self.check("--compare", "lru", "--trace", self.folder / "missing.jsonl", names=["missing.jsonl"])


if __name__ == "__main__":
    unittest.main()
