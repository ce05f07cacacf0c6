"""The minimal model in the comment of each axis's concept models it, and a cache recognises those of its axes. Without one
of its members, the model is refused with a sentence that names the axis and the member."""

import re
import unittest

from compiling import SOURCE_ROOT, compile_program

CONCEPTS = sorted((SOURCE_ROOT / "include/pagedkv/policy").glob("*/concept.hpp"))


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


INCLUDES = """
#include <pagedkv/pagedkv.hpp>
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
}


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

    def test_a_missing_member_is_named_with_its_axis(self):
        program, expected = INCLUDES, []
        for axis, kind in KINDS.items():
            model = model_of((SOURCE_ROOT / f"include/pagedkv/policy/{axis}/concept.hpp").read_text())
            model = model[model.index("struct own_") :]
            model = model[: model.index("};\n") + 3]
            name = re.match(r"struct (\w+)", model).group(1)
            for member, nearly in nearly_models(model, name):
                own = f"{name}_{len(expected)}"
                program += re.sub(rf"\b{name}\b", own, nearly) + f"using cache_{own} = kv_cache<{own}>;\n"
                expected.append((f"this type is nearly {kind}: ", member))
        _, text = compile_program(program)
        errors = [line for line in text.splitlines() if "error: " in line]
        self.assertEqual(len(errors), len(expected), text)
        for error, (sentence, member) in zip(errors, expected):
            self.assertIn(sentence, error)
            self.assertRegex(error.split(sentence)[1], rf"\b{member}\b")
        self.assertGreater(len(expected), 40)


if __name__ == "__main__":
    unittest.main()
