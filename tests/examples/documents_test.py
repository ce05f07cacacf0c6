"""Programs in documents compile, or are excerpts of an example; links lead to files of the repository; errors are explained."""

import collections
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_GCC"])
DOCUMENTS = [*sorted(SOURCE_ROOT.glob("*.md")), *sorted((SOURCE_ROOT / "docs").glob("*.md"))]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]


def programs():
    for document in DOCUMENTS:
        if document.name == "tutorial.md":  # tutorial_test.py builds its growing program
            continue
        for block in re.findall(r"^```cpp\n(.*?)^```", document.read_text(), flags=re.DOTALL | re.MULTILINE):
            yield document.name, block


def by_headers(complete):
    """Programs that include the same headers of ours are compiled as one, since they share most of what is instantiated."""
    joined = collections.defaultdict(list)
    for document, text in complete:
        joined[tuple(re.findall(r"^#include <pagedkv/.*>\n", text, flags=re.MULTILINE))].append((document, text))
    return joined.values()


def errors_in(joined):
    includes = [re.findall(r"^#include .*\n", text, flags=re.MULTILINE) for _, text in joined]
    program = "".join(line for lines in includes for line in lines)
    for number, (document, text) in enumerate(joined):
        lines = re.sub(r"^#include .*$", "", text, flags=re.MULTILINE)
        # Only the true `main` may end without a result.
        lines = re.sub(r"^(int main\(.*?)^\}$", r"\1return 0;\n}", lines, flags=re.DOTALL | re.MULTILINE)
        program += f'namespace program_{number} {{\n#line 1 "{document}"\n{lines}}}\n'
    command = COMPILER + ["-std=c++20", "-fsyntax-only", "-x", "c++", *WARNINGS]
    command += [f"-I{SOURCE_ROOT / folder}" for folder in ("include", "kernels")]
    done = subprocess.run([*command, "-"], input=program, capture_output=True, text=True)
    return done.stderr or "failed" if done.returncode else ""


class Documents(unittest.TestCase):
    def test_complete_programs_compile(self):
        complete = [program for program in programs() if program[1].startswith("#include")]
        self.assertGreaterEqual(len(complete), 3)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            self.assertEqual([errors for errors in workers.map(errors_in, by_headers(complete)) if errors], [])

    def test_other_programs_are_excerpts_of_examples(self):
        examples = [path.read_text() for path in (SOURCE_ROOT / "examples").glob("*.cpp")]
        for name, block in programs():
            with self.subTest(document=name, begins=block.partition("\n")[0]):
                self.assertTrue(block.startswith("#include") or any(block in example for example in examples))

    def test_a_table_has_every_error_code(self):
        codes = re.search(r"enum class error_code[^{]*\{(.*?)\};", (SOURCE_ROOT / "include/pagedkv/core/error.hpp").read_text(), flags=re.DOTALL)[1]
        explained = re.findall(r"^\| `(\w+)` \|.*\|.*\|$", (SOURCE_ROOT / "docs/integrate.md").read_text(), flags=re.MULTILINE)
        names = re.findall(r"^\s+(\w+),", codes, flags=re.MULTILINE)
        self.assertGreater(len(names), 10)
        self.assertEqual([name for name in names if name not in explained], [])

    def test_links_lead_to_files(self):
        for document in DOCUMENTS:
            text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
            for target in re.findall(r"\]\((?!https?:)([^)#]*)[^)]*\)", text):
                with self.subTest(document=document.name, target=target):
                    path = (document.parent / target).resolve()
                    self.assertTrue(path.exists() and path.is_relative_to(SOURCE_ROOT.resolve()))


if __name__ == "__main__":
    unittest.main()
