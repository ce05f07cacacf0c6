"""Reports of device programs become tables; the named ones and the plots name shapes and operations that the programs have."""

import copy
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import bench_results  # noqa: E402
import bench_tables  # noqa: E402
import device_tables  # noqa: E402
import report_rows  # noqa: E402


def decoded(element, microseconds, share, **more):
    shape = {"shape": "8 x 1024", "query_heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16}
    times = {"microseconds": microseconds, "graph_microseconds": microseconds - 2}
    return shape | times | {"library": "pagedkv", "element": element, "share_of_ceiling": share} | more


def multiplied(shape, element, microseconds, rate, **more):
    shape = {"shape": shape, "query_heads": 128, "kv_heads": 1, "element": element, "expanded": False}
    times = {"microseconds": microseconds, "graph_microseconds": microseconds / 2}
    return shape | times | {"library": "pagedkv", "operations_per_second": rate} | more


def prefixed(plan, prefixes, speed):
    shape = {"shape": "4 x (64 + 1)", "query_heads": 64, "kv_heads": 8, "element": "int8"}
    return shape | {"plan": plan, "prefixes": prefixes, "speed_of_flat": speed}


def listed(lists, percent):
    shape = {"shape": "8 x 1024", "element": "int8", "lists": lists, "percent": percent}
    return shape | {"all_microseconds": 20.0, "microseconds": percent / 5, "share_of_all": percent / 100}


THEIRS = {"library": "flashinfer", "variant": "fa2"}
REFUSED = THEIRS | {"variant": "refuses", "microseconds": None, "graph_microseconds": None}
UNMEASURED = REFUSED | {"variant": "not measured"}
REPORT = {
    "machine": {"device": "A GPU", "driver": "1.2", "compiler": "CUDA 3", "date": "2026-01-02"},
    "bandwidth": [
        {"operation": "device copy", "mebibytes": size, "bytes_per_second": 2e12 + size * 1e9, "ratio": 1.0} for size in (64, 256, 1024)
    ],
    "resize": [{"change": "grow", "microseconds": 16100.0, "own_microseconds": 2.1}],
    "peer": [
        {"layout": layout, "block_bytes": 16384, "copied_bytes_per_second": 4e11, "bytes_per_second": 3e11}
        for layout in ("layer major", "block major")
    ],
    "attention": {
        "read_ceiling": 3.1e12,
        "flashinfer": "9.8",
        "results": [
            decoded("bfloat16", 20.0, 0.6),
            decoded("int8", 15.0, 0.4),
            decoded("float8_e4m3", 16.0, 0.3),
            decoded("bfloat16", 30.0, 0.4, **THEIRS),
            decoded("float8_e4m3", 16.0, 0.3) | REFUSED,
        ],
        "products": [
            multiplied("MLA ramp", "bfloat16", 10.0, 5e14),
            multiplied("MLA ramp", "float8_latent", 12.0, 4e14),
            multiplied("prefill 2 x 8", "bfloat16", 10.0, 6e14),
            multiplied("prefill 2 x 8", "int8", 12.0, 5e14),
            multiplied("prefill 2 x 8", "float8_e4m3", 11.0, 5.5e14, expanded=True),
            multiplied("MLA ramp", "bfloat16", 12.5, 4e14, **THEIRS),
            multiplied("prefill 2 x 8", "bfloat16", 10.0, 6e14) | REFUSED,
        ],
        "prefixes": [prefixed("flat", 0, 1.0), prefixed("cascade", 1, 1.38), prefixed("cascade in a graph", 1, 1.36)],
        "lists": [listed(lists, percent) for lists in ("rows", "KV heads") for percent in (5, 10, 25, 100)],
    },
    "device_step": {
        "read_rate": 4e12,
        "rows": [{"sequences": 8, "seconds": 0.005, "seconds_in_cache": 27e-6, "bytes": 16e9}],
        "transformers_version": "7.6",
        "transformers": [{"sequences": 8, "seconds": 0.01}],
    },
}
ROWS = {
    "device_moves": "| device copy | 2,064, 1 | 2,256, 1 | 3,024, 1 |",
    "device_changes": "| grow | 16.1 ms | 2.10 µs |",
    "device_peers": "| 16,384 | 400, 300, 0.750 | 400, 300, 0.750 |",
    "device_decode": "| 8 x 1024 | 32/8 | 128 | 16 | 20 µs, 0.600 | 15 µs, 0.400 | 16 µs, 0.300 |",
    "device_flashinfer": "| 8 x 1024 | 32/8 | 128 | 16 | 20 µs, 30 µs, 1.50 | 16 µs, refuses |",
    "device_graphs": "| 8 x 1024 | 32/8 | 128 | 16 | 18 µs | 28 µs | 1.56 |",
    "device_prompts": "| 2 x 8 | 128/1 | 600 | 500 |  |  | 550 |",
    "device_latent": "| ramp | 128/1 | 500 | 400 |",
    "device_flashinfer_products": "| MLA ramp | 128/1 | 500 | 400 | 1.25 |",
    "device_prefixes": "| 4 x (64 + 1) | 1.38, 1.36 |",
    "device_lists": "| 8 x 1024 | int8 | 20 µs | 1 µs, 1 µs | 0.0500, 0.0500 | 0.100, 0.100 | 0.250, 0.250 | 1, 1 |",
    "device_step": "| 8 | 5 ms | 16 | 0.800 | 27 µs | 1,600 |",
    "device_transformers": "| 8 | 5 ms | 10 ms | 2 |",
}
NAMED = bench_tables.figures(device_tables.TABLES, device_tables.PLOTS)
WITHOUT_SHAPES = {"device_moves", "device_changes", "device_step"}


def read(report):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "results.json"
        path.write_text(json.dumps(report))
        return bench_results.read([path])[0]


class DeviceTables(unittest.TestCase):
    def test_a_report_gives_the_tables(self):
        made, _ = bench_tables.tables(read(REPORT))
        self.assertEqual({name: table.splitlines()[4] for name, table in made.items()}, ROWS)
        for name, table in made.items():
            self.assertRegex(table, r"^A GPU, driver 1\.2, CUDA 3, 2026-01-02[;:]", name)
        self.assertIn("| prefill 2 x 8 | 128/1 | 600 | refuses |  |", made["device_flashinfer_products"])
        self.assertIn("; read ceiling 3,100 GB/s; FlashInfer 9.8:\n", made["device_flashinfer"])
        self.assertIn("; read rate 4,000 GB/s:\n", made["device_step"])

    def test_a_prefix_that_is_not_shared_is_flat(self):
        report = copy.deepcopy(REPORT)
        report["attention"]["prefixes"] = [prefixed("cascade", 0, 0.99), prefixed("cascade in a graph", 0, 0.96)]
        self.assertIn("| 4 x (64 + 1) | flat, 0.960 |", bench_tables.tables(read(report))[0]["device_prefixes"])

    def test_peers_that_did_not_run_leave_their_tables(self):
        report = copy.deepcopy(REPORT)
        del report["attention"]["flashinfer"], report["device_step"]["transformers"]
        made, lacking = bench_tables.tables(read(report))
        self.assertEqual(set(ROWS) - set(made), {"device_flashinfer", "device_flashinfer_products", "device_graphs", "device_transformers"})
        self.assertEqual(set(lacking), {"device_expected", "device_expected_moves"})
        self.assertEqual(device_tables.draw_peer(read(report), pathlib.Path("never.svg")), [])

    def test_rows_that_a_peer_did_not_reach_are_left_out(self):
        report = copy.deepcopy(REPORT)
        report["attention"]["results"][-1] |= UNMEASURED
        report["attention"]["results"] += [decoded("bfloat16", 9.0, 0.1, shape="1 x 1"), decoded("bfloat16", 9.0, 0.1, shape="1 x 1") | UNMEASURED]
        report["attention"]["products"][-1] |= UNMEASURED
        report["device_step"]["transformers"][0]["seconds"] = None
        made, _ = bench_tables.tables(read(report))
        self.assertEqual(made["device_flashinfer"].splitlines()[4:], ["| 8 x 1024 | 32/8 | 128 | 16 | 20 µs, 30 µs, 1.50 | 16 µs, not measured |"])
        self.assertEqual(len(made["device_flashinfer_products"].splitlines()), 5)
        self.assertIn("| 8 | 5 ms | not measured |  |", made["device_transformers"])

    def test_a_missing_figure_is_told(self):
        report = copy.deepcopy(REPORT)
        attention = report["attention"]
        attention["results"] = [each for each in attention["results"] if (each["library"], each["element"]) != ("flashinfer", "float8_e4m3")]
        attention["products"] = [each for each in attention["products"] if each["element"] != "float8_latent"]
        attention["lists"].pop()
        report["bandwidth"].pop()
        report["device_step"]["rows"].append(report["device_step"]["rows"][0] | {"sequences": 64})
        made, lacking = bench_tables.tables(read(report))
        lacks = {"device_flashinfer", "device_latent", "device_lists", "device_moves", "device_transformers"}
        self.assertEqual(lacks, set(ROWS) - set(made))
        self.assertLessEqual(lacks, set(lacking))
        self.assertEqual(lacking["device_flashinfer"][2], "float8_e4m3_peer_us")

    def test_programs_that_did_not_run_leave_their_tables(self):
        made, lacking = bench_tables.tables(read({"machine": REPORT["machine"], "resize": REPORT["resize"]}))
        self.assertEqual(list(made), ["device_changes"])
        self.assertEqual(list(lacking), ["device_expected_moves"])

    def test_ratios_are_of_numbers(self):
        results = read(REPORT)
        found = bench_results.ratios(results["device_decode"], results["device_decode"])
        self.assertEqual(set(found.values()), {1.0})

    def test_shapes_that_are_named_exist(self):
        sources = "".join((ROOT / "bench" / "kernels" / name).read_text() for name in ("attention.cpp", "attention_shapes.txt"))
        prefixes = {"device_prompts": "prefill ", "device_latent": "MLA "}
        named = [(area, benchmark.split(report_rows.SEPARATOR)[0]) for area, benchmark, _ in NAMED]
        shapes = {prefixes.get(area, "") + shape for area, shape in named if area not in WITHOUT_SHAPES}
        self.assertTrue(shapes)
        for shape in shapes:
            self.assertRegex(sources, rf'"{re.escape(shape)}"|(?m:^{re.escape(shape)} \|)')


if __name__ == "__main__":
    unittest.main()
