// A small model with random weights in a temporary folder: manifest, vocabulary and safetensors written by the test
// itself.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/model/model.hpp"
#include "core/session/session.hpp"

namespace attnkit::test {

using namespace core;

struct TinyModel {
  std::string kind = "encoder-decoder";
  int d = 16, heads = 2, ffn = 24, encoder_layers = 2, decoder_layers = 2, vocab = 11, max_length = 40, classes = 0;
  bool tie = true, head_norm = false, adapters = false, learned_positions = false, post_norm = false;
  std::string extra_model, extra_decoder, attention = "default = \"softmax\"\n", tail;
  std::vector<std::string> adapted;                  // mechanisms that get adapters
  std::vector<std::string> leap_blocks;              // blocks that get LeaP modules of factor 4
  std::map<std::string, std::vector<int64_t>> more;  // further tensors
  std::vector<std::string> leave_out;
  unsigned seed = 7;

  using Shapes = std::map<std::string, std::vector<int64_t>>;

  static void block_shapes(Shapes& s, const std::string& path, int d) {
    for (const char* p : {"q", "k", "v", "o"}) {
      s[path + "." + p + ".weight"] = {d, d};
      s[path + "." + p + ".bias"] = {d};
    }
    s[path + ".norm.weight"] = s[path + ".norm.bias"] = {d};
  }

  void stack_shapes(Shapes& s, const std::string& name, int layers, std::vector<std::string>& blocks) const {
    s[name + ".embed.weight"] = {vocab, d};
    if (learned_positions) s[name + ".positions.weight"] = {max_length, d};
    if (!post_norm) s[name + ".norm.weight"] = s[name + ".norm.bias"] = {d};
    for (int l = 1; l <= layers; ++l) {
      const std::string n = std::to_string(l), f = name + ".ffn." + n;
      blocks.push_back(name + ".self." + n);
      if (name == "decoder" && encoder_layers > 0) blocks.push_back("decoder.cross." + n);
      s[f + ".norm.weight"] = s[f + ".norm.bias"] = s[f + ".out.bias"] = {d};
      s[f + ".in.weight"] = {ffn, d};
      s[f + ".in.bias"] = {ffn};
      s[f + ".out.weight"] = {d, ffn};
    }
  }

  Shapes shapes() const {
    Shapes s;
    std::vector<std::string> blocks;
    if (encoder_layers > 0) stack_shapes(s, "encoder", encoder_layers, blocks);
    if (decoder_layers > 0) stack_shapes(s, "decoder", decoder_layers, blocks);
    for (const std::string& b : blocks) {
      block_shapes(s, b, d);
      for (const std::string& m : adapted)
        for (const char* part : {"q_scale", "q_shift", "k_scale", "k_shift", "gain"})
          s[b + "." + m + ".adapter." + part] = {d};
    }
    const int64_t width = d / heads, r = width / 4;
    for (const std::string& b : leap_blocks)
      for (const char* side : {"q", "k"}) {
        const std::string p = b + ".leap." + side;
        s[p + "_w1"] = {r, width};
        s[p + "_b1"] = {r};
        s[p + "_w2"] = {1, r};
        s[p + "_b2"] = {1};
      }
    if (classes > 0) {
      s["head.weight"] = {classes, d};
      s["head.bias"] = {classes};
    } else if (!tie) {
      s["head.weight"] = {vocab, d};
    }
    s.insert(more.begin(), more.end());
    for (const std::string& name : leave_out) s.erase(name);
    return s;
  }

  std::string manifest() const {
    std::string m = "schema = \"attnkit.model/1\"\n[model]\nname = \"tiny\"\nkind = \"" + kind + "\"\n";
    const auto number = [&](const char* key, int value) {
      m += std::string(key) + " = " + std::to_string(value) + "\n";
    };
    number("d_model", d);
    number("heads", heads);
    number("ffn", ffn);
    number("max_length", max_length);
    if (tie && classes == 0) m += "tie_embeddings = true\n";
    if (head_norm) m += "head_norm = true\n";
    if (adapters) m += "adapters = true\n";
    if (learned_positions) m += "positions = \"learned\"\n";
    if (post_norm) m += "norm = \"post\"\n";
    if (encoder_layers > 0)
      m += "encoder = { layers = " + std::to_string(encoder_layers) + ", vocab = \"vocab.txt\" }\n";
    if (decoder_layers > 0)
      m +=
          "decoder = { layers = " + std::to_string(decoder_layers) + ", vocab = \"vocab.txt\"" + extra_decoder + " }\n";
    if (classes > 0) m += "head = { type = \"classifier\", classes = " + std::to_string(classes) + " }\n";
    return m + extra_model + "[weights]\nfile = \"w.safetensors\"\n[attention]\n" + attention + tail;
  }
};

// A folder that is removed with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "attnkit-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }

 private:
  std::string path_;
};

// Values by name, so that the same name and seed give the same tensor whatever else the file holds.
inline std::vector<float> tiny_values(const std::string& name, size_t n, unsigned seed) {
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(name)) + seed);
  std::normal_distribution<float> normal(0.0f, 0.4f);
  std::vector<float> values(n);
  const bool scale = name.find("norm.weight") != std::string::npos || name.find("_scale") != std::string::npos ||
                     name.find("gain") != std::string::npos;
  for (float& v : values) v = normal(random) + (scale ? 1.0f : 0.0f);
  return values;
}

inline void write_safetensors(const TempFolder& folder, const TinyModel::Shapes& shapes, unsigned seed) {
  std::string header = "{", data;
  for (const auto& [name, shape] : shapes) {
    size_t n = 1;
    std::string text;
    for (int64_t dim : shape) {
      n *= static_cast<size_t>(dim);
      text += (text.empty() ? "" : ",") + std::to_string(dim);
    }
    const std::vector<float> values = tiny_values(name, n, seed);
    header += (header.size() > 1 ? ",\"" : "\"") + name + "\":{\"dtype\":\"F32\",\"shape\":[" + text +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," + std::to_string(data.size() + n * 4) + "]}";
    data.append(reinterpret_cast<const char*>(values.data()), n * 4);
  }
  header += "}";
  const uint64_t size = header.size();
  folder.write("w.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + header + data);
}

inline void write_tiny(const TempFolder& folder, const TinyModel& tiny) {
  std::string vocab = "<pad>\n<s>\n</s>\n";
  for (int i = 3; i < tiny.vocab; ++i) vocab += "\u2581" + std::string(1, static_cast<char>('a' + i - 3)) + "\n";
  folder.write("vocab.txt", vocab);
  folder.write("model.toml", tiny.manifest());
  write_safetensors(folder, tiny.shapes(), tiny.seed);
}

inline std::shared_ptr<Runtime> runtime(uint32_t threads = 2) {
  return std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_PLUGIN_FOLDER}, threads, 1);
}

inline std::string all_messages(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& d : diagnostics.sorted())
    text += fmt::format("{}:{}: AK{} {}\n", d.place.line, d.place.column, d.code, d.message);
  return text;
}

inline std::shared_ptr<const Model> load(const TinyModel& tiny, uint32_t threads = 2) {
  const TempFolder folder;
  write_tiny(folder, tiny);
  Diagnostics diagnostics;
  auto model = Model::load(runtime(threads), tiny.manifest(), folder.path(), diagnostics);
  EXPECT_TRUE(model) << all_messages(diagnostics);
  return model;
}

// The errors of loading, without a model.
inline std::string load_errors(const TinyModel& tiny) {
  const TempFolder folder;
  write_tiny(folder, tiny);
  Diagnostics diagnostics;
  EXPECT_FALSE(Model::load(runtime(), tiny.manifest(), folder.path(), diagnostics));
  return all_messages(diagnostics);
}

inline Ids ids_of(const std::vector<int32_t>& ids, int64_t batch = 1) {
  const int64_t length = static_cast<int64_t>(ids.size()) / batch;
  return {ids.data(), length, batch, length, nullptr};
}

}  // namespace attnkit::test
