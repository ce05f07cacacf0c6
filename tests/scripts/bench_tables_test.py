"""The programs of benchmarks have those that tables of documents name; those of devices, built for the host, fill their tables."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "scripts" / "lib"))
import bench_results  # noqa: E402
import bench_tables  # noqa: E402
import device_tables  # noqa: E402


class BenchTables(unittest.TestCase):
    def test_programs_have_the_benchmarks_of_all_cells(self):
        named = {(area.split()[0], benchmark) for area, benchmark, _ in bench_tables.figures()}
        for program in {area for area, _ in named} - {"engine"}:  # which has several
            path = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "bench" / f"{program}_bench"
            listed = subprocess.run([path, "--benchmark_list_tests=true"], check=True, capture_output=True, text=True).stdout.splitlines()
            found = {bench_results.plain(name) for name in listed}
            self.assertEqual({benchmark for area, benchmark in named if area == program} - found, set(), program)

    def test_programs_of_devices_fill_their_tables(self):
        report = {"machine": {"device": "a host", "driver": "", "compiler": "", "date": ""}}
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bandwidth", "resize", "attention"):
                path = pathlib.Path(folder) / f"{name}.json"
                program = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "bench" / "kernels" / f"kernel_{name}"
                subprocess.run([program, path], check=True, stdout=subprocess.DEVNULL)
                report[name] = json.loads(path.read_text())
        results = device_tables.results(report)
        made, lacking = bench_tables.tables(results)
        of_attention = {f"device_{name}" for name in ("decode", "prompts", "latent", "prefixes", "lists")}
        self.assertEqual(made.keys() - {"device_changes"}, of_attention, lacking)
        self.assertIn("device_changes", made)
        named = bench_tables.figures(device_tables.TABLES, device_tables.PLOTS)
        for area in ("device_moves", "device_changes"):
            self.assertEqual({name for of, name, _ in named if of == area} - results[area].keys(), set(), area)


if __name__ == "__main__":
    unittest.main()
