#include "core/model/head.hpp"

#include <algorithm>
#include <cmath>

#include "core/model/compute.hpp"

namespace attnkit::core {

namespace {
bool is_zero(const float* row, int64_t width) {
  return std::all_of(row, row + width, [](float x) { return x == 0; });
}

void normalise(float* row, int64_t width) {
  double squares = 0;
  for (int64_t c = 0; c < width; ++c) squares += static_cast<double>(row[c]) * row[c];
  const auto inverse = static_cast<float>(1 / std::max(std::sqrt(squares), 1e-12));  // of no tokens it stays zero
  for (int64_t c = 0; c < width; ++c) row[c] *= inverse;
}
}  // namespace

void Head::load(LayerReader& from, const Embedding& embedding) {
  const int64_t d = manifest_.d_model, inner = manifest_.head_hidden;
  if (manifest_.pooler) hidden = from.dense("head.pooler", d, d);
  if (manifest_.head == HeadType::embedding) return;
  if (manifest_.head == HeadType::classifier) {
    if (inner > 0) hidden = from.dense("head.hidden", d, inner);
    out = from.dense("head", inner > 0 ? inner : d, manifest_.classes);
    return;
  }
  const int64_t vocabulary = embedding.vocabulary();
  if (manifest_.head_bias) bias = from.tensor("head.bias", {vocabulary}, constant(0));
  if (manifest_.tied.contains("output")) {
    out = embedding.packed;
    return;
  }
  from.parameters += vocabulary * d;
  const WeightType kept = from.weights.type_of("head.weight", from.type);
  out = packed_once(from.weights, "head", "", {d, vocabulary, false, kept}, [&] {
    const Numbers weight = from.weights.numbers("head.weight", {vocabulary, d}, xavier(d, vocabulary));
    return Dense(d, vocabulary, weight.values, {}, kept, from.weights.threads());
  });
}

void Head::score(Workspace& ws, const float* x, int64_t rows, float* scores) const {
  ws.compute->dense(out, x, scores, rows);
  if (manifest_.head_scale != 1 || !bias.empty())
    ws.compute->scale(scores, manifest_.head_scale, bias, rows, out.outputs());
}

void Head::judge(Workspace& ws, const float* x, const Aux& aux, float* results) const {
  const Manifest& m = manifest_;
  const int64_t d = m.d_model, batch = static_cast<int64_t>(ws.source.lengths.size());
  if (batch == 0) return;
  if (m.head == HeadType::embedding) {
    float* pooled = m.pooler ? ws.y.get<float>(batch * d) : results;
    pool(ws, x, aux, pooled);
    if (m.pooler) {
      hidden.apply(*ws.threads, pooled, d, results, d, batch);
      for (int64_t i = 0; i < batch * d; ++i) results[i] = std::tanh(results[i]);
    }
    for (int64_t b = 0; m.normalise && b < batch; ++b) normalise(results + b * d, d);
    return;
  }
  float* pooled = ws.y.get<float>(batch * d);
  pool(ws, x, aux, pooled);
  if (m.head_hidden > 0) {
    float* inner = ws.hidden.get<float>(batch * hidden.outputs());
    hidden.apply(*ws.threads, pooled, d, inner, hidden.outputs(), batch, Activation::relu);
    pooled = inner;
  }
  score(ws, pooled, batch, results);
}

void Head::pool(const Workspace& ws, const float* x, const Aux& aux, float* pooled) const {
  const Manifest& m = manifest_;
  const int64_t d = m.d_model, batch = static_cast<int64_t>(ws.source.lengths.size());
  std::vector<int64_t> real(ws.source.lengths.begin(), ws.source.lengths.end());
  int64_t length = ws.source.length;
  if (!m.pool_of.empty()) {
    const auto carried = aux.find(m.pool_of);
    length = carried == aux.end() ? 0 : carried->second.rows;  // of no tokens nothing is carried
    if (length > 0) x = carried->second.data.data();
    // A carried sequence ends in rows of zeros where its mechanism left rows out.
    for (int64_t b = 0; b < batch; ++b)
      for (real[b] = length; real[b] > 0 && is_zero(x + (b * length + real[b] - 1) * d, d);) --real[b];
  }
  std::fill(pooled, pooled + batch * d, 0.0f);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t n = m.pool == Pool::first ? std::min<int64_t>(1, real[b]) : real[b];
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < d; ++c) pooled[b * d + c] += x[(b * length + i) * d + c] / static_cast<float>(n);
  }
}

}  // namespace attnkit::core
