"""The reference is made without a warning, and public symbols of the main headers have comments; missing ones are found."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
CHECK = SOURCE_ROOT / "scripts" / "lib" / "check_reference.py"

HEADER = """#pragma once

namespace pagedkv {

/// A comment.
struct described {
  int a = 0;  // behind a member
  int b = 0;

  /// For both.
  int size() const;
  int length() const;

  int bare() const;
  bool operator==(const described&) const = default;

 private:
  int hidden() const;
  struct inner {
    int seen_by_none;
  };
};

struct plain {};

}  // namespace pagedkv
"""


@unittest.skipIf(shutil.which("doxygen") is None, "doxygen is not installed")
class Reference(unittest.TestCase):
    def make(self, root):
        """Doxygen's output for a tree with our configuration, and the check's, from a folder of their own."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        settings = (SOURCE_ROOT / "docs" / "Doxyfile").read_text() + f"OUTPUT_DIRECTORY = {folder.name}\nGENERATE_HTML = NO\n"
        settings += f"INPUT_FILTER = \"sed -f {SOURCE_ROOT / 'scripts' / 'lib' / 'reference.sed'}\"\n"
        made = subprocess.run(["doxygen", "-"], cwd=root, input=settings, capture_output=True, text=True)
        check = ["python3", CHECK, pathlib.Path(folder.name) / "xml", root / "include"]
        return made, subprocess.run([str(word) for word in check], capture_output=True, text=True)

    def test_every_public_symbol_has_a_comment(self):
        made, checked = self.make(SOURCE_ROOT)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_symbols_without_a_comment_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "include" / "pagedkv" / "core" / "ids.hpp"
            header.parent.mkdir(parents=True)
            header.write_text(HEADER)
            made, checked = self.make(pathlib.Path(folder))
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        self.assertEqual(checked.returncode, 1)
        self.assertEqual(checked.stdout.splitlines(), [
            "core/ids.hpp:14: function pagedkv::described::bare has no comment",
            "core/ids.hpp:24: struct pagedkv::plain has no comment",
            "8 public symbols in the main headers, 2 without a comment",
        ])

    def test_a_warning_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "include" / "pagedkv" / "core" / "ids.hpp"
            header.parent.mkdir(parents=True)
            header.write_text("#pragma once\n/// \\param b There is none.\nvoid f(int a);\n")
            made, _ = self.make(pathlib.Path(folder))
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("argument 'b'", made.stderr)


if __name__ == "__main__":
    unittest.main()
