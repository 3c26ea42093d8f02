#include "hosts/cli/io/output_check.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t largest_manifest = uintmax_t{16} << 20;

bool is_regular(const fs::path& path) {
  std::error_code bad;
  return fs::is_regular_file(path, bad);
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code bad;
  return fs::equivalent(a, b, bad) && !bad;
}

std::string text_of(const fs::path& manifest) {
  std::error_code bad;
  // A pipe could be read only once, and that is for the library to do.
  if (!is_regular(manifest) || fs::file_size(manifest, bad) > largest_manifest) return "";
  std::ifstream file(manifest, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What stands in quotes of either kind, each mark also taken as a beginning so that a stray one hides nothing.
bool names_file(const std::string& text, const fs::path& folder, const fs::path& output) {
  for (size_t at = text.find_first_of("\"'"); at != std::string::npos; at = text.find_first_of("\"'", at + 1)) {
    const size_t end = text.find_first_of(std::string{text[at], '\n'}, at + 1);
    if (end == std::string::npos || text[end] == '\n' || end == at + 1) continue;
    if (same_file(folder / text.substr(at + 1, end - at - 1), output)) return true;
  }
  return false;
}

void check_not_input(const Arguments& arguments, const char* written, const std::string& output) {
  const auto refuse = [&](const std::string& what) {
    fail(Exit::usage, "--{} {} is an input of this command, {}: choose another file", written, quote(output), what);
  };
  const std::string manifest = arguments.text("MANIFEST");
  if (same_file(manifest, output)) refuse("the manifest");
  for (const char* option : {"file", "target-file", "audio-list"}) {
    const std::string path = arguments.text(option);
    if (same_file(path == "-" ? "/dev/stdin" : path, output)) refuse(std::string("--") + option);
  }
  for (const std::string& path : arguments.texts("audio"))
    if (same_file(path == "-" ? "/dev/stdin" : path, output)) refuse("--audio");
  if (names_file(text_of(manifest), fs::path(manifest).parent_path(), output)) refuse("a file of the model");
  std::error_code bad;
  const std::string ending = fs::canonical(output, bad).extension().string();
  constexpr std::string_view inputs[] = {".toml", ".safetensors", ".wav", ".flac", ".ogg"};
  if (std::find(std::begin(inputs), std::end(inputs), ending) != std::end(inputs))
    fail(Exit::usage, "--{} {} exists and is by its name an input of this command, a {} file: choose another file",
         written, quote(output), ending);
}

}  // namespace

void check_output(const Arguments& arguments, const char* option) {
  if (!arguments.has(option)) return;
  const std::string output = arguments.text(option);
  if (output != "-" && is_regular(output)) check_not_input(arguments, option, output);
  check_writable(output);
}

}  // namespace attnkit::cli
