"""What bench/peers/managers.py prints of its measurements, and how the programs beside it say that an argument is missing."""

import os
import pathlib
import subprocess
import sys
import unittest

PEERS = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "bench" / "peers"
sys.path.insert(0, str(PEERS))
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

    def test_a_missing_argument_gives_the_usage(self):
        for name in ("fio_files", "llama_tokens", "store_values", "transformers_step"):
            with self.subTest(name):
                done = subprocess.run([PEERS / f"{name}.py"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("usage: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
