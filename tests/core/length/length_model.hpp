// Small models whose target lengths are predicted by a table or a network, and the network in double precision.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {

using namespace core;

constexpr int width = 16, channels = 5, vocabulary = 11;
// Tokens a, b, c, d and </s>; the others count with the mean, (2.25 + 0 + 1 + 0.5 + 1) / 5.
inline const std::string table = "\u2581a\t2.25\n\u2581b\t0\n\u2581c\t1\n\u2581d\t0.5\n</s>\t1\n";
inline const std::string by_table = "[length]\npredict = \"lut\"\nlut = \"lengths.tsv\"\n",
                         by_network = "[length]\npredict = \"network\"\nfile = \"length.safetensors\"\n";

inline TinyModel::Shapes network_shapes(int64_t c = channels, int64_t d = width) {
  TinyModel::Shapes s;
  s["length.conv.1.weight"] = {c, d, 3};
  s["length.conv.2.weight"] = {c, c, 3};
  for (const char* name : {"length.conv.1.bias", "length.conv.1.norm.weight", "length.conv.1.norm.bias",
                           "length.conv.2.bias", "length.conv.2.norm.weight", "length.conv.2.norm.bias"})
    s[name] = {c};
  s["length.out.weight"] = {1, c};
  s["length.out.bias"] = {1};
  return s;
}

// A folder with a vocabulary, weights, lengths.tsv and length.safetensors.
class LengthFolder {
 public:
  explicit LengthFolder(const TinyModel::Shapes& network = network_shapes()) {
    write_safetensors(folder_, network, seed);
    std::filesystem::rename(path("w.safetensors"), path("length.safetensors"));
    // length.out.bias and .weight are the last by name.
    const auto at = std::filesystem::file_size(path("length.safetensors")) - sizeof(float) * (1 + channels);
    std::fstream file(path("length.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(reinterpret_cast<const char*>(&out_bias), sizeof out_bias);
    write_tiny(folder_, TinyModel());
    write("lengths.tsv", table);
  }
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  // NULL when it is refused; `said` then has the reasons.
  std::shared_ptr<const Model> try_load(const std::string& manifest, std::string* said = nullptr) const {
    Diagnostics diagnostics;
    auto model = Model::load(runtime(), manifest, folder_.path(), diagnostics);
    if (said) *said = all_messages(diagnostics);
    return model;
  }
  std::shared_ptr<const Model> load(const StreamModel& from) const {
    std::string said;
    auto model = try_load(from.manifest(), &said);
    EXPECT_TRUE(model) << said;
    return model;
  }

  static constexpr unsigned seed = 3;
  static constexpr float out_bias = 1;  // durations about 2, where those of the test's own scale would round to none

 private:
  TempFolder folder_;
};

// The network as its definition has it, of the tensors that LengthFolder writes.
class DoubleNetwork {
 public:
  std::vector<double> durations(const std::vector<std::vector<double>>& rows) const {
    const auto hidden = convolution("length.conv.2", convolution("length.conv.1", rows));
    const std::vector<float> weight = tensor("length.out.weight", channels);
    std::vector<double> out;
    for (const auto& row : hidden) {
      double x = LengthFolder::out_bias;
      for (size_t i = 0; i < row.size(); ++i) x += weight[i] * row[i];
      out.push_back(std::exp(x) - 1);
    }
    return out;
  }

 private:
  static std::vector<float> tensor(const std::string& name, size_t n) {
    return tiny_values(name, n, LengthFolder::seed);
  }

  static std::vector<std::vector<double>> convolution(const std::string& name,
                                                      const std::vector<std::vector<double>>& x) {
    const size_t n = x.size(), d = x[0].size();
    const std::vector<float> weight = tensor(name + ".weight", channels * d * 3),
                             bias = tensor(name + ".bias", channels), scale = tensor(name + ".norm.weight", channels),
                             shift = tensor(name + ".norm.bias", channels);
    std::vector<std::vector<double>> y(n, std::vector<double>(channels));
    for (size_t t = 0; t < n; ++t) {
      double mean = 0, variance = 0;
      for (size_t o = 0; o < channels; ++o) {
        double sum = bias[o];
        for (size_t k = 0; k < 3; ++k)
          for (size_t i = 0; t + k >= 1 && t + k <= n && i < d; ++i)
            sum += weight[(o * d + i) * 3 + k] * x[t + k - 1][i];
        y[t][o] = std::max(0.0, sum);
        mean += y[t][o] / channels;
      }
      for (const double v : y[t]) variance += (v - mean) * (v - mean) / channels;
      for (size_t o = 0; o < channels; ++o)
        y[t][o] = (y[t][o] - mean) / std::sqrt(variance + 1e-5) * scale[o] + shift[o];
    }
    return y;
  }
};

inline StreamModel cosformers(const std::string& length) {
  StreamModel m;
  m.attention = "default = \"cosformer\"\n";
  m.length = length;
  m.stream = "";
  return m;
}

}  // namespace attnkit::test
