# Takes the sources of the checkout that this port lies in: vcpkg install pagedkv --overlay-ports=packaging/vcpkg/ports
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../.." ABSOLUTE)

# There are headers and kernels' sources only, the same ones for every kind of build.
set(VCPKG_BUILD_TYPE release)
set(VCPKG_POLICY_SKIP_PKGCONFIG_CHECK enabled)  # -pthread in pagedkv.pc is no library of this package
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}")
vcpkg_cmake_install()
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
# CMake finds pagedkvConfig.cmake in share/cmake/pagedkv, from where it knows its way to the headers: it stays there.
file(INSTALL "${CURRENT_PORT_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
