"""The minimal model in the comment of each axis's concept models it, and a cache recognises those of its axes. Without one
of its members, the model is refused with a sentence that names the axis and the member."""

import re
import unittest

from compiling import SOURCE_ROOT, compile_program

INCLUDE = SOURCE_ROOT / "include/pagedkv"
CONCEPTS = sorted([*(INCLUDE / "policy").glob("*/concept.hpp"), INCLUDE / "backend/concept.hpp"])


def model_of(text):
    """The code that a concept's comment holds."""
    return "".join(re.findall(r"^///     (.*\n)", text, re.MULTILINE))


def members_of(model):
    """The members of a model's struct, each with its name; data that no concept asks for is left out."""
    body = model[model.index("{") + 1 : model.rindex("};")]
    parts, start, depth = [], 0, 0
    for at, letter in enumerate(body):
        depth += (letter == "{") - (letter == "}")
        if depth == 0 and (letter == ";" or body[at : at + 2] == "}\n"):
            parts.append(body[start : at + 1])
            start = at + 1
    name = re.compile(r"(\w+)(?:\(| =|(?<=stream) \{)")
    return [(name.search(part).group(1), part) for part in parts if name.search(part)]


def nearly_models(model, name):
    """Models without one member, or with one that may throw: each with the name of the member."""
    for member, text in members_of(model):
        if member == name:
            yield "constructor", model.replace(text, "")
        elif member != "hash":  # without it, a hash is nothing
            yield member, re.sub(rf"\b{member}\b", f"other_{member}", model)
        if " noexcept" in text:
            yield member, model.replace(text, text.replace(" noexcept", ""))


def struct_of(axis):
    """The minimal model of an axis without its templates, and its name."""
    model = model_of(next(path for path in CONCEPTS if path.parent.name == axis).read_text())
    model = model[model.index("struct own_") :]
    model = model[: model.index("};\n") + 3]
    return model, re.match(r"struct (\w+)", model).group(1)


INCLUDES = """
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/tiered_cache.hpp>
#include <atomic>
#include <cstdlib>
using namespace pagedkv;
"""

KINDS = {
    "allocator": "an allocator",
    "backend": "a backend",
    "element": "an element",
    "events": "an events policy",
    "eviction": "an eviction policy",
    "free_list": "a free list policy",
    "hash": "a hash",
    "layout": "a layout",
    "locking": "a locking policy",
    "tiers": "a tier",
}

# Forms of a tier's number of places that a cache would not see.
PLACES = ("std::int64_t num_places() const;", "int num_places() const noexcept;", "std::int64_t num_places() noexcept;")

# Of preemption policies that keep K/V.
KEPT = """
struct keeping_preemption {
  static constexpr bool enabled = false;
  static constexpr bool keeps_kv = true;
  static constexpr std::string_view name = "keeping";
  void save(auto& cache, const preemption_candidate& request, auto on) noexcept;
  std::int64_t restore(auto& cache, const preemption_candidate& request, std::int64_t num_cached, auto on) noexcept;
  void discard(request_id id) noexcept;
};
"""


class MinimalModels(unittest.TestCase):
    def test_each_models_its_concept_and_is_recognised(self):
        program = INCLUDES
        for path in CONCEPTS:
            text = path.read_text()
            name = re.search(r"^struct (\w+) ", model_of(text), re.MULTILINE).group(1)
            program += model_of(text)
            if path.parent.name == "preemption":  # the tracker's
                program += f"static_assert(preemption_policy<{name}>);\n"
                continue
            if path.parent.name == "tiers":  # a cache may have several
                program += f"static_assert(tier_policy<{name}> && !std::is_same_v<kv_cache<{name}>, kv_cache<>>);\n"
                continue
            axis, concept = re.search(r"struct (\w+_axis) \{[^}]*takes = (\w+)<Policy>", text).groups()
            program += f"static_assert(pagedkv::{concept}<{name}>);\n"
            program += f"using cache_{axis} = kv_cache<{name}>;\n"
            program += f"static_assert(!std::is_same_v<cache_{axis}, kv_cache<>>);\n"
        self.assertGreaterEqual(len(CONCEPTS), 8)
        status, text = compile_program(program, "-Wall", "-Wextra", "-Werror")
        self.assertEqual(status, 0, text)

    def check(self, program, expected):
        """Compiles a program; its errors are these pairs of a sentence and a member that it names, in their order."""
        _, text = compile_program(program)
        errors = [line for line in text.splitlines() if "error: " in line]
        self.assertEqual(len(errors), len(expected), text)
        for error, (sentence, member) in zip(errors, expected):
            self.assertIn(sentence, error)
            self.assertRegex(error.split(sentence)[1], rf"\b{member}\b")

    def test_a_missing_member_is_named_with_its_axis(self):
        program, expected = INCLUDES, []
        for axis, kind in KINDS.items():
            model, name = struct_of(axis)
            nearly = list(nearly_models(model, name))
            if axis == "tiers":
                nearly += [("num_places", model.replace("{\n", "{\n  " + form + "\n", 1)) for form in PLACES]
            for member, text in nearly:
                own = f"{name}_{len(expected)}"
                cache = f"kv_cache<{own}>" if len(expected) % 2 else f"kv_cache<int8, {own}>"
                if axis == "tiers" and len(expected) % 2:
                    cache = f"kv_cache<host_tier<>, {own}>"
                program += re.sub(rf"\b{name}\b", own, text) + f"using cache_{own} = {cache};\n"
                expected.append((f"this type is nearly {kind}: ", member))
        self.check(program, expected)
        self.assertGreater(len(expected), 50)

    def test_a_tracker_names_the_missing_member_of_its_policy(self):
        program, expected = INCLUDES, []
        for model, name in (struct_of("preemption"), (KEPT, "keeping_preemption")):
            for member, text in nearly_models(model, name):
                own = f"{name}_{len(expected)}"
                program += re.sub(rf"\b{name}\b", own, text)
                program += f"request_tracker<kv_cache<>, {own}>* make_{own}(kv_cache<>& cache) {{\n"
                program += f"  return new request_tracker<kv_cache<>, {own}>{{cache}};\n}}\n"
                expected.append(("this type is nearly a preemption policy: ", member))
        self.check(program, expected)
        self.assertGreater(len(expected), 10)


if __name__ == "__main__":
    unittest.main()
