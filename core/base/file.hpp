// Whole files, read at once; paths; the file that this code lies in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace attnkit {

// Returns all bytes of a regular file (or a link to one); pipes, devices and folders are refused without waiting for
// them. Throws Error (ATTN_INVALID) naming the file and the reason; also when it holds more than limit bytes.
std::vector<std::byte> read_file(const std::string& path, uint64_t limit);

// Returns path behind dir, or path itself when it is absolute.
std::string join_path(const std::string& dir, const std::string& path);

// Returns the absolute path of the file this code was mapped from: libattnkit, or the program it is linked into.  Empty
// if unknown.  Asks the kernel: the dynamic linker may only know a path relative to a working directory that has
// changed since.
std::string own_file();

}  // namespace attnkit
