// The model on whole sequences: encoding, teacher forcing, classification, and the attention weights of a block.
#include <algorithm>

#include "core/model.hpp"

namespace attnkit {
namespace {

// True lengths of a batch as the arrays that attn_run wants.
void lengths_of(const Ids& ids, std::vector<int32_t>& lengths) {
  lengths.resize(static_cast<size_t>(ids.batch));
  for (int64_t b = 0; b < ids.batch; ++b) lengths[b] = ids.lens ? ids.lens[b] : static_cast<int32_t>(ids.length);
}

}  // namespace

void Model::encode(ModelWorkspace& ws, const Ids& source, float* x, Aux& aux, const Probe* probe) const {
  embed(encoder_, source, nullptr, x);
  lengths_of(source, ws.source_lengths);
  ws.source_totals.assign(ws.source_lengths.begin(), ws.source_lengths.end());
  const int64_t rows = source.batch * source.length;
  BlockCall call;
  call.batch = source.batch;
  call.queries = call.keys = source.length;
  call.q_len = call.k_len = ws.source_lengths.data();
  call.q_total = call.k_total = ws.source_totals.data();
  call.aux = &aux;
  for (const Layer& layer : encoder_.layers) {
    attend(ws, layer.self, x, call, nullptr, probe);
    feed_forward(ws, layer.feed_forward, x, rows);
  }
  finish(encoder_, x, rows);
}

void Model::decode(ModelWorkspace& ws, const Ids& target, const float* memory, const Ids& source, float* x, Aux& aux,
                   const Probe* probe) const {
  embed(decoder_, target, nullptr, x);
  lengths_of(target, ws.lengths);
  ws.totals.clear();
  for (int64_t b = 0; b < target.batch; ++b) {
    const std::optional<double> total = target_total(has_encoder() ? ws.source_lengths[b] : 0, ws.lengths[b]);
    if (total) ws.totals.push_back(*total);
  }
  const double* totals = ws.totals.empty() ? nullptr : ws.totals.data();
  const int64_t rows = target.batch * target.length;
  BlockCall self, cross;
  self.batch = cross.batch = target.batch;
  self.queries = self.keys = cross.queries = target.length;
  self.q_len = self.k_len = cross.q_len = ws.lengths.data();
  self.q_total = self.k_total = cross.q_total = totals;
  cross.keys = source.length;
  cross.context = memory;
  cross.k_len = ws.source_lengths.data();
  cross.k_total = ws.source_totals.data();
  self.aux = cross.aux = &aux;
  for (const Layer& layer : decoder_.layers) {
    attend(ws, layer.self, x, self, nullptr, probe);
    if (layer.cross.block) attend(ws, layer.cross, x, cross, nullptr, probe);
    feed_forward(ws, layer.feed_forward, x, rows);
  }
  finish(decoder_, x, rows);
}

void Model::classify(ModelWorkspace& ws, const Ids& source, const float* x, float* out) const {
  const int64_t d = manifest_.d_model;
  float* pooled = ws.y.get<float>(source.batch * d);
  std::fill(pooled, pooled + source.batch * d, 0.0f);
  for (int64_t b = 0; b < source.batch; ++b) {
    const int64_t n = manifest_.pool == Pool::first ? std::min<int64_t>(1, ws.source_lengths[b]) : ws.source_lengths[b];
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < d; ++c) pooled[b * d + c] += x[(b * source.length + i) * d + c] / static_cast<float>(n);
  }
  logits(pooled, source.batch, out);
}

void Model::forward(const Ids& source, const Ids& target, float* out, const Probe* probe) const {
  if (has_encoder()) check_ids(source, false);
  if (has_decoder()) check_ids(target, true);
  if (has_encoder() && has_decoder() && source.batch != target.batch)
    fail(ATTN_INVALID, "source has {} rows, target {}: they must be pairs", source.batch, target.batch);
  const Lease leased = lease();
  ModelWorkspace& ws = *leased;
  const int64_t d = manifest_.d_model;
  Aux aux;
  float* x = ws.memory.get<float>(source.batch * source.length * d);
  if (has_encoder()) encode(ws, source, x, aux, probe);
  if (manifest_.head == HeadType::classifier) {
    if (out) classify(ws, source, x, out);
    return;
  }
  const Ids& last = has_decoder() ? target : source;
  if (has_decoder()) {
    const float* memory = x;
    x = ws.x.get<float>(target.batch * target.length * d);
    decode(ws, target, memory, source, x, aux, probe);
  }
  if (!out) return;
  logits(x, last.batch * last.length, out);
  for (int64_t b = 0; b < last.batch; ++b) {
    const int64_t n = last.lens ? last.lens[b] : last.length;
    std::fill(out + (b * last.length + n) * outputs(), out + (b + 1) * last.length * outputs(), 0.0f);
  }
}

}  // namespace attnkit
