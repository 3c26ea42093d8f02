#include "hosts/cli/io/machine.hpp"

#include <ctime>
#include <fstream>
#include <thread>

namespace attnkit::cli {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "unknown";
}

Json machine_json(int threads) {
  return {{"cpu", cpu_name()}, {"processors", std::thread::hardware_concurrency()}, {"threads", threads}};
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &utc)};
}

}  // namespace attnkit::cli
