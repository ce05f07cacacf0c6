"""What bench/peers/managers.py prints of its measurements, what flashinfer_attention.py leaves when it is cut off, and how the programs
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
import flashinfer_attention  # noqa: E402
import managers  # noqa: E402


def round_of(scale, hits):
    found = {f"requests_{size}": {"request_us": 2.0 * scale, "step_us": 0.5 * scale, "hits": hits} for size in (16, 512)}
    found |= {f"{name}_{size}": 4.0 * scale for name in ("look_up", "replace") for size in (16, 512)}
    return found | {"batch_step": 8.0 * scale}


class PeersTest(unittest.TestCase):
    def test_the_best_round_counts_and_is_compared_with_ours(self):
        found = {"ours": [round_of(3, [1]), round_of(1, [1])], "other": [round_of(10, [1]), round_of(20, [1])]}
        lines = managers.table(found).splitlines()
        self.assertEqual(len(lines), 2 + len(managers.ROWS))
        self.assertEqual(lines[0], "| µs | ours | other | ratio to other |")
        self.assertIn("| a request, blocks of 16 | 2 | 20 | 10 |", lines)
        self.assertIn("| a token more in 1,024 rows of 8,192, with tables | 8 | 80 | 10 |", lines)

    def test_requests_with_other_hits_are_counted(self):
        found = {"ours": [round_of(1, [0, 16, 32])], "other": [round_of(1, [0, 16, 48])]}
        said = list(managers.same_hits(found))
        self.assertIn("Blocks of 16: ours found 48 tokens cached in 3 requests.", said)
        self.assertIn("other found 64, and another number in 1 requests.", said)

    def test_flashinfers_file_has_what_was_measured_before_it_was_cut_off(self):
        class Decoding:
            variants = ("only",)

            def __init__(self, torch, flashinfer, shape, workspace):
                self.shape = shape

            def run(self, variant):
                if self.shape["shape"] == "slow":
                    raise KeyboardInterrupt
                if self.shape["element"] == "float8_e4m3":
                    raise ValueError("no fp8")
                return 2e-6

        def shape(name, element):
            figures = {"microseconds": 1.0, "bytes_per_second": 4e12, "share_of_ceiling": 0.8}
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
        found = [(each["shape"], each["element"], each["variant"], each["microseconds"], each["share_of_ceiling"]) for each in both["results"][4:]]
        expected = [
            ("fast", "bfloat16", "only", 2.0, 0.4),
            ("fast", "float8_e4m3", "refuses", None, None),
            ("slow", "bfloat16", "not measured", None, None),
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
