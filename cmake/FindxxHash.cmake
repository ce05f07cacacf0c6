# Finds xxHash by its own package file or, where distributions leave that out, by pkg-config and in the usual places.
# Defines xxHash::xxhash.
find_package(xxHash CONFIG QUIET)
if(TARGET xxHash::xxhash)
  set(xxHash_FOUND TRUE)
  return()
endif()

find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(pagedkv_xxhash QUIET libxxhash)
endif()
find_path(xxHash_INCLUDE_DIR xxhash.h HINTS ${pagedkv_xxhash_INCLUDE_DIRS})
find_library(xxHash_LIBRARY xxhash HINTS ${pagedkv_xxhash_LIBRARY_DIRS})
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  xxHash
  REQUIRED_VARS xxHash_LIBRARY xxHash_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "pagedkv needs it: install libxxhash-dev or xxhash-devel, or set CMAKE_PREFIX_PATH to where it is")
if(xxHash_FOUND)
  add_library(xxHash::xxhash UNKNOWN IMPORTED GLOBAL)
  set_target_properties(xxHash::xxhash PROPERTIES
    IMPORTED_LOCATION ${xxHash_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${xxHash_INCLUDE_DIR})
endif()
