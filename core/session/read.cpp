// The source of a session, all at once or piece by piece.
#include <algorithm>

#include "core/session/session.hpp"

namespace attnkit {

void Session::check_speech_read(const Frontend& frontend, const SourceBatch& source, bool last) const {
  if (source.batch != 1 || source.length < (last ? 0 : 1))
    fail(ATTN_INVALID, "the source must be one row of at least one sample or frame; only the last read may bring none");
  model_->check_source(source);
  if (source_.kind != SourceKind::none && source_.kind != source.kind)
    fail(ATTN_INVALID, "the source came as {} so far, and now come {}: a session takes one of the two",
         unit_name(source_.kind), unit_name(source.kind));
  const int64_t units = source_.units + source.length, rows = frontend.rows(source.kind, units);
  if (rows > model_->manifest().max_length)
    fail(ATTN_INVALID, "source: {} {} after {} make {} rows of the encoder, more than max_length {}", source.length,
         unit_name(source.kind), source_.units, rows, model_->manifest().max_length);
  if (last) frontend.require_row(source.kind, units);
}

void Session::check_read(const SourceBatch& source, bool last) const {
  check_usable();
  const Manifest& m = model_->manifest();
  if (!model_->has_encoder())
    fail(ATTN_INVALID, "this model has no encoder: write the prompt instead of reading a source");
  if (source_.complete)
    fail(ATTN_INVALID, "the source is complete, {} {} were read: start another session for another source",
         source_.units, source_.kind == SourceKind::ids ? "tokens" : unit_name(source_.kind));
  if (!last && !m.stream)
    fail(ATTN_INVALID,
         "a source that grows (last = 0) needs mechanisms that were asked about it: add [stream] to the manifest, or "
         "read the whole source with last = 1");
  if (!target_total_ && m.predict == Predict::reference && !model_->measures_by_target().empty())
    fail(ATTN_INVALID,
         "[length] predict = \"reference\": {} measures the source against the target's length: set the length before "
         "reading",
         model_->measures_by_target());
  if (const Frontend* frontend = model_->frontend()) return check_speech_read(*frontend, source, last);
  if (source.batch != 1 || source.length < 1)
    fail(ATTN_INVALID, "the source must be one row of at least one id: a last read may bring </s> alone");
  model_->check_source(source);
  if (source_.length + source.length > m.max_length)
    fail(ATTN_INVALID, "source: {} tokens after {} are more than max_length {}", source.length, source_.length,
         m.max_length);
}

// What of `more` the encoder takes now: ids, or rows that speech completes.
SourcePart Session::embed(const SourceBatch& more, Source& to, std::vector<float>& rows) const {
  to.kind = more.kind;
  to.units += more.length;
  const Frontend* frontend = model_->frontend();
  if (!frontend) return {more.ids, nullptr, more.length, source_.length};
  if (source_.kind == SourceKind::none) to.waiting = frontend->start();
  rows = frontend->take(model_->runtime().threads, to.waiting, more.kind, more.speech, more.length);
  return {nullptr, rows.data(), static_cast<int64_t>(rows.size()) / model_->manifest().d_model, source_.length};
}

// The encoder's output that cross blocks need, in ws or in `to`, which is this session's source with more read.
SourcePart Session::encode(Workspace& ws, const SourcePart& more, Source& to, Aux& aux) {
  const Encoder& encoder = model_->encoder();
  const int64_t width = more.length * model_->manifest().d_model;
  if (model_->keeps_ids()) to.ids.insert(to.ids.end(), more.ids, more.ids + more.length);
  if (!encoder.appends()) {
    if (more.rows) to.front.insert(to.front.end(), more.rows, more.rows + width);
    to.encoded_again += source_.length;
    const SourcePart all{to.ids.data(), more.rows ? to.front.data() : nullptr, to.length};
    return {to.ids.data(), encoder.run(ws, all, -1, aux), to.length};
  }
  const float* hidden = encoder.run(ws, more, encoder_slot_, aux);
  if (!model_->keeps_rows()) return {to.ids.data(), hidden, more.length, more.first};
  to.rows.insert(to.rows.end(), hidden, hidden + width);
  return {to.ids.data(), to.rows.data(), to.length};
}

// The target's length as far as the source in `to` tells it.
std::optional<double> Session::predict(Workspace& ws, const SourcePart& hidden, Source& to) const {
  const Length* length = model_->length();
  if (told_ || !length) return target_total_;
  if (length->needs_rows()) to.predicted_again += source_.length;
  return length->predict(*ws.threads, ws.length, {to.ids.data(), hidden.rows, to.length});
}

std::optional<double> Session::take(const SourcePart& more, Source& to) {
  const WorkspacePool::Lease ws = model_->lease();
  auto aux = std::make_shared<Aux>();
  const SourcePart hidden = encode(*ws, more, to, *aux);
  const std::optional<double> total = predict(*ws, hidden, to);
  Aux carried = *aux;  // the decoder's blocks replace what the encoder put out
  const bool all = !model_->encoder().appends();
  const int64_t replayed =
      model_->decoder().append(*ws, hidden, source_.length, all, total.value_or(0), cross_slot_, carried);
  to.keys_replayed += replayed;
  to.replays += replayed > 0;
  to.aux = std::move(aux);
  return total;
}

void Session::read(const SourceBatch& source, bool last) {
  check_read(source, last);
  Source to = source_;
  std::vector<float> rows;
  const SourcePart more = embed(source, to, rows);
  to.complete = last;
  ++to.reads;
  if (more.length > 0) grow(more, to);
  if (last) {
    to.ids = {};
    to.rows = {};
    to.front = {};
    to.waiting = {};
  }
  source_ = std::move(to);
  usable_ = true;
}

// Takes in a piece of at least one row; the session is not usable after it until `to` is its source.
void Session::grow(const SourcePart& more, Source& to) {
  to.length += more.length;
  std::optional<double> total;
  reach_ = to.length;
  usable_ = false;
  try {
    total = take(more, to);
  } catch (...) {
    // A first read can be undone; after a later one the states hold who knows what.
    if (source_.length == 0) {
      forget_source();
      usable_ = true;
    }
    throw;
  }
  target_total_ = total;
}

void Session::forget_source() {
  const auto empty = [&](Arena& arena, int32_t slot, const std::vector<uint64_t>& bytes) {
    for (size_t b = 0; b < bytes.size(); ++b) arena.empty(b, slot, bytes[b]);
  };
  empty(model_->states(ATTN_DECODER_CROSS), cross_slot_, model_->state_bytes(ATTN_DECODER_CROSS, reach_));
  if (encoder_slot_ >= 0)
    empty(model_->states(ATTN_ENCODER_SELF), encoder_slot_, model_->state_bytes(ATTN_ENCODER_SELF, reach_));
  reach_ = 0;
}

}  // namespace attnkit
