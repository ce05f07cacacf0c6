"""A program in C uses every function of pagedkv/c/pagedkv.h, with caches of several kinds; docs/c.md names them all."""

import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
BUILD_ROOT = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"])
CXX = shlex.split(os.environ["PAGEDKV_COMPILER"])
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
INCLUDE = f"-I{SOURCE_ROOT / 'include'}"
HEADER = SOURCE_ROOT / "include" / "pagedkv" / "c" / "pagedkv.h"
DOCUMENT = SOURCE_ROOT / "docs" / "c.md"
ENGINE = pathlib.Path(__file__).with_name("engine.c")
SHORT = ["-DPAGEDKV_C_ATTENTION=0"]  # to compile
WITHOUT_EXCEPTIONS = ["-fno-exceptions", "-fno-rtti"]
# Options of the compiler; then the names of element, locking, eviction and backend, the number of tiers, whether layers
# differ, and whether there is attention, as the program is to find them.
KINDS = {
    "plain": (["-DPAGEDKV_C_ELEMENT=float32", "-DPAGEDKV_C_LOCKING=single_thread"], "float32 single_thread lru host 0 0 1"),
    "groups": (
        ["-DPAGEDKV_C_GROUPS=1", "-DPAGEDKV_C_ELEMENT=float8_e4m3", "-DPAGEDKV_C_LOCKING=sharded_mutex", *SHORT, *WITHOUT_EXCEPTIONS],
        "float8_e4m3 sharded_mutex lru host 0 1 0",
    ),
    "tiers": (
        ["-DPAGEDKV_C_FILE_TIER=1", "-DPAGEDKV_C_ELEMENT=int8", "-DPAGEDKV_C_EVICTION=tiny_lfu", *SHORT],
        "int8 rw_lock tiny_lfu host 2 0 0",
    ),
    "group_tiers": (
        ["-DPAGEDKV_C_GROUPS=1", "-DPAGEDKV_C_FILE_TIER=1", "-DPAGEDKV_C_ELEMENT=float8_e4m3", *SHORT, *WITHOUT_EXCEPTIONS],
        "float8_e4m3 rw_lock lru host 2 1 0",
    ),
    "own_tensors": (
        ["-DPAGEDKV_C_BACKEND=copy_list", "-DPAGEDKV_C_LOCKING=basic_lock_free<std::atomic, count_contention>",
         "-DPAGEDKV_C_HEADER=<pagedkv/policy/locking/lock_free.hpp>", "-DPAGEDKV_C_EVICTION=clock_sweep",
         "-DPAGEDKV_C_PREEMPTION=no_preemption", "-DPAGEDKV_C_EVENTS=0", *SHORT, *WITHOUT_EXCEPTIONS],
        "float16 lock_free clock_sweep copy_list 0 0 0",
    ),
}


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


def functions():
    """Functions that the header declares."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    return re.findall(r"^(?:int|void|const char\*) (pagedkv_\w+)\(", text, flags=re.MULTILINE)


class EngineInC(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = shutil.which("cc")
        if not cls.c:
            raise unittest.SkipTest("there is no C compiler")
        # Files that stay, since a compiler cache remembers nothing of others.
        cls.folder = BUILD_ROOT / "tests" / "c_kinds"
        cls.folder.mkdir(parents=True, exist_ok=True)
        workers = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        cls.addClassCleanup(workers.shutdown)
        cls.engines = [workers.submit(cls.compile_engine, standard) for standard in ("c99", "c11")]
        cls.caches = {kind: workers.submit(cls.compile_cache, kind) for kind in KINDS}

    @classmethod
    def compile_engine(cls, standard):
        run(cls.c, f"-std={standard}", *WARNINGS, INCLUDE, "-c", "-o", cls.folder / f"engine_{standard}.o", ENGINE)
        return cls.folder / f"engine_{standard}.o"

    @classmethod
    def compile_cache(cls, kind):
        implementation = HEADER.with_suffix(".cpp")
        run(*CXX, "-std=c++20", *WARNINGS, *KINDS[kind][0], INCLUDE, "-c", "-o", cls.folder / f"{kind}.o", implementation)
        return cls.folder / f"{kind}.o"

    def run_with(self, kind, *libraries):
        program = self.folder / kind
        engine = self.engines[len(kind) % len(self.engines)].result()
        run(*CXX, "-o", program, engine, self.caches[kind].result(), "-lxxhash", "-pthread", *libraries)
        with tempfile.TemporaryDirectory() as folder:
            run(program, folder, *KINDS[kind][1].split())

    def test_a_cache_with_attention(self):
        self.run_with("plain")

    def test_the_program_in_the_document(self):
        text, program = self.folder / "document.c", self.folder / "document"
        text.write_text(re.search(r"^```c\n(.*?)^```", DOCUMENT.read_text(), flags=re.DOTALL | re.MULTILINE)[1])
        run(self.c, "-std=c11", *WARNINGS, INCLUDE, "-c", "-o", program.with_suffix(".o"), text)
        run(*CXX, "-o", program, program.with_suffix(".o"), self.caches["plain"].result(), "-lxxhash", "-pthread")
        self.assertEqual(run(program), "32 of 40 tokens are cached\n")

    def test_a_cache_with_groups_and_static_scales_without_exceptions(self):
        self.run_with("groups")

    def test_a_scaled_cache_with_tiers(self):
        self.run_with("tiers", "-luring")

    def test_a_cache_with_groups_and_tiers(self):
        self.run_with("group_tiers", "-luring")

    def test_a_cache_for_the_engines_tensors(self):
        self.run_with("own_tensors")


class Table(unittest.TestCase):
    """docs/c.md, the header and the classes that it is for do not drift apart."""

    def setUp(self):
        parts = re.split(r"^### (.+)$", DOCUMENT.read_text(), flags=re.MULTILINE)
        self.tables = dict(zip(parts[1::2], parts[2::2]))

    def cells(self, table, column):
        rows = re.findall(r"^\|(.*)\|$", self.tables[table], flags=re.MULTILINE)
        return {name for row in rows for name in re.findall(r"`([\w:]+)`", row.split("|")[column])}

    def operations(self, header, name):
        """Public member functions of a class."""
        text = re.sub(r"//[^\n]*", "", (SOURCE_ROOT / "include" / "pagedkv" / header).read_text())
        body = text[text.index(f"\nclass {name}") :]
        ends = [body.index(end) for end in ("\n protected:", "\n private:") if end in body]
        words = r"(?:\[\[nodiscard\]\] |static |constexpr )*[\w:<>&, *]+? &?"
        found = re.findall(rf"^  (?! ){words}(\w+)\([^;]*?\{{", body[body.index("\n public:") : min(ends)], flags=re.MULTILINE)
        return set(found) - {name}

    def test_each_operation_of_the_classes_has_a_row(self):
        kv_cache = self.operations("cache/kv_cache.hpp", "basic_kv_cache")
        self.assertGreater(len(kv_cache), 40)
        self.assertEqual(kv_cache - self.cells("kv_cache", 0), set())
        tiers = self.operations("tier/tiered_cache.hpp", "basic_tiered_cache")
        self.assertGreater(len(tiers), 20)
        self.assertEqual(tiers - kv_cache - self.cells("Tiers", 0), set())
        tracker = self.operations("requests/request_tracker.hpp", "request_tracker")
        self.assertGreater(len(tracker), 10)
        self.assertEqual(tracker - self.cells("request_tracker", 0), set())

    def test_each_function_has_a_row_and_no_row_another(self):
        rows = {name for table in self.tables for name in self.cells(table, 1) if name.startswith("pagedkv_")}
        types = set(re.findall(r"(\w+);$", HEADER.read_text(), flags=re.MULTILINE))
        self.assertGreater(len(functions()), 90)
        self.assertEqual({name.split("::")[0] for name in rows} - types, set(functions()))

    def test_each_function_is_called_by_the_engine(self):
        calls = set(re.findall(r"\b(pagedkv_\w+)\(", ENGINE.read_text()))
        self.assertEqual(set(functions()) - calls, set())

    def test_each_macro_is_described(self):
        macros = set(re.findall(r"PAGEDKV_C_\w+", HEADER.with_suffix(".cpp").read_text())) - {"PAGEDKV_C_QUOTE", "PAGEDKV_C_QUOTED"}
        self.assertEqual(macros - set(re.findall(r"PAGEDKV_C_\w+", DOCUMENT.read_text())), set())
        self.assertEqual(macros - set(re.findall(r"PAGEDKV_C_\w+", HEADER.read_text())), set())


if __name__ == "__main__":
    unittest.main()
