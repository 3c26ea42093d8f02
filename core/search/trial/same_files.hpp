// Are the files of a search on another machine the same?
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace attnkit::core::search {

// SHA-256, as hexadecimal digits.
std::string digest_of(const std::string& bytes);
// Throws Failure (data): a file that cannot be read, named.
std::string digest_of_file(const std::string& path);
// Of the recordings that data sets of speech name.  test may be empty.  Throws Failure (data).
std::string digest_of_recordings(const std::string& data, const std::string& test);

// The file that libattnkit was loaded from.
std::string library_file();

// Of a request to open: what the manifest names relative to its "dir", and data sets that lie under it, are looked for
// under `folder` instead.
nlohmann::json moved(nlohmann::json open, const std::string& folder);

// "expects" of a request to open: {"version": VERSION, "program": SHA-256, "library": SHA-256, "files": {PATH:
// SHA-256}, "plugins": {NAME: SHA-256}, "recordings": SHA-256 for speech}, paths relative to "dir" or absolute.
// program: the file of this one; plugins: {NAME: FILE} of this machine.  Throws Failure (data) that names the first
// difference. Without "expects" all is well.
void check_expected(const nlohmann::json& open, const std::string& program, const nlohmann::json& plugins);

}  // namespace attnkit::core::search
