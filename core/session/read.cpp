// The source of a session, all at once or piece by piece.
#include <algorithm>

#include "core/session/session.hpp"

namespace attnkit {

void Session::check_speech_read(const Frontend& frontend, const RawSource& source, bool last) const {
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

void Session::check_read(const RawSource& source, bool last) const {
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
SourcePiece Session::embed(const RawSource& more, Source& to, std::vector<float>& rows) const {
  to.kind = more.kind;
  to.units += more.length;
  const Frontend* frontend = model_->frontend();
  if (!frontend) return {more.ids, nullptr, more.length};
  if (source_.kind == SourceKind::none) to.waiting = frontend->start();
  rows = frontend->take(model_->runtime().threads, to.waiting, more.kind, more.speech, more.length);
  return {nullptr, rows.data(), static_cast<int64_t>(rows.size()) / model_->manifest().d_model};
}

// The encoder's output that cross blocks need, in leased or in `to`, which is this session's source with more read.
SourceRows Session::encode(ModelWorkspace& ws, const SourcePiece& more, Source& to, Aux& aux) {
  const int64_t width = more.length * model_->manifest().d_model;
  SourceRows rows;
  rows.known = source_.length;
  rows.length = to.length;
  if (model_->keeps_ids()) to.ids.insert(to.ids.end(), more.ids, more.ids + more.length);
  if (!model_->encoder_appends()) {
    if (more.rows) to.front.insert(to.front.end(), more.rows, more.rows + width);
    const SourcePiece all{to.ids.data(), more.rows ? to.front.data() : nullptr, to.length};
    model_->encode_one(ws, all, rows.hidden, aux);
    rows.all = true;
    to.encoded_again += source_.length;
    return rows;
  }
  model_->encode_more(ws, more, source_.length, encoder_slot_, rows.hidden, aux);
  rows.first = source_.length;
  if (!model_->keeps_rows()) return rows;
  to.rows.insert(to.rows.end(), rows.hidden, rows.hidden + width);
  rows.hidden = to.rows.data();
  rows.first = 0;
  return rows;
}

// The target's length as far as the source in `to` tells it.
std::optional<double> Session::predict(ModelWorkspace& ws, const SourceRows& rows, Source& to) const {
  const Length* length = model_->length();
  if (told_ || !length) return target_total_;
  if (length->needs_rows()) to.predicted_again += source_.length;
  return length->predict(model_->runtime().threads, ws.length, {to.ids.data(), rows.hidden, to.length});
}

std::optional<double> Session::take(const SourcePiece& more, Source& to) {
  const Model::Lease leased = model_->lease();
  auto aux = std::make_shared<Aux>();
  SourceRows rows = encode(*leased, more, to, *aux);
  const std::optional<double> total = predict(*leased, rows, to);
  rows.target_total = total.value_or(0);
  const int64_t replayed = model_->append_source(*leased, rows, cross_slot_, *aux);
  to.keys_replayed += replayed;
  to.replays += replayed > 0;
  to.aux = std::move(aux);
  return total;
}

void Session::read(const RawSource& source, bool last) {
  check_read(source, last);
  Source to = source_;
  std::vector<float> rows;
  const SourcePiece more = embed(source, to, rows);
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
void Session::grow(const SourcePiece& more, Source& to) {
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
  empty(model_->cross_arena(), cross_slot_, model_->cross_bytes(reach_));
  if (encoder_slot_ >= 0) empty(model_->encoder_arena(), encoder_slot_, model_->encoder_bytes(reach_));
  reach_ = 0;
}

}  // namespace attnkit
