# The kinds of target. Include paths start at the repository's root; public headers stand under
# <module>/include/godwit/<module>/ and are also found as <godwit/<module>/x.h>.
set(GODWIT_INCLUDE_DIRS "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/ckpt/include"
                        "${PROJECT_SOURCE_DIR}/runtime/include")

# godwit_library(NAME SOURCES ... DEPS ... PRIVATE_DEPS ...): a static library of the project. It is
# installed when one that users link needs it (GodwitInstall.cmake).
function(godwit_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${GODWIT_INCLUDE_DIRS}>"
                                            "$<INSTALL_INTERFACE:include>")
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS}
                                PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:godwit_build_flags>)
  string(REGEX REPLACE "^godwit_" "" short "${name}")
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${short})
  add_library(godwit::${short} ALIAS ${name})
  set_property(GLOBAL APPEND PROPERTY GODWIT_LIBRARIES ${name})
endfunction()

# The commands and the examples: what tools/demo builds.
add_custom_target(godwit_programs)

# godwit_binary(NAME SOURCES ... DEPS ... [INSTALL]): an executable in <build>/bin; with INSTALL it
# is installed into bin/ too.
function(godwit_binary name)
  cmake_parse_arguments(ARG "INSTALL" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${GODWIT_INCLUDE_DIRS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} godwit_build_flags)
  if(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/(bench|tests|fuzz)")
    add_dependencies(godwit_programs ${name})
  endif()
  if(ARG_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION bin)
  endif()
endfunction()
