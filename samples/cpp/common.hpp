// Common to the samples.
#ifndef COMMON_HPP
#define COMMON_HPP
#include <attnkit/attnkit.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>

struct Opened {
  attnkit::Model model;
  attnkit::Ids ids;  // of the text, </s> included
};

inline std::string contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string(path) + ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write(const char* path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes)).flush())
    throw std::runtime_error(std::string(path) + ": cannot be written");
}

// The status of main without the arguments that it needs, and for an exception.
inline int usage(char** argv, const char* arguments) {
  std::cerr << "usage: " << argv[0] << ' ' << arguments << '\n';
  return 2;
}

inline int failed(const std::exception& e) {
  std::cerr << e.what() << '\n';
  return 1;
}

// The model of the first argument and the second argument's ids; streaming: so that a source may grow.
inline Opened open(char** argv, bool streaming = false) {
  const attnkit::Runtime runtime;
  std::string toml = contents(argv[1]), line;
  for (std::istringstream lines(toml); streaming && std::getline(lines >> std::ws, line);)
    streaming = !line.starts_with("[stream]");
  if (streaming) toml += "\n[stream]\nreplay = true\n";
  attnkit::Model model(runtime, toml, std::filesystem::path(argv[1]).parent_path().string());
  attnkit::Ids ids = model.tokenize(attnkit::Side::source, argv[2]);
  ids.push_back(model.info().end_id);
  return {std::move(model), std::move(ids)};
}
#endif
