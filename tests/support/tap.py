"""Runs one unittest file, or those of its classes, and reports in TAP, the protocol that Meson reads: tap.py FILE [CLASS...]."""

import importlib.util
import sys
import unittest


class TapResult(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.count = 0

    def report(self, ok, test, directive="", details=""):
        self.count += 1
        print(f"{'ok' if ok else 'not ok'} {self.count} - {test.id()}{directive}")
        for line in details.splitlines():
            print(f"# {line}")
        sys.stdout.flush()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.report(True, test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.report(True, test, directive=f" # SKIP {reason}")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.report(False, test, details=self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.report(False, test, details=self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.report(False, subtest, details=(self.failures + self.errors)[-1][1])


def main(path, *names):
    spec = importlib.util.spec_from_file_location("tests", path)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    sys.path.insert(0, path.rpartition("/")[0])
    spec.loader.exec_module(module)
    result = TapResult()
    loader = unittest.defaultTestLoader
    (loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)).run(result)
    print(f"1..{result.count}")
    return 0 if result.wasSuccessful() and result.count > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
