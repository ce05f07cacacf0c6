"""Programs in documents compile, or are excerpts of an example; those with a `main` print the lines below them; links lead to files and
headings of the repository; errors and axes are explained."""

import collections
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_GCC"])
DOCUMENTS = [*sorted(SOURCE_ROOT.glob("*.md")), *sorted((SOURCE_ROOT / "docs").glob("*.md"))]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]


FOLDER = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "tests" / "documents"
LIBRARIES = {"<pagedkv/tier/file_tier.hpp>": ["-luring"]}  # that a header needs beside xxHash
# The program is linked, but not run: it writes to a disk of the reader's.
NOT_RUN = "/disk0/"

Program = collections.namedtuple("Program", "document text printed")


# The page of each axis of policies.
AXES = {
    "allocator": "allocators", "backend": "backends", "element": "elements", "events": "events", "eviction": "eviction", "free_list": "free_lists",
    "groups": "groups", "hash": "hashes", "layout": "layouts", "locking": "concurrency", "preemption": "requests", "tiers": "tiers",
}
REQUIREMENT = re.compile(r"^ */// \|(.*)\|(.*)\|$", flags=re.MULTILINE)


def requirements(concept):
    """Rows of the tables of requirements in a concept's comments, each as one line."""
    rows = []
    for requirement, meaning in ((left.strip(), right.strip()) for left, right in REQUIREMENT.findall(concept)):
        if requirement:
            rows.append(f"| {requirement} | {meaning} |")
        else:
            rows[-1] = f"{rows[-1][:-2]} {meaning} |"
    return [row for row in rows if row.startswith("| `")]


def unexplained(axis, concept, page):
    """What the page of an axis lacks: policies by their names, requirements by their rows, and other members that are used."""
    models = re.findall(r"\w+", " ".join(re.findall(r"policy_list<([\w, \n]+)>;", axis)))
    found = [model for model in models if f"`{model}`" not in page and f"`{model.split('_')[0]}_…`" not in page]
    used = dict.fromkeys(re.findall(r"\b[A-Z]::(?:template )?(\w+)", concept))
    return found + [row for row in requirements(concept) if row not in page] + [name for name in used if name not in page]


def programs(documents=DOCUMENTS):
    """Each with the lines of the block of text that follows it at once."""
    for document in documents:
        if document.name == "tutorial.md":  # tutorial_test.py builds its growing program
            continue
        blocks = re.findall(r"^```cpp\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", document.read_text(), flags=re.DOTALL | re.MULTILINE)
        for text, printed in blocks:
            yield Program(document.name, text, printed)


def by_headers(complete):
    """Programs that include the same headers of ours are compiled as one, since they share most of what is instantiated."""
    joined = collections.defaultdict(list)
    for program in complete:
        joined[tuple(re.findall(r"^#include <pagedkv/.*>\n", program.text, flags=re.MULTILINE))].append(program)
    return joined.items()


def has_main(program):
    return re.search(r"^int main\(", program.text, flags=re.MULTILINE) is not None


def source_of(joined):
    """A program of all these, each in a namespace; the number of one that has a `main` has it run."""
    includes = [re.findall(r"^#include .*\n", program.text, flags=re.MULTILINE) for program in joined]
    source = "#include <cstdlib>\n" + "".join(line for lines in includes for line in lines)
    calls = ""
    for number, program in enumerate(joined):
        lines = re.sub(r"^#include .*$", "", program.text, flags=re.MULTILINE)
        # Only the true `main` may end without a result.
        lines = re.sub(r"^(int main\(.*?)^\}$", r"\1return 0;\n}", lines, flags=re.DOTALL | re.MULTILINE)
        source += f'namespace program_{number} {{\n#line 1 "{program.document}"\n{lines}}}\n'
        calls += f"    case {number}: return program_{number}::main();\n" if has_main(program) else ""
    return source + (f"int main(int, char** argv) {{\n  switch (std::atoi(argv[1])) {{\n{calls}  }}\n  return 1;\n}}\n" if calls else "")


def errors_in(headers, joined):
    """Of the compiler, and of programs that end with an error or print other lines than their document says."""
    is_run = any(map(has_main, joined))
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Files that stay, since a compiler cache remembers nothing of others.
    source = FOLDER / (re.sub(r"\W+", "_", "".join(headers).replace("#include <pagedkv/", "")) + ".cpp")
    source.write_text(source_of(joined))
    program, built = source.with_suffix(""), source.with_suffix(".o")
    includes = [f"-I{SOURCE_ROOT / folder}" for folder in ("include", "kernels")]
    commands = [[*COMPILER, "-std=c++20", *WARNINGS, *includes, *(["-c", "-ffunction-sections", "-o", built] if is_run else ["-fsyntax-only"]), source]]
    if is_run:
        libraries = [name for header in headers for name in LIBRARIES.get(header.split()[1], [])]
        # Functions that no `main` reaches go, and with them what only an engine defines.
        commands += [[*COMPILER, "-Wl,--gc-sections", "-o", program, built, "-lxxhash", "-pthread", *libraries]]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return done.stderr or "failed"
    found = ""
    for number, (document, text, printed) in enumerate(joined):
        if not has_main(joined[number]) or NOT_RUN in text:
            continue
        done = subprocess.run([program, str(number)], capture_output=True, text=True)
        if done.returncode or done.stdout != printed:
            found += f"{document}: a program ends with {done.returncode}, and prints\n{done.stdout}{done.stderr}instead of\n{printed}"
    return found


def without_programs(document):
    return re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(document):
    """The names by which links reach a page's headings, as GitHub makes them."""
    found = collections.Counter()
    for heading in re.findall(r"^#+ (.*)$", without_programs(document), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w -]", "", words).replace(" ", "-")
        yield f"{name}-{found[name]}" if found[name] else name
        found[name] += 1


def broken_links(document, root):
    """Links of a page that lead to no file below the root, or to no heading of a page there."""
    found = []
    for target in re.findall(r"\]\((?!https?:)([^)]*)\)", without_programs(document)):
        name, _, heading = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        leads_there = path.exists() and path.resolve().is_relative_to(root.resolve())
        if not leads_there or heading and path.suffix == ".md" and heading not in anchors(path):
            found.append(f"{document.name}: {target}")
    return found


class Documents(unittest.TestCase):
    def test_complete_programs_compile_and_print_their_lines(self):
        complete = [program for program in programs() if program.text.startswith("#include")]
        self.assertGreaterEqual(len(complete), 20)
        self.assertGreaterEqual(len([program for program in complete if has_main(program)]), 6)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            self.assertEqual("".join(workers.map(errors_in, *zip(*by_headers(complete)))), "")

    def test_a_program_that_prints_other_lines_is_found(self):
        page = FOLDER / "planted.md"
        FOLDER.mkdir(parents=True, exist_ok=True)
        page.write_text('```cpp\n#include <cstdio>\n\nint main() {\n  std::puts("1");\n}\n```\n\n```text\n2\n```\n')
        self.assertIn("prints\n1\ninstead of\n2\n", errors_in((), list(programs([page]))))

    def test_other_programs_are_excerpts_of_examples(self):
        examples = [path.read_text() for path in (SOURCE_ROOT / "examples").glob("*.cpp")]
        for name, block, _ in programs():
            with self.subTest(document=name, begins=block.partition("\n")[0]):
                self.assertTrue(block.startswith("#include") or any(block in example for example in examples))

    def test_no_program_in_cpp_has_another_mark(self):
        for document in DOCUMENTS:
            marks = set(re.findall(r"^```(\S+)$", document.read_text(), flags=re.MULTILINE))
            self.assertLessEqual(marks, {"cpp", "c", "cmake", "meson", "python", "sh", "text"}, document.name)

    def test_a_table_has_every_error_code(self):
        codes = re.search(r"enum class error_code[^{]*\{(.*?)\};", (SOURCE_ROOT / "include/pagedkv/core/result.hpp").read_text(), flags=re.DOTALL)[1]
        explained = re.findall(r"^\| `(\w+)` \|.*\|.*\|$", (SOURCE_ROOT / "docs/integrate.md").read_text(), flags=re.MULTILINE)
        names = re.findall(r"^\s+(\w+),", codes, flags=re.MULTILINE)
        self.assertGreater(len(names), 10)
        self.assertEqual([name for name in names if name not in explained], [])

    def test_each_axis_has_a_page_with_its_policies_and_requirements(self):
        include = SOURCE_ROOT / "include/pagedkv"
        folders = {path.parent for path in (include / "policy").glob("*/concept.hpp")} | {include / "backend"}
        self.assertEqual({folder.name for folder in folders}, set(AXES))
        for folder in folders:
            with self.subTest(axis=folder.name):
                models = (folder / "all.hpp").read_text() if (folder / "all.hpp").exists() else ""
                concept = (folder / "concept.hpp").read_text()
                self.assertGreater(len(requirements(concept)), 0)
                page = (SOURCE_ROOT / "docs" / f"{AXES[folder.name]}.md").read_text()
                self.assertEqual(unexplained(models, concept, page), [])

    def test_a_page_that_lacks_a_policy_or_a_requirement_is_found(self):
        models = "using all_hats = policy_list<bowler, top_hat>;\n"
        concept = "/// | requirement | meaning |\n/// |---|---|\n/// | `H::size` | in inches, or |\n/// |  | none |\n/// | `H::name` | for tables |\n"
        concept += "concept hat = requires { H::name; H::brim; };\n"
        page = "| `bowler` | round |\n\n| `H::size` | in inches |\n| `H::name` | for tables |\n"
        self.assertEqual(unexplained(models, concept, page), ["top_hat", "| `H::size` | in inches, or none |", "brim"])

    def test_a_release_runs_every_script_that_checks(self):
        scripts = {path.name for path in (SOURCE_ROOT / "scripts").iterdir() if path.is_file()}
        release = (SOURCE_ROOT / "docs" / "versions.md").read_text().partition("\n## A release is made so\n")[2]
        run = set(re.findall(r"`scripts/([\w-]+)", release))
        self.assertEqual(scripts - run, {"chat", "demo", "install", "serve"})
        self.assertEqual(run - scripts, set())

    def test_links_lead_to_files_and_headings(self):
        for document in DOCUMENTS:
            self.assertEqual(broken_links(document, SOURCE_ROOT), [])

    def test_a_link_that_leads_nowhere_is_found(self):
        page = FOLDER / "links.md"
        FOLDER.mkdir(parents=True, exist_ok=True)
        page.write_text("# A `kv_cache`, and [more](links.md)\n\n## Twice\n\n## Twice\n\n[1](#a-kv_cache-and-more) [2](links.md#twice-1)\n")
        self.assertEqual(broken_links(page, FOLDER), [])
        page.write_text("# Here\n\n```sh\n# there\n```\n\n[1](#there) [2](none.md) [3](../links.md) [4](https://example.com/#any)\n")
        self.assertEqual(broken_links(page, FOLDER), ["links.md: #there", "links.md: none.md", "links.md: ../links.md"])


if __name__ == "__main__":
    unittest.main()
