// Models on the CPU and on the emulator's device, and what they are fed, for the tests of models on a device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "core/model/model.hpp"
#include "core/session/session.hpp"

namespace attnkit::core {

inline const std::string samples = ATTNKIT_SAMPLES, numbers = samples + "/models/numbers-en-de";

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<std::string> folders(std::initializer_list<std::filesystem::path> folders) {
  std::vector<std::string> all;
  for (const auto& folder : folders) all.push_back(absolute(folder));
  return all;
}

inline std::shared_ptr<Runtime> runtime(int32_t device) {
  static const auto cpu = std::make_shared<Runtime>(folders({ATTNKIT_PLUGIN_FOLDER}), 2, 1);
  static const auto cuda = [] {
    setenv("ATTNKIT_DEVICE_LIBRARY", ATTNKIT_DEVICE_LIBRARY_DEFAULT, 0);
    return std::make_shared<Runtime>(folders({ATTNKIT_DEVICE_PLUGINS, ATTNKIT_PLUGIN_FOLDER}), 2, 2);
  }();
  return device == 2 ? cuda : cpu;
}

using Loaded = std::shared_ptr<const Model>;

inline Loaded open(const std::string& toml, const std::string& folder, int32_t device) {
  Diagnostics diagnostics;
  Loaded model = Model::load(runtime(device), toml, folder, diagnostics);
  for (const Diagnostic& d : diagnostics.sorted())
    if (d.severity == ATTNKIT_ERROR) ADD_FAILURE() << d.message << "; " << d.help;
  return model;
}

// The same model on both devices.
struct Both {
  Loaded cpu, device;
  Both(const std::string& toml, const std::string& folder) : Both(toml, toml, folder) {}
  Both(const std::string& on_cpu, const std::string& on_device, const std::string& folder)
      : cpu(open(on_cpu, folder, 1)), device(open(on_device, folder, 2)) {
    EXPECT_TRUE(cpu && device && device->on_device() && !cpu->on_device());
  }
};

// placement: "encoder.self/decoder.self/decoder.cross"
inline std::string numbers_toml(const std::string& placement, const std::string& more = "") {
  std::string toml = read_text(numbers + "/model.toml"), mechanism;
  std::istringstream parts(placement);
  for (const char* role : {"encoder.self", "decoder.self", "decoder.cross"}) {
    std::getline(parts, mechanism, '/');
    toml = std::regex_replace(toml, std::regex("\"" + std::string(role) + "\" *= *\"[a-z]*\""),
                              "\"" + std::string(role) + "\" = \"" + mechanism + "\"");
  }
  return toml + more;
}

inline Both translators(const std::string& placement, const std::string& more = "") {
  return {numbers_toml(placement, more), numbers};
}

inline std::string sample(const std::string& name) {
  return std::regex_replace(read_text(samples + "/manifests/" + name), std::regex("\\.\\./models/numbers-en-de/"), "");
}

inline std::vector<std::string> names() {
  std::istringstream list(ATTNKIT_CUDA_NAMES);
  return {std::istream_iterator<std::string>(list), {}};
}

// The same with weights of that type.
inline std::string typed(const std::string& toml, const std::string& type) {
  return std::regex_replace(toml, std::regex("\\[weights\\]"), "[weights]\ntype = \"" + type + "\"");
}

// A small model, weights made from a seed, with the mechanism wherever it can be.
inline std::string untrained_toml(const std::string& mechanism) {
  const bool asks_for_cross = mechanism == "latte" || mechanism == "rope_linear";
  std::string toml = R"(schema = "attnkit.model/1"
[model]
name = "untrained"
kind = "encoder-decoder"
d_model = 48
heads = 4
ffn = 64
max_length = 512
encoder = { layers = 2, vocab = "vocab.txt", lowercase = true }
decoder = { layers = 2, vocab = "vocab.txt" }
[weights]
seed = 1
[length]
predict = "ratio"
alpha = 1.15
[attention]
default = { use = ")" +
                     mechanism + (asks_for_cross ? "\", cross = true }\n" : "\" }\n");
  if (mechanism == "efficient" || mechanism == "linformer") toml += "\"decoder.self\" = \"softmax\"\n";
  if (mechanism == "bigbird" || mechanism == "nystromformer")
    toml += "\"decoder.self\" = \"softmax\"\n\"decoder.cross\" = \"softmax\"\n";
  if (mechanism == "local" || mechanism == "s4d") toml += "\"decoder.cross\" = \"softmax\"\n";
  return toml;
}

using Tokens = std::vector<int32_t>;

inline Ids row(const Tokens& ids) {
  const auto n = static_cast<int64_t>(ids.size());
  return {ids.data(), n, 1, n, nullptr};
}

// Rows of any lengths, padded to the longest.
struct Batch {
  explicit Batch(const std::vector<Tokens>& rows) {
    for (const Tokens& row : rows) lengths.push_back(static_cast<int32_t>(row.size()));
    longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
    for (Tokens row : rows) {
      row.resize(longest, -1);
      ids.insert(ids.end(), row.begin(), row.end());
    }
  }
  Ids get() const {
    const auto n = static_cast<int64_t>(longest);
    return {ids.data(), n, static_cast<int64_t>(lengths.size()), n, lengths.data()};
  }
  size_t longest = 0;
  Tokens ids;
  std::vector<int32_t> lengths;
};

inline std::vector<Tokens> sources(const Model& model, size_t count, size_t stride = 7) {
  std::istringstream lines(read_text(numbers + "/test.tsv"));
  std::vector<Tokens> all;
  std::string line;
  for (size_t i = 0; all.size() < count && std::getline(lines, line); ++i) {
    if (i % stride != 0) continue;
    all.push_back(model.vocabulary(false)->tokenize(line.substr(0, line.find('\t'))));
    all.back().push_back(model.vocabulary(false)->end_id());
  }
  EXPECT_EQ(all.size(), count);
  return all;
}

inline Tokens translated(const Loaded& model, const Tokens& source, int rows, int most = 0) {
  Session session(model, rows);
  session.read(row(source));
  return session.generate(most);
}

inline std::vector<float> last(const Session& session) {
  return {session.last(0), session.last(0) + session.rows() * session.model().outputs()};
}

inline std::string refusal(const std::string& toml, int32_t device = 2) {
  Diagnostics diagnostics;
  try {
    if (Model::load(runtime(device), toml, numbers, diagnostics)) return "none";
  } catch (const Error& e) {
    return e.what();
  }
  for (const Diagnostic& d : diagnostics.sorted())
    if (d.severity == ATTNKIT_ERROR) return d.message + "; " + d.help;
  return "no reason";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace attnkit::core
