"""Every kernel but those of AMD's own elements compiles for NVIDIA, and the backend for AMD and NVIDIA, with the compilers
that are installed, each version of nvcc among them: those in /usr/local/cuda*, or those that PAGEDKV_NVCC lists, with colons between
them; a clang that PAGEDKV_CUDA_CLANG names reads all headers. What is absent is skipped. scripts/amd-check compiles every kernel for
AMD."""

import concurrent.futures
import glob
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
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/pagedkv.hpp>

#include <iostream>

using namespace pagedkv;
using device_cache = kv_cache<hip_backend>;

static_assert(std::is_same_v<hip_backend::stream_type, cudaStream_t>);

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


def find_nvccs():
    """Each nvcc once, however many links lead to it."""
    if listed := os.environ.get("PAGEDKV_NVCC"):
        return listed.split(os.pathsep)
    homes = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *sorted(glob.glob("/usr/local/cuda*"))]
    found = [shutil.which("nvcc"), *(shutil.which("nvcc", path=os.path.join(home, "bin")) for home in homes)]
    return sorted({os.path.realpath(path) for path in found if path})


NVCCS = find_nvccs()
# With a toolkit that it takes: "clang++-16 --cuda-path=/opt/cuda-12.4".
CLANG = shlex.split(os.environ.get("PAGEDKV_CUDA_CLANG", ""))


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

    @unittest.skipUnless(NVCCS, "nvcc is not installed")
    def test_nvidia_without_a_device(self):
        for nvcc in NVCCS:
            with self.subTest(nvcc):
                self.check_answer(self.build(nvcc, "-x", "cu", "-arch=sm_90"))

    @unittest.skipUnless(NVCCS, "nvcc is not installed")
    def test_nvidia_takes_every_header(self):
        flags = ["-x", "cu", "-std=c++20", "-O0", "-arch=sm_90", "-Werror", "all-warnings", "-Iinclude", "-Ikernels"]
        for nvcc in NVCCS:
            with self.subTest(nvcc):
                done = run(nvcc, *flags, "-c", "-o", self.folder / "headers.o", "tests/kernels/device_headers.cpp")
                self.assertEqual(done.returncode, 0, done.stdout)

    @unittest.skipUnless(CLANG, "PAGEDKV_CUDA_CLANG names no clang and its toolkit")
    def test_clang_takes_every_header_for_nvidia(self):
        flags = ["-x", "cuda", "-std=c++20", "--cuda-gpu-arch=sm_90", "-Wno-unknown-cuda-version", "-Wall", "-Wextra", "-Werror"]
        done = run(*CLANG, *flags, "-fsyntax-only", "-Iinclude", "-Ikernels", "tests/kernels/device_headers.cpp")
        self.assertEqual(done.returncode, 0, done.stdout)


@unittest.skipUnless(NVCCS, "nvcc is not installed")
class Nvidia(CompilerTest):
    """Compiles every instantiation once with each nvcc, for all cases: to an object where one is linked, to PTX otherwise, which takes
    a fifth of the time. Tests on a device compile their own whole."""

    LINKED = ("blocks", "float16")

    @classmethod
    def setUpClass(cls):
        cls.objects = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.objects.cleanup)
        # Optimised as users do, they would take six times as long to compile.
        level = ["-O0", "-Xcicc", "-O0", "-Xptxas", "-O0"]
        flags = ["-x", "cu", "-std=c++20", *level, "-DNDEBUG", "-arch=sm_90", "-Iinclude", "-Ikernels"]
        # CDNA 3's own forms of fp8 are for AMD: scripts/amd-check compiles them.
        sources = sorted(source for source in INSTANTIATIONS.glob("*.hip") if "fnuz" not in source.stem)
        pairs = [(nvcc, source) for nvcc in NVCCS for source in sources]

        def compile(pair):
            nvcc, source = pair
            return run(nvcc, *flags, "-c" if source.stem in cls.LINKED else "-ptx", "-o", cls.object_of(nvcc, source.stem), source)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            cls.compiled = dict(zip(pairs, workers.map(compile, pairs)))

    @classmethod
    def object_of(cls, nvcc, element):
        return pathlib.Path(cls.objects.name) / f"{NVCCS.index(nvcc)}_{element}.o"

    def test_every_kernel_compiles(self):
        self.assertTrue(self.compiled)
        for (nvcc, source), done in self.compiled.items():
            with self.subTest(f"{nvcc} {source.name}"):
                self.assertEqual(done.returncode, 0, done.stdout)

    def test_from_a_host_compiler(self):
        include = "#include <cuda_runtime_api.h>\n"
        orders = {
            "CUDA first": (ENGINE_PROGRAM, []),
            "CUDA last": (ENGINE_PROGRAM.replace(include, "").replace("#include <iostream>\n", "#include <iostream>\n" + include), ["-DPAGEDKV_NVIDIA"]),
        }
        for nvcc in NVCCS:
            for order, (text, macros) in orders.items():
                with self.subTest(f"{nvcc} {order}"):
                    self.check_answer(self.build_engine(nvcc, text, macros))

    def build_engine(self, nvcc, text, macros):
        """A program of the host compiler's, linked with kernels of this nvcc's and its runtime."""
        cuda = pathlib.Path(nvcc).resolve().parent.parent
        libraries = next(folder for name in ("lib64", "lib") if (folder := cuda / name).exists())
        runtime = next(iter(sorted(libraries.glob("libcudart.so*"))))
        source, engine = self.folder / "engine.cpp", self.folder / "engine"
        source.write_text(text)
        flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", *macros, "-Iinclude", "-Ikernels", "-isystem", cuda / "include"]
        done = run(*HOST_COMPILER, *flags, "-c", "-o", f"{engine}.o", source)
        self.assertEqual(done.returncode, 0, done.stdout)
        objects = [self.object_of(nvcc, name) for name in self.LINKED]
        done = run(*HOST_COMPILER, "-o", engine, f"{engine}.o", *objects, runtime, f"-Wl,-rpath,{libraries}")
        self.assertEqual(done.returncode, 0, done.stdout)
        return engine


if __name__ == "__main__":
    unittest.main()
