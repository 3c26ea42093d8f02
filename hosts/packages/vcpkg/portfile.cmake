# An overlay port of the tree that it lies in: vcpkg install attnkit --overlay-ports=hosts/packages/vcpkg
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)
set(VCPKG_POLICY_DLLS_IN_STATIC_LIBRARY enabled) # plugins are files that are loaded, whatever the triplet
set(VCPKG_BUILD_TYPE release)

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES static ATTNKIT_STATIC)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS -DATTNKIT_TESTS=OFF -DATTNKIT_CUDA=OFF ${features})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/attnkit)
vcpkg_fixup_pkgconfig()
vcpkg_copy_tools(TOOL_NAMES attnkit AUTO_CLEAN)
vcpkg_replace_string("${CURRENT_PACKAGES_DIR}/share/attnkit/attnkitConfig.cmake" "/bin/attnkit" "/tools/attnkit/attnkit")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${CMAKE_CURRENT_LIST_DIR}/../copyright")
