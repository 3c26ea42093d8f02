// A folder that is filled beside its place and moved there once it is whole.
#pragma once

#include <filesystem>
#include <string>

namespace attnkit::cli {

// Throws Failure: (data) the folder could not be made, or is there and not empty or a mount point; (usage) it has no
// name, or is the working folder, which would be lost to who is in it.  Makes nothing.
void check_new_folder(const std::string& folder);

class Staging {
 public:
  // Checks as above.  Throws Failure (data).
  explicit Staging(const std::string& folder);
  ~Staging();  // unless it was finished, all is gone
  Staging(const Staging&) = delete;

  std::string in(const std::string& name) const { return (path_ / name).string(); }

  // Moves it to its place.  Throws Failure (data): something else came to be there.
  void finish();

 private:
  std::string folder_;
  std::filesystem::path target_, path_;
};

}  // namespace attnkit::cli
