"""Each header compiles on its own, twice in a row and without a warning, and the oldest clang compiles what engines call."""

import collections
import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import rules

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
BUILD_ROOT = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_GCC"])
# Structures that callers fill, each by a few of its fields. g++ warns of the others unless they have a default.
OPTIONS_PROGRAM = """
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/hand_over.hpp>
#include <pagedkv/tier/redis_config.hpp>
#include <pagedkv/tier/remote_tier.hpp>
#include <pagedkv/tier/session_file.hpp>
#include <pagedkv/tier/tiered_cache.hpp>
#if __has_include(<liburing.h>)
  #include <pagedkv/tier/file_tier.hpp>
#endif
#if __has_include(<msgpuck.h>) && __has_include(<zmq.hpp>)
  #include <pagedkv/wire/event_publisher.hpp>
  #include <pagedkv/wire/event_subscriber.hpp>
#endif

using namespace pagedkv;

template <class... Options>
void take(const Options&...) {}

void options() {
  take(cache_config{.num_blocks = 1}, group_config{.window = 1}, sequence_options{.priority = 1}, request_options{.may_preempt = true});
  take(batch_buffers{.slots = {}}, attention_options{.scale = 1}, attention_lists{.kind = listed_blocks::none});
  take(attention_batch{.indptr = {}, .indices = {}, .last_block_len = {}}, model_shape{.num_layers = 1});
  take(tier_config{.model = ""}, session_options<>{.model = ""}, offer_options{.model = ""}, remote_tier_config{.prefix = ""});
  take(redis_config{.endpoints = {}}, redis_config{.database = 1});
#if __has_include(<liburing.h>)
  take(file_tier_options{.timeout = {}});
#endif
#if __has_include(<msgpuck.h>) && __has_include(<zmq.hpp>)
  take(publisher_config{.endpoint = ""}, publisher_config{.topic = ""}, subscriber_config{.endpoint = ""});
#endif
}
"""
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]


def text_of(root, name):
    paths = (root / folder / "pagedkv" / name for folder in ("include", "kernels"))
    return next((path.read_text() for path in paths if path.exists()), "")


def included_by_all(text):
    """The headers that a text includes whatever is configured: outside `#if`."""
    found, depth = [], 0
    for line in text.splitlines():
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif depth == 0 and (match := re.match(r"\s*#\s*include <pagedkv/([^>]+)>", line)):
            found.append(match[1])
    return found


def path_from(name, next_after):
    while name:
        yield name
        name = next_after.get(name)


def closures(root):
    """By the name of each header, the headers that it includes, whatever is configured, and those that these include."""
    names = list(rules.headers(root))
    direct = {name: included_by_all(text_of(root, name)) for name in names}
    found = {}

    def closure(name):
        if name not in found:
            found[name] = set()
            found[name] = set(direct[name]).union(*map(closure, direct[name])) & set(names)
        return found[name]

    return {name: closure(name) for name in names}


def chains(closure):
    """All headers in as few lists as can be, each of which includes all before it: behind them, it sees what it would see
    alone. (These are the paths of a largest matching: Fulkerson 1956.)"""
    next_after = {}

    def find_place(name, tried):
        for earlier in sorted(closure[name] - tried):
            tried.add(earlier)
            if earlier not in next_after or find_place(next_after[earlier], tried):
                next_after[earlier] = name
                return True
        return False

    starts = [name for name in closure if not find_place(name, set())]
    return [list(path_from(start, next_after)) for start in starts]


def common_beginnings(closure, tops, count):
    """By each top that includes one, the largest of those `count` headers which together hold most of what the tops include:
    compiled once, ahead of the others."""
    beginnings = {}

    def size(name):
        return len(closure[name]) + 1 if name else 0

    for _ in range(count):
        gains = collections.Counter()
        for top in tops:
            gains.update({name: max(0, size(name) - size(beginnings.get(top))) for name in closure[top]})
        best = gains.most_common(1)[0][0]
        beginnings.update({top: best for top in tops if best in closure[top] and size(best) > size(beginnings.get(top))})
    return beginnings


def parts_of(names, beginning, closure):
    """A chain's headers that include the beginning, and ahead of them those that do not, which must not see it."""
    alone = [name for name in names if beginning not in closure[name]]
    behind = names[len(alone) :]
    return [(part, start) for part, start in ((alone, None), (behind, beginning)) if part]


def compiler_for(root):
    return COMPILER + ["-std=c++20", *WARNINGS, f"-I{root / 'include'}", f"-I{root / 'kernels'}"]


def precompile(root, name, folder):
    """Returns the options for programs that begin with this header."""
    beginning = folder / "beginnings" / name.replace("/", "_")
    beginning.parent.mkdir(parents=True, exist_ok=True)
    beginning.write_text(f"#include <pagedkv/{name}>\n")
    # Of one that does not compile, the programs tell.
    subprocess.run([*compiler_for(root), "-x", "c++-header", "-o", f"{beginning}.gch", beginning], capture_output=True)
    return ["-include", beginning]


def compile_chain(root, names, folder, options=()):
    """Compiles a program of nothing but these headers, each twice; returns what the compiler says, empty when it is
    content."""
    # A file that stays, and an object: a compiler cache remembers nothing of others.
    program = folder / f"{names[-1].replace('/', '_')}.cpp"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("".join(f"#include <pagedkv/{name}>\n" * 2 for name in names))
    command = [*compiler_for(root), *options, "-c", "-o", program.with_suffix(".o"), program]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"{', '.join(names)}: {done.stderr or 'failed'}" if done.returncode else ""


class SourceTree(unittest.TestCase):
    def test_each_header_compiles_on_its_own(self):
        folder = BUILD_ROOT / "tests" / "headers"
        closure = closures(SOURCE_ROOT)
        found = chains(closure)
        beginnings = common_beginnings(closure, [names[-1] for names in found], 8)
        programs = [part for names in found for part in parts_of(names, beginnings.get(names[-1]), closure)]
        try:
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
                used = sorted(set(beginnings.values()))
                options = {None: ()} | dict(zip(used, workers.map(lambda name: precompile(SOURCE_ROOT, name, folder), used)))
                results = workers.map(lambda part: compile_chain(SOURCE_ROOT, part[0], folder, options[part[1]]), programs)
                violations = [result for result in results if result]
        finally:
            shutil.rmtree(folder / "beginnings", ignore_errors=True)  # hundreds of megabytes
        self.assertEqual(violations, [], "\n" + "\n".join(violations))

    def test_options_are_given_by_few_of_their_fields(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "options.cpp"
            program.write_text(OPTIONS_PROGRAM)
            done = subprocess.run([*compiler_for(SOURCE_ROOT), "-fsyntax-only", program], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipUnless(shutil.which("clang++-15"), "clang 15 is not installed")
    def test_the_oldest_clang_takes_what_engines_call(self):
        # The calls of a cache and of a tracker, in batches too, host attention, and a tier.
        for example in ("engine_step", "attend", "remote_tier"):
            with self.subTest(example):
                command = ["clang++-15", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-Ikernels"]
                done = subprocess.run([*command, f"examples/{example}.cpp"], cwd=SOURCE_ROOT, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)


class PlantedViolations(unittest.TestCase):
    def compile(self, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            header = root / "include" / "pagedkv" / "core" / "bad.hpp"
            header.parent.mkdir(parents=True)
            header.write_text(text)
            return compile_chain(root, ["core/bad.hpp"], root / "programs")

    def test_header_that_needs_another(self):
        self.assertIn("core/bad.hpp", self.compile("#pragma once\ninline std::int32_t value = 1;\n"))
        self.assertEqual(self.compile("#pragma once\n#include <cstdint>\ninline std::int32_t value = 1;\n"), "")

    def test_headers_are_compiled_behind_those_that_they_include(self):
        with tempfile.TemporaryDirectory() as folder:
            core = pathlib.Path(folder) / "include" / "pagedkv" / "core"
            core.mkdir(parents=True)
            (core / "first.hpp").write_text("#pragma once\n#include <pagedkv/core/second.hpp>\n#include <pagedkv/core/third.hpp>\n")
            (core / "second.hpp").write_text("#pragma once\n#include <cstdint>\n#include <pagedkv/core/fourth.hpp>\n")
            (core / "third.hpp").write_text("#pragma once\n#if USER\n#include <pagedkv/core/fourth.hpp>\n#endif\n")
            (core / "fourth.hpp").write_text("#pragma once\n")
            found = [[name.removeprefix("core/").removesuffix(".hpp") for name in names] for names in chains(closures(pathlib.Path(folder)))]
        self.assertEqual(sorted(found), [["fourth", "second", "first"], ["third"]])

    def test_beginnings_are_what_most_programs_include(self):
        closure = {"base": set(), "more": {"base"}, "most": {"base", "more"}, "a": {"base", "more", "most"}, "b": {"base", "more"}, "c": {"base"}, "d": set()}
        self.assertEqual(common_beginnings(closure, "abcd", 1), {"a": "more", "b": "more"})
        self.assertEqual(common_beginnings(closure, "abcd", 3), {"a": "most", "b": "more", "c": "base"})

    def test_headers_that_do_not_include_a_beginning_do_not_see_it(self):
        closure = {"base": set(), "own": set(), "user": {"base", "own"}, "most": {"base", "own", "user"}}
        self.assertEqual(parts_of(["own", "user", "most"], "base", closure), [(["own"], None), (["user", "most"], "base")])
        self.assertEqual(parts_of(["base"], None, closure), [(["base"], None)])
        self.assertEqual(parts_of(["user"], "base", closure), [(["user"], "base")])

    def test_header_that_needs_another_behind_a_beginning(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            core = root / "include" / "pagedkv" / "core"
            core.mkdir(parents=True)
            (core / "base.hpp").write_text("#pragma once\n#include <cstddef>\ninline std::size_t base = 1;\n")
            (core / "bad.hpp").write_text("#pragma once\n#include <pagedkv/core/base.hpp>\ninline std::vector<int> values;\n")
            options = precompile(root, "core/base.hpp", root / "programs")
            self.assertTrue((root / "programs" / "beginnings" / "core_base.hpp.gch").is_file())
            self.assertIn("core/bad.hpp", compile_chain(root, ["core/bad.hpp"], root / "programs", options))

    def test_header_without_include_guard(self):
        self.assertIn("core/bad.hpp", self.compile("inline int value = 1;\n"))


if __name__ == "__main__":
    unittest.main()
