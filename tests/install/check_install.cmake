# Installs the build into a scratch folder, then configures, builds and runs the users' projects
# against it. Variables: BUILD (the build folder), SOURCE (this folder), SCRATCH, COMPILER, TORCH.
function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
                  ERROR_VARIABLE output TIMEOUT 300)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what}: ${status}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect text)
  string(FIND "${output}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "expected '${text}', got:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
set(prefix "${SCRATCH}/prefix")
step("install" "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")

# The tree must not be needed: nothing that is installed for CMake or the compiler may name it.
file(GLOB_RECURSE installed "${prefix}/include/*" "${prefix}/lib/cmake/*")
get_filename_component(tree "${SOURCE}/../.." ABSOLUTE)
foreach(file IN LISTS installed)
  file(READ "${file}" text)
  string(REPLACE "${tree}/.venv" "" text "${text}") # where libtorch was, a hint that may be gone
  string(FIND "${text}" "${tree}/" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${file} names the source tree ${tree}")
  endif()
endforeach()

step("configure the consumer" "${CMAKE_COMMAND}" -S "${SOURCE}/consumer" -B "${SCRATCH}/consumer"
     -G Ninja "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${COMPILER}")
step("build the consumer" "${CMAKE_COMMAND}" --build "${SCRATCH}/consumer")
step("run names" "${SCRATCH}/consumer/names")
expect("f32 OK")
step("train 3 steps" "${SCRATCH}/consumer/train" "${SCRATCH}/ckpt" 3)
expect("from 0 weight 3")
step("train up to step 5" "${SCRATCH}/consumer/train" "${SCRATCH}/ckpt" 5)
expect("from 3 weight 5")

if(EXISTS "${prefix}/bin/godwit")
  step("the installed command" "${prefix}/bin/godwit" --version)
  expect("0.1.0")
else()
  message(FATAL_ERROR "${prefix}/bin/godwit was not installed")
endif()

# An unknown component is refused by name.
file(WRITE "${SCRATCH}/wrong/CMakeLists.txt" "cmake_minimum_required(VERSION 3.18)
project(wrong LANGUAGES CXX)
find_package(godwit REQUIRED COMPONENTS runtme)
")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${SCRATCH}/wrong" -B "${SCRATCH}/wrong/build" -G Ninja
                        "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 300)
if(status EQUAL 0)
  message(FATAL_ERROR "find_package(godwit COMPONENTS runtme) passes")
endif()
string(REGEX REPLACE "[ \n]+" " " output "${output}")
expect("no component 'runtme'")

if(TORCH)
  step("configure the torch consumer" "${CMAKE_COMMAND}" -S "${SOURCE}/consumer_torch"
       -B "${SCRATCH}/consumer_torch" -G Ninja "-DCMAKE_PREFIX_PATH=${prefix}"
       "-DCMAKE_CXX_COMPILER=${COMPILER}")
  step("build the torch consumer" "${CMAKE_COMMAND}" --build "${SCRATCH}/consumer_torch")
  step("run the torch consumer" "${SCRATCH}/consumer_torch/train" "${SCRATCH}/ckpt_torch" 3)
  expect("from 0 weight 3")
  step("run the torch consumer again" "${SCRATCH}/consumer_torch/train" "${SCRATCH}/ckpt_torch" 5)
  expect("from 3 weight 5")
endif()
file(REMOVE_RECURSE "${SCRATCH}")
