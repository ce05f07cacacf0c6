include(CMakeFindDependencyMacro)
find_dependency(pagedkv)
include(${CMAKE_CURRENT_LIST_DIR}/engineTargets.cmake)
