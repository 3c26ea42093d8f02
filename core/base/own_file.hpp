// Where the running copy of attnkit lies on disk.
#pragma once

#include <string>

namespace attnkit {

// Absolute path of the file this code was mapped from: libattnkit, or the program it is linked into.  Empty if unknown.
// Asked of the kernel: the dynamic linker may only know a path relative to a working directory that has changed since.
std::string own_file();

}  // namespace attnkit
