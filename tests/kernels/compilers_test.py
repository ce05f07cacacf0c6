"""Every kernel but those of AMD's own elements compiles for NVIDIA, and the backend for AMD and NVIDIA, with the compilers
that are installed. What is absent is skipped. scripts/amd-check compiles every kernel for AMD."""

import concurrent.futures
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
HOST_COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
INSTANTIATIONS = SOURCE_ROOT / "kernels" / "pagedkv" / "kernels" / "instantiations"

NO_DEVICE_PROGRAM = """
#include <pagedkv/device/backend.hpp>

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


# A host compiler reads a file with CUDA's own header, before or after the library's.
ENGINE_PROGRAM = """
#include <cuda_runtime_api.h>

#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/device_allocator.hpp>
#include <pagedkv/device/event.hpp>
#include <pagedkv/device/pinned_allocator.hpp>
#include <pagedkv/device/pool_allocator.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/pagedkv.hpp>

#include <iostream>

using namespace pagedkv;
using device_cache = kv_cache<hip_backend>;

static_assert(std::is_same_v<hip_backend::stream, cudaStream_t>);

// Never called: every launch is to be found by the linker.
void launch_all(hip_backend& backend, device_cache& cache, const block_storage_view& view, cudaStream_t stream) {
  static_cast<void>(backend.append<float16>(view, 0, {}, {}, {}, stream));
  static_cast<void>(backend.gather<float16>(view, 0, {}, {}, {}, stream));
  static_cast<void>(backend.copy_blocks(view, {}, stream));
  static_cast<void>(backend.move_blocks(view, {}, stream));
  static_cast<void>(hip::swap_blocks(view, view, {}, cudaMemcpyDeviceToHost, stream));
  static_cast<void>(hip::convert_blocks<float16, int8>(view, view, {}, stream));
  static_cast<void>(hip::rope_append<float16, bfloat16, kernels::rope_pairing::halves>(view, 0, {}, {}, {}, {}, {}, {}, stream));
  static_cast<void>(cache.compact(stream));
}

int main() {
  const auto found = hip::check_device(0);
  std::cout << (found ? std::string("a device") : found.error().message()) << "\\n";
}
"""


def run(*command):
    return subprocess.run([str(word) for word in command], cwd=SOURCE_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin"))


class CompilerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check_answer(self, program):
        """Whether there is a device or not, the program ends well and says one sentence."""
        done = run(program)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count("\n"), 1, done.stdout)
        if done.stdout != "a device\n":
            self.assertRegex(done.stdout, r"^backend failure: the search for a device answered \d+ \(.+\)$")


class Compilers(CompilerTest):

    def build(self, compiler, *options):
        """A program that looks for a device, built by a device compiler."""
        source = self.folder / "no_device.hip"
        source.write_text(NO_DEVICE_PROGRAM)
        program = self.folder / "no_device"
        built = run(compiler, "-std=c++20", *options, "-Iinclude", "-Ikernels", "-o", program, source)
        self.assertEqual(built.returncode, 0, built.stdout)
        return program

    def test_amd_without_a_device(self):
        if not shutil.which("hipcc"):
            self.skipTest("hipcc is not installed")
        self.check_answer(self.build("hipcc", "-O1", "--offload-arch=gfx90a"))

    def test_nvidia_without_a_device(self):
        nvcc = find_nvcc()
        if not nvcc:
            self.skipTest("nvcc is not installed")
        self.check_answer(self.build(nvcc, "-x", "cu", "-arch=sm_90"))

    def test_nvidia_takes_every_header(self):
        nvcc = find_nvcc()
        if not nvcc:
            self.skipTest("nvcc is not installed")
        flags = ["-x", "cu", "-std=c++20", "-O0", "-arch=sm_90", "-Werror", "all-warnings", "-Iinclude", "-Ikernels"]
        done = run(nvcc, *flags, "-c", "-o", self.folder / "headers.o", "tests/kernels/device_headers.cpp")
        self.assertEqual(done.returncode, 0, done.stdout)


class Nvidia(CompilerTest):
    """Compiles every instantiation once, for all cases."""

    @classmethod
    def setUpClass(cls):
        nvcc = find_nvcc()
        if not nvcc:
            raise unittest.SkipTest("nvcc is not installed")
        cls.cuda = pathlib.Path(nvcc).resolve().parent.parent
        cls.objects = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.objects.cleanup)
        # Optimised as users do, they would take half as long again to compile.
        level = ["-O1", "-Xcicc", "-O1", "-Xptxas", "-O1"]
        flags = ["-x", "cu", "-std=c++20", *level, "-DNDEBUG", "-arch=sm_90", "-Iinclude", "-Ikernels"]
        # CDNA 3's own forms of fp8 are for AMD: scripts/amd-check compiles them.
        sources = sorted(source for source in INSTANTIATIONS.glob("*.hip") if "fnuz" not in source.stem)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            results = workers.map(lambda source: run(nvcc, *flags, "-c", "-o", cls.object_of(source.stem), source), sources)
            cls.compiled = dict(zip(sources, results))

    @classmethod
    def object_of(cls, element):
        return pathlib.Path(cls.objects.name) / f"{element}.o"

    def test_every_kernel_compiles(self):
        self.assertTrue(self.compiled)
        for source, done in self.compiled.items():
            with self.subTest(source.name):
                self.assertEqual(done.returncode, 0, done.stdout)

    def test_from_a_host_compiler(self):
        cuda, objects = self.cuda, [self.object_of(name) for name in ("blocks", "float16")]
        include = "#include <cuda_runtime_api.h>\n"
        for order, text, macro in (
            ("CUDA first", ENGINE_PROGRAM, []),
            ("CUDA last", ENGINE_PROGRAM.replace(include, "").replace("#include <iostream>\n", "#include <iostream>\n" + include), ["-DPAGEDKV_NVIDIA"]),
        ):
            with self.subTest(order):
                source, engine = self.folder / "engine.cpp", self.folder / "engine"
                source.write_text(text)
                flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", *macro, "-Iinclude", "-Ikernels", "-isystem", cuda / "include"]
                done = run(*HOST_COMPILER, *flags, "-c", "-o", f"{engine}.o", source)
                self.assertEqual(done.returncode, 0, done.stdout)
                done = run(*HOST_COMPILER, "-o", engine, f"{engine}.o", *objects, f"-L{cuda / 'lib64'}", "-lcudart", f"-Wl,-rpath,{cuda / 'lib64'}")
                self.assertEqual(done.returncode, 0, done.stdout)
                self.check_answer(engine)


if __name__ == "__main__":
    unittest.main()
