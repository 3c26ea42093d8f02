# attnkit_add_plugin(<name>): the plugin <name>.so from <name>.cpp, or <name>.c, of the current folder, and what stands beside it.
# attnkit_add_plugin_test(<name> [<option>...]): the test <name>.validate, every check of "attnkit validate-plugin" on it.

# Enables the CUDA language when ATTNKIT_CUDA is not OFF and nvcc is there.  Call it at file scope, before
# attnkit_add_plugin; plugins without a .cu file do not need it.
macro(attnkit_enable_cuda)
  if(NOT DEFINED ATTNKIT_CUDA OR ATTNKIT_CUDA)
    include(CheckLanguage)
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
      find_program(ATTNKIT_NVCC nvcc HINTS /usr/local/cuda/bin)
      mark_as_advanced(ATTNKIT_NVCC)
      if(ATTNKIT_NVCC)
        set(CMAKE_CUDA_COMPILER ${ATTNKIT_NVCC})
      endif()
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
    else()
      message(STATUS "attnkit: no nvcc, CUDA variants of plugins are skipped")
    endif()
  endif()
endmacro()

# The properties of every plugin library: its folder, its exports, strict linking.
function(_attnkit_plugin_library target output)
  set(map ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/exports.map)
  if(NOT EXISTS ${map})
    set(map ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../exports.map)
  endif()
  if(CMAKE_LIBRARY_OUTPUT_DIRECTORY)
    set(folder ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/attnkit/1)
  else()
    set(folder ${CMAKE_BINARY_DIR}/lib/attnkit/1)
  endif()
  target_link_libraries(${target} PRIVATE attnkit::abi)
  set_target_properties(${target} PROPERTIES
    PREFIX "" SUFFIX .so OUTPUT_NAME ${output} LIBRARY_OUTPUT_DIRECTORY ${folder} LINK_DEPENDS ${map}
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}" LINKER:--exclude-libs,ALL)
  # A clang sanitizer leaves its runtime to the executable, so that nothing would ever be defined enough.
  if(NOT (CMAKE_CXX_COMPILER_ID MATCHES Clang AND "${CMAKE_CXX_FLAGS} ${CMAKE_MODULE_LINKER_FLAGS}" MATCHES fsanitize))
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
  set_property(GLOBAL APPEND PROPERTY ATTNKIT_PLUGIN_TARGETS ${target})
endfunction()

function(attnkit_add_plugin name)
  set(source ${name}.cpp)
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${source} AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${name}.c)
    set(source ${name}.c)
  endif()
  add_library(${name} MODULE ${source})
  _attnkit_plugin_library(${name} ${name})
  # Plugins are arithmetic: optimise them even where no build type was chosen.  psabi: vectors never cross a call.  lto:
  # attnkit_link_plugins cannot rename what only the compiler reads.
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wno-psabi -fno-lto $<$<NOT:$<CONFIG:Debug>>:-O3>
    $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique> $<$<BOOL:${ATTNKIT_WERROR}>:-Werror>)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")  # kernels/simd.hpp fuses products and sums itself
    target_compile_options(${name} PRIVATE -ffp-contract=off)
  endif()

  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${name}.cu AND CMAKE_CUDA_COMPILER_LOADED)
    add_library(${name}-cuda MODULE ${name}.cu)
    _attnkit_plugin_library(${name}-cuda ${name}-cuda)
    set_target_properties(${name}-cuda PROPERTIES CUDA_RUNTIME_LIBRARY Static)
    # Spelled out: CMake 3.25 does not know that nvcc 13 starts from C++17.
    target_compile_options(${name}-cuda PRIVATE -std=c++20 -Xcompiler=-fno-gnu-unique,-Wall,-Wextra)
  endif()
endfunction()

# <name> is a target that makes a plugin; options are those of the command.  Call enable_testing() before.
function(attnkit_add_plugin_test name)
  set(command ${attnkit_COMMAND})
  if(TARGET attnkit-cli)
    set(command $<TARGET_FILE:attnkit-cli>)
  endif()
  if(NOT command)
    message(FATAL_ERROR "attnkit_add_plugin_test(${name}): there is no command attnkit; install all of attnkit, or set attnkit_COMMAND")
  endif()
  # A seed of its own each time would make a test that fails now and then.
  add_test(NAME ${name}.validate COMMAND ${command} validate-plugin $<TARGET_FILE:${name}> --seed 1 ${ARGN})
endfunction()
