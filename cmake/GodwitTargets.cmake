# The kinds of target. Include paths start at the repository's root; public headers stand under
# <module>/include/godwit/<module>/ and are included as <godwit/<module>/x.h>.

# godwit_library(NAME SOURCES ... DEPS ... PRIVATE_DEPS ...): a static library of the project.
# Installed only as a part of what a public library needs.
function(godwit_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
                                            "$<INSTALL_INTERFACE:include>")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS}
                                PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:godwit_build_flags>)
  string(REGEX REPLACE "^godwit_" "" short "${name}")
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${short})
  add_library(godwit::${short} ALIAS ${name})
  set_property(GLOBAL APPEND PROPERTY GODWIT_LIBRARIES ${name})
endfunction()

# godwit_public_library(NAME HEADERS include/godwit/m/x.h ... SOURCES ... DEPS ... PRIVATE_DEPS ...):
# a library that users link as godwit::<name without godwit_> after find_package(godwit). What it
# depends on is installed with it; HEADERS are all the headers that users may include. A header
# outside include/ that they include (base/status.h) is published by godwit_publish_headers.
function(godwit_public_library name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  godwit_library(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} PRIVATE_DEPS ${ARG_PRIVATE_DEPS})
  target_include_directories(${name} PUBLIC
                             "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>")
  foreach(header IN LISTS ARG_HEADERS)
    if(NOT header MATCHES "^include/godwit/")
      message(FATAL_ERROR "${name}: public header ${header} is not under include/godwit/")
    elseif(NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
      message(FATAL_ERROR "${name}: public header ${header} does not exist")
    endif()
    string(REGEX REPLACE "^include/" "" installed "${header}")
    set_property(GLOBAL APPEND PROPERTY GODWIT_PUBLIC_HEADERS
                                        "${CMAKE_CURRENT_SOURCE_DIR}/${header}|${installed}")
  endforeach()
  set_property(GLOBAL APPEND PROPERTY GODWIT_PUBLIC_LIBRARIES ${name})
endfunction()

# godwit_publish_headers(status.h ...): headers of this folder that public headers include by their
# path in the tree ("base/status.h"). They are installed as godwit/base/status.h, and the #includes
# of all installed headers are rewritten to match, so that no user's own base/ can shadow them.
function(godwit_publish_headers)
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  foreach(header IN LISTS ARGN)
    if(NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
      message(FATAL_ERROR "godwit_publish_headers: ${folder}/${header} does not exist")
    endif()
    set_property(
      GLOBAL APPEND PROPERTY GODWIT_PUBLIC_HEADERS
                             "${CMAKE_CURRENT_SOURCE_DIR}/${header}|godwit/${folder}/${header}")
  endforeach()
endfunction()

# The commands and the examples: what tools/demo builds.
add_custom_target(godwit_programs)

# godwit_binary(NAME SOURCES ... DEPS ... [INSTALL]): an executable in <build>/bin; with INSTALL it
# is installed into bin/ too.
function(godwit_binary name)
  cmake_parse_arguments(ARG "INSTALL" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} godwit_build_flags)
  if(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/(bench|tests|fuzz)")
    add_dependencies(godwit_programs ${name})
  endif()
  if(ARG_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION bin)
  endif()
endfunction()
