"""What bench/peers/managers.py leaves of its measurements, what flashinfer_attention.py leaves when it is cut off, and how the programs
beside them say that an argument is missing."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

PEERS = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "bench" / "peers"
sys.path.insert(0, str(PEERS))
import fio_files  # noqa: E402
import flashinfer_attention  # noqa: E402
import managers  # noqa: E402
import records  # noqa: E402
import store_values  # noqa: E402

import bench_results  # noqa: E402
import bench_tables  # noqa: E402


def round_of(scale, hits):
    found = {f"requests_{size}": {"request_us": 2.0 * scale, "step_us": 0.5 * scale, "hits": hits} for size in (16, 512)}
    found |= {f"{name}_{size}": 4.0 * scale for name in ("look_up", "replace") for size in (16, 512)}
    return found | {"batch_step": 8.0 * scale}


class PeersTest(unittest.TestCase):
    def test_the_best_round_counts_and_is_compared_with_ours(self):
        found = {"ours": [round_of(3, [1]), round_of(1, [1])], "other": [round_of(10, [1]), round_of(20, [1])]}
        rows = managers.times(found)
        self.assertEqual(list(rows), [title for title, _ in managers.ROWS])
        self.assertEqual(rows["a request, blocks of 16"], {"ours_us": 2.0, "other_us": 20.0, "other_times": 10.0})
        self.assertEqual(rows["a token more in 1,024 rows of 8,192, with tables"], {"ours_us": 8.0, "other_us": 80.0, "other_times": 10.0})

    def test_requests_with_other_hits_are_counted(self):
        found = {"ours": [round_of(1, [0, 16, 32])], "other": [round_of(1, [0, 16, 48])]}
        figures = {"ours_tokens": 48, "other_tokens": 64, "other_differs": 1}
        self.assertEqual(managers.hits(found), {"blocks of 16 · 3": figures, "blocks of 512 · 3": figures})

    def test_a_report_gives_the_tables_of_its_areas(self):
        rounds = {name: [round_of(scale, [16])] for name, scale in (("pagedkv", 1), ("vLLM", 10), ("SGLang", 100))}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            path = pathlib.Path(folder) / "managers.json"
            records.report({"peer_managers": managers.times(rounds), "peer_hits": managers.hits(rounds)}, ["vLLM 1.2", "SGLang 3.4"], path)
            made, lacking = bench_tables.tables(bench_results.read([path])[0])
        self.assertEqual((set(made), lacking), ({"peer_managers", "peer_hits", "expected_managers"}, {}))
        self.assertRegex(made["peer_managers"], r"^.*, \d{4}-\d\d-\d\d; vLLM 1\.2; SGLang 3\.4:\n")
        self.assertIn("| a decode step, blocks of 16 | 500 ns | 5 µs | 50 µs | 10 | 100 |", made["peer_managers"])
        self.assertIn("| blocks of 512 | 1 | 16 | 16, 0 | 16, 0 |", made["peer_hits"])
        self.assertIn("| a decode step, blocks of 16 | 500 ns | 10 | 100 |  |", made["expected_managers"])

    def test_the_fastest_and_the_median_round_are_compared(self):
        rates = iter((1e9, 4e9, 3e9, 2e9, 2e9, 1e9) * 100)
        silent = contextlib.redirect_stdout(io.StringIO())
        with silent, mock.patch.multiple(fio_files, pagedkv=lambda *_: next(rates), fio=lambda *_: next(rates)):
            rows = fio_files.compare("program", "file", 3)
        expected = {"pagedkv_fastest": 3.0, "fio_fastest": 4.0, "ratio_fastest": 0.75, "pagedkv_median": 2.0, "fio_median": 2.0, "ratio_median": 1.0}
        self.assertEqual(rows["io_uring · read · 64 KiB · 32"], expected)
        self.assertEqual(len(rows), 2 * len(fio_files.ENGINES) * len(fio_files.SHAPES))

    def test_the_better_of_a_stores_two_benchmarks_counts(self):
        ours = mock.patch.object(store_values, "pagedkv", lambda *_: 30.0)
        theirs = mock.patch.object(store_values, "own_benchmark", lambda program, port, verb, size, connections, depth: float(connections))
        with ours, theirs, contextlib.redirect_stdout(io.StringIO()):
            rows = store_values.compare("program", "benchmark", 1, 1)
        self.assertEqual(rows["GET · 16 KiB"]["ratio_fastest"], 0.6)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            path = pathlib.Path(folder) / "store.json"
            records.report({"peer_store": rows}, ["store 1.2"], path)
            made, _ = bench_tables.tables(bench_results.read([path])[0])
        self.assertIn("| GET | 16 KiB | 30, 30 | 50, 50 | 1, 1 | 0.600, 0.600 |", made["peer_store"])

    def test_flashinfers_file_has_what_was_measured_before_it_was_cut_off(self):
        class Decoding:
            variants = ("calls", "graphs")

            def __init__(self, torch, flashinfer, shape, workspace):
                self.shape = shape

            def run(self, variant):
                if self.shape["shape"] == "slow":
                    raise KeyboardInterrupt
                if self.shape["element"] == "float8_e4m3":
                    raise ValueError("no fp8")
                return (2e-6, None) if variant == "calls" else (3e-6, 1e-6)

        def shape(name, element):
            figures = {"microseconds": 1.0, "graph_microseconds": 0.5, "bytes_per_second": 4e12, "share_of_ceiling": 0.8}
            return {"library": "pagedkv", "shape": name, "query_heads": 8, "kv_heads": 2, "head_dim": 64, "block_size": 16, "element": element} | figures

        shapes = [shape("fast", element) for element in ("bfloat16", "int8", "float8_e4m3")] + [shape("slow", "bfloat16")]
        packages = {"torch": mock.MagicMock(), "flashinfer": types.SimpleNamespace(__version__="9.8")}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "attention.json"
            path.write_text(json.dumps({"read_ceiling": 5e12, "results": shapes, "products": []}))
            with mock.patch.dict(sys.modules, packages), mock.patch.object(flashinfer_attention, "Decoding", Decoding):
                for _ in range(2):  # the second run starts from the file of the first
                    silent = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
                    with silent[0], silent[1], mock.patch.object(sys, "argv", ["", path, str(path)]), self.assertRaises(KeyboardInterrupt):
                        flashinfer_attention.main()
            both = json.loads(path.read_text())
        self.assertEqual(both["results"][:4], shapes)
        figures = ("shape", "element", "variant", "microseconds", "graph_microseconds", "share_of_ceiling")
        found = [tuple(each[figure] for figure in figures) for each in both["results"][4:]]
        expected = [
            ("fast", "bfloat16", "calls", 2.0, 1.0, 0.4),
            ("fast", "float8_e4m3", "refuses", None, None, None),
            ("slow", "bfloat16", "not measured", None, None, None),
        ]
        self.assertEqual(found, expected)

    def test_a_missing_argument_gives_the_usage(self):
        for name in ("fio_files", "llama_tokens", "store_values", "transformers_step"):
            with self.subTest(name):
                done = subprocess.run([PEERS / f"{name}.py"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("usage: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
