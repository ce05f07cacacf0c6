"""The minimal model in the comment of each axis's concept models it, and a cache recognises those of its axes."""

import os
import pathlib
import re
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
CONCEPTS = sorted((SOURCE_ROOT / "include/pagedkv/policy").glob("*/concept.hpp"))


def model_of(text):
    """The code that a concept's comment holds."""
    return "".join(re.findall(r"^///     (.*\n)", text, re.MULTILINE))


class MinimalModels(unittest.TestCase):
    def test_each_models_its_concept_and_is_recognised(self):
        program = "#include <pagedkv/pagedkv.hpp>\n#include <atomic>\n#include <cstdlib>\nusing namespace pagedkv;\n"
        for path in CONCEPTS:
            text = path.read_text()
            name = re.search(r"^struct (\w+) ", model_of(text), re.MULTILINE).group(1)
            program += model_of(text)
            if path.parent.name == "preemption":  # the tracker's
                program += f"static_assert(preemption_policy<{name}>);\n"
                continue
            if path.parent.name == "tiers":  # a cache may have several
                program += f"static_assert(tier_policy<{name}> && !std::is_same_v<kv_cache<{name}>, kv_cache<>>);\n"
                continue
            axis, concept = re.search(r"struct (\w+_axis) \{[^}]*takes = (\w+)<Policy>", text).groups()
            program += f"static_assert(pagedkv::{concept}<{name}>);\n"
            program += f"using cache_{axis} = kv_cache<{name}>;\n"
            program += f"static_assert(!std::is_same_v<cache_{axis}, kv_cache<>>);\n"
        self.assertGreaterEqual(len(CONCEPTS), 8)
        command = [*COMPILER, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]
        done = subprocess.run(
            [*command, f"-I{SOURCE_ROOT / 'include'}", "-"], input=program, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
