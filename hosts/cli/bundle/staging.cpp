#include "hosts/cli/bundle/staging.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_with(const std::string& folder, const std::error_code& error) {
  fail(Exit::data, "{}: cannot be made: {}", quote(folder), error.message());
}

std::error_code last_error() { return {errno, std::generic_category()}; }

// Absolute, without a '/' at its end; of a link where it leads.
fs::path target_of(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(fs::absolute(folder), error);
  if (error) fail_with(folder, error);
  return path.has_filename() ? path : path.parent_path();
}

// As a volume of a container is.  What lies there cannot be renamed over.
bool is_mount_point(const fs::path& folder) {
  struct statx status {};
  return statx(AT_FDCWD, folder.c_str(), 0, 0, &status) == 0 && (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

}  // namespace

void check_new_folder(const std::string& folder) {
  std::error_code error;
  const fs::path target = target_of(folder);
  if (same_file(target, fs::current_path(error)))
    fail(Exit::usage, "{} is the working folder: name a new one", quote(folder));
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status)) {
    if (!fs::is_directory(status)) fail(Exit::data, "{}: is there and no folder: name a new one", quote(folder));
    const bool empty = fs::is_empty(target, error);
    if (error) fail_with(folder, error);
    if (!empty) fail(Exit::data, "{}: is there and not empty: name a new folder, or remove it", quote(folder));
    if (is_mount_point(target))
      fail(Exit::data, "{}: is a mount point, which no folder can replace: name a new folder in it", quote(folder));
  }
  fs::path parent = target.parent_path();
  while (!fs::exists(parent, error) && parent.has_relative_path()) parent = parent.parent_path();
  if (!fs::is_directory(parent, error)) fail_with(folder, std::make_error_code(std::errc::not_a_directory));
  if (access(parent.c_str(), W_OK | X_OK) != 0) fail_with(folder, last_error());
}

Staging::Staging(const std::string& folder) : folder_(folder) {
  check_new_folder(folder);
  target_ = target_of(folder);
  std::error_code error;
  fs::create_directories(target_.parent_path(), error);
  if (error) fail_with(folder, error);
  std::string name = target_.string() + ".XXXXXX";
  if (!mkdtemp(name.data())) fail_with(folder, last_error());
  path_ = name;
}

Staging::~Staging() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void Staging::finish() {
  const mode_t mask = umask(0);
  umask(mask);
  std::error_code error;
  if (chmod(path_.c_str(), 0777 & ~mask) != 0) error = last_error();
  if (!error) fs::rename(path_, target_, error);  // over an empty folder, never over one with files
  if (error) fail_with(folder_, error);
  path_.clear();
}

}  // namespace attnkit::cli
