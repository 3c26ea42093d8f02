# attnkit_link_plugins(<target> <name> ...): a program that holds libattnkit and these plugins, and loads none.

function(attnkit_link_plugins target)
  if(NOT TARGET attnkit::static)
    message(FATAL_ERROR "attnkit_link_plugins(${target}): this attnkit has no static libraries; build it with -DATTNKIT_STATIC=ON, "
                        "and ask for find_package(attnkit COMPONENTS static)")
  endif()
  get_target_property(linked ${target} ATTNKIT_LINKED)
  if(linked OR NOT ARGN OR NOT CMAKE_CXX_COMPILER_LOADED)
    message(FATAL_ERROR "attnkit_link_plugins(${target}): name all its mechanisms, at least one, in one call, in a project of LANGUAGES C CXX")
  endif()
  set_target_properties(${target} PROPERTIES ATTNKIT_LINKED ON)
  set(declared "")
  set(listed "")
  foreach(name IN LISTS ARGN)
    string(APPEND declared "int32_t attn_plugin_main_v1_${name}(const attn_host*, const attn_plugin**, attn_error*);\n")
    string(APPEND listed "    {\"${name}\", attn_plugin_main_v1_${name}},\n")
  endforeach()
  list(LENGTH ARGN count)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}_plugins.cpp @ONLY CONTENT [[
// The plugins of @target@; made by attnkit_link_plugins().
#include <attnkit/plugin.h>

extern "C" {
struct LinkedPlugin {
  const char* name;
  attn_plugin_main_fn main;
};
void attn_link_plugins(const LinkedPlugin* plugins, uint32_t count);
@declared@}

namespace {
const LinkedPlugin plugins[] = {
@listed@};
const bool linked = (attn_link_plugins(plugins, @count@), true);
}  // namespace
]])
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${target}_plugins.cpp)
  target_link_libraries(${target} PRIVATE attnkit::static_plugins attnkit::static)
endfunction()
