# attnkit_add_suites(<program> [<prefix> [<long suite>...]]): one test of ctest per suite of a googletest program, named
# <prefix><suite>; a long one takes about a minute.  ctest asks the program for its suites when it starts; a case by
# itself runs with <program> --gtest_filter=Suite.Case.
function(attnkit_add_suites program)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${program}_suites.cmake)
  file(GENERATE OUTPUT ${file} CONTENT "set(program [==[$<TARGET_FILE:${program}>]==])
set(emulator [==[${CMAKE_CROSSCOMPILING_EMULATOR}]==])
set(prefix [==[${ARGV1}]==])
set(long [==[${ARGN}]==])
include([==[${PROJECT_SOURCE_DIR}/tests/list_suites.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()
