"""The table of docs/compile_times.md has the rows of scripts/compile-times, whose headers exist."""

import importlib.machinery
import os
import pathlib
import re
import types
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])


def load(path):
    module = types.ModuleType("compile_times")
    module.__file__ = str(path)
    importlib.machinery.SourceFileLoader("compile_times", str(path)).exec_module(module)
    return module


class CompileTimes(unittest.TestCase):
    def setUp(self):
        self.rows = load(SOURCE_ROOT / "scripts" / "compile-times").ROWS

    def test_headers_exist(self):
        headers = {header for _, headers, _ in self.rows for header in headers if header.startswith("pagedkv/")}
        self.assertEqual([header for header in sorted(headers) if not (SOURCE_ROOT / "include" / header).exists()], [])

    def test_the_page_has_its_rows(self):
        page = (SOURCE_ROOT / "docs" / "compile_times.md").read_text()
        shown = re.findall(r"^\| (.*?) \|(?: [\d.]+ \|){4}$", page, flags=re.MULTILINE)
        self.assertEqual(shown, [name for name, _, _ in self.rows])


if __name__ == "__main__":
    unittest.main()
