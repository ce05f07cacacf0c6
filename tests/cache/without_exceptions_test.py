"""The library serves programs that are compiled without exceptions and without run-time type information."""

import os
import pathlib
import shlex
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])

PROGRAM = """
#include <pagedkv/host/attend.hpp>
#include <pagedkv/pagedkv.hpp>

#include <cstdio>
#include <vector>

using namespace pagedkv;

int main(int argc, char**) {
  const auto refused = kv_cache<float16>::create({.num_blocks = 0});
  if (argc > 1) {
    refused.value();
  }
  const auto made = kv_cache<float16>::create({.block_size = 16, .num_blocks = 8, .num_kv_heads = 1, .head_dim = 8});
  auto& cache = **made;
  auto requests = request_tracker(cache);
  const auto prompt = std::vector<token>(40, 7);
  const auto numbers = std::vector<float16::storage>(40 * 8, float16::encode(2, 1));
  auto slots = std::vector<slot>(40);
  std::int64_t num_cached = 0;
  for (int i = 0; i < 2; ++i) {
    const auto request = requests.submit(prompt).value();
    num_cached += request.num_cached_tokens;
    cache.slot_mapping(request.sequence, 0, slots).value();
    if (i == 0) {
      const auto rows = contiguous_rows(numbers, 1, 8);
      cache.write<float16>(0, slots, rows, rows).value();
    }
    cache.commit(request.sequence, 40).value();
    requests.finish(request.id).value();
  }
  cache.compact().value();
  std::puts(refused.error().message().c_str());
  std::printf("%d tokens were cached\\n", static_cast<int>(num_cached));
}
"""


class WithoutExceptions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        source, cls.program = pathlib.Path(folder.name) / "main.cpp", pathlib.Path(folder.name) / "program"
        source.write_text(PROGRAM)
        options = ["-std=c++20", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror", "-pthread"]
        command = [*COMPILER, *options, f"-I{SOURCE_ROOT / 'include'}", "-o", cls.program, source, "-lxxhash"]
        cls.compiled = subprocess.run(command, capture_output=True, text=True)

    def setUp(self):
        self.assertEqual(self.compiled.returncode, 0, self.compiled.stderr)

    def test_cache_and_tracker_work(self):
        done = subprocess.run([self.program], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "invalid argument: cache_config.num_blocks is 0, limit 1\n32 tokens were cached\n")

    def test_every_header_but_those_that_documents_name_compiles(self):
        headers = [path.relative_to(SOURCE_ROOT / "include") for path in sorted((SOURCE_ROOT / "include").rglob("*.hpp"))]
        named = ("device", "executor", "wire")  # `device` is for the executor here
        text = "".join(f"#include <{header}>\n" for header in headers if header.parts[1] not in named)
        options = ["-std=c++20", "-fno-exceptions", "-fno-rtti", "-fsyntax-only", f"-I{SOURCE_ROOT / 'include'}", "-xc++", "-"]
        done = subprocess.run([*COMPILER, *options], input=text, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_error_that_nobody_handles_ends_the_program_with_its_message(self):
        done = subprocess.run([self.program, "unhandled"], capture_output=True, text=True)
        self.assertLess(done.returncode, 0)
        self.assertEqual(done.stderr, "pagedkv: invalid argument: cache_config.num_blocks is 0, limit 1\n")


if __name__ == "__main__":
    unittest.main()
