#include "core/length/length.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "core/base/text.hpp"
#include "core/manifest/diagnostics.hpp"
#include "core/model/layers.hpp"
#include "core/tokenizer/vocabulary.hpp"

namespace attnkit::core {
namespace {

std::string digest_of(const std::vector<double>& numbers) {
  Sha256 sum;
  sum.add_numbers(std::span(numbers));
  return hex(sum.digest());
}

Length by_table(const LengthTable& table, double dampening, double max_length) {
  const auto predict = [=, means = table.means](Threads&, LengthBuffers&, const SourcePart& source) {
    double sum = 0;
    for (int64_t i = 0; i < source.length; ++i) sum += means[static_cast<size_t>(source.ids[i])];
    return std::clamp(sum / dampening, 1.0, max_length);
  };
  const auto describe = [=, tokens = table.listed, mean = table.mean](nlohmann::ordered_json& to) {
    to["dampening"] = dampening;
    to["tokens"] = tokens;
    to["mean"] = mean;
  };
  return {fmt::format("lut {} {}", dampening, digest_of(table.means)), predict, describe, true, false};
}

struct Convolution {
  Dense dense;
  LayerNorm norm;
};

// A convolutional predictor of durations over the encoder's rows, for predict = "network" (Ren et al.: FastSpeech,
// NeurIPS 2019, arXiv:1905.09263, 3.3; for whole targets Agostinelli and Chen: Modular Linearized Attention, ECML
// 2023):
//
//   h1 = LayerNorm(ReLU(conv1(rows)))    conv: kernel 3, zeros before the first and behind the last row
//   h2 = LayerNorm(ReLU(conv2(h1)))
//   N  = sum over rows of max(0, round(exp(out(h2)) - 1)), then within [1, max_length]; halves round to even
struct Layers {
  Convolution first, second;
  Dense out;
};

constexpr int64_t kernel = 3, default_channels = 128, max_channels = 65536;

// Tensors: length.conv.1.weight (C, D, 3), .bias (C), length.conv.1.norm.weight, .bias (C), the same for conv.2 with
// (C, C, 3), length.out.weight (1, C), .bias (1); C is read from the file.
Layers read_layers(const Weights& weights, LayerReader from, int64_t width) {
  const StoredTensor* first = weights.find("length.conv.1.weight");
  const bool sound = first && first->shape.size() == 3 && first->shape[0] > 0 && first->shape[0] <= max_channels;
  const int64_t c = sound ? first->shape[0] : default_channels;
  const auto convolution = [&](const std::string& name, int64_t inputs) {
    const Dense dense = from.convolution(name, inputs, c, kernel);
    return Convolution{dense, from.norm(name + ".norm", c)};
  };
  const Convolution one = convolution("length.conv.1", width), two = convolution("length.conv.2", c);
  return {one, two, from.dense("length.out", c, 1)};
}

std::string identity_of(const Layers& layers) {
  Sha256 sum;
  for (const Convolution* c : {&layers.first, &layers.second}) {
    c->dense.digest(sum);
    sum.add_numbers(std::span(c->norm.weight));
    sum.add_numbers(std::span(c->norm.bias));
  }
  layers.out.digest(sum);
  return "network " + hex(sum.digest());
}

struct Network {
  Layers layers;
  double max_length;

  double predict(Threads& threads, LengthBuffers& buffers, const SourcePart& source) const {
    const int64_t n = source.length, width = layers.first.dense.inputs() / kernel, c = layers.out.inputs();
    if (n == 0) return 1;
    // A zero row at either end; a row with its neighbours is then one piece of memory, which the next one overlaps.
    float* padded = buffers.x.get<float>((n + 2) * width);
    std::fill(padded, padded + width, 0.0f);
    std::copy(source.rows, source.rows + n * width, padded + width);
    std::fill(padded + (n + 1) * width, padded + (n + 2) * width, 0.0f);
    float* first = buffers.y.get<float>((n + 2) * c);
    std::fill(first, first + c, 0.0f);
    apply(threads, layers.first, padded, width, first + c, n);
    std::fill(first + (n + 1) * c, first + (n + 2) * c, 0.0f);
    float* second = buffers.x.get<float>(n * (c + 1));
    apply(threads, layers.second, first, c, second, n);
    float* logs = second + n * c;
    layers.out.apply(threads, second, c, logs, 1, n);
    return total(logs, n);
  }

  void describe(nlohmann::ordered_json& to) const {
    const int64_t c = layers.out.inputs();
    to["channels"] = c;
    to["parameters"] =
        layers.first.dense.parameters() + layers.second.dense.parameters() + layers.out.parameters() + 4 * c;
  }

  static void apply(Threads& threads, const Convolution& layer, const float* padded, int64_t width, float* y,
                    int64_t n) {
    const int64_t c = layer.dense.outputs();
    layer.dense.apply(threads, padded, width, y, c, n, Activation::relu);
    layer.norm.apply(threads, y, y, n);
  }

  double total(const float* logs, int64_t n) const {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double duration = std::nearbyint(std::exp(static_cast<double>(logs[i])) - 1);
      if (std::isnan(duration))
        fail(ATTN_INTERNAL,
             "the predicted length of the target is not a number (NaN): the encoder's or the length network's weights "
             "are broken");
      sum += std::clamp(duration, 0.0, max_length);
    }
    return std::clamp(sum, 1.0, max_length);
  }
};

Length by_network(Layers layers, double max_length) {
  const std::string identity = identity_of(layers);
  const auto network = std::make_shared<const Network>(Network{std::move(layers), max_length});
  const auto predict = [network](auto&... arguments) { return network->predict(arguments...); };
  return {identity, predict, [network](auto& to) { network->describe(to); }, false, true};
}

}  // namespace

LengthTable read_length_table(const std::string& path, const Tokenizer& vocabulary) {
  std::unordered_map<std::string_view, size_t> ids;
  for (int32_t id = 0; id < vocabulary.size(); ++id) ids.emplace(vocabulary.token(id), id);
  const auto size = static_cast<size_t>(vocabulary.size());
  LengthTable table{std::vector<double>(size, NAN)};
  std::vector<int> lines(size);  // where each token stood; 0: not yet
  double sum = 0;
  int number = 0;
  for (const std::string& line : read_lines(path)) {
    ++number;
    if (const size_t n = valid_utf8(line); n < line.size())
      fail(ATTN_INVALID, "{}:{}:{}: is not UTF-8", path, number, n + 1);
    const size_t tab = line.rfind('\t');
    if (tab == std::string::npos)
      fail(ATTN_INVALID, "{}:{}: has no TAB; every line is a token, a TAB, a number", path, number);
    const std::string token = line.substr(0, tab), text = line.substr(tab + 1);
    const auto id = ids.find(token);
    if (id == ids.end())
      fail(ATTN_INVALID, "{}:{}: token {} is not in the source vocabulary", path, number, quote(token));
    int& first = lines[id->second];
    if (first > 0) fail(ATTN_INVALID, "{}:{}: token {} is on line {} already", path, number, quote(token), first);
    first = number;
    const double mean = table.means[id->second] = parse_number<double>(text).value_or(NAN);
    if (!std::isfinite(mean) || mean < 0)
      fail(ATTN_INVALID, "{}:{}: the mean of {} is {}; it must be a number from 0", path, number, quote(token),
           quote(text));
    sum += mean;
    ++table.listed;
  }
  if (table.listed == 0) fail(ATTN_INVALID, "{}:1: the file is empty; every line is a token, a TAB, a number", path);
  table.mean = sum / static_cast<double>(table.listed);
  for (double& mean : table.means)
    if (std::isnan(mean)) mean = table.mean;
  return table;
}

const char* predict_name(Predict predict) {
  static constexpr const char* names[] = {"none", "ratio", "fixed", "reference", "lut", "network"};
  return names[static_cast<size_t>(predict)];
}

std::unique_ptr<const Length> make_length(const Manifest& m, const Tokenizer* source, Diagnostics& diagnostics) {
  const auto max_length = static_cast<double>(m.max_length);
  const auto open = [&](int code, auto&& make) -> std::unique_ptr<const Length> {
    try {
      return std::make_unique<const Length>(make());
    } catch (const Error& e) {
      diagnostics.add(code, m.length_place, e.what());
      return nullptr;
    }
  };
  switch (m.predict) {
    case Predict::ratio: {
      const auto predict = [alpha = m.alpha](Threads&, LengthBuffers&, const SourcePart& source) {
        return source.length > 0 ? alpha * static_cast<double>(source.length) : 1;
      };
      const auto describe = [alpha = m.alpha](nlohmann::ordered_json& to) { to["alpha"] = alpha; };
      return std::make_unique<const Length>(Length{fmt::format("ratio {}", m.alpha), predict, describe});
    }
    case Predict::fixed: {
      const auto predict = [length = m.fixed_length](Threads&, LengthBuffers&, const SourcePart&) { return length; };
      const auto describe = [length = m.fixed_length](nlohmann::ordered_json& to) { to["length"] = length; };
      return std::make_unique<const Length>(Length{fmt::format("fixed {}", m.fixed_length), predict, describe});
    }
    case Predict::lut:
      return open(ak::bad_length_table,
                  [&] { return by_table(read_length_table(m.length_file, *source), m.dampening, max_length); });
    case Predict::network:
      return open(ak::weights_do_not_fit, [&] {
        const Weights weights = Weights::open(m.length_file, m.length_sha256);
        WeightReader reader(&weights, {}, diagnostics, m.length_place);
        Layers layers = read_layers(weights, {reader}, m.d_model);
        reader.finish([](const StoredTensor&) { return false; });
        return by_network(std::move(layers), max_length);
      });
    case Predict::reference:
    case Predict::none:
      break;
  }
  return nullptr;
}

}  // namespace attnkit::core
