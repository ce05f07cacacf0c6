"""The version stands in one header, and build files, recipes and the changelog agree with it."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
BUILD_ROOT = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
MACROS = "PAGEDKV_VERSION_MAJOR PAGEDKV_VERSION_MINOR PAGEDKV_VERSION_PATCH PAGEDKV_VERSION"


def output_of(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def preprocessed(language, header):
    command = (*COMPILER, "-E", "-P", "-x", language, f"-I{SOURCE_ROOT / 'include'}", "-")
    program = f"#include <pagedkv/{header}>\nversion: {MACROS}\n"
    return output_of(*command, input=program).partition("version: ")[2].strip()


class Version(unittest.TestCase):
    header = re.findall(r"^#define PAGEDKV_VERSION_(\w+) (\d+)$", (SOURCE_ROOT / "include/pagedkv/version.h").read_text(), flags=re.MULTILINE)
    numbers = [number for _, number in header]
    version = ".".join(numbers)

    def test_the_header_has_three_numbers_in_their_order(self):
        self.assertEqual([name for name, _ in self.header], ["MAJOR", "MINOR", "PATCH"])

    def test_macros_in_c_and_cpp(self):
        for language, header in (("c", "version.h"), ("c", "c/pagedkv.h"), ("c++", "version.h")):
            with self.subTest(language=language, header=header):
                macros = preprocessed(language, header)
                parts = self.numbers
                self.assertEqual(macros, f"{' '.join(parts)} ({parts[0]} * 10000 + {parts[1]} * 100 + {parts[2]})")

    def test_meson_reads_the_header(self):
        self.assertEqual(json.loads(output_of("meson", "introspect", "--projectinfo", BUILD_ROOT))["version"], self.version)

    def test_cmake_reads_the_header(self):
        with tempfile.TemporaryDirectory() as folder:
            output_of("cmake", "-S", SOURCE_ROOT, "-B", folder)
            cached = (pathlib.Path(folder) / "CMakeCache.txt").read_text()
        self.assertIn(f"CMAKE_PROJECT_VERSION:STATIC={self.version}\n", cached)

    def test_the_port_for_vcpkg_names_it(self):
        self.assertEqual(json.loads((SOURCE_ROOT / "packaging/vcpkg/ports/pagedkv/vcpkg.json").read_text())["version"], self.version)

    def test_the_changelog_names_no_other_release_as_the_newest(self):
        released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (SOURCE_ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
        self.assertIn(self.version, released[:1] or [self.version])


if __name__ == "__main__":
    unittest.main()
