// The model on whole sequences: encoding, teacher forcing in one step or two, classification, and the attention weights
// of a block.
#include <algorithm>

#include "core/model/model.hpp"

namespace attnkit {
namespace {

// True lengths of a batch as the arrays that attn_run wants.
void lengths_of(const Ids& ids, std::vector<int32_t>& lengths) {
  lengths.resize(static_cast<size_t>(ids.batch));
  for (int64_t b = 0; b < ids.batch; ++b) lengths[b] = ids.lens ? ids.lens[b] : static_cast<int32_t>(ids.length);
}

}  // namespace

void Model::encode(ModelWorkspace& ws, const RawSource& source, float* x, Aux& aux, const Probe* probe) const {
  if (frontend_) {
    embed_speech(source, ws.source_lengths, x);
  } else {
    embed(encoder_, source.as_ids(), nullptr, x);
    lengths_of(source.as_ids(), ws.source_lengths);
  }
  run_encoder(ws, source_rows(source), x, aux, probe);
}

// The lengths of the rows of x are in ws.
void Model::run_encoder(ModelWorkspace& ws, int64_t length, float* x, Aux& aux, const Probe* probe) const {
  ws.source_totals.assign(ws.source_lengths.begin(), ws.source_lengths.end());
  BlockCall call;
  call.batch = static_cast<int64_t>(ws.source_lengths.size());
  call.queries = call.keys = length;
  const int64_t rows = call.batch * length;
  call.q_len = call.k_len = ws.source_lengths.data();
  call.q_total = call.k_total = ws.source_totals.data();
  call.aux = &aux;
  for (const Layer& layer : encoder_.layers) {
    attend(ws, layer.self, x, call, nullptr, probe);
    feed_forward(ws, layer.feed_forward, x, rows);
  }
  finish(encoder_, x, rows);
}

// Source by source, so that neither padding nor other rows matter.
void Model::predict(ModelWorkspace& ws, const Ids& source, int64_t length, const float* memory) const {
  ws.predicted.clear();
  for (size_t b = 0; length_ && b < ws.source_lengths.size(); ++b) {
    const auto row = static_cast<int64_t>(b);
    ws.predicted.push_back(length_->predict(runtime_->threads, ws.length,
                                            {source.data ? source.data + row * source.stride : nullptr,
                                             memory + row * length * manifest_.d_model, ws.source_lengths[b]}));
  }
}

float* Model::decode(ModelWorkspace& ws, const Ids& target, const float* memory, int64_t source_length, Aux& aux,
                     const Probe* probe) const {
  float* x = ws.x.get<float>(target.batch * target.length * manifest_.d_model);
  embed(decoder_, target, nullptr, x);
  lengths_of(target, ws.lengths);
  ws.totals.clear();
  if (manifest_.predict == Predict::reference) ws.totals.assign(ws.lengths.begin(), ws.lengths.end());
  for (int64_t b = 0; length_ && b < target.batch; ++b)
    ws.totals.push_back(has_encoder() ? ws.predicted[b] : length_->predict(runtime_->threads, ws.length, {}));
  const double* totals = ws.totals.empty() ? nullptr : ws.totals.data();
  const int64_t rows = target.batch * target.length;
  BlockCall self, cross;
  self.batch = cross.batch = target.batch;
  self.queries = self.keys = cross.queries = target.length;
  self.q_len = self.k_len = cross.q_len = ws.lengths.data();
  self.q_total = self.k_total = cross.q_total = totals;
  cross.keys = source_length;
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
  return x;
}

// What a classifier sees of x (batch, length, D), or of a sequence that the encoder's mechanisms carried.
void Model::pool(ModelWorkspace& ws, int64_t length, const float* x, const Aux& aux, float* pooled) const {
  const int64_t d = manifest_.d_model, batch = static_cast<int64_t>(ws.source_lengths.size());
  const std::string& name = manifest_.pool_of;
  std::fill(pooled, pooled + batch * d, 0.0f);
  if (!name.empty()) {
    const auto carried = aux.find(name);
    if (carried == aux.end()) return;  // of no tokens nothing is carried
    x = carried->second.data.data();
    length = carried->second.rows;
  }
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t all = name.empty() ? ws.source_lengths[b] : length;
    const int64_t n = manifest_.pool == Pool::first ? std::min<int64_t>(1, all) : all;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < d; ++c) pooled[b * d + c] += x[(b * length + i) * d + c] / static_cast<float>(n);
  }
}

void Model::classify(ModelWorkspace& ws, int64_t length, const float* x, const Aux& aux, float* out) const {
  const int64_t batch = static_cast<int64_t>(ws.source_lengths.size());
  if (batch == 0) return;
  float* pooled = ws.y.get<float>(batch * manifest_.d_model);
  pool(ws, length, x, aux, pooled);
  if (manifest_.head_hidden > 0) {
    const int64_t inner = head_hidden_.outputs();
    float* hidden = ws.hidden.get<float>(batch * inner);
    head_hidden_.apply(runtime_->threads, pooled, manifest_.d_model, hidden, inner, batch);
    activate(Activation::relu, hidden, batch * inner);
    pooled = hidden;
  }
  logits(pooled, batch, out);
}

void Model::forward(const RawSource& source, const Ids& target, float* out, const Probe* probe) const {
  if (has_encoder()) check_source(source);
  if (has_decoder()) check_ids(target, true);
  if (has_encoder() && has_decoder() && source.batch != target.batch)
    fail(ATTN_INVALID, "source has {} rows, target {}: they must be pairs", source.batch, target.batch);
  const Lease leased = lease();
  ModelWorkspace& ws = *leased;
  Aux aux;
  const int64_t length = source_rows(source);
  float* x = ws.memory.get<float>(source.batch * length * manifest_.d_model);
  if (has_encoder()) encode(ws, source, x, aux, probe);
  if (manifest_.head == HeadType::classifier) {
    if (out) classify(ws, length, x, aux, out);
    return;
  }
  if (has_decoder()) {
    predict(ws, source.as_ids(), length, x);
    x = decode(ws, target, x, length, aux, probe);
  }
  if (out) score(x, has_decoder() ? target : source.as_ids(), out);
}

void Model::score(const float* x, const Ids& ids, float* out) const {
  logits(x, ids.batch * ids.length, out);
  for (int64_t b = 0; b < ids.batch; ++b) {
    const int64_t n = ids.lens ? ids.lens[b] : ids.length;
    std::fill(out + (b * ids.length + n) * outputs(), out + (b + 1) * ids.length * outputs(), 0.0f);
  }
}

void Model::require_pair() const {
  if (!has_encoder() || !has_decoder())
    fail(ATTN_INVALID, "this model has no {}: use forward", has_encoder() ? "decoder" : "encoder");
}

std::unique_ptr<const Encoded> Model::encode(const RawSource& source) const {
  require_pair();
  check_source(source);
  const Lease leased = lease();
  auto encoded = std::make_unique<Encoded>();
  const int64_t length = source_rows(source);
  float* x = encoded->memory.get<float>(source.batch * length * manifest_.d_model);
  encode(*leased, source, x, encoded->aux, nullptr);
  predict(*leased, source.as_ids(), length, x);
  encoded->encoder = encoder_identity_;
  encoded->target_lengths = (*leased).predicted;
  encoded->predictor = length_ ? length_->identity() : "";
  if (!frontend_) {
    encoded->ids.assign(static_cast<size_t>(source.batch * length), 0);
    for (int64_t b = 0; b < source.batch; ++b)
      std::copy_n(source.ids + b * source.stride, (*leased).source_lengths[b], encoded->ids.data() + b * length);
  }
  encoded->rows = x;
  encoded->length = length;
  encoded->lengths = (*leased).source_lengths;
  return encoded;
}

void Model::check_decode(const Encoded& encoded, const Ids& target) const {
  require_pair();
  require_same_encoder(*encoded.encoder, *encoder_identity_);
  check_ids(target, true);
  if (static_cast<int64_t>(encoded.lengths.size()) != target.batch)
    fail(ATTN_INVALID, "{} rows were encoded, target has {}: they must be pairs", encoded.lengths.size(), target.batch);
}

void Model::decode(const Encoded& encoded, const Ids& target, float* out) const {
  const Lease leased = lease();
  ModelWorkspace& ws = *leased;
  ws.source_lengths = encoded.lengths;
  ws.source_totals.assign(encoded.lengths.begin(), encoded.lengths.end());
  const auto rows = static_cast<int64_t>(encoded.lengths.size());
  if (length_ && length_->identity() != encoded.predictor)
    predict(ws, {encoded.ids.data(), encoded.length, rows, encoded.length, nullptr}, encoded.length, encoded.rows);
  else
    ws.predicted = encoded.target_lengths;
  Aux aux = encoded.aux;  // decoders replace what encoders put out
  score(decode(ws, target, encoded.rows, encoded.length, aux, nullptr), target, out);
}

}  // namespace attnkit
