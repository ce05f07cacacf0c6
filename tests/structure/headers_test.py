"""Each header compiles on its own, twice in a row and without a warning."""

import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

import rules

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
BUILD_ROOT = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]


def text_of(root, name):
    paths = (root / folder / "pagedkv" / name for folder in ("include", "kernels"))
    return next((path.read_text() for path in paths if path.exists()), "")


def headers_to_compile(root):
    """All headers but those that another one includes before all else: compiling that one compiles them alone, too."""
    names = list(rules.headers(root))
    texts = {name: re.sub(r"//.*", "", text_of(root, name)) for name in names}
    starts = (re.match(r"\s*#pragma once\s*#include <pagedkv/([^>]+)>", text) for text in texts.values())
    included = {start[1] for start in starts if start}
    return [name for name in names if name not in included or not re.match(r"\s*#pragma once", texts[name])]


def compile_alone(root, name, folder):
    """Compiles a program of nothing but this header, twice; returns what the compiler says, empty when it is content."""
    # A file that stays, and an object: a compiler cache remembers nothing of others.
    program = folder / f"{name.replace('/', '_')}.cpp"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#include <pagedkv/{name}>\n" * 2)
    command = COMPILER + ["-std=c++20", *WARNINGS, f"-I{root / 'include'}", f"-I{root / 'kernels'}"]
    done = subprocess.run([*command, "-c", "-o", program.with_suffix(".o"), program], capture_output=True, text=True)
    return f"{name}: {done.stderr or 'failed'}" if done.returncode else ""


class SourceTree(unittest.TestCase):
    def test_each_header_compiles_on_its_own(self):
        folder = BUILD_ROOT / "tests" / "headers"
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            results = workers.map(lambda name: compile_alone(SOURCE_ROOT, name, folder), headers_to_compile(SOURCE_ROOT))
            violations = [result for result in results if result]
        self.assertEqual(violations, [], "\n" + "\n".join(violations))


class PlantedViolations(unittest.TestCase):
    def compile(self, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            header = root / "include" / "pagedkv" / "core" / "bad.hpp"
            header.parent.mkdir(parents=True)
            header.write_text(text)
            return compile_alone(root, "core/bad.hpp", root / "programs")

    def test_header_that_needs_another(self):
        self.assertIn("core/bad.hpp", self.compile("#pragma once\ninline std::int32_t value = 1;\n"))
        self.assertEqual(self.compile("#pragma once\n#include <cstdint>\ninline std::int32_t value = 1;\n"), "")

    def test_headers_that_are_compiled_as_the_start_of_others(self):
        with tempfile.TemporaryDirectory() as folder:
            core = pathlib.Path(folder) / "include" / "pagedkv" / "core"
            core.mkdir(parents=True)
            (core / "first.hpp").write_text("// A comment.\n#pragma once\n#include <pagedkv/core/second.hpp>\n#include <pagedkv/core/third.hpp>\n")
            (core / "second.hpp").write_text("#pragma once\n#include <cstdint>\n#include <pagedkv/core/fourth.hpp>\n")
            (core / "third.hpp").write_text("#pragma once\n#include <pagedkv/core/unguarded.hpp>\n")
            (core / "fourth.hpp").write_text("#pragma once\n")
            (core / "unguarded.hpp").write_text("")
            names = headers_to_compile(pathlib.Path(folder))
        self.assertEqual(sorted(names), [f"core/{name}.hpp" for name in ("first", "fourth", "third", "unguarded")])

    def test_header_without_include_guard(self):
        self.assertIn("core/bad.hpp", self.compile("inline int value = 1;\n"))


if __name__ == "__main__":
    unittest.main()
