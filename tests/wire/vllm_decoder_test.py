"""Events on the wire against msgspec, with which vLLM encodes and decodes them, and its structs of both encodings."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "build" / "python"))  # of scripts/install
try:
    import msgspec
except ImportError:
    msgspec = None

PROGRAM = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "tests" / "wire" / "wire_bytes"


def structs(array_like):
    """The structs of events, whose fields and defaults are those of vLLM 0.33, and the struct of a batch of them."""

    def event(name, required, optional=()):
        fields = [*required, *[(field, kind | None, None) for field, kind in optional]]
        return msgspec.defstruct(name, fields, tag=True, omit_defaults=True, array_like=array_like)

    block_hash = int | bytes
    place = [("locality", str), ("ownership", str)]
    stored = event(
        "BlockStored",
        [
            ("block_hashes", list[block_hash]),
            ("parent_block_hash", block_hash | None),
            ("token_ids", list[int]),
            ("block_size", int),
            ("lora_id", int | None),
            ("medium", str | None),
            ("lora_name", str | None),
        ],
        [
            ("extra_keys", list[tuple | None]),
            ("group_idx", int),
            ("kv_cache_spec_kind", str),
            ("kv_cache_spec_sliding_window", int),
            *place,
            ("session_id", str),
            ("lookahead_token_ids", list[list[int]]),
        ],
    )
    removed = event(
        "BlockRemoved", [("block_hashes", list[block_hash]), ("medium", str | None)], [("group_idx", int), *place]
    )
    cleared = event("AllBlocksCleared", [])
    batch = msgspec.defstruct(
        "Batch",
        [("ts", float), ("events", list[stored | removed | cleared]), ("data_parallel_rank", int | None, None)],
        array_like=True,
        omit_defaults=True,
    )
    return stored, removed, cleared, batch


def run(*arguments, given=b""):
    return subprocess.run([PROGRAM, *arguments], input=given, capture_output=True, check=True).stdout


class Encoding:
    """One encoding of vLLM's."""

    def test_its_decoder_takes_our_batches(self):
        stored, removed, cleared, batch = structs(self.array_like)
        decoded = msgspec.msgpack.decode(run("write", self.name), type=batch)
        tokens = [7, 70_000]
        latent = {"extra_keys": [(9,)], "group_idx": 1, "kv_cache_spec_kind": "mla_attention"}
        self.assertEqual(
            decoded.events,
            [
                stored([1, 2**64 - 1], None, tokens * 2, 2, None, "GPU", None, extra_keys=[None, None]),
                stored(
                    [1, 2**64 - 1],
                    None,
                    tokens * 2,
                    2,
                    3,
                    "GPU",
                    "french",
                    extra_keys=[("french",), ("french", 1, 7, 8)],
                ),
                stored([1], None, tokens, 2, None, "GPU", None, **latent),
                removed([1], "GPU"),
                cleared(),
                removed([2], "GPU", group_idx=1),
            ],
        )
        self.assertEqual((decoded.ts, decoded.data_parallel_rank), (0.5, 5))

    def test_we_read_what_its_encoder_writes(self):
        stored, removed, cleared, batch = structs(self.array_like)
        latest = {"group_idx": 2, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 4096}
        latest |= {"locality": "LOCAL", "ownership": "file", "session_id": "a", "lookahead_token_ids": [[7, 8]]}
        events = [
            stored([1, 2], 9, [1, 2, 3, 4], 2, None, "GPU", None, extra_keys=[None, ("salt", 3)]),
            stored([3], None, [5, 6], 2, 1, "CPU", "french", **latest),
            stored([4, 5], None, [], 0, None, "CPU", None),
            removed([1], None),
            removed([3], "CPU", group_idx=2, locality="REMOTE"),
            cleared(),
        ]
        read = json.loads(run("read", given=msgspec.msgpack.encode(batch(0.5, events, 5))))
        self.assertEqual((read["timestamp"], read["rank"], read["unknown"]), (0.5, 5, 0))
        kinds = [(event["kind"], event["hashes"], event["medium"], event["group"]) for event in read["events"]]
        self.assertEqual(
            kinds,
            [
                ("stored", [1, 2], "GPU", 0),
                ("stored", [3], "CPU", 2),
                ("stored", [4, 5], "CPU", 0),
                ("removed", [1], "", 0),
                ("removed", [3], "CPU", 2),
                ("cleared", [], "", 0),
            ],
        )
        contents = [(event["parent"], event["tokens"], event["block_size"], event["adapter"]) for event in read["events"]]
        self.assertEqual(contents[:3], [(9, [1, 2, 3, 4], 2, ""), (None, [5, 6], 2, "french"), (None, [], 0, "")])


needs_msgspec = unittest.skipUnless(msgspec, "msgspec is not here: scripts/install takes it from PyPI")


@needs_msgspec
class ArraysTest(Encoding, unittest.TestCase):
    name, array_like = "arrays", True


@needs_msgspec
class MapsTest(Encoding, unittest.TestCase):
    name, array_like = "maps", False


if __name__ == "__main__":
    unittest.main()
