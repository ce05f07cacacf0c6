"""Each header compiles on its own, twice in a row and without a warning, and the oldest clang compiles what engines call."""

import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import rules

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
BUILD_ROOT = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_GCC"])
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]


def text_of(root, name):
    paths = (root / folder / "pagedkv" / name for folder in ("include", "kernels"))
    return next((path.read_text() for path in paths if path.exists()), "")


def included_by_all(text):
    """The headers that a text includes whatever is configured: outside `#if`."""
    found, depth = [], 0
    for line in text.splitlines():
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif depth == 0 and (match := re.match(r"\s*#\s*include <pagedkv/([^>]+)>", line)):
            found.append(match[1])
    return found


def path_from(name, next_after):
    while name:
        yield name
        name = next_after.get(name)


def chains(root):
    """All headers in as few lists as can be, each of which includes all before it: behind them, it sees what it would see
    alone. (These are the paths of a largest matching: Fulkerson 1956.)"""
    names = list(rules.headers(root))
    direct = {name: included_by_all(text_of(root, name)) for name in names}
    closures = {}

    def closure(name):
        if name not in closures:
            closures[name] = set()
            closures[name] = set(direct[name]).union(*map(closure, direct[name])) & set(names)
        return closures[name]

    next_after = {}

    def find_place(name, tried):
        for earlier in sorted(closure(name) - tried):
            tried.add(earlier)
            if earlier not in next_after or find_place(next_after[earlier], tried):
                next_after[earlier] = name
                return True
        return False

    starts = [name for name in names if not find_place(name, set())]
    return [list(path_from(start, next_after)) for start in starts]


def compile_chain(root, names, folder):
    """Compiles a program of nothing but these headers, each twice; returns what the compiler says, empty when it is
    content."""
    # A file that stays, and an object: a compiler cache remembers nothing of others.
    program = folder / f"{names[-1].replace('/', '_')}.cpp"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("".join(f"#include <pagedkv/{name}>\n" * 2 for name in names))
    command = COMPILER + ["-std=c++20", *WARNINGS, f"-I{root / 'include'}", f"-I{root / 'kernels'}"]
    done = subprocess.run([*command, "-c", "-o", program.with_suffix(".o"), program], capture_output=True, text=True)
    return f"{', '.join(names)}: {done.stderr or 'failed'}" if done.returncode else ""


class SourceTree(unittest.TestCase):
    def test_each_header_compiles_on_its_own(self):
        folder = BUILD_ROOT / "tests" / "headers"
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            results = workers.map(lambda names: compile_chain(SOURCE_ROOT, names, folder), chains(SOURCE_ROOT))
            violations = [result for result in results if result]
        self.assertEqual(violations, [], "\n" + "\n".join(violations))

    @unittest.skipUnless(shutil.which("clang++-15"), "clang 15 is not installed")
    def test_the_oldest_clang_takes_what_engines_call(self):
        # The calls of a cache and of a tracker, in batches too, host attention, and a tier.
        for example in ("engine_step", "attend", "remote_tier"):
            with self.subTest(example):
                command = ["clang++-15", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-Ikernels"]
                done = subprocess.run([*command, f"examples/{example}.cpp"], cwd=SOURCE_ROOT, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)


class PlantedViolations(unittest.TestCase):
    def compile(self, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            header = root / "include" / "pagedkv" / "core" / "bad.hpp"
            header.parent.mkdir(parents=True)
            header.write_text(text)
            return compile_chain(root, ["core/bad.hpp"], root / "programs")

    def test_header_that_needs_another(self):
        self.assertIn("core/bad.hpp", self.compile("#pragma once\ninline std::int32_t value = 1;\n"))
        self.assertEqual(self.compile("#pragma once\n#include <cstdint>\ninline std::int32_t value = 1;\n"), "")

    def test_headers_are_compiled_behind_those_that_they_include(self):
        with tempfile.TemporaryDirectory() as folder:
            core = pathlib.Path(folder) / "include" / "pagedkv" / "core"
            core.mkdir(parents=True)
            (core / "first.hpp").write_text("#pragma once\n#include <pagedkv/core/second.hpp>\n#include <pagedkv/core/third.hpp>\n")
            (core / "second.hpp").write_text("#pragma once\n#include <cstdint>\n#include <pagedkv/core/fourth.hpp>\n")
            (core / "third.hpp").write_text("#pragma once\n#if USER\n#include <pagedkv/core/fourth.hpp>\n#endif\n")
            (core / "fourth.hpp").write_text("#pragma once\n")
            found = [[name.removeprefix("core/").removesuffix(".hpp") for name in names] for names in chains(pathlib.Path(folder))]
        self.assertEqual(sorted(found), [["fourth", "second", "first"], ["third"]])

    def test_header_without_include_guard(self):
        self.assertIn("core/bad.hpp", self.compile("inline int value = 1;\n"))


if __name__ == "__main__":
    unittest.main()
