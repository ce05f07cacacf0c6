"""The compiler says which type tokens have where a program passes numbers of another one."""

import os
import pathlib
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILERS = {name: shlex.split(os.environ[name]) for name in ("PAGEDKV_COMPILER", "PAGEDKV_GCC")}

PROGRAM = """
#include <pagedkv/core/token_run.hpp>
#include <array>
#include <vector>
void take(const pagedkv::token_run& run);
void append(const {numbers}& tokens) {{ take(tokens); }}
static_assert(std::is_convertible_v<const {numbers}&, pagedkv::token_run> == {taken});
"""
OTHERS = ["std::vector<std::uint32_t>", "std::vector<std::int64_t>", "std::array<short, 3>", "std::span<const std::uint64_t>"]
TOKENS = ["std::vector<std::int32_t>", "std::array<pagedkv::token, 3>", "std::span<pagedkv::token>"]
SENTENCE = "tokens are of the type `pagedkv::token`, std::int32_t"


class RefusedTokens(unittest.TestCase):
    def compile(self, compiler, numbers, taken):
        command = compiler + ["-std=c++20", "-fsyntax-only", "-x", "c++", f"-I{SOURCE_ROOT / 'include'}", "-"]
        program = PROGRAM.format(numbers=numbers, taken=taken)
        return subprocess.run(command, input=program, capture_output=True, text=True)

    def test_others_are_refused_with_the_type(self):
        for name, compiler in COMPILERS.items():
            for numbers in OTHERS:
                with self.subTest(compiler=name, numbers=numbers):
                    done = self.compile(compiler, numbers, "false")
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(SENTENCE, done.stderr)
                    self.assertNotIn("static assertion", done.stderr)
                    self.assertEqual(done.stderr.count("error:"), 1, done.stderr)

    def test_tokens_are_taken(self):
        for name, compiler in COMPILERS.items():
            for numbers in TOKENS:
                with self.subTest(compiler=name, numbers=numbers):
                    done = self.compile(compiler, numbers, "true")
                    self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
