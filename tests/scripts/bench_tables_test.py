"""The programs of benchmarks have those that tables of documents name."""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "scripts" / "lib"))
import bench_results  # noqa: E402
import bench_tables  # noqa: E402


class BenchTables(unittest.TestCase):
    def test_programs_have_the_benchmarks_of_all_cells(self):
        named = {(area.split()[0], benchmark) for area, benchmark, _ in bench_tables.figures()}
        for program in {area for area, _ in named} - {"engine"}:  # which has several
            path = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "bench" / f"{program}_bench"
            listed = subprocess.run([path, "--benchmark_list_tests=true"], check=True, capture_output=True, text=True).stdout.splitlines()
            found = {bench_results.plain(name) for name in listed}
            self.assertEqual({benchmark for area, benchmark in named if area == program} - found, set(), program)


if __name__ == "__main__":
    unittest.main()
