# Lies in share/cmake/pagedkv of an installed copy, wherever that has been moved to.
get_filename_component(PAGEDKV_INCLUDE_DIRS "${CMAKE_CURRENT_LIST_DIR}/../../../include" ABSOLUTE)
include("${CMAKE_CURRENT_LIST_DIR}/targets.cmake")
