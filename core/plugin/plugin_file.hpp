// Checks of a plugin's file before any of it runs.
#pragma once

#include <cstdint>
#include <string>

namespace attnkit::core {

struct PluginFile {
  std::string path;  // absolute, without symbolic links
  uint64_t device = 0, inode = 0;
  int64_t bytes = 0, modified = 0;  // modified: nanoseconds
};

// Throws Error, with a sentence to follow the folder's path, unless the folder is one that only trusted users can
// change: owned by root, the effective user or the owner of libattnkit itself, and not writable by everyone. A group
// may write: where every user has a group of his own that is the default.
void check_plugin_folder(const std::string& folder);

// Reads a file's headers and symbol table.  Throws Error, with a sentence to follow the file's path, unless it is a
// regular file as trusted as its folder, an ELF library for this machine that lies wholly in the file, and exports
// attn_plugin_main_v1 as a function.  Never trusts an offset in it.  Loading what this accepts still runs arbitrary
// code.
PluginFile read_plugin_file(const std::string& path);

}  // namespace attnkit::core
