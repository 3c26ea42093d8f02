"""conan create hosts/packages/conan --build=missing: a package of the tree that this lies in, for Conan 2."""

import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Attnkit(ConanFile):
    name = "attnkit"
    version = "0.1.0"
    description = "Transformers composed at run time from attention plugins"
    license = "Apache-2.0"
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    requires = ("boost/[>=1.74]", "fmt/[>=9 <11]", "kissfft/131.1.0", "libsndfile/[>=1.2]", "nlohmann_json/[>=3.11]", "onetbb/[>=2021.8]",
                "openssl/[>=3]", "pcre2/[>=10.42]", "tomlplusplus/[>=3.3]", "utf8proc/[>=2.8]", "yaml-cpp/[>=0.7]",
                "zlib/[>=1.2.13]")

    def export_sources(self):
        root = os.path.normpath(os.path.join(self.recipe_folder, "../../.."))
        for name in ("CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md"):
            copy(self, name, root, self.export_sources_folder)
        for folder in ("abi", "architectures", "core", "docs", "hosts", "plugins", "samples"):
            copy(self, f"{folder}/*", root, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables |= {"ATTNKIT_TESTS": False, "ATTNKIT_CUDA": False}
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # attnkit's own file for find_package has attnkit_add_plugin() as well.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append("lib/cmake/attnkit")
        self.cpp_info.libs = ["attnkit"]
        self.buildenv_info.append_path("PATH", os.path.join(self.package_folder, "bin"))
