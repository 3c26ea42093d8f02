// Maps a plugin's library for good, and checks the table that it gives.
#pragma once

#include <attnkit/plugin.h>

#include <string_view>

#include "core/plugin/plugin_file.hpp"

namespace attnkit::core {

// Returns the checked table of a file that read_plugin_file accepted.  Each file is mapped and asked once per process,
// whatever the number of registries and paths; its answer, also a refusal, is kept.  Throws Error with a sentence to
// follow the path.  Any thread.  The floating-point environment of the calling thread is as before.
attn_plugin load_plugin(const PluginFile& file);

// Returns this build's description of itself for plugins.
attn_host this_host() noexcept;

// [a-z][a-z0-9_]*, at most 64 bytes: names of mechanisms and options.
bool is_name(std::string_view text);

// Returns a copy of the table in this build's size, slots that the plugin does not know being NULL.  Throws Error, with
// a sentence to follow the file's path: table missing or shorter than v1.0's, version windows that do not meet, NULL
// functions or texts, bad name, device or option schema.  Reads no more than the sizes that the plugin states.
attn_plugin check_table(const attn_plugin* given, const attn_host& host);

}  // namespace attnkit::core
