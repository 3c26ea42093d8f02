#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "conformance/fixture.hpp"

namespace attnkit::test {

std::string stem(const std::string& path) { return std::filesystem::path(path).stem().string(); }

std::vector<std::string> plugin_files() {
  std::vector<std::string> files;
  if (const char* list = std::getenv("ATTNKIT_CONFORMANCE_PLUGINS")) {
    std::istringstream in(list);
    for (std::string file; std::getline(in, file, ':');)
      if (!file.empty()) files.push_back(file);
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(ATTNKIT_PLUGIN_DIR))
      if (entry.path().extension() == ".so" && !stem(entry.path()).ends_with("-cuda")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::ostream& operator<<(std::ostream& out, const Subject& s) {
  const char* seats[] = {"encoder_self", "decoder_self", "decoder_cross"};
  return out << stem(s.file) << "_" << seats[static_cast<int>(s.seat)];
}

std::vector<Subject> subjects(const std::vector<Seat>& seats) {
  std::vector<Subject> all;
  for (const auto& file : plugin_files())
    for (const Seat seat : seats) all.push_back({file, seat});
  return all;
}

std::string name_of(const testing::TestParamInfo<Subject>& info) {
  std::ostringstream out;
  out << info.param;
  return out.str();
}

}  // namespace attnkit::test
