#include "core/length/network.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/model/dense.hpp"
#include "core/base/error.hpp"
#include "core/model/layers.hpp"
#include "core/manifest/diagnostics.hpp"
#include "core/base/sha256.hpp"
#include "core/weights/reader.hpp"

namespace attnkit {
namespace {

constexpr int64_t kernel = 3, usual_channels = 128, most_channels = 65536;

struct Convolution {
  Dense dense;  // over `kernel` rows that stand one behind the other
  LayerNorm norm;
};

struct Layers {
  Convolution first, second;
  Dense out;
};

// (outputs, inputs, kernel) as (outputs, kernel * inputs): the order in which rows lie in memory.
std::vector<float> by_row(const std::vector<float>& weight, int64_t outputs, int64_t inputs) {
  std::vector<float> rows(weight.size());
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t i = 0; i < inputs; ++i)
      for (int64_t k = 0; k < kernel; ++k) rows[(o * kernel + k) * inputs + i] = weight[(o * inputs + i) * kernel + k];
  return rows;
}

class LayerReader {
 public:
  LayerReader(const Weights& weights, WeightReader& reader) : weights_(weights), reader_(reader) {}

  Layers read(int64_t width) {
    const int64_t c = channels();
    const Convolution first = convolution("length.conv.1", width, c), second = convolution("length.conv.2", c, c);
    const std::vector<float> weight = take("length.out.weight", {1, c});
    return {first, second, Dense(c, 1, weight, take("length.out.bias", {1}))};
  }

 private:
  int64_t channels() const {
    const StoredTensor* first = weights_.find("length.conv.1.weight");
    const bool sound = first && first->shape.size() == 3 && first->shape[0] > 0 && first->shape[0] <= most_channels;
    return sound ? first->shape[0] : usual_channels;
  }

  Convolution convolution(const std::string& name, int64_t inputs, int64_t outputs) {
    const std::vector<float> weight = take(name + ".weight", {outputs, inputs, kernel});
    return {Dense(kernel * inputs, outputs, by_row(weight, outputs, inputs), take(name + ".bias", {outputs})),
            {take(name + ".norm.weight", {outputs}), take(name + ".norm.bias", {outputs})}};
  }

  std::vector<float> take(const std::string& name, const std::vector<int64_t>& shape) {
    return reader_.f32(name, shape, constant(0));
  }

  const Weights& weights_;
  WeightReader& reader_;
};

std::string identity_of(const Layers& layers) {
  Sha256 sum;
  for (const Convolution* c : {&layers.first, &layers.second}) {
    sum.add_numbers(c->dense.numbers());
    sum.add_numbers(std::span(c->norm.weight));
    sum.add_numbers(std::span(c->norm.bias));
  }
  sum.add_numbers(layers.out.numbers());
  return "network " + hex(sum.digest());
}

class Network : public Length {
 public:
  Network(Layers layers, int64_t longest)
      : Length(identity_of(layers)), layers_(std::move(layers)), longest_(static_cast<double>(longest)) {}

  double predict(Threads& threads, LengthBuffers& buffers, const SourceSoFar& source) const override {
    const int64_t n = source.length, width = layers_.first.dense.inputs() / kernel, c = layers_.out.inputs();
    if (n == 0) return 1;
    // A zero row at either end; a row with its neighbours is then one piece of memory, which the next one overlaps.
    float* padded = buffers.x.get<float>((n + 2) * width);
    std::fill(padded, padded + width, 0.0f);
    std::copy(source.rows, source.rows + n * width, padded + width);
    std::fill(padded + (n + 1) * width, padded + (n + 2) * width, 0.0f);
    float* first = buffers.y.get<float>((n + 2) * c);
    std::fill(first, first + c, 0.0f);
    apply(threads, layers_.first, padded, width, first + c, n);
    std::fill(first + (n + 1) * c, first + (n + 2) * c, 0.0f);
    float* second = buffers.x.get<float>(n * (c + 1));
    apply(threads, layers_.second, first, c, second, n);
    float* logs = second + n * c;
    layers_.out.apply(threads, second, c, logs, 1, n);
    return total(logs, n);
  }

  bool needs_rows() const override { return true; }

  void describe(nlohmann::ordered_json& to) const override {
    const int64_t c = layers_.out.inputs();
    to["channels"] = c;
    to["parameters"] =
        layers_.first.dense.parameters() + layers_.second.dense.parameters() + layers_.out.parameters() + 4 * c;
  }

 private:
  static void apply(Threads& threads, const Convolution& layer, const float* padded, int64_t width, float* y,
                    int64_t n) {
    const int64_t c = layer.dense.outputs();
    layer.dense.apply(threads, padded, width, y, c, n);
    activate(Activation::relu, y, n * c);
    layer.norm.apply(y, y, n);
  }

  double total(const float* logs, int64_t n) const {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double duration = std::nearbyint(std::exp(static_cast<double>(logs[i])) - 1);
      if (std::isnan(duration))
        fail(ATTN_INTERNAL,
             "the predicted length of the target is not a number (NaN): the encoder's or the length network's weights "
             "are broken");
      sum += std::clamp(duration, 0.0, longest_);
    }
    return std::clamp(sum, 1.0, longest_);
  }

  Layers layers_;
  double longest_;
};

}  // namespace

std::unique_ptr<const Length> open_length_network(const Manifest& m, Diagnostics& diagnostics) {
  try {
    const Weights weights = Weights::open(m.length_file, m.length_sha256);
    WeightReader reader(&weights, {}, diagnostics, m.length_place);
    Layers layers = LayerReader(weights, reader).read(m.d_model);
    reader.finish([](const std::string&) { return false; });
    return std::make_unique<Network>(std::move(layers), m.max_length);
  } catch (const Error& e) {
    diagnostics.error(ak::weights_do_not_fit, m.length_place, e.what(), {}, ATTNKIT_AREA_WEIGHTS);
    return nullptr;
  }
}

}  // namespace attnkit
