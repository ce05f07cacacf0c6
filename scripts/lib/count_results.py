"""Prints `N passed, N failed` for the last `meson test` in a build folder: count_results.py FOLDER.

Counts Catch2 test cases by the XML report of each program, unittest tests by their TAP lines. A program that crashed, hung or
exited with an error that no test case accounts for counts as one failure more.
"""

import json
import pathlib
import re
import sys
import xml.etree.ElementTree as xml


def count_catch2(report):
    """Passed, failed, skipped. A crash leaves the report cut short: what it had written until then counts, and the crash."""
    passed = failed = skipped = 0
    complete = False
    try:
        for _, element in xml.iterparse(report):
            complete = complete or element.tag == "OverallResultsCases"
            if element.tag != "TestCase":
                continue
            result = element.find("OverallResult")
            if result.get("success") != "true":
                failed += 1
            elif int(result.get("skips", "0")) > 0:
                skipped += 1
            else:
                passed += 1
    except xml.ParseError:
        complete = False
    return passed, failed + (not complete), skipped


def count_tap(output):
    results = re.findall(r"^(ok|not ok)\b([^\n]*)", output, flags=re.MULTILINE)
    failed = sum(result == "not ok" for result, _ in results)
    skipped = sum(result == "ok" and "# SKIP" in rest for result, rest in results)
    return len(results) - failed - skipped, failed, skipped


def count_program(folder, entry):
    # Meson puts the project and the suite before a name: `pagedkv:unit / pool`.
    report = folder / "tests" / f"{entry['name'].split('/')[-1].strip()}_report.xml"
    if report.exists():
        passed, failed, skipped = count_catch2(report)
    else:
        passed, failed, skipped = count_tap(entry.get("stdout", ""))
    if failed == 0 and (entry["result"] != "OK" or passed + skipped == 0):
        print(f"{entry['name']}: {entry['result']}, exit status {entry['returncode']}, no test case failed")
        failed = 1
    return passed, failed, skipped


def main(folder):
    log = folder / "meson-logs" / "testlog.json"
    # `meson test` writes no log when it cannot run at all.
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    counts = [count_program(folder, entry) for entry in entries]
    passed, failed, skipped = (sum(column) for column in zip(*counts)) if counts else (0, 1, 0)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
