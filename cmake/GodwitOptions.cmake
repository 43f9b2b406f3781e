# Features are AUTO (use it when found), ON (an error when missing) or OFF.
foreach(feature TORCH GLOO CUDA NCCL)
  set(GODWIT_${feature} AUTO CACHE STRING "AUTO|ON|OFF")
  set_property(CACHE GODWIT_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT GODWIT_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "GODWIT_${feature}: got '${GODWIT_${feature}}', allowed: AUTO, ON, OFF")
  endif()
endforeach()
option(GODWIT_BUILD_TESTS "Build the tests" ON)
option(GODWIT_BUILD_BENCH "Build the benchmarks" ON)
option(GODWIT_WERROR "Treat warnings as errors" ON)
set(GODWIT_SANITIZE "" CACHE STRING "Comma-separated sanitizers: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
# Installed programs go on finding libtorch where they were linked with it.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

# Warnings and sanitizers of our own targets only; never exported to users.
add_library(godwit_build_flags INTERFACE)
target_compile_options(godwit_build_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
# g++ 12 at -O3 (CMake's own Release; the presets take -O2) sees overlaps in "x" + std::string that
# aren't there: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13
   AND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}" MATCHES "-O3")
  target_compile_options(godwit_build_flags INTERFACE -Wno-restrict)
endif()
if(GODWIT_WERROR)
  target_compile_options(godwit_build_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(godwit_build_flags INTERFACE -Wthread-safety)
endif()
if(GODWIT_SANITIZE)
  target_compile_options(godwit_build_flags INTERFACE -fsanitize=${GODWIT_SANITIZE}
                                                      -fno-omit-frame-pointer -g)
  target_link_options(godwit_build_flags INTERFACE -fsanitize=${GODWIT_SANITIZE})
endif()
