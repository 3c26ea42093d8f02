#include "core/model/layers.hpp"

#include <algorithm>
#include <attnkit/kernels/simd.hpp>
#include <cmath>

#include "core/base/error.hpp"
#include "core/weights/packed_cache.hpp"

namespace attnkit::core {

namespace {

// The sum over a row of (x - centre)^power, in double as the variance of nearly equal numbers needs it.
template <class Isa, int power>
ATTNKIT_INLINE double moment(const float* x, int64_t width, double centre) {
  using V = simd::Vector<double, Isa>;
  constexpr int64_t lanes = simd::Lanes<double>::count;
  V sums{};
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    const V apart = simd::load_as<V>(x + i) - centre;
    sums += power == 1 ? apart : apart * apart;
  }
  double sum = simd::sum(sums);
  for (; i < width; ++i) sum += power == 1 ? x[i] - centre : (x[i] - centre) * (x[i] - centre);
  return sum;
}

struct Normalise {
  const LayerNorm& norm;
  const float* x;
  float* y;
  int64_t rows;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    const int64_t width = static_cast<int64_t>(norm.weight.size());
    const bool rms = norm.type == NormType::rms;
    const float *weight = norm.weight.data(), *bias = norm.bias.data();
    for (int64_t r = 0; r < rows; ++r) {
      const float* in = x + r * width;
      float* out = y + r * width;
      const double mean = rms ? 0 : moment<Isa, 1>(in, width, 0) / static_cast<double>(width);
      const double variance = moment<Isa, 2>(in, width, mean) / static_cast<double>(width);
      const float inverse = static_cast<float>(1.0 / std::sqrt(variance + norm.epsilon)),
                  centre = static_cast<float>(mean);
      int64_t i = 0;
      if (norm.bias.empty()) {
        for (; i + simd::kLanes <= width; i += simd::kLanes)
          simd::store((simd::at<Isa>(in + i) - centre) * inverse * simd::at<Isa>(weight + i), out + i);
        for (; i < width; ++i) out[i] = (in[i] - centre) * inverse * weight[i];
        continue;
      }
      for (; i + simd::kLanes <= width; i += simd::kLanes)
        simd::store((simd::at<Isa>(in + i) - centre) * inverse * simd::at<Isa>(weight + i) + simd::at<Isa>(bias + i),
                    out + i);
      for (; i < width; ++i) out[i] = (in[i] - centre) * inverse * weight[i] + bias[i];
    }
  }
};

}  // namespace

void LayerNorm::apply(const float* x, float* y, int64_t rows) const { simd::dispatch(Normalise{*this, x, y, rows}); }

void LayerNorm::apply(Threads& threads, const float* x, float* y, int64_t rows) const {
  const int64_t width = static_cast<int64_t>(weight.size()), grain = 16384 / std::max<int64_t>(1, width) + 1;
  threads.each(rows, grain,
               [&](int64_t begin, int64_t end, uint32_t) { apply(x + begin * width, y + begin * width, end - begin); });
}

void normalise_heads(float* o, int64_t rows, int64_t heads, int64_t width) {
  for (int64_t r = 0; r < rows * heads; ++r, o += width) {
    float squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += o[i] * o[i];
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(width) + 1e-5f);
    for (int64_t i = 0; i < width; ++i) o[i] *= inverse;
  }
}

void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void Embedding::row(int64_t id, float* x) const {
  if (table.empty())
    packed.row(id, x);
  else
    std::copy_n(table.data() + id * width, width, x);
}

void Embedding::apply(const Ids& ids, const std::vector<int32_t>& first, float* x) const {
  for (int64_t b = 0; b < ids.batch; ++b, x += ids.length * width) {
    const int64_t n = ids.length_of(b), position = first.empty() ? 0 : first[b];
    for (int64_t i = 0; i < n; ++i) {
      row(ids.data[b * ids.stride + i], x + i * width);
      for (int64_t c = 0; c < width; ++c) x[i * width + c] *= scale;
    }
    if (zero_begin && position == 0 && n > 0) std::fill_n(x, width, 0.0f);
    finish(position, n, x);
    std::fill(x + n * width, x + ids.length * width, 0.0f);
  }
}

void Embedding::finish(int64_t first, int64_t rows, float* x) const {
  if (!positions.empty()) add(x, positions.data() + first * width, rows * width);
  if (!norm.weight.empty()) norm.apply(x, x, rows);
}

std::vector<float> sinusoidal_positions(int64_t rows, int64_t width, Sinusoids layout, int64_t first) {
  std::vector<float> table(static_cast<size_t>(rows * width));
  const bool interleaved = layout == Sinusoids::interleaved;
  const double steps =
      layout == Sinusoids::tensor2tensor ? static_cast<double>(width / 2 - 1) : static_cast<double>(width) / 2;
  for (int64_t i = 0; i < width; ++i) {
    const int64_t pair = interleaved ? i / 2 : i % (width / 2);
    const bool cosine = interleaved ? i % 2 : i >= width / 2;
    const double slowness = std::pow(10000.0, static_cast<double>(pair) / std::max(steps, 1.0));
    for (int64_t p = 0; p < rows; ++p) {
      const double angle = static_cast<double>(first + p) / slowness;
      table[p * width + i] = static_cast<float>(cosine ? std::cos(angle) : std::sin(angle));
    }
  }
  return table;
}

std::vector<float> LayerReader::tensor(const std::string& name, const std::vector<int64_t>& shape,
                                       const Initial& initial) {
  std::vector<float> values = weights.f32(name, shape, initial);
  parameters += static_cast<int64_t>(values.size());
  return values;
}

LayerNorm LayerReader::norm(const std::string& name, int64_t width) {
  std::vector<float> weight = tensor(name + ".weight", {width}, constant(1)), bias;
  if (norm_type == NormType::layer) bias = tensor(name + ".bias", {width}, constant(0));
  return {std::move(weight), std::move(bias), norm_eps, norm_type};
}

Dense packed_once(WeightReader& weights, const std::string& name, const std::string& recipe, const DenseShape& shape,
                  const std::function<Dense()>& pack) {
  PackedCache* const cache = weights.cache();
  if (!cache) return pack();
  const auto [inputs, outputs, bias, type] = shape;
  const std::string key = fmt::format("{} {}x{} {} {}", name, outputs, inputs, bias ? "bias" : "no bias", recipe);
  if (const auto found = cache->find(key); !found.empty()) try {
      Dense kept(inputs, outputs, bias, type, found, cache->owner());
      weights.take(name + ".weight");
      return kept;
    } catch (const Error& e) {
      if (e.code() != ATTN_INVALID) throw;
      cache->drop(key);
    }
  Dense made = pack();
  cache->add(key, made.weights()->image(), made.weights());
  return made;
}

Dense LayerReader::dense(const std::string& name, int64_t inputs, int64_t outputs, bool bias) {
  std::vector<float> offsets;
  if (bias) offsets = tensor(name + ".bias", {outputs}, constant(0));
  parameters += inputs * outputs;
  const WeightType kept = weights.type_of(name + ".weight", type);
  return packed_once(weights, name, "", {inputs, outputs, bias, kept}, [&] {
    const Numbers weight = weights.numbers(name + ".weight", {outputs, inputs}, xavier(inputs, outputs));
    return Dense(inputs, outputs, weight.values, offsets, kept, weights.threads());
  });
}

Dense LayerReader::convolution(const std::string& name, int64_t inputs, int64_t outputs, int64_t kernel) {
  const std::vector<float> weight =
      tensor(name + ".weight", {outputs, inputs, kernel}, xavier(inputs * kernel, outputs));
  return convolution_of(inputs, outputs, kernel, weight, tensor(name + ".bias", {outputs}, constant(0)),
                        weights.type_of(name + ".weight", type));
}

namespace {
Initial of_embedding(const Manifest& m) { return normal(1 / std::sqrt(static_cast<double>(m.d_model))); }
}  // namespace

void LayerReader::load_table(const std::string& name, const Manifest& m, int64_t vocabulary, Embedding& to) {
  const bool is_source = name == "encoder";
  const std::string own = (is_source && are_tied(m, "source", "target") ? "decoder" : name) + ".embed";
  const auto [at, is_new] = tables.try_emplace(own);
  auto& [numbers, packed] = at->second;
  if (is_new) {
    const auto table = [&] { return weights.numbers(own + ".weight", {vocabulary, m.d_model}, of_embedding(m)); };
    parameters += vocabulary * m.d_model;
    const WeightType kept = weights.type_of(own + ".weight", type);
    if (kept != WeightType::f32 || are_tied(m, is_source ? "source" : "target", "output"))
      packed = packed_once(weights, own, "", {m.d_model, vocabulary, false, kept},
                           [&] { return Dense(m.d_model, vocabulary, table().values, {}, kept, weights.threads()); });
    else
      numbers = table();
  }
  to.table = numbers;
  to.packed = packed;
}

Embedding LayerReader::embedding(const std::string& name, const Manifest& m, const Stack& stack) {
  const int64_t vocabulary = stack.tokenizer ? std::max(stack.tokenizer->size(), stack.vocab_size) : 0;
  const Initial embedded = of_embedding(m);
  const int64_t longest = name == "decoder" ? m.max_target() : m.max_length;
  Embedding made;
  made.width = m.d_model;
  made.zero_begin = stack.zero_begin;
  if (m.embed_scale) made.scale = std::sqrt(static_cast<float>(m.d_model));
  if (vocabulary > 0) load_table(name, m, vocabulary, made);
  if (m.positions == Positions::sinusoidal)
    made.positions = sinusoidal_positions(longest, m.d_model, m.sinusoids, m.position_offset);
  if (m.positions == Positions::learned) {
    made.positions = tensor(name + ".positions.weight", {longest + m.position_offset, m.d_model}, embedded);
    made.positions.erase(made.positions.begin(), made.positions.begin() + m.position_offset * m.d_model);
  }
  if (m.token_types > 0 && vocabulary > 0 && name == "encoder") {
    const std::vector<float> types = tensor(name + ".token_types.weight", {m.token_types, m.d_model}, embedded);
    made.positions.resize(static_cast<size_t>(m.max_length) * static_cast<size_t>(m.d_model));
    for (int64_t p = 0; p < m.max_length; ++p) add(made.positions.data() + p * m.d_model, types.data(), m.d_model);
  }
  if (m.embed_norm) made.norm = norm(name + ".embed.norm", m.d_model);
  return made;
}

}  // namespace attnkit::core
