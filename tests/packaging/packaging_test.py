"""A small project uses pagedkv in both ways that are offered: as a Meson subproject, and installed, by pkg-config."""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
CONSUMER = pathlib.Path(__file__).parent / "consumer"
OUTPUT = "in use: blocks is 2\n"


def run(*command, **environment):
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise AssertionError(f"{shlex.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def headers_below(folder):
    return {path.relative_to(folder).as_posix() for kind in ("*.hpp", "*.hip") for path in folder.rglob(kind)}


class Packaging(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.consumer = self.folder / "consumer"
        shutil.copytree(CONSUMER, self.consumer)

    def build_and_run(self, *options, **environment):
        build = self.folder / "build"
        run("meson", "setup", *options, build, self.consumer, **environment)
        run("meson", "compile", "-C", build)
        self.assertEqual(run(build / "consumer"), OUTPUT)
        return build

    def test_as_a_subproject(self):
        (self.consumer / "subprojects").mkdir()
        (self.consumer / "subprojects" / "pagedkv").symlink_to(SOURCE_ROOT)
        build = self.build_and_run("--wrap-mode=forcefallback")
        self.assertIn('"name": "consumer"', run("meson", "introspect", "--targets", "--indent", build))
        self.assertNotIn('"subproject": "pagedkv"', run("meson", "introspect", "--targets", "--indent", build))

    def test_installed(self):
        build, prefix = self.folder / "pagedkv", self.folder / "prefix"
        disabled = ("-Dtests=disabled", "-Dbenches=disabled", "-Dexamples=disabled")
        run("meson", "setup", f"--prefix={prefix}", *disabled, build, SOURCE_ROOT)
        run("meson", "install", "-C", build)

        sources = headers_below(SOURCE_ROOT / "include") | headers_below(SOURCE_ROOT / "kernels")
        self.assertEqual(headers_below(prefix / "include"), sources)
        files = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
        self.assertEqual(files - {f"include/{name}" for name in sources}, {"share/pkgconfig/pagedkv.pc"})

        path = str(prefix / "share" / "pkgconfig")
        self.build_and_run("--wrap-mode=nofallback", PKG_CONFIG_PATH=path)

        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "pagedkv", PKG_CONFIG_PATH=path))
        program = self.folder / "by_hand"
        run(*COMPILER, "-std=c++20", self.consumer / "main.cpp", "-o", program, *flags)
        self.assertEqual(run(program), OUTPUT)

        kernels = pathlib.Path(run("pkg-config", "--variable=kernels", "pagedkv", PKG_CONFIG_PATH=path).strip())
        self.assertTrue((kernels / "float16.hip").is_file())


if __name__ == "__main__":
    unittest.main()
