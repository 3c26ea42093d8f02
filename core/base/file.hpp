// Whole files, read at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace attnkit {

// All bytes of a regular file (or a link to one); pipes, devices and folders are refused without waiting for them.
// Throws Error (ATTN_INVALID) naming the file and the reason; also when it holds more than limit bytes.
std::vector<std::byte> read_file(const std::string& path, uint64_t limit);

// path, when relative, put behind dir.
std::string join_path(const std::string& dir, const std::string& path);

}  // namespace attnkit
