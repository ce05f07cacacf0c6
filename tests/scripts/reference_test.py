"""The reference is made without a warning; comments of the headers that users include say what they have to say, and those that do not
are found."""

import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
CHECK = SOURCE_ROOT / "scripts" / "lib" / "check_reference.py"
sys.path.insert(0, str(CHECK.parent))

import check_reference

HEADER = """#pragma once

namespace pagedkv {

/// A comment.
struct described {
  bool a = true;  // behind a member
  bool b = true;

  /// For both.
  int size() const;
  int length() const;

  int bare() const;
  bool operator==(const described&) const = default;

 private:
  int hidden() const;
  struct inner {
    int seen_by_none;
  };
};

struct plain {};

/// Has a value. Errors: `invalid_argument`.
result<int> careful();
/// Has a value.
result<int> careless();

/// Does what `careful` does.
result<int> also_careful();
/// Does what `gone` does.
result<int> as_careless();

namespace detail {
int seen_by_none();
}  // namespace detail

int below_a_namespace();

}  // namespace pagedkv
"""

CONFIGURATION = """#pragma once

#include <cstdint>
#include <span>

namespace pagedkv {

/// Sizes of a cache.
struct cache_config {
  std::int32_t block_size = 16;   // tokens in a block
  std::int64_t window = 0;        // the latest ones
  std::int64_t token_stride = 0;  // from one to the next
  const float* scales = nullptr;  // [layer][head]
  const float* slopes = nullptr;  // of all heads
  const float* sinks = nullptr;
  std::int32_t linger = 0;       // how long a record stays
  std::int64_t patience = 0;     // as long as it likes
  std::int64_t most = 0;         // as window
  std::int64_t least = 0;        // as in places::head_stride
  double sum = 0;                // as in cache_config::gone
  std::span<const int> indices;  // of all
  std::span<const int> failed;   // [any number]
  std::int64_t last_index = 0;   // the latest
};

/// Where numbers lie. Strides are in bytes.
struct places {
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int32_t num_rows = 0;
};

}  // namespace pagedkv
"""

FACADE = """#pragma once

namespace pagedkv {

/// A cache.
class basic_kv_cache {
 public:
  /// Constant time.
  int size() const;

  /// Linear in the tokens. Errors: those of `size`.
  result<int> append(int token);

  /// Returns the blocks.
  void release();

  /// O(blocks).
  result<void> commit();
};

}  // namespace pagedkv
"""


BACKEND = """#pragma once

namespace pagedkv {

/// What backends have.
///
/// | requirement        | meaning         |
/// |--------------------|-----------------|
/// | `b.copy_blocks(n)` | copies blocks   |
/// | `b.move_blocks(n)` | moves blocks    |
/// | `b.name()`         | for tables      |
template <class B>
concept backend = true;

/// Copies nothing.
class copy_list {
 public:
  result<void> copy_blocks(int n);

  /// Linear in the blocks. Errors: `out_of_memory`.
  result<void> move_blocks(int n);

  /// Constant time.
  const char* name() const;
};

static_assert(backend<copy_list>);

/// Copies somewhere. Operations take constant time.
class hip_backend {
 public:
  const char* name() const;
  result<void> copy_blocks(int n);
};

static_assert(backend<hip_backend>);

/// Not in a step.
class own_backend {
 public:
  result<void> copy_blocks(int n);
};

static_assert(backend<own_backend>);

namespace hip {

/// Copies blocks. Errors: `backend_failure`.
result<void> copy_blocks(int n);
/// Whether there is a device.
bool has_device();

result<void> move_blocks(int n);

}  // namespace hip

static_assert(backend<hip>);

}  // namespace pagedkv
"""


PARAMETERS = """#pragma once

#include <cstdint>
#include <span>

namespace pagedkv {

/// Sums up.
void sum(std::span<const std::int64_t> numbers);
/// Sums up these numbers.
void sum_named(std::span<const std::int64_t> numbers);
/// Sums up entries.
void sum_entries(std::span<const batch_entry> some);
/// Copies blocks.
void copy(std::span<block_id> blocks);
/// Copies blocks, as far as there is room.
void copy_some(std::span<block_id> blocks);
/// Adds up, [row][head].
void add_rows(std::span<std::int32_t> table, const float* scales);
/// Adds up.
void add(const float* scales);
/// Waits a while.
void wait(std::int64_t timeout, std::size_t num_rows, std::int32_t layer, std::int64_t max_bytes, int device);
/// Waits so many seconds.
void wait_long(std::int64_t timeout);
/// Does what `wait` does.
void wait_anew(std::int64_t timeout);

/// The table.
std::span<const std::int32_t> table();
/// The entries.
std::span<const batch_entry> entries();
/// The length of each row.
std::span<const std::int32_t> lengths();

/// Keeps [row][block].
struct tables {
  /// The latest one.
  std::span<const std::int32_t> latest() const;
};

}  // namespace pagedkv
"""

C_PARAMETERS = """/* A cache. */

#pragma once
#include <stdint.h>

/* Sums up. */
int pagedkv_sum(const int32_t* blocks, int64_t* sum);
/* Sums up. */
int pagedkv_sum_all(const int32_t* blocks, size_t num_blocks, int64_t timeout);
"""

KERNELS = """#pragma once

namespace pagedkv::executor {

struct workgroup {};

}  // namespace pagedkv::executor

namespace pagedkv::kernels {

/// Waits.
void barrier();

int any(int predicate);

}  // namespace pagedkv::kernels
"""


@unittest.skipIf(shutil.which("doxygen") is None, "doxygen is not installed")
class Reference(unittest.TestCase):
    def make(self, root, *patterns):
        """Doxygen's output for a tree with our configuration, and the check's, from a folder of their own."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        settings = (SOURCE_ROOT / "docs" / "Doxyfile").read_text() + f"OUTPUT_DIRECTORY = {folder.name}\nGENERATE_HTML = NO\n"
        read = re.findall(r"^INPUT +\+?= (.*)$", settings, flags=re.MULTILINE)
        there = [path for path in " ".join(read).split() if (root / path).exists()]
        settings += f"INPUT = {' '.join(there)}\n"
        settings += f"INPUT_FILTER = \"sed -f {SOURCE_ROOT / 'scripts' / 'lib' / 'reference.sed'}\"\n"
        made = subprocess.run(["doxygen", "-"], cwd=root, input=settings, capture_output=True, text=True)
        check = ["python3", CHECK, pathlib.Path(folder.name) / "xml", root / "include", *patterns]
        return made, subprocess.run([str(word) for word in check], capture_output=True, text=True)

    def check(self, name, text):
        """The check of one header, in a tree with another one that is the library's own."""
        with tempfile.TemporaryDirectory() as folder:
            for path, content in ((name, text), ("pool/pool.hpp", "#pragma once\nint bare();\n")):
                root = "kernels" if path.startswith("kernels/") else "include"
                header = pathlib.Path(folder) / root / "pagedkv" / path
                header.parent.mkdir(parents=True)
                header.write_text(content)
            made, checked = self.make(pathlib.Path(folder), "pool/*.hpp")
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        self.assertEqual(checked.returncode, 1)
        return checked.stdout.splitlines()

    def test_comments_say_what_they_have_to(self):
        made, checked = self.make(SOURCE_ROOT)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_headers_that_pages_and_examples_include_are_checked(self):
        pages = [SOURCE_ROOT / "README.md", *(SOURCE_ROOT / "docs").glob("*.md"), *(SOURCE_ROOT / "examples").rglob("*.?pp")]
        included = {name for page in pages for name in re.findall(r"<pagedkv/([\w/]+\.h(?:pp)?)>", page.read_text())}
        self.assertIn("device/backend.hpp", included)
        own = {name for pattern in check_reference.OWN_HEADERS for name in fnmatch.filter(included, pattern)}
        self.assertEqual(own, set())
        self.assertEqual(fnmatch.filter(check_reference.OWN_HEADERS, "policy/*"), [])
        settings = (SOURCE_ROOT / "docs" / "Doxyfile").read_text()
        of_kernels = {name for name in included if name.startswith("kernels/")}
        self.assertIn("kernels/platform.hpp", of_kernels)
        self.assertEqual({name for name in of_kernels if f" kernels/pagedkv/{name}" not in settings}, set())

    def test_symbols_without_a_comment_and_errors_without_a_name_are_found(self):
        self.assertEqual(self.check("core/ids.hpp", HEADER), [
            "core/ids.hpp:14: function pagedkv::described::bare has no comment",
            "core/ids.hpp:24: struct pagedkv::plain has no comment",
            "core/ids.hpp:29: function pagedkv::careless does not name its errors",
            "core/ids.hpp:34: function pagedkv::as_careless does what a function does that there is not",
            "core/ids.hpp:40: function pagedkv::below_a_namespace has no comment",
            "13 public symbols in 1 headers, 5 faults",
        ])

    def test_models_of_a_concept_that_name_neither_errors_nor_cost_are_found(self):
        self.assertEqual(self.check("backend/copy_list.hpp", BACKEND), [
            "backend/copy_list.hpp:18: function pagedkv::copy_list::copy_blocks does not name its errors",
            "backend/copy_list.hpp:18: function pagedkv::copy_list::copy_blocks does not name its cost",
            "backend/copy_list.hpp:33: function pagedkv::hip_backend::copy_blocks does not name its errors",
            "backend/copy_list.hpp:41: function pagedkv::own_backend::copy_blocks does not name its errors",
            "backend/copy_list.hpp:49: function pagedkv::hip::copy_blocks does not name its cost",
            "backend/copy_list.hpp:53: function pagedkv::hip::move_blocks has no comment",
            "13 public symbols in 1 headers, 6 faults",
        ])

    def test_operations_of_a_facade_without_their_cost_are_found(self):
        self.assertEqual(self.check("cache/kv_cache.hpp", FACADE), [
            "cache/kv_cache.hpp:15: function pagedkv::basic_kv_cache::release does not name its cost",
            "cache/kv_cache.hpp:18: function pagedkv::basic_kv_cache::commit does not name its errors",
            "5 public symbols in 1 headers, 2 faults",
        ])

    def test_headers_of_kernels_are_checked_and_the_executor_is_not(self):
        self.assertEqual(self.check("kernels/platform_host.hpp", KERNELS), [
            "kernels/platform_host.hpp:14: function pagedkv::kernels::any has no comment",
            "2 public symbols in 1 headers, 1 faults",
        ])

    def test_numbers_without_a_unit_and_arrays_without_a_shape_are_found(self):
        self.assertEqual(self.check("core/config.hpp", CONFIGURATION), [
            "core/config.hpp:11: variable pagedkv::cache_config::window does not name its unit",
            "core/config.hpp:12: variable pagedkv::cache_config::token_stride does not name its unit",
            "core/config.hpp:14: variable pagedkv::cache_config::slopes does not give its shape",
            "core/config.hpp:15: variable pagedkv::cache_config::sinks does not give its shape",
            "core/config.hpp:16: variable pagedkv::cache_config::linger does not name its unit",
            "core/config.hpp:17: variable pagedkv::cache_config::patience does not name its unit",
            "core/config.hpp:20: variable pagedkv::cache_config::sum does not name its unit",
            "core/config.hpp:21: variable pagedkv::cache_config::indices does not give its shape",
            "core/config.hpp:22: variable pagedkv::cache_config::failed does not give its shape",
            "19 public symbols in 1 headers, 9 faults",
        ])

    def test_parameters_of_which_the_comment_says_nothing_are_found(self):
        self.assertEqual(self.check("core/ids.hpp", PARAMETERS), [
            "core/ids.hpp:9: function pagedkv::sum does not name numbers",
            "core/ids.hpp:15: function pagedkv::copy does not say how much of blocks it writes",
            "core/ids.hpp:21: function pagedkv::add does not name scales",
            "core/ids.hpp:23: function pagedkv::wait names neither timeout nor its unit",
            "core/ids.hpp:30: function pagedkv::table does not give the shape of what it returns",
            "15 public symbols in 1 headers, 5 faults",
        ])
        self.assertEqual(self.check("c/pagedkv.h", C_PARAMETERS), [
            "c/pagedkv.h:7: function pagedkv.h::pagedkv_sum has no count behind blocks",
            "2 public symbols in 1 headers, 1 faults",
        ])

    def test_a_pattern_that_matches_nothing_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "include" / "pagedkv" / "core" / "ids.hpp"
            header.parent.mkdir(parents=True)
            header.write_text("#pragma once\n/// A comment.\nint f();\n")
            _, checked = self.make(pathlib.Path(folder), "gone/*.hpp")
        self.assertEqual(checked.returncode, 1)
        self.assertIn("the pattern gone/*.hpp matches no header\n", checked.stdout)

    def test_a_warning_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "include" / "pagedkv" / "core" / "ids.hpp"
            header.parent.mkdir(parents=True)
            header.write_text("#pragma once\n/// \\param b There is none.\nvoid f(int a);\n")
            made, _ = self.make(pathlib.Path(folder))
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("argument 'b'", made.stderr)


if __name__ == "__main__":
    unittest.main()
