#include "hosts/cli/io/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/base/descriptor.hpp"
#include "hosts/cli/arguments.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t max_input = size_t{1} << 30;
constexpr uintmax_t max_manifest = uintmax_t{16} << 20;

[[noreturn]] void fail_with_errno(const std::string& path, const char* what) {
  fail(Exit::data, "{}: {}: {}", quote(path), what, std::generic_category().message(errno));
}

// The target of a path, so that a link stays a link and its target is replaced, or made where it is not there yet.
std::string resolved(const std::string& path) {
  std::error_code bad, no_link;
  const fs::path real = fs::canonical(path, bad);
  if (!bad) return real.string();
  if (fs::exists(path, no_link)) return path;  // as /dev/stdout of a pipe, which no path names
  const fs::path target = fs::read_symlink(path, no_link);
  const bool dangling = bad == std::errc::no_such_file_or_directory && !no_link;
  return dangling ? resolved((fs::path(path).parent_path() / target).string()) : path;
}

// As write_all, of a pipe whose reader may not read.
int write_to_reader(int file, std::string_view content) {
  for (; !content.empty(); check_interrupt()) {
    const ssize_t n = ::write(file, content.data(), content.size());
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) content.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

bool is_regular(const fs::path& path) {
  std::error_code bad;
  return fs::is_regular_file(path, bad);
}

std::string manifest_text(const fs::path& manifest) {
  std::error_code bad;
  // A pipe could be read only once, and that is for the library to do.
  if (!is_regular(manifest) || fs::file_size(manifest, bad) > max_manifest) return "";
  std::ifstream file(manifest, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Whether a quoted text, in quotes of either kind, is the path of output.  Every mark may begin one, so that a stray
// mark hides nothing.
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
  if (names_file(manifest_text(manifest), fs::path(manifest).parent_path(), output)) refuse("a file of the model");
  std::error_code bad;
  const std::string ending = fs::canonical(output, bad).extension().string();
  constexpr std::string_view inputs[] = {".toml", ".safetensors", ".wav", ".flac", ".ogg"};
  if (std::find(std::begin(inputs), std::end(inputs), ending) != std::end(inputs))
    fail(Exit::usage, "--{} {} exists and is by its name an input of this command, a {} file: choose another file",
         written, quote(output), ending);
}

}  // namespace

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code bad;
  return fs::equivalent(a, b, bad) && !bad;
}

bool same_place(const std::string& a, const std::string& b) {
  if (a == "-" || b == "-") return a == b;
  std::error_code bad;
  if (fs::exists(a, bad) || fs::exists(b, bad)) return is_regular(a) && same_file(a, b);
  const auto place = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(resolved(path), bad), bad);
  };
  return place(a) == place(b);
}

std::string read_file(const std::string& path) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;
  const Descriptor opened(standard ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  const int file = standard ? STDIN_FILENO : opened.get();
  if (file < 0) {
    const int reason = errno;
    check_interrupt();  // opening a pipe waits for its writer
    errno = reason;
    fail_with_errno(name, "cannot be opened");
  }
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    wait_for_input(file);
    const ssize_t n = ::read(file, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno(name, "cannot be read");
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
    if (content.size() > max_input) fail(Exit::data, "{}: holds more than 1 GiB; split it", quote(name));
  }
}

std::vector<std::string> read_lines(const std::string& path) { return split_lines(read_file(path)); }

void check_writable(const std::string& path) {
  if (path == "-") return;
  const std::string real = resolved(path), parent = fs::path(real).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  struct stat status {};
  const bool exists = stat(real.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail(Exit::data, "{}: is a folder, not a file to write", quote(path));
  if (exists && access(real.c_str(), W_OK) != 0) fail_with_errno(path, "cannot be written");
  if (exists && !S_ISREG(status.st_mode)) return;
  if (access(folder.c_str(), W_OK | X_OK) != 0) fail_with_errno(path, "cannot be written");
}

void write_file(const std::string& path, std::string_view content) {
  check_interrupt();
  if (path == "-") return print(content);
  check_writable(path);
  const std::string real = resolved(path);
  struct stat old {};
  const bool exists = stat(real.c_str(), &old) == 0, direct = exists && !S_ISREG(old.st_mode);
  const mode_t mask = umask(0);
  umask(mask);
  const mode_t mode = exists ? old.st_mode & 07777 : 0666 & ~mask;
  std::string temporary = real + ".XXXXXX";
  Descriptor file(direct ? ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY)
                         : mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0 && direct) {
    const int reason = errno;
    check_interrupt();  // opening a pipe waits for its reader
    errno = reason;
    fail_with_errno(path, "cannot be opened");
  }
  if (file.get() < 0) fail_with_errno(real, "cannot be written: no temporary file beside it");
  if (direct) {
    if (write_to_reader(file.get(), content) != 0 || file.close() != 0) fail_with_errno(path, "cannot be written");
    return;
  }
  if (fchmod(file.get(), mode) == 0 && write_all(file.get(), content) == 0 && fsync(file.get()) == 0 &&
      file.close() == 0 && rename(temporary.c_str(), real.c_str()) == 0)
    return;
  const int reason = errno;
  unlink(temporary.c_str());
  errno = reason;
  fail_with_errno(real, "cannot be written");
}

void check_output(const Arguments& arguments, const char* option) {
  if (!arguments.has(option)) return;
  const std::string output = arguments.text(option);
  if (output == "-" && arguments.json()) fail(Exit::usage, "--json writes to standard output, so --{} cannot", option);
  if (output != "-" && is_regular(output)) check_not_input(arguments, option, output);
  check_writable(output);
}

}  // namespace attnkit::cli
