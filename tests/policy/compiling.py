"""Compiles programs of a cache's policies, for the tests beside this file."""

import os
import pathlib
import shlex
import subprocess

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])


def compile_program(program, *options):
    """The compiler's exit status, and what it says of a program: every error, however many there are."""
    command = [*COMPILER, "-std=c++20", "-fsyntax-only", *options, "-x", "c++"]
    command += [f"-I{SOURCE_ROOT / 'include'}", f"-I{SOURCE_ROOT / 'kernels'}", "-"]
    if "clang" in COMPILER[-1]:
        command.insert(-1, "-ferror-limit=0")
    done = subprocess.run(command, input=program, capture_output=True, text=True)
    return done.returncode, done.stderr
