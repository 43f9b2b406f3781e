# cmake --install, and the package that find_package(godwit COMPONENTS ckpt runtime torch) finds.
# What is installed: the libraries that users link, the project's libraries that they are built
# from, the public headers, and the programs marked INSTALL.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(GODWIT_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/godwit")
# What users link; those that are not built with the features at hand are left out. The others are
# found through what these link.
set(GODWIT_PUBLIC_LIBRARIES godwit_ckpt godwit_ckpt_torch godwit_runtime godwit_runtime_gloo
                            godwit_runtime_torch)
# All headers below an include/ are public; these are what they include besides each other.
file(GLOB_RECURSE GODWIT_PUBLIC_HEADERS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/ckpt/include/*.h"
     "${PROJECT_SOURCE_DIR}/runtime/include/*.h")
foreach(header base/check.h base/status.h)
  list(APPEND GODWIT_PUBLIC_HEADERS "${PROJECT_SOURCE_DIR}/${header}")
endforeach()
# What installed libraries may link besides each other: godwitConfig.cmake provides each of these.
set(GODWIT_PACKAGE_DEPENDENCIES Threads::Threads fmt::fmt PkgConfig::ZSTD PkgConfig::XXHASH
                                nlohmann_json::nlohmann_json godwit_gloo godwit_torch)

# The names of what `target` links, without generator expressions.
function(godwit_links_of target out)
  get_target_property(links ${target} LINK_LIBRARIES)
  set(names "")
  foreach(link IN LISTS links)
    if(link MATCHES "^\\$<BUILD_INTERFACE:" OR link STREQUAL "links-NOTFOUND")
      continue()
    endif()
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" link "${link}")
    if(TARGET ${link})
      get_target_property(aliased ${link} ALIASED_TARGET)
      if(aliased)
        set(link ${aliased})
      endif()
    endif()
    list(APPEND names ${link})
  endforeach()
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

get_property(project_libraries GLOBAL PROPERTY GODWIT_LIBRARIES)
set(pending "")
foreach(library IN LISTS GODWIT_PUBLIC_LIBRARIES)
  if(TARGET ${library})
    list(APPEND pending ${library})
  endif()
endforeach()
set(installed_libraries "")
while(pending)
  list(POP_FRONT pending library)
  if(library IN_LIST installed_libraries)
    continue()
  endif()
  list(APPEND installed_libraries ${library})
  godwit_links_of(${library} links)
  foreach(link IN LISTS links)
    if(link IN_LIST project_libraries)
      list(APPEND pending ${link})
    elseif(NOT link IN_LIST GODWIT_PACKAGE_DEPENDENCIES)
      message(FATAL_ERROR "${library} is installed and links ${link}, which godwitConfig.cmake "
                          "does not provide; allowed: ${GODWIT_PACKAGE_DEPENDENCIES}")
    endif()
  endforeach()
endwhile()

# What needs libtorch is a set of its own, so that a user without libtorch has the rest.
set(torch_libraries "")
set(changed TRUE)
while(changed)
  set(changed FALSE)
  foreach(library IN LISTS installed_libraries)
    godwit_links_of(${library} links)
    foreach(link IN LISTS links)
      if((link STREQUAL "godwit_torch" OR link IN_LIST torch_libraries)
         AND NOT library IN_LIST torch_libraries)
        list(APPEND torch_libraries ${library})
        set(changed TRUE)
      endif()
    endforeach()
  endforeach()
endwhile()
set(core_libraries ${installed_libraries})
if(torch_libraries)
  list(REMOVE_ITEM core_libraries ${torch_libraries})
endif()

foreach(set core torch)
  if(${set}_libraries)
    install(TARGETS ${${set}_libraries} EXPORT godwit-${set}
            ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}/godwit")
    install(EXPORT godwit-${set} NAMESPACE godwit:: DESTINATION "${GODWIT_PACKAGE_DIR}")
  endif()
endforeach()

# Headers, with the paths of the tree in #include lines ("base/status.h",
# "ckpt/include/godwit/ckpt/state.h") become those of the installation ("godwit/base/status.h").
set(GODWIT_HEADERS "")
foreach(header IN LISTS GODWIT_PUBLIC_HEADERS)
  file(RELATIVE_PATH installed "${PROJECT_SOURCE_DIR}" "${header}")
  string(REGEX REPLACE "^[a-z]+/include/godwit/" "" installed "${installed}")
  list(APPEND GODWIT_HEADERS "${header}|godwit/${installed}")
endforeach()
set(GODWIT_HEADER_STAGING "${CMAKE_BINARY_DIR}/godwit_headers")
configure_file(cmake/StageHeaders.cmake.in "${CMAKE_BINARY_DIR}/GodwitStageHeaders.cmake" @ONLY)
install(SCRIPT "${CMAKE_BINARY_DIR}/GodwitStageHeaders.cmake")
install(DIRECTORY "${GODWIT_HEADER_STAGING}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h")

set(GODWIT_INSTALLED_GLOO ${GODWIT_HAVE_GLOO})
set(GODWIT_INSTALLED_TORCH_ROOT "${torch_root}")
configure_package_config_file(cmake/godwitConfig.cmake.in "${CMAKE_BINARY_DIR}/godwitConfig.cmake"
                              INSTALL_DESTINATION "${GODWIT_PACKAGE_DIR}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/godwitConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/godwitConfig.cmake"
              "${CMAKE_BINARY_DIR}/godwitConfigVersion.cmake"
              cmake/GodwitFeatures.cmake cmake/GodwitGloo.cmake cmake/GodwitTorch.cmake
        DESTINATION "${GODWIT_PACKAGE_DIR}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
