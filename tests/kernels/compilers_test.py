"""Every kernel compiles for AMD and NVIDIA with the compilers that are installed, and spills nothing on AMD. What is absent is
skipped."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
INSTANTIATIONS = SOURCE_ROOT / "kernels" / "pagedkv" / "kernels" / "instantiations"
NOTHING_CHECKED = 77

NO_DEVICE_PROGRAM = """
#include <pagedkv/backend/hip/backend.hpp>

#include <iostream>

int main() {
  try {
    pagedkv::hip_backend();
    std::cout << "a device\\n";
  } catch (const pagedkv::exception& e) {
    std::cout << e.what() << "\\n";
  }
}
"""


def run(*command):
    return subprocess.run([str(word) for word in command], cwd=SOURCE_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin"))


class Compilers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def build(self, compiler, *options):
        """A program that looks for a device, built by a device compiler."""
        source = self.folder / "no_device.hip"
        source.write_text(NO_DEVICE_PROGRAM)
        program = self.folder / "no_device"
        built = run(compiler, "-std=c++20", *options, "-Iinclude", "-Ikernels", "-o", program, source)
        self.assertEqual(built.returncode, 0, built.stdout)
        return program

    def check_answer(self, program):
        """Whether there is a device or not, the program ends well and says one sentence."""
        done = run(program)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count("\n"), 1, done.stdout)
        if done.stdout != "a device\n":
            self.assertRegex(done.stdout, r"^backend failure: the search for a device by hipGetDeviceCount answered \d+ \(.+\)$")

    def test_amd(self):
        if not shutil.which("hipcc"):
            self.skipTest("hipcc is not installed")
        done = run("scripts/amd-check", "--installed", "gfx90a", "gfx1030")
        if done.returncode == NOTHING_CHECKED:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count("none spills"), 2, done.stdout)

    def test_amd_without_a_device(self):
        if not shutil.which("hipcc"):
            self.skipTest("hipcc is not installed")
        self.check_answer(self.build("hipcc", "-O1", "--offload-arch=gfx90a"))

    def test_nvidia(self):
        nvcc = find_nvcc()
        if not nvcc:
            self.skipTest("nvcc is not installed")
        for source in sorted(INSTANTIATIONS.glob("*.hip")):
            with self.subTest(source.name):
                flags = ["-x", "cu", "-std=c++20", "-O3", "-DNDEBUG", "-arch=sm_90", "-Iinclude", "-Ikernels"]
                done = run(nvcc, *flags, "-c", "-o", self.folder / "kernels.o", source)
                self.assertEqual(done.returncode, 0, done.stdout)

    def test_nvidia_without_a_device(self):
        nvcc = find_nvcc()
        if not nvcc:
            self.skipTest("nvcc is not installed")
        self.check_answer(self.build(nvcc, "-x", "cu", "-arch=sm_90"))


if __name__ == "__main__":
    unittest.main()
