// The user's files: read whole, written atomically, never over what the command reads.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit::cli {

class Arguments;

// The file's bytes; "-" is standard input.  Throws Failure (data): missing, a directory, unreadable, above 1 GiB.
std::string read_file(const std::string& path);

// The lines of such a file without their ends (LF or CR LF); a last line without one counts.  A UTF-8 byte
// order mark in front is dropped.
std::vector<std::string> read_lines(const std::string& path);

// Do both paths lead to one file that is there?
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);

// The same of files that may not be there yet.
bool same_place(const std::string& a, const std::string& b);

// Fails at once when write_file could not work, before the work for it is done.
void check_writable(const std::string& path);

// Before anything runs: throws Failure (usage) when --output, or another option that names a file to write, is the
// manifest, --file, --target-file, --audio, --audio-list or a file of the model, whatever name or link leads there, or
// standard output beside --json; (data) when it could not be written.  Nothing without the option.
void check_output(const Arguments& arguments, const char* option = "output");

// Writes a temporary file beside `path` and renames it: the file is either the old one or complete.  "-" is standard
// output; devices and pipes are written directly.  Throws Failure (data).
void write_file(const std::string& path, std::string_view content);

}  // namespace attnkit::cli
