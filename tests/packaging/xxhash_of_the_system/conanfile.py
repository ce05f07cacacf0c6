"""Stands for Conan Center's xxHash, so that the test of our recipe needs no network."""

from conan import ConanFile


class XxHash(ConanFile):
    name = "xxhash"
    version = "0.8.1"
    package_type = "shared-library"

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "xxHash")
        self.cpp_info.set_property("cmake_target_name", "xxHash::xxhash")
        self.cpp_info.includedirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.bindirs = []
        self.cpp_info.system_libs = ["xxhash"]
