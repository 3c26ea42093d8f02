// Plugins that are part of the program: a table that attnkit_link_plugins() of CMake makes, given before main() begins.
#pragma once

#include <attnkit/plugin.h>

#include <span>

namespace attnkit::core {

struct LinkedPlugin {
  const char* name;
  attn_plugin_main_fn main;
};

// Empty where none was given.
std::span<const LinkedPlugin> linked_plugins() noexcept;

// Returns the checked table of a plugin that is mapped.  Throws Error with a sentence to follow its place.
attn_plugin ask_plugin(attn_plugin_main_fn main);

}  // namespace attnkit::core

// The plugins of a program, once, before the first Registry; they are kept.  Not for libattnkit.so, which hides it.
extern "C" void attn_link_plugins(const attnkit::core::LinkedPlugin* plugins, uint32_t count) noexcept;
