"""What scripts know of the compiler for AMD: its flags by target, and names of kernels."""

import re
import subprocess

# clang 21 takes one 16-bit half of a register for the other where gfx110x uses "real true16" instructions, its default there.
TRUE16_CLANG, TRUE16_TARGET = 21, "gfx110"
TRUE16_OFF = ["-Xclang", "-target-feature", "-Xclang", "-real-true16", "-DPAGEDKV_REAL_TRUE16_OFF"]


def flags(target, version_text):
    """What a target needs of the clang whose `--version` says this."""
    version = re.search(r"clang version (\d+)", version_text)
    affected = target.startswith(TRUE16_TARGET) and version and int(version.group(1)) == TRUE16_CLANG
    return TRUE16_OFF if affected else []


def short_names(mangled):
    """Kernels with their template arguments, without their parameters."""
    return [short_name(name) for name in subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True).stdout.splitlines()]


def short_name(demangled):
    name = re.sub(r"^void |pagedkv::|kernels::|__device_stub__", "", demangled)
    name = name.replace("(rope_pairing)0", "halves").replace("(rope_pairing)1", "neighbours")
    depth = 0
    for position, character in enumerate(name):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            return name[:position]
    return name
