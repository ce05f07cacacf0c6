"""The table of docs/compile_times.md has the rows of scripts/compile-times, whose programs compile."""

import importlib.machinery
import os
import pathlib
import re
import shlex
import subprocess
import types
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
# The library of a header, without which the script has no row for it.
LIBRARIES = {"pagedkv/tier/file_tier.hpp": "liburing.h", "pagedkv/tier/redis_client.hpp": "hiredis/hiredis.h"}


def load(path):
    module = types.ModuleType("compile_times")
    module.__file__ = str(path)
    importlib.machinery.SourceFileLoader("compile_times", str(path)).exec_module(module)
    return module


class CompileTimes(unittest.TestCase):
    def setUp(self):
        self.rows = load(SOURCE_ROOT / "scripts" / "compile-times").ROWS

    def errors_of(self, rows):
        """Of all programs as one, whose caches are largely the same."""
        first, rest = [], []
        for number, (name, headers, calls) in enumerate(rows):
            needed = "".join(f" && __has_include(<{LIBRARIES[header]}>)" for header in headers if header in LIBRARIES)
            includes = [f"#include <{header}>" for header in headers] + re.findall(r"^#include .*$", calls, flags=re.MULTILINE)
            first += [f"#if 1{needed}", *includes, "#endif"]
            body = re.sub(r"^#include .*$", "", calls, flags=re.MULTILINE)
            rest += [f"#if 1{needed}", f"namespace row_{number} {{", f'#line 1 "{name.split(";")[0]}"', body, "}", "#endif"]
        command = [*COMPILER, "-std=c++20", "-fsyntax-only", "-I", SOURCE_ROOT / "include", "-I", SOURCE_ROOT / "kernels", "-x", "c++", "-"]
        done = subprocess.run(command, input="\n".join(first + rest) + "\n", capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    def test_the_programs_compile(self):
        self.assertEqual(self.errors_of(self.rows), "")

    def test_a_program_with_a_call_that_there_is_not_is_found(self):
        self.assertIn("forks", self.errors_of([("a row", ["pagedkv/core/result.hpp"], "#include <span>\nauto n = pagedkv::result<int>{1}.forks();")]))

    def test_the_page_has_its_rows(self):
        page = (SOURCE_ROOT / "docs" / "compile_times.md").read_text()
        shown = re.findall(r"^\| (.*?) \|(?: [\d.]+ \|){4}$", page, flags=re.MULTILINE)
        self.assertEqual(shown, [name for name, _, _ in self.rows])


if __name__ == "__main__":
    unittest.main()
