#include "core/model/encoder.hpp"

#include <algorithm>

#include "core/model/compute.hpp"
#include "core/model/device_compute.hpp"

namespace attnkit::core {

void check_ids(const Ids& ids, const char* side, const Tokenizer* vocabulary, int64_t max_length) {
  if (!vocabulary) fail(ATTN_INVALID, "this model has no {} side", side);
  if (ids.batch < 0 || ids.length < 0 || (ids.batch > 0 && ids.length > 0 && !ids.data))
    fail(ATTN_INVALID, "{}: no ids", side);
  if (ids.length > max_length)
    fail(ATTN_INVALID, "{}: {} tokens are more than max_length {}", side, ids.length, max_length);
  for (int64_t b = 0; b < ids.batch; ++b) {
    const int64_t n = ids.length_of(b);
    if (n < 0 || n > ids.length)
      fail(ATTN_INVALID, "{}: row {} has length {}, possible are 0 to {}", side, b, n, ids.length);
    for (int64_t i = 0; i < n; ++i) {
      const int32_t id = ids.data[b * ids.stride + i];
      if (id < 0 || id >= vocabulary->size())
        fail(ATTN_INVALID, "{}: {}position {}: id {} is outside the vocabulary of {} tokens", side,
             ids.batch > 1 ? fmt::format("row {} ", b) : "", i, id, vocabulary->size());
    }
  }
}

void Encoder::load(LayerReader& from) {
  const Manifest& m = manifest_;
  if (m.speech) {
    const SpeechTable& speech = *m.speech;
    const int64_t bins = speech.features.bins, channels = speech.channels;
    const bool whole = speech.frontend == Frontends::centred;
    std::vector<float> mean, scale;
    if (!whole) {
      mean = from.tensor("encoder.features.mean", {bins}, constant(0));
      scale = from.tensor("encoder.features.scale", {bins}, constant(1));
    }
    std::vector<Dense> convolutions;
    for (int l = 1; l <= speech.layers; ++l)
      convolutions.push_back(from.convolution("encoder.frontend.conv." + std::to_string(l), l == 1 ? bins : channels,
                                              channels, speech.kernel));
    frontend.emplace(speech, m.activation, mean, scale, std::move(convolutions),
                     whole ? Dense() : from.dense("encoder.frontend.out", channels, m.d_model));
  }
  vocabulary = m.encoder.tokenizer;
  embedding = from.embedding("encoder", m, m.encoder);
  stack.load(from, "encoder", m.encoder.layers);
}

void Encoder::check(const SourceBatch& source) const {
  const int64_t max_length = manifest_.max_length;
  if (!frontend) {
    if (source.is_speech())
      fail(ATTN_INVALID, "source: this model takes text: int32 ids (rows, length), not f32 {}", unit_name(source.kind));
    return check_ids(source.as_ids(), "source", vocabulary.get(), max_length);
  }
  const FbankSpec& features = frontend->table().features;
  if (source.kind == SourceKind::ids)
    fail(ATTN_INVALID,
         "source: this model takes speech: f32 samples (rows, length) at {} Hz or frames (rows, length, {}), not ids",
         features.sample_rate, features.bins);
  if (source.kind == SourceKind::frames && source.width != features.bins)
    fail(ATTN_INVALID, "source: frames of {} numbers, this model's have {}", source.width, features.bins);
  if (source.batch < 0 || source.length < 0 || (source.batch > 0 && source.length > 0 && !source.speech))
    fail(ATTN_INVALID, "source: no {}", unit_name(source.kind));
  if (rows(source) > max_length)
    fail(ATTN_INVALID, "source: {} {} make {} rows of the encoder, more than max_length {}", source.length,
         unit_name(source.kind), rows(source), max_length);
  for (int64_t b = 0; b < source.batch; ++b)
    if (const int64_t n = source.length_of(b); n < 0 || n > source.length)
      fail(ATTN_INVALID, "source: row {} has length {}, possible are 0 to {}", b, n, source.length);
  for (int64_t b = 0; b < source.batch; ++b) frontend->check_whole(source.kind, source.length_of(b));
  check_speech(source);
}

void Encoder::embed(const SourcePart& part, float* x) const {
  std::copy_n(part.rows, part.length * manifest_.d_model, x);
  embedding.finish(part.first, part.length, x);
}

void Encoder::run(Workspace& ws, const SourceBatch& source, float* x, Aux& aux, const Probe* probe) const {
  Side& side = ws.source;
  side.reset(rows(source));
  const Ids ids = source.as_ids();
  if (frontend) {
    embed_speech(ws, source, x);
  } else {
    for (int64_t b = 0; b < source.batch; ++b) side.lengths.push_back(static_cast<int32_t>(source.length_of(b)));
  }
  side.totals.assign(side.lengths.begin(), side.lengths.end());
  ws.compute->place({&side}, frontend ? nullptr : &ids);
  if (!frontend) ws.compute->embed(embedding, ids, side, x);
  stack.run(ws, {side, side, nullptr, aux, nullptr, probe}, x);
}

void Encoder::embed_speech(Workspace& ws, const SourceBatch& source, float* x) const {
  const int64_t width = ws.source.length * manifest_.d_model;
  std::vector<float> room;
  float* const to = on_host(ws, x, source.batch * width, room);
  std::fill(to, to + source.batch * width, 0.0f);
  for (int64_t b = 0; b < source.batch; ++b) {
    Frontend::Waiting waiting = frontend->start();
    const std::vector<float> made =
        frontend->take(*ws.threads, waiting, source.kind, source.speech + b * source.stride, source.length_of(b));
    const int64_t length = static_cast<int64_t>(made.size()) / manifest_.d_model;
    embed({nullptr, made.data(), length}, to + b * width);
    ws.source.lengths.push_back(static_cast<int32_t>(length));
  }
  if (ws.device) ws.device->from_host(x, to, source.batch * width);
}

const float* Encoder::run(Workspace& ws, std::span<const SourcePart> parts, const std::vector<int32_t>& slots,
                          Aux& aux) const {
  const auto batch = static_cast<int64_t>(parts.size());
  int64_t longest = 0, past = 0;
  for (const SourcePart& part : parts) {
    longest = std::max(longest, part.length);
    past = std::max(past, part.first);
  }
  Side& side = ws.source;
  side.reset(longest);
  const int64_t width = longest * manifest_.d_model;
  float* const all = ws.memory.get<float>(batch * width);
  const bool speech = batch > 0 && parts.front().rows;
  std::vector<float> room;
  float* x = speech ? on_host(ws, all, batch * width, room) : nullptr;
  ws.ids.assign(static_cast<size_t>(speech ? 0 : batch * longest), 0);
  auto ids = ws.ids.begin();
  for (const SourcePart& part : parts) {
    if (speech) {
      embed(part, x);
      std::fill(x + part.length * manifest_.d_model, x + width, 0.0f);
      x += width;
    } else {
      std::copy_n(part.ids, part.length, ids);
      ids += longest;
    }
    side.lengths.push_back(static_cast<int32_t>(part.length));
    side.positions.push_back(static_cast<int32_t>(part.first));
  }
  if (speech && ws.device) ws.device->from_host(all, room.data(), batch * width);
  const Plans* plans = nullptr;
  if (appends()) {
    plans = &stack.plans(ws, PlanKind::encode, batch, longest, past);
    side.states = &stack.states(false);
    side.slots = slots;
  } else {
    side.positions.clear();
    side.totals.assign(side.lengths.begin(), side.lengths.end());
  }
  const Ids text{ws.ids.data(), longest, batch, longest, side.lengths.data()};
  ws.compute->place({&side}, speech ? nullptr : &text);
  if (!speech) ws.compute->embed(embedding, text, side, all);
  stack.run(ws, {side, side, nullptr, aux, plans, nullptr}, all);
  return all;
}

}  // namespace attnkit::core
