"""Mutants of a small header, and the program that has all of them."""

import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "scripts" / "lib"))
import mutants  # noqa: E402

COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])

HEADER = """\
#include <algorithm>
#include <vector>
// 0 == 1 in a comment
inline int sum(const std::vector<int>& values, bool twice) {
  auto total = 0;  // true
  total += twice == true ? 3 : 0;
  for (auto i = std::size_t{0}; i < values.size(); ++i) {
    total += values[i] - 1;
  }
  if (const auto any = !values.empty(); any && twice) {
    total = std::max(total, 2 * total);
  }
  std::vector<int> copies(values);
  copies.assign(
      {total});
  copies.resize(1);
  __builtin_prefetch(copies.data(), 1);
  return copies[0] == 7 ? "0"[0] : copies[0];
}
"""
PROGRAM = '#include "header.hpp"\n#include <cstdio>\nint main() { std::printf("%d", sum({2, 3, 4}, true)); }\n'


def changed_line(mutant):
    return mutants.mutated(HEADER, mutant).splitlines()[mutant.number].strip() if mutant.new else ""


class Mutants(unittest.TestCase):
    def setUp(self):
        self.all = list(mutants.mutants_of("header.hpp", HEADER))

    def changes_of(self, start):
        numbers = [number for number, line in enumerate(HEADER.splitlines()) if line.strip().startswith(start)]
        return [changed_line(mutant) for mutant in self.all if mutant.number in numbers]

    def test_comments_and_literals_have_none(self):
        self.assertEqual(self.changes_of("// 0"), [])
        self.assertEqual(self.changes_of("auto total"), ["auto total = 1;  // true"])
        self.assertNotIn('"1"', "".join(changed_line(mutant) for mutant in self.all))

    def test_a_condition_is_negated_behind_its_variable(self):
        self.assertIn("if (const auto any = !values.empty(); !(any && twice)) {", self.changes_of("if ("))

    def test_only_whole_statements_are_dropped(self):
        self.assertEqual(self.changes_of("copies.resize"), ["copies.resize(2);", ""])
        self.assertEqual(self.changes_of("{total});"), [])

    def test_prefetches_are_told_apart(self):
        found = {HEADER.splitlines()[mutant.number].strip() for mutant in self.all if mutants.only_prefetches(HEADER, mutant)}
        self.assertEqual(found, {"__builtin_prefetch(copies.data(), 1);"})

    def test_a_declaration_has_no_switch(self):
        dropped = next(mutant for mutant in self.all if mutant.new == "" and "copies(values)" in HEADER[mutant.start:mutant.end])
        self.assertIsNone(mutants.switch_of(HEADER, dropped, 0))

    def test_a_program_with_switches_is_the_mutant_that_is_chosen(self):
        switches = [(number, mutant, mutants.switch_of(HEADER, mutant, number)) for number, mutant in enumerate(self.all)]
        switches = [each for each in switches if each[2] and not mutants.only_prefetches(HEADER, each[1])]
        for i, (_, _, switch) in enumerate(switches):
            self.assertFalse(any(mutants.crosses(switch, other) for _, _, other in switches[:i]))
        expected = {-1: "18"}
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "pagedkv_mutants.hpp").write_text(mutants.RUNTIME)
            (folder / "program.cpp").write_text(PROGRAM)

            def build(text, target):
                (folder / "header.hpp").write_text(text)
                first = ["-include", folder / "pagedkv_mutants.hpp"]
                subprocess.run([*COMPILER, "-std=c++20", "-w", "-Wno-narrowing", *first, "-o", folder / target, folder / "program.cpp"], check=True)

            def said(target, number=-1):
                environment = {**os.environ, "PAGEDKV_MUTANT": str(number), "PAGEDKV_REACHED": str(folder / f"reached_{number}")}
                return subprocess.run([folder / target], capture_output=True, text=True, env=environment).stdout

            build(mutants.with_switches(HEADER, [switch for _, _, switch in switches]), "switched")
            self.assertEqual(said("switched"), expected[-1])
            for number, mutant, _ in switches:
                if any(part in changed_line(mutant) for part in ["values[i]", " 3 : "]) or "std::max" in HEADER[mutant.start:mutant.end]:
                    build(mutants.mutated(HEADER, mutant), "alone")
                    self.assertEqual(said("switched", number), said("alone"), changed_line(mutant))
                    self.assertTrue((folder / f"reached_{number}").exists())


if __name__ == "__main__":
    unittest.main()
