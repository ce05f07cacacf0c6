"""Scripts that need what users name are skipped visibly without it; their parts do what they say."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
SCENES = SOURCE_ROOT / "tests" / "model_check"
CLANG = next(filter(None, (shutil.which(f"clang++-{version}") for version in range(16, 22))), None)
sys.path.insert(0, str(SOURCE_ROOT / "scripts" / "lib"))
import amd_compiler  # noqa: E402
import emulation_tables  # noqa: E402
import genmc_outcomes  # noqa: E402
import intrinsics  # noqa: E402


def run(script, *arguments):
    return subprocess.run([SOURCE_ROOT / "scripts" / script, *arguments], capture_output=True, text=True)


class Skips(unittest.TestCase):
    def test_an_emulation_without_a_checkout_is_skipped(self):
        done = run("amd-emulate", "/nonexistent")
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped: /nonexistent has no test/mockgpu/amd/emu.py", done.stdout)

    def test_a_check_without_a_model_checker_is_skipped(self):
        done = run("model-check", "/nonexistent")
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped: /nonexistent is no program", done.stdout)

    def test_commands_without_a_root_to_run_them_in_are_skipped(self):
        done = subprocess.run([sys.executable, SOURCE_ROOT / "scripts" / "fresh-machine", "trixie"], capture_output=True, text=True, env={"PATH": ""})
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertRegex(done.stdout, "skipped: trixie: (debootstrap is not installed|making a Debian root needs to run as root)")

    def test_a_fresh_machine_is_of_a_known_suite(self):
        self.assertEqual(run("fresh-machine", "potato").returncode, 2)

    def test_the_page_has_the_headings_of_fresh_machines(self):
        heading = re.search(r"^\| suite .*$", (SOURCE_ROOT / "scripts" / "fresh-machine").read_text(), flags=re.MULTILINE)[0]
        self.assertIn(f"<!-- printed by scripts/fresh-machine -->\n{heading}\n", (SOURCE_ROOT / "docs" / "testing.md").read_text())

    def test_a_number_of_operations_is_a_number(self):
        self.assertEqual(run("soak", "many").returncode, 2)


# In how many scenes of a component each fault is found, so that none leaves the list unseen.
FOUND = {
    "stack": {"load_then_store": 1, "unreleased": 1, "untagged": 1},
    "free_list": {"load_then_store_exchange": 1, "unreleased": 1},
    "pool": {"load_then_store": 5, "unreleased": 1},
    "clock": {"load_then_store_or": 1},
    "prefix": {"load_then_store": 2, "unreleased": 3},
    "records": {"load_then_store": 3, "unreleased": 2},
    "retirement": {"no_single_order": 3, "unreleased": 1},
    "worker_index": {"load_then_store": 1, "unreleased": 1},
    "mutex": {"load_then_store": 1, "unreleased": 2},
}


GOOD = "No errors were detected.\nNumber of complete executions explored: {}\nTotal wall-clock time: {}s\n"
BAD = "Error: Safety violation!\nAssertion violation: false\nNumber of complete executions explored: 3\nTotal wall-clock time: 0.10s\n"


class Outcomes(unittest.TestCase):
    def test_words_of_the_model_checker(self):
        of = genmc_outcomes.outcome_of
        self.assertEqual(of(GOOD.format(1200, "2.50")), ("", "1200 executions, 2.5 s", 1200, 2.5))
        self.assertEqual(of(BAD), ("Assertion violation: false", "Assertion violation: false", 3, 0.1))
        self.assertEqual(of("Error: a file is missing\n"), (None, "Error: a file is missing", 0, 0.0))
        self.assertEqual(of(""), (None, "the model checker says nothing", 0, 0.0))

    def test_the_table_is_of_components(self):
        said = [("stack", None, GOOD.format(1200, "2.50")), ("stack", "untagged", BAD), ("stack", "unreleased", GOOD.format(9, "9")),
                ("stack", None, GOOD.format(7, "0.25")), ("clock", None, GOOD.format(4, "0.01"))]  # fmt: skip
        lines = list(genmc_outcomes.table([(component, fault, genmc_outcomes.outcome_of(words)) for component, fault, words in said]))
        self.assertEqual(lines[2:], ["| `stack` | 2 | 1,207 | 1,200 | 2.8 s | 2 | 1 |", "| `clock` | 1 | 4 | 4 | 0.0 s | 0 | 0 |"])
        self.assertIn(lines[0], (SOURCE_ROOT / "docs" / "testing.md").read_text())


def listed_scenes():
    lines = [line.partition("#")[0].split() for line in (SCENES / "scenes.txt").read_text().splitlines()]
    return [words for words in lines if words]


class Scenes(unittest.TestCase):
    def test_every_scene_is_listed_and_every_fault_is_one(self):
        faults = set(re.findall(r"class (\w+) :", (SOURCE_ROOT / "tests/support/faulty_atomics.hpp").read_text()))
        written = {
            (path.stem, name)
            for path in SCENES.glob("*.cpp")
            for name in re.findall(r"(?<!>\n)^void (\w+)\(\) \{", path.read_text(), flags=re.MULTILINE)
        }
        self.assertEqual({(words[0], words[1]) for words in listed_scenes()}, written)
        self.assertLessEqual({fault for words in listed_scenes() for fault in words[2:]}, faults)

    def test_each_component_finds_its_faults(self):
        found = {words[0]: collections.Counter() for words in listed_scenes()}
        for component, _, *faults in listed_scenes():
            found[component].update(faults)
        self.assertEqual(found, FOUND)

    @unittest.skipIf(not CLANG, "no clang")
    def test_scenes_compile(self):
        for component, scene in {words[0]: words[1] for words in listed_scenes()}.items():
            options = ["-std=c++20", "-fsyntax-only", "-fno-exceptions", "-Wall", "-Wextra", "-Werror", "-Iinclude", f"-DPAGEDKV_SCENE={scene}"]
            done = subprocess.run([CLANG, *options, SCENES / f"{component}.cpp"], cwd=SOURCE_ROOT, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), component)


class Parts(unittest.TestCase):
    def test_intrinsics_get_definitions(self):
        text = "  %r = call i32 @llvm.umin.i32(i32 %a, i32 %b)\ndeclare i32 @llvm.umin.i32(i32, i32) #1\n"
        lowered = intrinsics.lower(text)
        self.assertIn("call i32 @plain.umin.i32(", lowered)
        self.assertIn("define internal i32 @plain.umin.i32(", lowered)
        self.assertNotIn("@llvm.", lowered)

    def test_cleared_memory_is_stores_of_its_alignment(self):
        lowered = intrinsics.lower("  call void @llvm.memset.p0.i64(ptr align 8 %x, i8 0, i64 17, i1 false)\n")
        self.assertEqual(re.findall(r"store (i\d+) 0", lowered), ["i64", "i64", "i8"])

    def test_memory_of_a_size_known_late_is_cleared_in_a_loop(self):
        lowered = intrinsics.lower("  call void @llvm.memset.p0.i64(ptr nonnull align 4 %11, i8 0, i64 %p.i, i1 false), !noalias !1\n")
        self.assertIn("call void @cleared.32(ptr %11, i64 %p.i)", lowered)
        self.assertIn("define internal void @cleared.32(ptr %a, i64 %n)", lowered)
        self.assertNotIn("@llvm.", lowered)

    def test_kernels_have_short_names(self):
        self.assertEqual(amd_compiler.short_name("void pagedkv::kernels::gather_kernel<pagedkv::int8, 8>(int)"), "gather_kernel<int8, 8>")

    def test_one_compiler_and_family_need_a_flag(self):
        self.assertTrue(amd_compiler.flags("gfx1100", "clang version 21.1.0"))
        self.assertFalse(amd_compiler.flags("gfx1201", "clang version 21.1.0"))
        self.assertFalse(amd_compiler.flags("gfx1100", "clang version 22.0.0"))


PAGE = """# Devices

By hand, before.

| test | gfx90a | gfx1100 |
|---|---|---|
| `blocks` | passed | passed |

By hand, between.

| kernel | gfx90a | gfx1100 |
|---|---|---|
| `move_kernel` | 1 of 2 | 2 of 2 |
| all | 1 of 2 | 2 of 2 |

By hand, behind.
"""


class EmulationTables(unittest.TestCase):
    def test_results_get_into_the_tables_and_the_text_stays(self):
        results = {
            "test": {"gfx942": {"`blocks`": "passed", "`float8`": "**failed**"}, "gfx1100": {"`float8`": "passed"}},
            "kernel": {"gfx1100": {"`copy_kernel`": "3 of 4", "`move_kernel`": "1 of 2", "all": "4 of 6"}},
        }
        expected = PAGE.replace("| gfx90a | gfx1100 |\n|---|---|---|\n| `b", "| gfx90a | gfx942 | gfx1100 |\n|---|---|---|---|\n| `b")
        expected = expected.replace("| passed | passed |", "| passed | passed | passed |\n| `float8` | not run | **failed** | passed |")
        expected = expected.replace("| all | 1 of 2 | 2 of 2 |", "| `copy_kernel` | not run | 3 of 4 |\n| all | 1 of 2 | 4 of 6 |")
        expected = expected.replace("| `move_kernel` | 1 of 2 | 2 of 2 |", "| `move_kernel` | 1 of 2 | 1 of 2 |")
        self.assertEqual(emulation_tables.merge(PAGE, results), expected)

    def test_the_page_stays_without_results(self):
        page = (SOURCE_ROOT / "docs/amd_emulation.md").read_text()
        self.assertEqual(emulation_tables.merge(page, {"test": {}, "kernel": {}}), page)

    def test_a_page_without_a_table_is_refused(self):
        with self.assertRaisesRegex(ValueError, "no table of: kernel"):
            emulation_tables.merge("# Devices\n", {"kernel": {}})
