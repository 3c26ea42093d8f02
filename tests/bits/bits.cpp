// Prints a checksum of the bits that plugins, dense layers and models compute from numbers that are the same
// everywhere: two machines with fused multiply-add print the same text (docs/decisions/vectors.md).
//   bits PLUGINS MANIFESTS MODEL
#include <attnkit/kernels/random.hpp>
#include <boost/crc.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/model/dense/dense.hpp"
#include "core/model/model.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

using namespace core;

// All NaN are alike.
template <class Numbers>
uint32_t checksum(const Numbers& numbers) {
  boost::crc_32_type sum;
  for (const auto number : numbers) {
    const auto kept = std::isnan(number) ? decltype(number){7e33f} : number;
    sum.process_bytes(&kept, sizeof kept);
  }
  return sum.checksum();
}

std::set<std::string> files_of(const char* folder, const char* ending) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ending && !entry.path().stem().string().ends_with("-cuda"))
      files.insert(entry.path());
  return files;
}

std::string stem(const std::string& path) { return std::filesystem::path(path).stem().string(); }

// Widths of whole vectors: what is left of others goes to loops that a compiler makes into instructions as it likes.
std::vector<Situation> whole_widths() {
  std::vector<Situation> all = situations();
  std::erase_if(all, [](const Situation& s) {
    return s.block.head_width % 16 != 0 || s.block.d_model % (16 * s.block.heads) != 0;
  });
  const auto decoder = make_block(ATTN_DECODER_SELF, true, 3, 32, 48);
  all.push_back({"causal", decoder, 2, 100, 100, {}, {}, false, true});
  all.push_back({"causal padded", decoder, 3, 40, 40, {7, 40, 39}, {7, 40, 39}, false, true});
  return all;
}

void print_plugin(const std::string& file) {
  const attn_plugin& plugin = load(file);
  for (const Situation& s : whole_widths()) {
    const std::string name = stem(file) + ", " + s.name;
    try {
      const Mechanism mech(plugin, s.block);
      Inputs in(mech, s.batch, s.queries, s.keys, 3);
      const Array out = run_whole(in, s.prefix ? ATTN_PREFIX : 0, s.call());
      std::printf("%s: %08x\n", name.c_str(), checksum(out.data()));
    } catch (const Refused&) {
      std::printf("%s: refused\n", name.c_str());
    }
  }
}

void print_dense() {
  conformance::Random random(1);
  const auto noise = [&](int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& number : x) number = random.normal();
    return x;
  };
  Threads threads(1);
  for (const WeightType type : {WeightType::f32, WeightType::bf16, WeightType::int8, WeightType::int4})
    for (const int64_t inputs : {67, 512})
      for (const int64_t rows : {1, 3, 33}) {
        constexpr int64_t outputs = 130;
        const std::vector<float> weight = noise(inputs * outputs), bias = noise(outputs), x = noise(rows * inputs);
        const Dense dense(inputs, outputs, weight, bias, type);
        std::vector<float> y(static_cast<size_t>(rows * outputs));
        for (const Activation f : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
          dense.apply(threads, x.data(), inputs, y.data(), outputs, rows, f);
          std::printf("%s, %d inputs, %d rows, activation %d: %08x\n", weight_type_name(type), static_cast<int>(inputs),
                      static_cast<int>(rows), static_cast<int>(f), checksum(y));
        }
      }
}

void print_model(const std::shared_ptr<Runtime>& runtime, const std::string& file) {
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  Diagnostics diagnostics;
  const auto model = Model::load(runtime, text, std::filesystem::path(file).parent_path(), diagnostics);
  if (!model) throw std::runtime_error(file + ": " + diagnostics.sorted().at(0).message);
  if (model->frontend()) return;  // sines and logarithms of the C library
  constexpr int64_t length = 90;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back(5 + i * i % 20);
  const Ids some{ids.data(), length, 1, length, nullptr};
  const SourceBatch source = model->has_encoder() ? SourceBatch(some) : SourceBatch();
  const Ids target = model->has_decoder() ? some : Ids();
  int64_t size = 1;
  for (const int64_t n : model->output_shape(source, target)) size *= n;
  std::vector<float> out(static_cast<size_t>(size));
  model->forward(source, target, out.data());
  std::printf("%s: %08x\n", stem(file).c_str(), checksum(out));
}

}  // namespace
}  // namespace attnkit::test

int main(int, char** argv) {
  using namespace attnkit::test;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const std::string& file : files_of(argv[1], ".so")) print_plugin(file);
  print_dense();
  const auto runtime = std::make_shared<attnkit::core::Runtime>(std::vector<std::string>{argv[1]}, 0, 1);
  for (const std::string& file : files_of(argv[2], ".toml")) print_model(runtime, file);
  print_model(runtime, argv[3]);
}
