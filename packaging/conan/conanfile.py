"""Conan 2's recipe. `conan create packaging/conan` packs the headers and the kernels of the checkout that it lies in."""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load, save

required_conan_version = ">=2.0"

CMAKE_FOLDER = os.path.join("lib", "cmake")
KERNELS_MODULE = os.path.join(CMAKE_FOLDER, "pagedkv_kernels.cmake")
# Defines pagedkv::kernels in projects with CUDA or HIP as a language, as an installed copy does.
KERNELS = """set(PAGEDKV_INCLUDE_DIRS "${CMAKE_CURRENT_LIST_DIR}/../../include")
include("${CMAKE_CURRENT_LIST_DIR}/kernels.cmake")
"""


class Pagedkv(ConanFile):
    name = "pagedkv"
    description = "Paged key/value cache for large-language-model inference"
    license = "MIT"
    topics = ("llm", "inference", "kv-cache", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    def checkout(self):
        return os.path.join(self.recipe_folder, os.pardir, os.pardir)

    def set_version(self):
        header = load(self, os.path.join(self.checkout(), "include", "pagedkv", "version.h"))
        self.version = ".".join(re.findall(r"^#define PAGEDKV_VERSION_[A-Z]+ (\d+)$", header, flags=re.MULTILINE))

    def export_sources(self):
        for pattern in ("include/*", "kernels/pagedkv/*", "cmake/kernels.cmake", "LICENSE"):
            copy(self, pattern, src=self.checkout(), dst=self.export_sources_folder)

    def requirements(self):
        self.requires("xxhash/[>=0.8 <1]", transitive_headers=True, transitive_libs=True)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("pagedkv runs on Linux")
        check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()

    def package(self):
        copy(self, "*", src=os.path.join(self.source_folder, "include"), dst=os.path.join(self.package_folder, "include"))
        copy(self, "*", src=os.path.join(self.source_folder, "kernels"), dst=os.path.join(self.package_folder, "include"))
        copy(self, "kernels.cmake", src=os.path.join(self.source_folder, "cmake"), dst=os.path.join(self.package_folder, CMAKE_FOLDER))
        save(self, os.path.join(self.package_folder, KERNELS_MODULE), KERNELS)
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.requires = ["xxhash::xxhash"]
        self.cpp_info.system_libs = ["pthread"]
        self.cpp_info.set_property("cmake_build_modules", [KERNELS_MODULE])
