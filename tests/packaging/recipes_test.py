"""The recipes for Conan and vcpkg make packages that a consumer builds with."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
RECIPES = SOURCE_ROOT / "packaging"
PORTS = RECIPES / "vcpkg" / "ports"
HERE = pathlib.Path(__file__).parent
PYTHON_PACKAGES = SOURCE_ROOT / "build" / "python"  # into which scripts/install puts Conan
OUTPUT = "4 blocks are free\n"


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


class Recipes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def build_consumer(self, *options):
        build = self.folder / "build"
        run("cmake", "-S", HERE / "consumer", "-B", build, *options)
        run("cmake", "--build", build)
        self.assertEqual(run(build / "consumer"), OUTPUT)

    def conan(self, *arguments):
        path = os.pathsep.join(filter(None, (str(PYTHON_PACKAGES), os.environ.get("PYTHONPATH"))))
        return run(sys.executable, "-m", "conans.conan", *arguments, CONAN_HOME=str(self.folder), PYTHONPATH=path)

    def test_conan_creates_a_package_that_a_consumer_uses(self):
        try:
            self.conan("profile", "detect")
        except AssertionError as refused:
            if "No module named" not in str(refused):
                raise
            self.skipTest("Conan is not installed")
        self.conan("create", HERE / "xxhash_of_the_system", "--no-remote")
        # Builds of the package's own test, which Conan would otherwise leave in the sources.
        elsewhere = (f"--conf=tools.cmake.cmake_layout:test_folder={self.folder / 'test'}", "--conf=tools.cmake.cmaketoolchain:user_presets=")
        create = ("create", RECIPES / "conan", "--no-remote", *elsewhere)
        said = self.conan(*create, "--settings=compiler.cppstd=20")
        self.assertIn(OUTPUT, said)
        files = {path.name for path in self.folder.glob("p/b/*/p/**/*")}
        self.assertLessEqual({"LICENSE", "version.h", "float16.hip", "kernels.cmake"}, files)
        folders = {path.name for path in self.folder.glob("p/b/pag*/p/*") if path.is_dir()}
        self.assertEqual(folders, {"include", "lib", "licenses"})  # Conan's own names
        with self.assertRaisesRegex(AssertionError, "cppstd"):
            self.conan(*create, "--settings=compiler.cppstd=17")

    def test_the_port_for_vcpkg_has_what_its_registry_asks_for(self):
        port = json.loads((PORTS / "pagedkv" / "vcpkg.json").read_text())
        self.assertEqual(port["name"], "pagedkv")
        self.assertEqual(port["license"], "MIT")
        self.assertRegex(port["version"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(port["description"], r"^[A-Z].*[^.]$")
        needed = {entry if isinstance(entry, str) else entry["name"] for entry in port["dependencies"]}
        self.assertEqual(needed, {"vcpkg-cmake", "xxhash"})
        portfile = (PORTS / "pagedkv" / "portfile.cmake").read_text()
        called = set(re.findall(r"^(vcpkg_\w+)\(", portfile, flags=re.MULTILINE))
        self.assertLessEqual({"vcpkg_cmake_configure", "vcpkg_cmake_install", "vcpkg_install_copyright"}, called)
        stand_ins = re.findall(r"^function\((vcpkg_\w+)\)", (HERE / "vcpkg_functions.cmake").read_text(), flags=re.MULTILINE)
        self.assertEqual(called, set(stand_ins))

    def test_the_port_for_vcpkg_installs_what_a_consumer_finds(self):
        packages = self.folder / "packages"
        places = (f"-DCURRENT_PORT_DIR={PORTS / 'pagedkv'}", f"-DCURRENT_PACKAGES_DIR={packages}", f"-DBUILD={self.folder / 'port'}")
        run("cmake", "-DPORT=pagedkv", *places, "-P", HERE / "vcpkg_functions.cmake")
        for name in ("copyright", "usage"):
            self.assertTrue((packages / "share" / "pagedkv" / name).is_file())
        self.build_consumer(f"-DCMAKE_PREFIX_PATH={packages}")

    def test_vcpkg_itself_installs_the_port(self):
        vcpkg = shutil.which("vcpkg") or shutil.which("vcpkg", path=os.environ.get("VCPKG_ROOT"))
        if vcpkg is None:
            self.skipTest("there is no vcpkg")
        root = pathlib.Path(os.environ.get("VCPKG_ROOT", pathlib.Path(vcpkg).resolve().parent))
        manifest = shutil.copy(PORTS / "pagedkv" / "vcpkg.json", self.folder)
        run(vcpkg, "format-manifest", manifest)
        self.assertEqual(pathlib.Path(manifest).read_bytes(), (PORTS / "pagedkv" / "vcpkg.json").read_bytes())
        installed = self.folder / "installed"
        places = [f"--x-{name}-root={self.folder / name}" for name in ("buildtrees", "packages")]
        said = run(vcpkg, "install", "pagedkv", f"--overlay-ports={PORTS}", f"--x-install-root={installed}", *places)
        self.assertNotIn("post-build check", said)
        toolchain = root / "scripts" / "buildsystems" / "vcpkg.cmake"
        self.build_consumer(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DVCPKG_INSTALLED_DIR={installed}")


if __name__ == "__main__":
    unittest.main()
