// Maps a plugin's library for good and gets its table.
#pragma once

#include <attnkit/plugin.h>

#include "core/plugin/file.hpp"

namespace attnkit {

// The checked table of a file that read_plugin_file accepted.  Each file is mapped and asked once per process, whatever
// the number of registries and paths; its answer, also a refusal, is kept.  Throws Error with a sentence to follow the
// path. Threads any.  The floating-point environment of the calling thread is as before.
attn_plugin load_plugin(const PluginFile& file);

}  // namespace attnkit
