"""A small project uses pagedkv in every way that is offered: from its sources, and installed; by Meson, CMake and pkg-config."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
CONSUMER = pathlib.Path(__file__).parent / "consumer"
ENGINE = pathlib.Path(__file__).parent / "engine"
OUTPUT = "4 blocks are free\n"
# Of which a release's minor version is enough.
VERSION = ".".join(re.findall(r"PAGEDKV_VERSION_[A-Z]+ (\d+)\n", (SOURCE_ROOT / "include/pagedkv/version.h").read_text())[:2])
CMAKE_FILES = {f"share/cmake/pagedkv/{name}" for name in ("FindxxHash.cmake", "kernels.cmake", "pagedkvConfig.cmake", "pagedkvConfigVersion.cmake")}


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
    return {path.relative_to(folder).as_posix() for kind in ("*.h", "*.hpp", "*.inl", "*.hip", "*.cpp") for path in folder.rglob(kind)}


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

    def build_and_run_with_cmake(self, *options):
        build = self.folder / "cmake_build"
        run("cmake", "-S", self.consumer, "-B", build, f"-DWANTED_VERSION={VERSION}", *options)
        run("cmake", "--build", build)
        self.assertEqual(run(build / "consumer"), OUTPUT)

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
        # Nothing that is installed is built: code objects would be for minutes.
        run("meson", "install", "--no-rebuild", "-C", build)

        sources = headers_below(SOURCE_ROOT / "include") | headers_below(SOURCE_ROOT / "kernels")
        self.assertEqual(headers_below(prefix / "include"), sources)
        files = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
        self.assertEqual(files - {f"include/{name}" for name in sources}, CMAKE_FILES | {"share/pkgconfig/pagedkv.pc"})

        path = str(prefix / "share" / "pkgconfig")
        self.build_and_run("--wrap-mode=nofallback", PKG_CONFIG_PATH=path)

        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "pagedkv", PKG_CONFIG_PATH=path))
        program = self.folder / "by_hand"
        run(*COMPILER, self.consumer / "main.cpp", "-o", program, *flags)
        self.assertEqual(run(program), OUTPUT)

        kernels = pathlib.Path(run("pkg-config", "--variable=kernels", "pagedkv", PKG_CONFIG_PATH=path).strip())
        self.assertTrue((kernels / "float16.hip").is_file())

        self.build_and_run_with_cmake(f"-DCMAKE_PREFIX_PATH={prefix}")

    def test_headers_installed_elsewhere(self):
        build, prefix = self.folder / "pagedkv", self.folder / "prefix"
        disabled = ("-Dtests=disabled", "-Dbenches=disabled", "-Dexamples=disabled", "-Dcode_objects=disabled")
        run("meson", "setup", f"--prefix={prefix}", "--includedir=include/third_party", *disabled, build, SOURCE_ROOT)
        run("meson", "install", "-C", build)
        self.build_and_run_with_cmake(f"-DCMAKE_PREFIX_PATH={prefix}")

    def test_cmake_with_the_sources(self):
        self.build_and_run_with_cmake(f"-DPAGEDKV_SOURCE={SOURCE_ROOT}")

    def test_cmake_installed(self):
        build, first, prefix = self.folder / "pagedkv", self.folder / "first", self.folder / "prefix"
        elsewhere = "-DCMAKE_INSTALL_INCLUDEDIR=include/third_party"
        run("cmake", "-S", SOURCE_ROOT, "-B", build, f"-DCMAKE_INSTALL_PREFIX={first}", elsewhere)
        run("cmake", "--install", build)
        first.rename(prefix)  # an installed copy may be moved
        files = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
        sources = headers_below(SOURCE_ROOT / "include") | headers_below(SOURCE_ROOT / "kernels")
        headers = {f"include/third_party/{name}" for name in sources}
        self.assertEqual(files, headers | CMAKE_FILES | {"share/pkgconfig/pagedkv.pc"})
        self.build_and_run_with_cmake(f"-DCMAKE_PREFIX_PATH={prefix}")
        prefix.rename(first)  # but for pkg-config's file
        path = str(first / "share" / "pkgconfig")
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "pagedkv", PKG_CONFIG_PATH=path))
        program = self.folder / "by_hand"
        run(*COMPILER, CONSUMER / "main.cpp", "-o", program, *flags)
        self.assertEqual(run(program), OUTPUT)

    def install_engine(self, *options):
        """An engine's library, which exports a target that is built on pagedkv's."""
        build, prefix = self.folder / "engine", self.folder / "engine_prefix"
        run("cmake", "-S", ENGINE, "-B", build, f"-DWANTED_VERSION={VERSION}", f"-DCMAKE_INSTALL_PREFIX={prefix}", *options)
        run("cmake", "--build", build)
        run("cmake", "--install", build)
        return prefix

    def install_with_cmake(self):
        build, prefix = self.folder / "pagedkv", self.folder / "prefix"
        run("cmake", "-S", SOURCE_ROOT, "-B", build, f"-DCMAKE_INSTALL_PREFIX={prefix}")
        run("cmake", "--install", build)
        return prefix

    def test_an_engine_with_the_sources_exports_its_library(self):
        prefix = self.install_engine(f"-DPAGEDKV_SOURCE={SOURCE_ROOT}")
        self.build_and_run_with_cmake("-DUSE_ENGINE=ON", f"-DCMAKE_PREFIX_PATH={prefix}")

    def test_an_engine_with_an_installed_copy_exports_its_library(self):
        installed = self.install_with_cmake()
        prefix = self.install_engine(f"-DCMAKE_PREFIX_PATH={installed}")
        self.build_and_run_with_cmake("-DUSE_ENGINE=ON", f"-DCMAKE_PREFIX_PATH={prefix};{installed}")

    def test_cmake_names_what_is_missing(self):
        installed = self.install_with_cmake()
        for where in (f"-DCMAKE_PREFIX_PATH={installed}", f"-DPAGEDKV_SOURCE={SOURCE_ROOT}"):
            with self.subTest(where), self.assertRaisesRegex(AssertionError, "xxHash(.|\n)*install libxxhash-dev"):
                build = tempfile.mkdtemp(dir=self.folder)
                run("cmake", "-S", self.consumer, "-B", build, where, "-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include", PKG_CONFIG_LIBDIR=str(self.folder))

    def test_cmake_fetches_content(self):
        self.build_and_run_with_cmake("-DFETCH=ON", f"-DFETCHCONTENT_SOURCE_DIR_PAGEDKV={SOURCE_ROOT}")

    def compile_for_device(self, language, source, *options):
        """Compiles an engine's file with the host's compiler, and the smallest kernel; tests/kernels compiles all."""
        build = self.folder / "build"
        run("cmake", "-G", "Ninja", "-S", self.consumer, "-B", build, source, f"-DLANGUAGES={language}", *options)
        listed = run("ninja", "-C", build, "-t", "targets", "all").splitlines()
        objects = [line.split(":")[0] for line in listed if "blocks.hip.o:" in line or "device_engine.cpp.o:" in line]
        self.assertEqual(len(objects), 2)
        run("ninja", "-C", build, *objects)

    def test_cmake_compiles_kernels_for_cuda(self):
        nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
        if nvcc is None:
            self.skipTest("there is no nvcc")
        options = (f"-DCMAKE_CUDA_COMPILER={nvcc}", "-DCMAKE_CUDA_ARCHITECTURES=90")
        fetch = (f"-DFETCHCONTENT_SOURCE_DIR_PAGEDKV={SOURCE_ROOT}", "-DFETCH=ON")
        for name, how in (("add_subdirectory", (f"-DPAGEDKV_SOURCE={SOURCE_ROOT}",)), ("FetchContent", fetch)):
            with self.subTest(name):
                shutil.rmtree(self.folder / "build", ignore_errors=True)
                self.compile_for_device("CUDA", *how, *options)

    def test_cmake_compiles_kernels_for_hip(self):
        """Skipped unless CMake finds a compiler and ROCm's packages for the language HIP."""
        probe = self.folder / "probe"
        probe.mkdir()
        project = "cmake_minimum_required(VERSION 3.21)\nproject(probe LANGUAGES HIP)\nfind_package(hip REQUIRED)\n"
        (probe / "CMakeLists.txt").write_text(project)
        options = ("-DCMAKE_HIP_ARCHITECTURES=gfx90a",)
        try:
            run("cmake", "-G", "Ninja", "-S", probe, "-B", probe / "build", *options)
        except AssertionError as refused:
            reason = next((line for line in str(refused).splitlines() if "CMake Error" in line), "no reason")
            self.skipTest(f"CMake cannot compile HIP here: {reason}")
        self.compile_for_device("HIP", f"-DPAGEDKV_SOURCE={SOURCE_ROOT}", *options)


if __name__ == "__main__":
    unittest.main()
