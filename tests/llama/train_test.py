"""The training of the small model in examples/llama/model: what it makes is the same in every run."""

import gzip
import importlib.util
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
FOLDER = SOURCE_ROOT / "examples" / "llama"
DICTIONARY = pathlib.Path("/usr/share/dictd")  # of Debian's package dict-jargon
PACKAGES = [SOURCE_ROOT / "build" / "python", FOLDER]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

# The real sizes take minutes a step on a processor.
SMALL = """
import train
train.CONTEXT = 64
train.CONFIG.update(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
train.main()
"""


def is_here(package):
    path, sys.path = sys.path, [*map(str, PACKAGES), *sys.path]
    try:
        return importlib.util.find_spec(package) is not None
    finally:
        sys.path = path


def run(program, *arguments, seed):
    """Python's output, with so seeded hashes. One thread: several wait for each other where others work."""
    path = os.pathsep.join(map(str, PACKAGES))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-B", "-c", program, *map(str, arguments)], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


def number_text(value):
    text = LETTERS[value % 64]
    while value := value // 64:
        text = LETTERS[value % 64] + text
    return text


def write_dictionary(folder):
    """120 entries of 100 words that mean nothing, in the format of dictd."""
    generator = random.Random(1)
    words = ["".join(generator.choices(LETTERS[26:52], k=generator.randrange(2, 9))) for _ in range(200)]
    text, index = b"", []
    for word in words[:120]:
        entry = f"{word}\n{' '.join(generator.choices(words, k=100))}.\n".encode()
        index.append(f"{word}\t{number_text(len(text))}\t{number_text(len(entry))}\n")
        text += entry
    (folder / "jargon.index").write_text("".join(index))
    (folder / "jargon.dict.dz").write_bytes(gzip.compress(text))


@unittest.skipUnless(is_here("tokenizers") and is_here("safetensors") and is_here("torch"), "torch, tokenizers or safetensors is not here")
class Training(unittest.TestCase):
    def test_two_runs_make_the_same_files(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            write_dictionary(folder)
            made = []
            for seed in (1, 2):
                run(SMALL, folder, folder / str(seed), "--epochs", 2, seed=seed)
                made.append({file.name: file.read_bytes() for file in (folder / str(seed)).iterdir()})
        self.assertEqual(sorted(made[0]), ["config.json", "model.safetensors", "tokenizer.json"])
        self.assertEqual(made[0], made[1])

    @unittest.skipUnless((DICTIONARY / "jargon.index").exists(), "Debian's package dict-jargon is not here")
    def test_the_tokenizer_is_that_of_the_model(self):
        program = f"import pathlib, train; print(train.train_tokenizer(train.read_entries(pathlib.Path('{DICTIONARY}'))).to_str(), end='')"
        self.assertEqual(run(program, seed=1), (FOLDER / "model" / "tokenizer.json").read_text())


if __name__ == "__main__":
    unittest.main()
