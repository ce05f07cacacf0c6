"""The tutorial's program prints, at each of its steps, the lines that the tutorial shows."""

import concurrent.futures
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
MAIN = re.compile(r"^int main\(\) \{\n.*?^\}\n", flags=re.DOTALL | re.MULTILINE)


def run(*command):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def programs():
    """Of each step: its number, the program so far, and its output."""
    earlier = ""
    for number, lines, output in STEP.findall((SOURCE_ROOT / "docs" / "tutorial.md").read_text()):
        yield int(number), earlier + lines, output
        earlier += MAIN.sub("", lines)


def build_and_run(program):
    """The output of a step, or a reason for which it has none."""
    number, source, _ = program
    FOLDER.mkdir(parents=True, exist_ok=True)
    # A file that stays, and an object: a compiler cache remembers nothing of others.
    path = FOLDER / f"step_{number}.cpp"
    path.write_text(source)
    built = path.with_suffix("")
    libraries = ["-lxxhash", "-pthread"] + (["-lboost_context"] if "pagedkv/device/" in source else [])
    includes = [f"-I{SOURCE_ROOT / folder}" for folder in ("include", "kernels")]
    for command in (
        (*COMPILER, "-std=c++20", *WARNINGS, *includes, "-c", "-o", path.with_suffix(".o"), path),
        (*COMPILER, "-o", built, path.with_suffix(".o"), *libraries),
        (built,),
    ):
        done = run(*command)
        if done.returncode:
            return f"{command[0]} failed:\n{done.stdout}"
    return done.stdout


class Tutorial(unittest.TestCase):
    def test_each_step_prints_its_lines(self):
        steps = list(programs())
        self.assertEqual([number for number, _, _ in steps], list(range(1, 9)))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            for (number, _, expected), printed in zip(steps, workers.map(build_and_run, steps)):
                with self.subTest(step=number):
                    self.assertEqual(printed, expected)


if __name__ == "__main__":
    unittest.main()
