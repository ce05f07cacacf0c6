"""Results of benchmarks are read, compared and set in tables; those of documents name benchmarks that exist."""

import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
sys.path[:0] = [str(ROOT / "scripts" / "lib"), str(ROOT / "bench" / "peers")]
import bench_results  # noqa: E402
import bench_tables  # noqa: E402
import device_tables  # noqa: E402
import managers  # noqa: E402
import peer_tables  # noqa: E402


def entry(name, time, **more):
    return {"name": name, "run_name": name, "real_time": time, "time_unit": "us", "iterations": 5, "threads": 1, **more}


class BenchResults(unittest.TestCase):
    def read(self, *reports):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / f"{i}.json" for i in range(len(reports))]
            for path, report in zip(paths, reports):
                path.write_text(json.dumps(report))
            return bench_results.read(paths)

    def figures(self, *entries):
        results, _ = self.read({"context": {"executable": "./cache_bench"}, "benchmarks": entries})
        return results["cache"]

    def test_medians_count(self):
        found = self.figures(
            entry("pop/8", 1.0),
            entry("pop/8", 2.0, aggregate_name="mean"),
            entry("pop/8", 3.0, aggregate_name="median", items_per_second=1e6),
            entry("once", 1.0),
        )
        self.assertEqual(found, {"pop/8": {"ns": 3000.0, "items_per_second": 1e6}, "once": {"ns": 1000.0}})

    def test_counters_of_times_replace_the_time_of_an_iteration(self):
        found = self.figures(
            entry("look_up/iterations:1", 9e6, find_us=16.0, ratio=1.5),
            entry("serve/iterations:3", 9e6, us_per_request=2.0),
            entry("count/iterations:1", 9e6, bytes=3.0),
            entry("decode/iterations:8/manual_time", 1.0, share_of_read=0.8),
        )
        self.assertEqual(found["look_up/iterations:1"], {"find_us": 16.0, "ratio": 1.5})
        self.assertEqual(found["serve/iterations:3"], {"us_per_request": 2.0})
        self.assertEqual(found["count/iterations:1"], {"bytes": 3.0})
        self.assertEqual(found["decode/iterations:8/manual_time"], {"ns": 1000.0, "share_of_read": 0.8})

    def test_reports_and_stored_results_are_merged(self):
        one = {"context": {"executable": "bench/backend_bench", "cores": "2"}, "benchmarks": [entry("a", 1.0)]}
        results, _ = self.read(one, {"cache": {"b": {"ns": 1.0}}}, {"cache": {"c": {"ns": 2.0}}})
        self.assertEqual(results, {"backend on 2": {"a": {"ns": 1000.0}}, "cache": {"b": {"ns": 1.0}, "c": {"ns": 2.0}}})

    def test_errors_are_told_and_only_what_lacks_something_is_absent(self):
        told = {"a": "a token did not fit", "b": "shared/conversation_trace.jsonl: cannot be read"}
        entries = [entry(name, 0.0, error_occurred=True, error_message=message) for name, message in told.items()]
        # One of several repetitions.
        entries += [entry("c", 1.0), entry("c", 0.0, error_occurred=True, error_message="refused")]
        _, errors = self.read({"context": {"executable": "cache_bench"}, "benchmarks": entries})
        self.assertEqual(errors, {"cache: a": told["a"], "cache: b": told["b"], "cache: c": "refused"})
        self.assertEqual([name for name, message in errors.items() if bench_results.ABSENT.search(message)], ["cache: b"])

    def test_ratios_are_of_figures_of_one_name(self):
        new, old = self.figures(entry("a", 9.0, find_us=3.0), entry("b", 1.0)), self.figures(entry("a", 1.0, find_us=2.0), entry("c", 1.0))
        self.assertEqual(bench_results.ratios(new, old), {("a", "find_us"): 1.5})
        self.assertIn("| `a` | find_us | 3 µs | 1.50 |", bench_results.table(new, old))
        self.assertIn("| `b` | ns | 1 µs | new |", bench_results.table(new, old))

    def test_lines_of_a_plot_have_several_points(self):
        found = self.figures(
            entry("pop/8/real_time/threads:1", 1.0),
            entry("pop/8/real_time/threads:4", 2.0),
            entry("append/16/iterations:1", 1.0, find_us=1.0, ratio=2.0),
            entry("append/64/iterations:1", 1.0, find_us=2.0, ratio=1.0),
            entry("alone/1", 1.0),
        )
        expected = {
            ("threads", "ns", "pop/8, ns"): [(1, 1000.0), (4, 2000.0)],
            ("argument", "ns", "append, find_us"): [(16, 1000.0), (64, 2000.0)],
            ("argument", "ratio", "append"): [(16, 2.0), (64, 1.0)],
        }
        self.assertEqual(bench_results.series(found), expected)


class BenchTables(unittest.TestCase):
    def test_the_benchmarks_of_all_cells_exist(self):
        for area, benchmark, figure in bench_tables.figures():
            folders = (area.split()[0], "support")
            sources = "".join(path.read_text() for folder in folders for path in (ROOT / "bench" / folder).glob("*.[ch]pp"))
            if area == "engine":  # without Google Benchmark
                for name in figure.split("."):
                    self.assertIn(f'{{"{name}", ', sources, f"{area}: {benchmark}")
                continue
            function = re.match(r"\w+", benchmark)[0]
            self.assertRegex(sources, rf'(BENCHMARK(_CAPTURE)?|PAGEDKV_FOR_ALL_POLICIES)\({function}\b|"{function}"', f"{area}: {benchmark}")
            if figure == "items_per_second":
                self.assertIn("SetItemsProcessed(", sources, f"{area}: {benchmark}")
            elif figure != "ns" or f"void {function}" not in sources:
                prefix = re.match(r"vs_|of_seed_|", figure)[0]
                setter = f'counters["{prefix}" +' if prefix else f'counters["{figure}"]'
                self.assertIn(setter, sources, f"{area}: {benchmark}")

    def test_the_rows_of_peers_that_are_named_are_measured(self):
        named = [name for area, name, _ in bench_tables.figures(peer_tables.TABLES, {}) if area == "peer_managers"]
        self.assertLessEqual(set(named), {title for title, _ in managers.ROWS})

    def test_pages_have_the_headings_and_rows(self):
        text = "".join(page.read_text() for page in bench_tables.pages(ROOT))
        tables = {name: [line for line in table.splitlines() if line.startswith("| ")] for _, name, table, _ in bench_tables.MARKED.findall(text)}
        found = {name: [line[2:-2].split(" | ") for line in lines] for name, lines in tables.items()}
        fixed = bench_tables.TABLES | device_tables.TABLES | peer_tables.TABLES
        self.assertEqual(sorted(found), sorted([*fixed, *device_tables.COLUMNS, device_tables.PREFIXES[0], *peer_tables.COLUMNS]))
        for name, (heading, rows) in fixed.items():
            self.assertEqual(found[name][0], heading)
            for cells, row in zip(found[name][2:], rows, strict=True):
                self.assertEqual([was if isinstance(cell, list) else cell for was, cell in zip(cells, row, strict=True)], cells)

    def test_pages_show_the_plots(self):
        text = "".join(page.read_text() for page in bench_tables.pages(ROOT))
        shown = re.findall(r"\]\(images/(\w+)\.svg\)", text)
        self.assertEqual(sorted(shown), sorted([*bench_tables.PLOTS, *device_tables.PLOTS, "flashinfer"]))
        for name in shown:
            self.assertTrue((ROOT / "docs" / "images" / f"{name}.svg").is_file())

    def test_a_table_without_all_figures_is_left(self):
        page = "<!-- table gain -->\n<!-- end -->\n\nText.\n\n<!-- table twin -->\nold\n<!-- end -->\n"
        results = {"cache": {"gain_of_releasing/1/iterations:1": {"ns": 4.2}, "gain_of_releasing/8/iterations:1": {"ns": 7.4}}}
        made, lacking = bench_tables.tables(results)
        self.assertIn("| one sequence | 4.20 ns |", bench_tables.insert(page, made))
        self.assertTrue(bench_tables.insert(page, made).endswith("<!-- end -->\n\nText.\n\n<!-- table twin -->\nold\n<!-- end -->\n"))
        self.assertIn("twin", lacking)
