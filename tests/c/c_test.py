"""A program in C11 uses pagedkv/c/pagedkv.h with caches of several kinds."""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
CXX = shlex.split(os.environ["PAGEDKV_COMPILER"])
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
INCLUDE = f"-I{SOURCE_ROOT / 'include'}"
IMPLEMENTATION = SOURCE_ROOT / "include" / "pagedkv" / "c" / "pagedkv.cpp"
BFLOAT16_LOCK_FREE = [
    "-DPAGEDKV_C_CACHE=pagedkv::kv_cache<pagedkv::bfloat16, pagedkv::lock_free, pagedkv::clock_sweep>",
    "-DPAGEDKV_C_HEADER=<lock_free_clock_sweep.hpp>",
]
HEADERS = "#include <pagedkv/policy/eviction/clock_sweep.hpp>\n#include <pagedkv/policy/locking/lock_free.hpp>\n"


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)


class EngineInC(unittest.TestCase):
    def setUp(self):
        self.c = shutil.which("cc")
        if not self.c:
            self.skipTest("there is no C compiler")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def build_and_run(self, *options, of_engine=()):
        engine, cache, program = self.folder / "engine.o", self.folder / "cache.o", self.folder / "engine"
        run(self.c, "-std=c11", *WARNINGS, *of_engine, INCLUDE, "-c", "-o", engine, pathlib.Path(__file__).with_name("engine.c"))
        run(*CXX, "-std=c++20", *WARNINGS, *options, INCLUDE, "-c", "-o", cache, IMPLEMENTATION)
        run(*CXX, "-o", program, engine, cache, "-lxxhash", "-pthread")
        run(program)

    def test_the_default_cache(self):
        self.build_and_run()

    def test_a_cache_of_ones_own_without_exceptions(self):
        (self.folder / "lock_free_clock_sweep.hpp").write_text(HEADERS)
        self.build_and_run("-fno-exceptions", "-fno-rtti", f"-I{self.folder}", *BFLOAT16_LOCK_FREE)

    def test_a_cache_whose_scales_the_engine_gives(self):
        # The 16-bit numbers that the engine writes stay within a block of bytes, too.
        self.build_and_run("-DPAGEDKV_C_CACHE=pagedkv::kv_cache<pagedkv::float8_e4m3>", of_engine=["-DHAS_SCALES"])


if __name__ == "__main__":
    unittest.main()
