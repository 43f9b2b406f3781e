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

# godwit_library(NAME SOURCES ... DEPS ...): a static library of the project, included by paths
# from the repository's root.
function(godwit_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS}
                                PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:godwit_build_flags>)
endfunction()

# godwit_binary(NAME SOURCES ... DEPS ...): an executable in <build>/bin.
function(godwit_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} godwit_build_flags)
endfunction()
