# libtorch, CPU side: from the private virtual environment that tools/setup makes, or from where
# GODWIT_TORCH_ROOT (the folder with include/ and lib/; a libtorch archive or a wheel's torch/) or
# Torch_DIR (its share/cmake/Torch) points.
#
# Torch's own CMake package is not used: it links libtorch.so, which pulls in all of CUDA.
set(GODWIT_TORCH_ROOT "" CACHE PATH "Folder with libtorch's include/ and lib/; empty: look for it")
set(GODWIT_TORCH_MINIMUM 2.6)

# Where libtorch is, in the order of preference.
function(godwit_torch_candidates out)
  if(GODWIT_TORCH_ROOT)
    set(${out} "${GODWIT_TORCH_ROOT}" PARENT_SCOPE)
    return()
  endif()
  set(candidates "")
  if(Torch_DIR)
    get_filename_component(root "${Torch_DIR}/../../.." ABSOLUTE)
    list(APPEND candidates "${root}")
  endif()
  file(GLOB venv "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  list(APPEND candidates ${venv})
  set(${out} "${candidates}" PARENT_SCOPE)
endfunction()

# "2.11.0" of the libtorch at `root`; empty when its headers do not say.
function(godwit_torch_version root out)
  set(${out} "" PARENT_SCOPE)
  # The version moved from the first file to the second in 2.9.
  foreach(header torch/csrc/api/include/torch/version.h torch/headeronly/version.h)
    if(EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines
           REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      string(REGEX REPLACE "#define TORCH_VERSION_[A-Z]+ +" "" numbers "${lines}")
      string(REPLACE ";" "." version "${numbers}")
      if(version)
        set(${out} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

set(torch_found FALSE)
set(torch_info "switched off")
if(NOT GODWIT_TORCH STREQUAL "OFF")
  set(torch_info "no libtorch at .venv, GODWIT_TORCH_ROOT or Torch_DIR (tools/setup installs it)")
  godwit_torch_candidates(torch_roots)
  foreach(root IN LISTS torch_roots)
    set(torch_libraries "${root}/lib/libtorch_cpu.so" "${root}/lib/libc10.so")
    godwit_torch_version("${root}" torch_version)
    if(NOT EXISTS "${root}/lib/libtorch_cpu.so" OR NOT EXISTS "${root}/lib/libc10.so")
      set(torch_info "${root} has no lib/libtorch_cpu.so and lib/libc10.so")
      continue()
    elseif(NOT torch_version)
      set(torch_info "${root}/include does not tell its version")
      continue()
    elseif(torch_version VERSION_LESS GODWIT_TORCH_MINIMUM)
      set(torch_info "${root} is ${torch_version}, needed: ${GODWIT_TORCH_MINIMUM} or newer")
      continue()
    endif()
    # A CUDA wheel's CPU library wants libcudart and libcupti beside it; without them nothing links.
    if(NOT GODWIT_TORCH_LINKS STREQUAL "${root} ${torch_version}")
      set(probe "${CMAKE_BINARY_DIR}/CMakeFiles/godwit_torch_links.cc")
      file(WRITE "${probe}" "int main() { return 0; }\n")
      try_compile(links "${CMAKE_BINARY_DIR}/CMakeFiles/godwit_torch_links" SOURCES "${probe}"
                  LINK_LIBRARIES -Wl,--no-as-needed ${torch_libraries}
                  OUTPUT_VARIABLE links_output)
      if(NOT links)
        string(REGEX MATCH "[^\n]*(needed by|undefined reference)[^\n]*" why "${links_output}")
        set(torch_info "${root} does not link: ${why}")
        continue()
      endif()
      set(GODWIT_TORCH_LINKS "${root} ${torch_version}" CACHE INTERNAL "the libtorch that links")
    endif()
    set(torch_found TRUE)
    set(torch_root "${root}")
    set(torch_info "${torch_version} at ${root}")
    break()
  endforeach()
endif()
godwit_settle_feature(TORCH ${torch_found} "${torch_info}")

if(GODWIT_HAVE_TORCH)
  add_library(godwit_torch INTERFACE IMPORTED GLOBAL)
  # After the system's folders rather than before: the wheel brings its own fmt/ and google/, which
  # must not hide the ones that we link. This also makes them system headers (no warnings).
  target_compile_options(
    godwit_torch INTERFACE "-idirafter${torch_root}/include"
                           "-idirafter${torch_root}/include/torch/csrc/api/include")
  target_compile_definitions(godwit_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  target_link_libraries(godwit_torch INTERFACE ${torch_libraries} Threads::Threads)
  if(GODWIT_HAVE_GLOO)
    # libtorch_cpu.so exports a Gloo of another version: ours must be loaded before it, in whatever
    # order the targets come. Flags stand before all libraries on the link line.
    target_link_options(godwit_torch INTERFACE
                        "LINKER:--push-state,--no-as-needed,${GODWIT_GLOO_LIBRARY},--pop-state")
  endif()
endif()
