// Common to the samples.
#ifndef COMMON_HPP
#define COMMON_HPP
#include <attnkit/attnkit.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

struct Opened {
  attnkit::Model model;
  attnkit::Ids ids;  // of the text, </s> included
};

inline std::string contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The model of the first argument and the second argument's ids; streaming: so that a source may grow.
inline Opened open(char** argv, bool streaming = false) {
  const attnkit::Runtime runtime;
  const std::string toml = contents(argv[1]) + (streaming ? "\n[stream]\nreplay = true\n" : "");
  attnkit::Model model(runtime, toml, std::filesystem::path(argv[1]).parent_path().string());
  attnkit::Ids ids = model.tokenize(attnkit::Side::source, argv[2]);
  ids.push_back(model.info().end_id);
  return {std::move(model), std::move(ids)};
}
#endif
