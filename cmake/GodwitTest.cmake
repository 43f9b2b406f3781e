# godwit_test(NAME SOURCES ... DEPS ... LABELS ... [TIMEOUT s]): one GoogleTest executable in
# <build>/tests, registered case by case with ctest under the labels given.
#   unit: fast, no sleep, no port | fault | process | conformance | golden | install | gpu | nightly
# TIMEOUT is only there against hangs.
include(GoogleTest)
if(GODWIT_BUILD_TESTS)
  enable_testing()
endif()

function(godwit_test name)
  if(NOT GODWIT_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE ${GODWIT_INCLUDE_DIRS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} godwit_build_flags GTest::gmock_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
                       PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
