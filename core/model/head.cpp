#include "core/model/head.hpp"

#include <algorithm>

namespace attnkit {

namespace {
bool is_zero(const float* row, int64_t width) {
  return std::all_of(row, row + width, [](float x) { return x == 0; });
}
}  // namespace

void Head::load(LayerReader& from, const std::vector<float>& embedding) {
  const int64_t d = manifest_.d_model, inner = manifest_.head_hidden;
  if (classifies()) {
    if (inner > 0) hidden = from.dense("head.hidden", d, inner);
    out = from.dense("head", inner > 0 ? inner : d, manifest_.classes);
    return;
  }
  const int64_t vocabulary = static_cast<int64_t>(embedding.size()) / d;
  out = Dense(d, vocabulary,
              manifest_.tie_embeddings ? embedding : from.tensor("head.weight", {vocabulary, d}, xavier(d, vocabulary)),
              {});
}

void Head::score(Workspace& ws, const float* x, int64_t rows, float* scores) const {
  out.apply(*ws.threads, x, out.inputs(), scores, out.outputs(), rows);
}

void Head::classify(Workspace& ws, const float* x, const Aux& aux, float* scores) const {
  const Manifest& m = manifest_;
  const int64_t d = m.d_model, batch = static_cast<int64_t>(ws.source.lengths.size());
  if (batch == 0) return;
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
  float* pooled = ws.y.get<float>(batch * d);
  std::fill(pooled, pooled + batch * d, 0.0f);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t n = m.pool == Pool::first ? std::min<int64_t>(1, real[b]) : real[b];
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < d; ++c) pooled[b * d + c] += x[(b * length + i) * d + c] / static_cast<float>(n);
  }
  if (m.head_hidden > 0) {
    float* inner = ws.hidden.get<float>(batch * hidden.outputs());
    hidden.apply(*ws.threads, pooled, d, inner, hidden.outputs(), batch);
    activate(Activation::relu, inner, batch * hidden.outputs());
    pooled = inner;
  }
  score(ws, pooled, batch, scores);
}

}  // namespace attnkit
