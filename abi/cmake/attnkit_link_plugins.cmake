# attnkit_link_plugins(<target> <name> ...): a program that holds libattnkit and these plugins, and loads none.  They are attnkit's, or
# targets that attnkit_add_plugin() has made before.

# The object of a plugin, with one name, its entry's, and so as separate as a file of its own.
function(_attnkit_plugin_object name object)
  add_custom_command(OUTPUT ${object} DEPENDS $<TARGET_OBJECTS:${name}> COMMAND_EXPAND_LISTS VERBATIM
    COMMAND ${CMAKE_CXX_COMPILER} -r -nostdlib -Wl,--force-group-allocation -o ${object} $<TARGET_OBJECTS:${name}>
    COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=attn_plugin_main_v1 ${object}
    COMMAND ${CMAKE_OBJCOPY} --redefine-sym attn_plugin_main_v1=attn_plugin_main_v1_${name} ${object})
endfunction()

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
  set(archives "")
  get_target_property(held attnkit::static_plugins ATTNKIT_PLUGINS)
  get_property(made GLOBAL PROPERTY ATTNKIT_PLUGIN_TARGETS)
  get_target_property(installed attnkit::static_plugins IMPORTED)
  if(NOT installed)
    list(REMOVE_ITEM made ${held})  # which are attnkit's as well
  endif()
  foreach(name IN LISTS ARGN)
    if(name IN_LIST made)
      if(NOT TARGET ${name}-static)
        _attnkit_plugin_object(${name} ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
        add_library(${name}-static STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
        set_target_properties(${name}-static PROPERTIES LINKER_LANGUAGE CXX)
        add_dependencies(${name}-static ${name})
      endif()
      list(APPEND archives ${name}-static)
    elseif(NOT name IN_LIST held)
      list(JOIN held ", " held)
      message(FATAL_ERROR "attnkit_link_plugins(${target}): there is no mechanism ${name}: attnkit has ${held}; others need attnkit_add_plugin() before")
    endif()
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
  target_link_libraries(${target} PRIVATE ${archives} attnkit::static_plugins attnkit::static)
endfunction()
