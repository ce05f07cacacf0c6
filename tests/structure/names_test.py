"""Nothing but `pagedkv` and `PAGEDKV_` appears in users' programs; `using namespace pagedkv` collides with nothing."""

import os
import pathlib
import shlex
import subprocess
import unittest

import rules

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
HOST_PARTS = [name for name in rules.headers(SOURCE_ROOT) if rules.part_of(name) not in rules.MAY_SEE_DEVICE]

USER = """
using namespace pagedkv;

template <eviction_policy Policy, locking Locking = single_thread>
auto blocks_in_use() { return kv_cache<float16, Locking, Policy>{cache_config{}}.statistics().blocks.in_use; }

int main() {
  const auto begin = clock();
  const auto eviction = blocks_in_use<clock_sweep>() + blocks_in_use<hit_density>() + blocks_in_use<lru>();
  return eviction + blocks_in_use<clock_sweep, lock_free>() == 0 && clock() >= begin ? 0 : pause();
}
"""

XXHASH_USER = """
#include <xxhash.h>
XXH64_hash_t hash_of_user(const void* bytes, size_t size) { return XXH3_64bits(bytes, size); }
"""


def including(*names):
    return "".join(f"#include <{name}>\n" for name in names)


def call_compiler(*options, program):
    command = [*COMPILER, "-std=c++20", "-x", "c++", f"-I{SOURCE_ROOT / 'include'}", *options, "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout


class Names(unittest.TestCase):
    library = including(*(f"pagedkv/{name}" for name in HOST_PARTS))

    def test_macros_have_our_prefix(self):
        preprocessed = call_compiler("-E", "-dD", program=self.library)
        self.assertIn("#define __cplusplus", preprocessed)
        self.assertEqual(rules.macro_violations(preprocessed, SOURCE_ROOT / "include"), [])

    def test_planted_macros_are_found(self):
        lines = '# 1 "/in/a.hpp" 1\n#define PAGEDKV_A 1\n#undef MAX\n# 1 "/usr/b.h" 1\n#define B\n'
        lines += '# 2 "/in/a.hpp" 2\n#define C(x)'
        self.assertEqual(len(rules.macro_violations(lines, "/in")), 2)

    def test_no_library_but_the_standard_boost_and_xxhash_comes_along(self):
        self.assertEqual(rules.foreign_include_violations(SOURCE_ROOT), [])

    def test_a_using_directive_collides_with_nothing(self):
        system = including("unistd.h", "time.h", "signal.h", "sys/socket.h", "pthread.h")
        for program in (system + self.library + USER, self.library + system + USER):
            call_compiler("-fsyntax-only", "-Wall", "-Wextra", "-Werror", program=program)

    def test_users_have_xxhash_as_they_configure_it(self):
        library = including(*(f"pagedkv/{name}" for name in HOST_PARTS if "<xxhash.h>" in rules.headers(SOURCE_ROOT)[name].read_text()))
        for macro in ("", "#define XXH_INLINE_ALL\n", "#define XXH_NAMESPACE user_\n"):
            for before, after in ((macro + XXHASH_USER, library), (macro + library, XXHASH_USER)):
                with self.subTest(macro=macro, first=before[:32]):
                    preprocessed = call_compiler("-E", program=before + after)
                    self.assertEqual("user_XXH3_64bits" in preprocessed, "NAMESPACE" in macro)
                    call_compiler("-fsyntax-only", program=before + after)


if __name__ == "__main__":
    unittest.main()
