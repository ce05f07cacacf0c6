"""Results of benchmarks are read, compared and set in tables."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "scripts" / "lib"))
import bench_results  # noqa: E402


def entry(name, time, **more):
    return {"name": name, "run_name": name, "real_time": time, "time_unit": "us", **more}


class BenchResults(unittest.TestCase):
    def read(self, *entries):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.json"
            path.write_text(json.dumps({"benchmarks": entries}))
            return bench_results.read_report(path)

    def test_medians_count_and_what_was_skipped_does_not(self):
        found = self.read(
            entry("pop/8", 2.0, aggregate_name="mean"),
            entry("pop/8", 3.0, aggregate_name="median", items_per_second=1e6),
            entry("once", 1.0),
            entry("absent", 0.0, skipped=True),
            entry("broken", 0.0, error_occurred=True),
        )
        self.assertEqual(found, {"pop/8": {"nanoseconds": 3000.0, "items_per_second": 1e6}, "once": {"nanoseconds": 1000.0}})

    def test_ratios_are_of_times_of_the_same_name(self):
        new, old = self.read(entry("a", 3.0), entry("b", 1.0)), self.read(entry("a", 2.0), entry("c", 1.0))
        self.assertEqual(bench_results.ratios(new, old), {"a": 1.5})
        self.assertIn("| `a` | 3 µs |  | 1.50 |", bench_results.table(new, old))
        self.assertIn("| `b` | 1 µs |  | new |", bench_results.table(new, old))

    def test_lines_of_a_plot_have_several_points(self):
        found = self.read(
            entry("pop/8/real_time/threads:1", 1.0),
            entry("pop/8/real_time/threads:4", 2.0),
            entry("append/16", 1.0),
            entry("append/64", 2.0),
            entry("alone/1", 1.0),
        )
        lines = {key: [x for x, _ in points] for key, points in bench_results.series(found).items()}
        self.assertEqual(lines, {("threads", "pop/8"): [1, 4], ("argument", "append"): [16, 64]})
