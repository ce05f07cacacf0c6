"""The source tree keeps the rules of its structure, and each rule finds violations that are planted for it."""

import os
import pathlib
import tempfile
import unittest

import rules

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])


class SourceTree(unittest.TestCase):
    def check(self, violations):
        self.assertEqual(violations, [], "\n" + "\n".join(violations))

    def test_there_are_headers(self):
        self.assertIn("core/result.hpp", rules.headers(SOURCE_ROOT))

    def test_includes_go_downward_only(self):
        self.check(rules.include_violations(SOURCE_ROOT))

    def test_host_parts_never_name_a_device_runtime(self):
        self.check(rules.device_violations(SOURCE_ROOT))

    def test_runtimes_are_named_by_platform_headers_only(self):
        self.check(rules.runtime_name_violations(SOURCE_ROOT))

    def test_no_macro_and_no_global_name_is_foreign(self):
        self.check(rules.foreign_name_violations(SOURCE_ROOT))

    def test_only_the_umbrella_defaults_policies(self):
        self.check(rules.default_policy_violations(SOURCE_ROOT))

    def test_every_model_asserts_its_concept_and_is_listed(self):
        self.check(rules.policy_violations(SOURCE_ROOT))

    def test_every_refusal_is_named_by_a_test(self):
        self.check(rules.untested_refusals(SOURCE_ROOT))

    def test_every_test_and_benchmark_is_built(self):
        self.check(rules.unbuilt_violations(SOURCE_ROOT))

    def test_a_build_folder_has_one_set_of_options(self):
        self.check(rules.build_folder_violations(SOURCE_ROOT))

    def test_every_randomised_test_is_tagged(self):
        self.check(rules.untagged_random_tests(SOURCE_ROOT))

    def test_every_header_passes_the_compilers_of_devices(self):
        self.check(rules.headers_not_for_devices(SOURCE_ROOT))

    def test_a_busy_night_runs_every_program(self):
        self.check(rules.areas_that_nightly_omits(SOURCE_ROOT))

    def test_every_cache_of_a_test_has_a_seed(self):
        self.check(rules.unseeded_caches(SOURCE_ROOT))

    def test_every_operation_meets_faults(self):
        self.check(rules.operations_without_faults(SOURCE_ROOT))

    def test_sentences_name_their_subject(self):
        self.check(rules.prose_violations(SOURCE_ROOT))

    def test_comments_are_as_wide_as_code(self):
        self.check(rules.wide_comments(SOURCE_ROOT))

    def test_headers_that_pages_and_comments_name_exist(self):
        self.check(rules.missing_headers(SOURCE_ROOT))

    def test_scripts_print_all_tables_of_figures(self):
        self.check(rules.typed_tables(SOURCE_ROOT))


class PlantedViolations(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("include/pagedkv/core/ids.hpp", "#include <cstdint>\n")
        self.write("include/pagedkv/policy/element/concept.hpp", "#include <pagedkv/core/ids.hpp>\n")
        int8 = "#include <pagedkv/policy/element/concept.hpp>\nnamespace pagedkv {\nstatic_assert(element<int8>);\n}\n"
        self.write("include/pagedkv/policy/element/int8.hpp", int8)
        self.write("include/pagedkv/host/memory.hpp", "#include <pagedkv/policy/element/concept.hpp>\n")
        self.write("include/pagedkv/device/memory.hpp", "#include <hip/hip_runtime.h>\nnamespace pagedkv::hip {}\n")
        self.write("include/pagedkv/pagedkv.hpp", "#include <pagedkv/policy/element/int8.hpp>\n")
        self.write("kernels/pagedkv/kernels/transfer/append.hpp", "#include <pagedkv/core/ids.hpp>\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def expect(self, rule, *expected):
        found = rule(self.root)
        self.assertEqual(len(found), len(expected), found)
        for violation, part in zip(found, expected):
            self.assertIn(part, violation)

    def test_a_clean_tree_passes(self):
        self.expect(rules.include_violations)
        self.expect(rules.device_violations)
        self.expect(rules.runtime_name_violations)
        self.expect(rules.foreign_name_violations)
        self.expect(rules.default_policy_violations)
        self.expect(rules.policy_violations)
        self.expect(rules.untested_refusals)
        self.expect(rules.unbuilt_violations)
        self.expect(rules.prose_violations)
        self.expect(rules.typed_tables)

    def test_names_in_c_begin_with_the_librarys(self):
        good = 'extern "C" {\nenum { PAGEDKV_A };\ntypedef struct pagedkv_b { int c; } pagedkv_b;\nint pagedkv_d(void);\n}\n#endif\n'
        self.write("include/pagedkv/c/good.h", "#include <stdint.h>\n" + good)
        self.expect(rules.foreign_name_violations)
        self.expect(rules.foreign_include_violations)
        self.write("include/pagedkv/c/bad.h", "#include <stdio.h>\n" + good.replace("pagedkv_d", "d"))
        self.expect(rules.foreign_name_violations, "c/bad.h: `int d(void)` is global")
        self.expect(rules.foreign_include_violations, "c/bad.h:1: <stdio.h>")

    def test_upward_include(self):
        self.write("include/pagedkv/core/bad.hpp", "\n#  include  <pagedkv/policy/element/concept.hpp>  // up\n")
        self.expect(rules.include_violations, "core/bad.hpp:2: core must not include policy")

    def test_sideways_include(self):
        self.write("include/pagedkv/pool/pool.hpp", "")
        self.write("include/pagedkv/prefix/bad.hpp", "#include <pagedkv/pool/pool.hpp>\n")
        self.expect(rules.include_violations, "prefix must not include pool")

    def test_host_backend_sees_kernels(self):
        self.write("include/pagedkv/host/bad.hpp", "#include <pagedkv/kernels/transfer/append.hpp>\n")
        self.expect(rules.include_violations, "host must not include kernels")

    def test_umbrella_included_from_within(self):
        self.write("include/pagedkv/cache/bad.hpp", "#include <pagedkv/pagedkv.hpp>\n")
        self.expect(rules.include_violations, "cache includes the umbrella")

    def test_cache_sees_hip(self):
        self.write("include/pagedkv/cache/bad.hpp", "#include <hip/hip_runtime_api.h>\n")
        self.write("include/pagedkv/requests/bad.hpp", "#include <pagedkv/device/memory.hpp>\n")
        self.write("include/pagedkv/pool/bad.hpp", "#include <cuda_runtime.h>\n")
        self.expect(
            rules.include_violations,
            "cache must not see hip",
            "pool must not see cuda",
            "requests must not include device",
        )

    def test_pool_names_hip(self):
        self.write("include/pagedkv/pool/bad.hpp", "// hipStream_t in a comment is fine\nusing s = hipStream_t;\n")
        self.expect(rules.device_violations, "pool/bad.hpp:2: names hipStream_t")

    def test_kernel_names_a_runtime(self):
        self.write("kernels/pagedkv/kernels/bad.hpp", "auto* a = hipMalloc;\n\nint b = __shfl_xor(1, 2);\n#if defined(__CUDACC__)\n")
        self.write("kernels/pagedkv/kernels/runtime_amd.hpp", "using status = hipError_t;\n")
        self.expect(rules.runtime_name_violations, "bad.hpp:1: names hipMalloc", "bad.hpp:3: names __shfl_xor")

    def test_foreign_macro_and_global_name(self):
        self.write(
            "kernels/pagedkv/kernels/bad.hpp",
            "  #define __shfl(...) 0\n#define PAGEDKV_MINE\nnamespace pagedkv::kernels {\nstruct mine { char c = '{'; };\n}\n"
            "using stranger = int;\ninline int other() { return 0; }\n",
        )
        self.expect(rules.foreign_name_violations, "defines __shfl", "`using stranger = int` is global", "`inline int other()` is global")

    def test_quoted_computed_and_missing_includes(self):
        self.write("include/pagedkv/core/bad.hpp", '#include "ids.hpp"\n#include HEADER\n#include <pagedkv/core/no.hpp>\n')
        self.expect(rules.include_violations, '"ids.hpp" is not', "HEADER is not", "does not exist")

    def test_unknown_folder(self):
        self.write("include/pagedkv/util/bad.hpp", "")
        self.write("include/pagedkv/bad.hpp", "")
        self.expect(rules.include_violations, "bad.hpp: no part", "util/bad.hpp: no part")

    def test_defaulted_policy(self):
        self.write(
            "include/pagedkv/cache/bad.hpp",
            "template <class T = int,\n          eviction_policy<T> Eviction = lru>\nstruct cache;\n"
            "template <class Eviction>\nstruct fine { using eviction = Eviction; };\n",
        )
        self.expect(rules.default_policy_violations, "cache/bad.hpp:1: `Eviction = l")

    def test_unclear_sentences(self):
        self.write(
            "include/pagedkv/core/bad.hpp",
            "/// A size. What it counts is\n/// not said.\nint size;  // nobody reads it\n\n// Fails, were it negative.\n"
            "int count;  // Whoever reads it waits.\n/// A lock that whoever comes\n/// first takes.\n",
        )
        self.write("docs/bad.md", "# What is it?\n\nWho asks?\n\n```\nWhat code says.\n```\n\n- Nobody knows.\n| Had it been | full |\n")
        self.write("tests/core/bad_test.py", '# What fails.\ntext = "# Fine; it shows what fails."\n')
        self.expect(
            rules.prose_violations,
            "docs/bad.md:9: Nobody knows.",
            "docs/bad.md:10: Had it been | full |",
            "core/bad.hpp:1: What it counts is not said.",
            "core/bad.hpp:3: nobody reads it",
            "core/bad.hpp:5: Fails, were it negative.",
            "core/bad.hpp:6: Whoever reads it waits.",
            "core/bad.hpp:7: A lock that whoever comes first takes.",
            "bad_test.py:1: What fails.",
        )

    def test_wide_comments(self):
        words = "word " * 24
        self.write("include/pagedkv/core/bad.hpp", f"// {words[:117]}\n  /// {words}\n/// | {words} |\n///     {words}\nint size;  // {words}\n")
        self.expect(rules.wide_comments, "core/bad.hpp:2: 126 columns")

    def test_missing_headers(self):
        self.write("docs/good.md", "See `ids.hpp`, [`core/ids.hpp`](../include/pagedkv/core/ids.hpp) and `policy/<axis>/concept.hpp`.\n")
        self.expect(rules.missing_headers)
        self.write("docs/bad.md", "See `gone.hpp`,\nor `detail/ids.hpp`.\n")
        self.write("include/pagedkv/core/bad.hpp", "// As in core/gone.hpp.\n")
        self.expect(rules.missing_headers, "docs/bad.md:1: there is no gone.hpp", "no detail/ids.hpp", "core/bad.hpp:1: there is no core/gone.hpp")

    def test_typed_tables(self):
        def table(heading, *cells):
            return f"| {heading} |\n|---|\n" + "".join(f"| {cell} |\n" for cell in cells) + "\n"

        self.write("scripts/print", "")
        self.write(
            "docs/bad.md",
            table("work", "an append", "1.45 ns") + table("share", "_.917_", ".917") + table("waste", "88 to 92 %")
            + "<!-- printed by scripts/gone -->\n" + table("time", "2 min"),
        )
        self.write(
            "docs/good.md",
            table("blocks", "1,500") + table("meaning", "the same while 99 % are in use", "H100s") + table("share", "a block is shared")
            + "<!-- table idle -->\n" + table("a", "1 ns") + "<!-- end -->\n```\n" + table("a", "1 ns") + "```\n"
            + "<!-- printed by scripts/print -->\n" + table("time", "2 s")
            + "## Measured once, by hand\n\n### Trials\n\n" + table("a", "1 ns"),
        )
        self.write("README.md", "## Measured once, by hand\n\n## Speed\n\n" + table("rate", "12.9 GB/s of 16.0"))
        self.expect(
            rules.typed_tables,
            "docs/bad.md:1: no script prints `| work |`",
            "docs/bad.md:6: no script prints `| share |`",
            "docs/bad.md:11: no script prints `| waste |`",
            "docs/bad.md:16: no script prints `| time |`",
            "README.md:5: no script prints `| rate |`",
        )

    def test_model_without_its_concept_or_outside_the_list(self):
        self.write(
            "include/pagedkv/policy/hash/all.hpp",
            "/// But for `odd`, which hashes nothing.\nusing all_hashes = policy_list<good, bad, lost>;\n",
        )
        self.write("include/pagedkv/policy/hash/good.hpp", "static_assert(block_hash<good>);\n")
        self.write("include/pagedkv/policy/hash/odd.hpp", "static_assert(block_hash<odd>);\n")
        self.write("include/pagedkv/policy/hash/bad.hpp", "struct bad {};\n")
        self.write("include/pagedkv/policy/hash/new.hpp", "static_assert(block_hash<new>);\n")
        self.expect(rules.policy_violations, "hash/bad.hpp: does not assert", "policy/hash/all.hpp does not list new", "hash/all.hpp: lost does not assert")

    def test_forward_declarations_that_need_definitions(self):
        self.write("include/pagedkv/cache/cache.hpp", "")
        self.write("include/pagedkv/fwd.hpp", "#include <pagedkv/cache/cache.hpp>\n")
        self.expect(rules.include_violations, "fwd.hpp must not include cache")

    def test_refusal_that_no_test_names(self):
        self.write(
            "include/pagedkv/cache/bad.hpp",
            'error{error_code::in_use, "blocks "\n  "in use", 1};  // error{error_code::in_use, "a comment"};\n'
            'error{error_code::out_of_memory, "bytes"};\nbad_index("layer", 1, 1);\nfield{"config.size", 1};\n'
            'make_record(state.pins, "number of pins", fill);\n',
        )
        self.write("tests/cache/messages_test.cpp", 'CHECK(said == "blocks "\n  "in use is 1, limit 0");\n')
        self.expect(
            rules.untested_refusals,
            "cache/bad.hpp: no test names the refusal `config.size`",
            "cache/bad.hpp: no test names the refusal `layer`",
            "cache/bad.hpp: no test names the refusal `number of pins`",
        )

    def test_unbuilt_test(self):
        self.write("tests/meson.build", "areas = ['core']\n")
        self.write("tests/core/meson.build", "test_programs += {'core': files('ids_test.cpp')}\n")
        self.write("tests/core/ids_test.cpp", "")
        self.write("tests/core/bad_test.cpp", "")
        self.write("tests/new/meson.build", "test_programs += {'new': files('good_test.cpp')}\n")
        self.write("tests/new/good_test.cpp", "")
        self.expect(
            rules.unbuilt_violations,
            "tests/core/meson.build does not name 'bad_test.cpp'",
            "tests/meson.build does not name 'new'",
        )

    def test_build_folder_with_two_sets_of_options(self):
        self.write("scripts/chat", "build release -Dbenches=disabled --buildtype=release\n")
        self.write("docs/a.md", "$ meson setup --buildtype=release -Dbenches=disabled build/release && ninja -C build/release\n")
        self.write("docs/b.md", "meson setup --buildtype=release build/release\n")
        self.expect(rules.build_folder_violations, "docs/b.md: build/release has other options elsewhere")

    def test_randomised_test_without_its_tag(self):
        self.write(
            "tests/core/ids_test.cpp",
            'TEST_CASE("tagged", "[core][random]") {\n  use(Catch::getSeed());\n}\n'
            'TEST_CASE("drawn", "[core]") {\n  const auto seed = GENERATE(take(2, random(0U, 9U)));\n}\n'
            'TEMPLATE_TEST_CASE("seeded", "[core]", int) {\n  use(Catch::getSeed());\n}\n'
            'TEST_CASE("fixed", "[core]") {\n}\n',
        )
        self.expect(
            rules.untagged_random_tests,
            "tests/core/ids_test.cpp: `drawn` lacks the tag [random]",
            "tests/core/ids_test.cpp: `seeded` lacks the tag [random]",
        )

    def test_header_that_no_compiler_of_a_device_sees(self):
        self.write("include/pagedkv/host/attention/rows.inl", "")
        self.write("tests/kernels/device_headers.cpp", "#if OFFERED\n  #include <pagedkv/host/memory.hpp>\n#endif\n")
        found = rules.headers_not_for_devices(self.root)
        self.assertNotIn("tests/kernels/device_headers.cpp does not include core/ids.hpp", found)
        self.assertIn("tests/kernels/device_headers.cpp does not include policy/element/int8.hpp", found)
        self.assertNotIn("tests/kernels/device_headers.cpp does not include host/attention/rows.inl", found)

    def test_area_that_no_night_runs(self):
        self.write("scripts/nightly", "areas=(core pool)\nmore_areas=(metrics)\n")
        for area in ("core", "metrics", "soak"):
            self.write(f"tests/{area}/meson.build", f"test_programs += {{'{area}': files('a_test.cpp')}}\n")
        self.expect(rules.areas_that_nightly_omits, "scripts/nightly does not run soak")

    def test_cache_without_a_seed(self):
        self.write(
            "tests/core/ids_test.cpp",
            "void seeded() {\n  auto config = cache_config{};\n  config.hash_seed = 1;\n  auto cache = kv_cache<>{config};\n}\n"
            "void drawn() {\n  auto sizes = cache_config{.num_blocks = 1};\n  auto cache = kv_cache<>{sizes};\n}\n",
        )
        self.expect(rules.unseeded_caches, "tests/core/ids_test.cpp: `sizes` has no hash_seed")

    def test_operation_without_faults(self):
        for (header, name), files in rules.FAULTY_CLASSES.items():
            self.write(f"include/pagedkv/{header}", f"\nclass {name} {{\n public:\n  explicit {name}(int n) {{}}\n  void append() {{ return; }}\n"
                       "  result<void> fork(int id) const {\n    return {};\n  }\n  [[gnu::noinline]] void pin() {}\n"
                       "  decltype(auto) keys() const { return 1; }\n  result<std::vector<int>>\n      commit(int id) noexcept;\n"
                       "  static constexpr bool is_one = f();\n private:\n  void own() {}\n public:\n  void evict();\n};\n")
            for file in files:
                self.write(f"tests/faults/{file}", 'constexpr auto all = std::array{\n  operation{"append of a run", [](W& w) { return w.append(); }},\n'
                           '  operation{"fork", [](W& w) { return w.pin(); }, [](W& w) { w.fork(); }},\n};\n')
        untested = ("commit", "evict", "fork", "keys", "pin")
        self.expect(rules.operations_without_faults, *(f"none into {name}::{verb}" for _, name in rules.FAULTY_CLASSES for verb in untested))


if __name__ == "__main__":
    unittest.main()
