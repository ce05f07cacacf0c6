"""The tutorial's program prints, at each of its steps, the lines that the tutorial shows."""

import os
import pathlib
import re
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
FOLDER = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "tests" / "tutorial"
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
STEP = re.compile(r"^## (\d+)\. .*?^```cpp\n(.*?)^```\n+```text\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
MAIN = re.compile(r"^int main\(\) \{\n(.*?)^\}\n", flags=re.DOTALL | re.MULTILINE)


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise AssertionError(f"{shlex.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def program_of(steps):
    """One program for all steps, which runs the one whose number it gets. A step's lines see those of earlier steps only."""
    numbers = [number for number, _, _ in steps]
    parts = [MAIN.sub(rf"int step_{number}() {{\n\1  return 0;\n}}\n", lines) for number, lines, _ in steps]
    calls = " : ".join(f"step == {number} ? step_{number}()" for number in numbers)
    return "".join(parts) + f"int main(int argc, char** argv) {{\n  const auto step = argc > 1 ? argv[1][0] - '0' : 0;\n  return {calls} : 1;\n}}\n"


def build(steps):
    FOLDER.mkdir(parents=True, exist_ok=True)
    # A file that stays, and an object: a compiler cache remembers nothing of others.
    source, program = FOLDER / "tutorial.cpp", FOLDER / "tutorial"
    source.write_text(program_of(steps))
    includes = [f"-I{SOURCE_ROOT / folder}" for folder in ("include", "kernels")]
    run(*COMPILER, "-std=c++20", *WARNINGS, *includes, "-c", "-o", source.with_suffix(".o"), source)
    run(*COMPILER, "-o", program, source.with_suffix(".o"), "-lxxhash", "-lboost_context", "-pthread")
    return program


class Tutorial(unittest.TestCase):
    def test_each_step_prints_its_lines(self):
        steps = STEP.findall((SOURCE_ROOT / "docs" / "tutorial.md").read_text())
        self.assertEqual([number for number, _, _ in steps], [str(number) for number in range(1, 10)])
        self.assertTrue(all(len(MAIN.findall(lines)) == 1 for _, lines, _ in steps))
        program = build(steps)
        for number, _, expected in steps:
            with self.subTest(step=number):
                self.assertEqual(run(program, number), expected)

    def test_its_policy_is_that_of_an_example(self):
        example = (SOURCE_ROOT / "examples" / "custom_eviction.cpp").read_text()
        policy = re.search(r"^/// [^\n]*\nclass longest_prompt_first.*?^static_assert\(.*?;\n", example, flags=re.DOTALL | re.MULTILINE)[0]
        self.assertIn(policy, (SOURCE_ROOT / "docs" / "tutorial.md").read_text())


if __name__ == "__main__":
    unittest.main()
