"""The closing line of scripts/test counts every way in which a test can end."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "scripts" / "lib" / "count_results.py"
START = '<?xml version="1.0"?>\n<Catch2TestRun name="area_test">'
END = '<OverallResultsCases successes="0" failures="0"/></Catch2TestRun>'


def case(success, skips=0):
    return f'<TestCase name="a"><OverallResult success="{success}" skips="{skips}"/></TestCase>'


class ClosingLine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "meson-logs").mkdir()
        (self.build / "tests").mkdir()

    def add(self, name, result="OK", output="", report=None):
        with open(self.build / "meson-logs" / "testlog.json", "a") as log:
            json.dump({"name": f"pagedkv:unit / {name}", "result": result, "returncode": 0 if result == "OK" else 1, "stdout": output}, log)
            log.write("\n")
        if report is not None:
            (self.build / "tests" / f"{name}_report.xml").write_text(report)

    def expect(self, line, status):
        done = subprocess.run([sys.executable, SCRIPT, self.build], capture_output=True, text=True)
        self.assertEqual(done.stdout.splitlines()[-1], line)
        self.assertEqual(done.returncode, status)

    def test_all_programs_are_added_up(self):
        self.add("pool", report=START + case("true") + case("true") + END)
        self.add("structure", output="ok 1 - a\nok 2 - b\n1..2\n")
        self.expect("4 passed, 0 failed", 0)

    def test_failed_cases(self):
        self.add("pool", "FAIL", report=START + case("true") + case("false") + END)
        self.add("structure", "FAIL", output="ok 1 - a\nnot ok 2 - b\n# why\n1..2\n")
        self.expect("2 passed, 2 failed", 1)

    def test_skips_are_shown_and_do_not_pass(self):
        self.add("pool", report=START + case("true", skips=1) + case("true") + END)
        self.add("structure", output="ok 1 - a # SKIP no compiler\n1..1\n")
        self.expect("1 passed, 0 failed, 2 skipped", 0)

    def test_a_crash_is_a_failure_besides_those_reported_before_it(self):
        self.add("pool", "FAIL", report=START + case("true") + case("false") + '<TestCase name="crashes">')
        self.expect("1 passed, 2 failed", 1)

    def test_an_error_after_the_last_case_is_a_failure(self):
        self.add("pool", "FAIL", report=START + case("true") + END)
        self.expect("1 passed, 1 failed", 1)

    def test_a_program_that_never_reported(self):
        self.add("pool", "TIMEOUT", report="")
        self.add("cache", "ERROR")
        self.expect("0 passed, 2 failed", 1)

    def test_a_program_without_test_cases(self):
        self.add("pool", report=START + END)
        self.expect("0 passed, 1 failed", 1)

    def test_nothing_ran(self):
        self.expect("0 passed, 1 failed", 1)


if __name__ == "__main__":
    unittest.main()
