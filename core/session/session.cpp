// A session from beginning to end: its states, its source, its tokens, its copies.
#include "core/session/session.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/decoding/greedy.hpp"
#include "core/base/decoding/scores.hpp"
#include "core/model/device_compute.hpp"
#include "core/session/generation.hpp"
#include "core/session/restrict.hpp"

namespace attnkit::core {
namespace {

// Sources run through the encoder together up to so many rows, padding included: more find no more weights in the
// caches, and their own rows no longer fit.  Up to `few_rows` what is read is weights, and padding costs little.
constexpr int64_t most_rows = 1024, few_rows = 64;

}  // namespace

Session::Use::Use(std::span<Session* const> sessions) : sessions_(sessions) {
  for (size_t i = 0; i < sessions_.size(); ++i) {
    if (!sessions_[i]->busy_.test_and_set(std::memory_order_acquire)) continue;
    release(i);
    fail(ATTN_INVALID, "session {} is in use by another call, or stands twice in this one: one call at a time", i);
  }
}

void Session::Use::release(size_t n) {
  for (size_t i = 0; i < n; ++i) sessions_[i]->busy_.clear(std::memory_order_release);
}

Session::Session(std::shared_ptr<const Model> model, int rows) : model_(std::move(model)) {
  if (!model_->has_decoder()) fail(ATTN_UNSUPPORTED, "this model has no decoder: use forward instead of a session");
  if (rows < 1 || rows > 1024) fail(ATTN_INVALID, "{} rows: a session has 1 to 1024", rows);
  check_carried();
  const auto n = static_cast<size_t>(rows);
  positions_.assign(n, 0);
  ended_.assign(n, false);
  last_.resize(n * static_cast<size_t>(model_->outputs()));
  slots_.assign(n, -1);
  if (model_->manifest().predict == Predict::fixed) target_total_ = model_->manifest().fixed_length;
  try {
    if (model_->has_encoder()) cross_slot_ = model_->states(ATTN_DECODER_CROSS).acquire();
    if (model_->encoder().appends()) encoder_slot_ = model_->states(ATTN_ENCODER_SELF).acquire();
    for (int32_t& slot : slots_) slot = model_->states(ATTN_DECODER_SELF).acquire();
  } catch (...) {
    release();
    throw;
  }
}

Session::~Session() {
  try {
    release();
  } catch (...) {
    // Out of memory while giving a slot back: the slot is lost, nothing else.
  }
}

void Session::release() {
  for (const States& s : states(reach_)) s.arena.release(s.slot, s.bytes);
}

std::vector<Session::States> Session::states(int64_t source_length, bool rows) const {
  std::vector<States> all;
  const auto add = [&](uint32_t role, int32_t slot, int64_t length) {
    if (slot >= 0) all.push_back({model_->states(role), slot, model_->state_bytes(role, length)});
  };
  add(ATTN_ENCODER_SELF, encoder_slot_, source_length);
  add(ATTN_DECODER_CROSS, cross_slot_, source_length);
  // A write that failed half way may have left more in a state than the session's tokens.
  for (size_t r = 0; rows && r < slots_.size(); ++r)
    add(ATTN_DECODER_SELF, slots_[r], usable_ ? positions_[r] : model_->manifest().max_target());
  return all;
}

// Cross blocks take the source in before any target token is there, so nothing of the target can reach them.
void Session::check_carried() const {
  for (const Block* giver : model_->blocks())
    for (const attn_port* out : giver->mechanism().ports())
      for (const Block* taker : model_->blocks()) {
        if (giver->choice().role != ATTN_DECODER_SELF || out->kind != ATTN_AUX_OUT) break;
        if (taker->choice().role != ATTN_DECODER_CROSS || taker->choice().layer < giver->choice().layer) continue;
        for (const attn_port* in : taker->mechanism().ports())
          if (in->kind == ATTN_AUX_IN && std::string_view(in->name) == out->name)
            fail(
                ATTN_UNSUPPORTED,
                "{} gives the sequence \"{}\" to {}, which reads the source before there is a target: a session cannot "
                "do that, use another mechanism in one of them",
                giver->path(), out->name, taker->path());
      }
}

void Session::check_usable() const {
  if (!usable_)
    fail(ATTN_INVALID,
         "an earlier read or write of this session failed half way and left its states undefined: destroy the session");
}

std::unique_ptr<Session> Session::clone() const {
  check_usable();
  auto copy = std::make_unique<Session>(model_, rows());
  copy->positions_ = positions_;
  copy->ended_ = ended_;
  copy->source_ = source_;
  copy->reach_ = reach_;
  copy->length_set_ = length_set_;
  copy->target_total_ = target_total_;
  copy->beyond_ = beyond_;
  copy->last_ = last_;
  const std::vector<States> from = states(reach_), to = copy->states(reach_);
  for (size_t i = 0; i < from.size(); ++i) from[i].arena.copy(from[i].slot, to[i].slot, from[i].bytes, from[i].bytes);
  return copy;
}

void Session::reorder(std::vector<uint32_t> parents) {
  reorder_states(parents);
  reorder_scores(std::move(parents));
}

// In place, since the states have moved already.  Rows that nobody continues are overwritten first; all others then
// change places in circles.
void Session::reorder_scores(std::vector<uint32_t> parents) noexcept {
  const auto width = static_cast<size_t>(model_->outputs());
  const auto scores = [&](uint32_t row) { return last_.data() + row * width; };
  for (uint32_t i = 0; i < parents.size(); ++i)
    for (uint32_t r = i; parents[r] != r && std::ranges::find(parents, r) == parents.end();) {
      std::copy_n(scores(parents[r]), width, scores(r));
      r = std::exchange(parents[r], r);
    }
  for (uint32_t i = 0; i < parents.size(); ++i) {
    uint32_t r = i;
    for (; parents[r] != i; r = std::exchange(parents[r], r))
      std::swap_ranges(scores(r), scores(r) + width, scores(parents[r]));
    parents[r] = r;
  }
}

void Session::reorder_states(const std::vector<uint32_t>& parents) {
  check_usable();
  const size_t n = slots_.size();
  for (size_t i = 0; i < n; ++i)
    if (parents[i] >= n)
      fail(ATTN_INVALID, "row {} cannot continue row {}: this session has {} rows", i, parents[i], n);
  // The first child of a row keeps its slot; further children get copies in the slots of rows without children.
  std::vector<int32_t> slots(n, -1), positions(n);
  std::vector<bool> kept(n, false), ended(n);
  for (size_t i = 0; i < n; ++i)
    if (!kept[parents[i]]) {
      kept[parents[i]] = true;
      slots[i] = slots_[parents[i]];
    }
  struct Copy {
    int32_t from, to;
    std::vector<uint64_t> bytes, used;
  };
  std::vector<Copy> copies;  // all of them before the first is made: memory may run out
  size_t unused = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t parent = parents[i];
    positions[i] = positions_[parent];
    ended[i] = ended_[parent];
    if (slots[i] >= 0) continue;
    while (kept[unused]) ++unused;
    copies.push_back({slots_[parent], slots_[unused], model_->state_bytes(ATTN_DECODER_SELF, positions[i]),
                      model_->state_bytes(ATTN_DECODER_SELF, positions_[unused])});
    slots[i] = slots_[unused++];
  }
  for (const Copy& c : copies) model_->states(ATTN_DECODER_SELF).copy(c.from, c.to, c.bytes, c.used);
  slots_ = std::move(slots);
  positions_ = std::move(positions);
  ended_ = std::move(ended);
  generation_.reset();
}

void Session::set_length(double target_length) {
  check_usable();
  if (!std::isfinite(target_length) || target_length <= 0)
    fail(ATTN_INVALID, "target length {}: must be positive and finite", target_length);
  for (int32_t p : positions_)
    if (p > 0) fail(ATTN_INVALID, "the target length must be set before the first token is written");
  if (source_.length > 0 && target_length != target_total_ && !model_->measures_by_target().empty())
    fail(ATTN_INVALID,
         "{} has measured the source against the target length {:g} already: set the length before the source is read",
         model_->measures_by_target(), target_total_.value_or(0));
  target_total_ = target_length;
  length_set_ = true;
}

// All but what the model says of the source.
void Session::check_read(const SourceBatch& source, bool last) const {
  check_usable();
  const Manifest& m = model_->manifest();
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
  const Frontend* frontend = model_->frontend();
  check_one_row(source.length >= (frontend && last ? 0 : 1));
  if (!frontend) {
    if (source_.length + source.length > m.max_length)
      fail(ATTN_INVALID, "source: {} tokens after {} are more than max_length {}", source.length, source_.length,
           m.max_length);
    return;
  }
  if (source_.kind != SourceKind::none && source_.kind != source.kind)
    fail(ATTN_INVALID, "the source came as {} so far, and now come {}: a session takes one of the two",
         unit_name(source_.kind), unit_name(source.kind));
  const int64_t units = source_.units + source.length, rows = frontend->rows(source.kind, units);
  if (rows > m.max_length)
    fail(ATTN_INVALID, "source: {} {} after {} make {} rows of the encoder, more than max_length {}", source.length,
         unit_name(source.kind), source_.units, rows, m.max_length);
  if (last) frontend->require_row(source.kind, units);
}

void Session::fail_of(int64_t session, const Error& e) {
  throw Error(e.code(), fmt::format("session {}: {}", session, e.what()), static_cast<int32_t>(session));
}

void Session::check_one_row(bool is_one) const {
  if (is_one) return;
  if (model_->frontend())
    fail(ATTN_INVALID, "the source must be one row of at least one sample or frame; only the last read may bring none");
  fail(ATTN_INVALID, "the source must be one row of at least one id: a last read may bring </s> alone");
}

void Session::check_reads(std::span<Session* const> sessions, const SourceBatch& sources,
                          std::span<const uint32_t> last) {
  const Model* const model = sessions.front()->model_.get();
  const auto n = static_cast<int64_t>(sessions.size());
  for (const Session* s : sessions)
    if (s->model_.get() != model) fail(ATTN_INVALID, "the sessions of one read must belong to one model");
  if (!model->has_encoder())
    fail(ATTN_INVALID, "this model has no encoder: write the prompt instead of reading a source");
  if (n == 1) sessions.front()->check_one_row(sources.batch == 1);
  if (sources.batch != n) fail(ATTN_INVALID, "{} rows of sources for {} sessions", sources.batch, n);
  for (int64_t i = 0; i < n; ++i)
    if (const int64_t length = sources.length_of(i); length < 0 || length > sources.length)
      fail(ATTN_INVALID, "source: row {} has length {}, possible are 0 to {}", i, length, sources.length);
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    try {
      model->check_source(sources.row(i));
      sessions[at]->check_read(sources.row(i), last[at] != 0);
    } catch (const Error& e) {
      if (n == 1) throw;
      fail_of(i, e);
    }
  }
}

Session::Reading Session::begin_read(const SourceBatch& source, bool last) {
  Reading r{this, source_, {}, {source.ids, nullptr, source.length, source_.length}, target_total_};
  r.to.kind = source.kind;
  r.to.units += source.length;
  r.to.complete = last;
  ++r.to.reads;
  if (const Frontend* frontend = model_->frontend()) {
    if (source_.kind == SourceKind::none) r.to.waiting = frontend->start();
    r.rows = frontend->take(model_->runtime().threads, r.to.waiting, source.kind, source.speech, source.length);
    r.more.rows = r.rows.data();
    r.more.length = static_cast<int64_t>(r.rows.size()) / model_->manifest().d_model;
  }
  r.to.length += r.more.length;
  if (source_.length == 0) r.begun = states(r.to.length, false);
  return r;
}

// After a read that failed: a first one can be undone, a later one leaves the states undefined.
void Session::undo_read(const std::vector<States>& begun) {
  if (source_.length > 0) return;
  for (const States& s : begun) s.arena.empty(s.slot, s.bytes);
  reach_ = 0;
  usable_ = true;
}

// Cuts them, sorted by length, into those that run together; lengths of 0 are left out.
template <class Length>
std::vector<std::span<Session::Reading>> Session::groups_of(std::vector<Reading>& all, const Length& length) {
  std::stable_sort(all.begin(), all.end(), [&](const Reading& a, const Reading& b) { return length(a) > length(b); });
  std::vector<std::span<Reading>> groups;
  for (size_t first = 0, end = 0; first < all.size() && length(all[first]) > 0; first = end) {
    const int64_t longest = length(all[first]);
    for (int64_t rows = 0; end < all.size() && length(all[end]) > 0; ++end) {
      rows += length(all[end]);
      const auto padded = longest * static_cast<int64_t>(end + 1 - first);
      if (end > first && (padded > most_rows || (padded > few_rows && padded - rows > rows / 16))) break;
    }
    groups.emplace_back(all.data() + first, end - first);
  }
  return groups;
}

// The parts of the sources that the encoder runs over.
std::vector<SourcePart> Session::parts_of(std::span<Reading> group) {
  const Model& model = *group.front().session->model_;
  std::vector<SourcePart> parts;
  for (auto& [session, to, rows, more, total, begun] : group) {
    if (model.keeps_ids()) to.ids.insert(to.ids.end(), more.ids, more.ids + more.length);
    if (model.encoder().appends()) {
      parts.push_back(more);
      continue;
    }
    to.front.insert(to.front.end(), rows.begin(), rows.end());
    to.encoded_again += session->source_.length;
    parts.push_back({to.ids.data(), more.rows ? to.front.data() : nullptr, to.length});
  }
  return parts;
}

// Encodes parts of at least one row each, predicts the targets' lengths from the sources so far, fills the cross
// states.
void Session::append(std::span<Reading> group) {
  const Model& model = *group.front().session->model_;
  const int64_t d = model.manifest().d_model;
  const std::vector<SourcePart> parts = parts_of(group);
  int64_t longest = 0;
  for (const SourcePart& part : parts) longest = std::max(longest, part.length);
  std::vector<int32_t> slots;
  for (const Reading& r : group) slots.push_back(r.session->encoder_slot_);
  const Arena::Pins pinned = model.pin_states();  // longer than what is under way
  const WorkspacePool::Lease ws = model.lease();
  Aux aux;
  const float* const encoded = model.encoder().run(*ws, parts, slots, aux);
  // Sources that grow, whose rows are kept, are not for devices.
  const bool predicts = model.length() && model.length()->needs_rows;
  std::vector<float> room;
  const float* const seen =
      predicts ? seen_by_host(*ws, encoded, static_cast<int64_t>(group.size()) * longest * d, room) : encoded;
  std::vector<SourceKeys> keys;
  for (size_t i = 0; i < group.size(); ++i) {
    auto& [session, to, rows, more, total, begun] = group[i];
    SourcePart hidden{to.ids.data(), seen + static_cast<int64_t>(i) * longest * d, parts[i].length, parts[i].first};
    if (model.keeps_rows()) {
      to.rows.insert(to.rows.end(), hidden.rows, hidden.rows + hidden.length * d);
      hidden = {to.ids.data(), to.rows.data(), to.length};
    }
    if (const Length* length = model.length(); length && !session->length_set_) {
      if (length->needs_rows) to.predicted_again += session->source_.length;
      total = length->predict(*ws->threads, ws->length, {to.ids.data(), hidden.rows, to.length});
    }
    keys.push_back({hidden, session->source_.length, total.value_or(0), session->cross_slot_});
    auto own = std::make_shared<Aux>();
    for (const auto& [name, value] : aux) {
      const float* const begin = value.data.data() + static_cast<int64_t>(i) * value.rows * value.width;
      (*own)[name] = {{begin, begin + value.rows * value.width}, value.rows, value.width};
    }
    to.aux = std::move(own);
  }
  model.decoder().append(*ws, keys, model.keeps_rows() ? nullptr : encoded, !model.encoder().appends(), aux);
  if (ws->device) ws->device->wait();
  for (size_t i = 0; i < group.size(); ++i) {
    group[i].to.keys_replayed += keys[i].replayed;
    group[i].to.replays += keys[i].replayed > 0;
  }
}

void Session::read(const SourceBatch& source, bool last) {
  Session* const self = this;
  const uint32_t ends = last;
  read({&self, 1}, source, {&ends, 1});
}

void Session::read(std::span<Session* const> sessions, const SourceBatch& sources, std::span<const uint32_t> last) {
  check_reads(sessions, sources, last);
  std::vector<Reading> all;
  all.reserve(sessions.size());
  for (size_t i = 0; i < sessions.size(); ++i)
    all.push_back(sessions[i]->begin_read(sources.row(static_cast<int64_t>(i)), last[i] != 0));
  const Model& model = *sessions.front()->model_;
  const Encoder& encoder = model.encoder();
  const std::vector<std::span<Reading>> groups = groups_of(all, [&](const Reading& r) {
    if (r.more.length == 0) return int64_t{0};  // speech that waits
    // Blocks that are filled anew run over the whole source.
    return encoder.appends() && !model.keeps_rows() ? r.more.length : r.to.length;
  });
  for (Reading& r : all) {
    if (r.more.length == 0) continue;
    r.session->reach_ = r.to.length;
    r.session->usable_ = false;  // until `to` is the source
  }
  try {
    for (const std::span<Reading> group : groups) append(group);
  } catch (...) {
    for (const Reading& r : all) try {
        if (r.more.length > 0) r.session->undo_read(r.begun);
      } catch (...) {  // that session stays unusable
      }
    throw;
  }
  for (Reading& r : all) {
    if (r.to.complete) {
      r.to.ids = {};
      r.to.rows = r.to.front = {};
      r.to.waiting = {};
    }
    r.session->target_total_ = r.target_total;
    r.session->source_ = std::move(r.to);
    r.session->usable_ = true;
  }
}

uint64_t Session::Source::kept_bytes() const {
  uint64_t numbers = ids.size() + rows.size() + front.size() + waiting.samples.size();
  for (const std::vector<float>& waiting_rows : waiting.rows) numbers += waiting_rows.size();
  return numbers * sizeof(float);
}

uint64_t Session::Source::carried_bytes() const {
  uint64_t numbers = 0;
  if (aux)
    for (const auto& [name, value] : *aux) numbers += value.data.size();
  return numbers * sizeof(float);
}

// A token that ends targets may begin them as well, and ends none at the beginning.
bool Session::begins_with_end(int row) const {
  return positions_[row] == 0 && is_end(model_->manifest(), model_->vocabulary(true)->begin_id());
}

void Session::check_rows(const Ids& tokens, int64_t first_row) const {
  check_usable();
  if (model_->has_encoder() && source_.length == 0) {
    if (source_.units > 0) model_->frontend()->require_row(source_.kind, source_.units);
    fail(ATTN_INVALID, "no source was read yet: read one before writing");
  }
  if (!target_total_ && model_->manifest().predict == Predict::reference)
    fail(ATTN_INVALID, "[length] predict = \"reference\": set the target length before writing");
  const int64_t max_length = model_->manifest().max_target();
  for (int r = 0; r < rows(); ++r) {
    const int64_t row = first_row + r, n = tokens.length_of(row), after = positions_[r] + n;
    if (n > 0 && model_->manifest().stream) {
      const int32_t *end = tokens.data + row * tokens.stride + n - 1, *ids = end - n + 1;
      ids += begins_with_end(r) && n > 1;
      const auto ends = [&](int32_t id) { return is_end(model_->manifest(), id); };
      if (ended_[r] || std::any_of(ids, end, ends))
        fail(ATTN_INVALID, "row {}: a token after </s>, which ends the target under [stream]", row);
    }
    if (after > max_length)
      fail(ATTN_INVALID, "row {}: {} tokens after {} are more than max_length {}", row, n, positions_[r], max_length);
    if (is_beyond_total(after))
      fail(ATTN_UNSUPPORTED,
           "row {}: token {} is beyond the target length {:g} that a mechanism was told, and it allows none beyond",
           row, after, *target_total_);
  }
}

void Session::check_write(std::span<Session* const> sessions, const Ids& tokens) {
  const Model* model = sessions.front()->model_.get();
  int64_t rows = 0;
  for (const Session* s : sessions) {
    if (s->model_.get() != model) fail(ATTN_INVALID, "the sessions of one write must belong to one model");
    rows += s->rows();
  }
  if (tokens.batch != rows) fail(ATTN_INVALID, "{} rows of tokens for sessions with {} rows", tokens.batch, rows);
  model->check_target(tokens);
  rows = 0;
  for (const Session* s : sessions) {
    s->check_rows(tokens, rows);
    rows += s->rows();
  }
}

// The tokens, and for each row where its states are and which sequences its encoder gave.
void Session::gather(std::span<Session* const> sessions, const Ids& tokens, Workspace& ws) {
  Side &target = ws.target, &source = ws.source;
  target.reset(tokens.length);
  source.reset(0);
  ws.ids.clear();
  for (auto& [name, value] : ws.aux) {
    value.data.clear();
    value.rows = value.width = 0;
  }
  int64_t row = 0;
  for (const Session* s : sessions)
    for (int r = 0; r < s->rows(); ++r, ++row) {
      const int32_t* const ids = tokens.data + row * tokens.stride;
      ws.ids.insert(ws.ids.end(), ids, ids + tokens.length);
      target.lengths.push_back(static_cast<int32_t>(tokens.length_of(row)));
      target.positions.push_back(s->positions_[r]);
      target.slots.push_back(s->slots_[r]);
      target.totals.push_back(s->target_total_.value_or(0));
      source.positions.push_back(static_cast<int32_t>(s->source_.length));
      source.slots.push_back(s->cross_slot_);
      source.totals.push_back(static_cast<double>(s->source_.length));
      if (!s->source_.aux) continue;
      for (const auto& [name, value] : *s->source_.aux) {
        AuxValue& all = ws.aux[name];
        all.rows = value.rows;
        all.width = value.width;
        all.data.insert(all.data.end(), value.data.begin(), value.data.end());
      }
    }
}

void Session::advance(int row, int32_t tokens) {
  const int64_t before = positions_[row];
  positions_[row] += tokens;
  if (!target_total_) return;
  const int64_t whole = static_cast<int64_t>(std::floor(std::min(*target_total_, 1e15)));
  beyond_ += std::max<int64_t>(0, positions_[row] - std::max(before, whole));
}

// After a write that failed states may hold tokens that their session has not.
class Session::Writing {
 public:
  explicit Writing(std::span<Session* const> sessions) : sessions_(sessions) {}
  ~Writing() {
    for (Session* s : sessions_) s->usable_ = s->model_->rewinds();
  }
  void done() { sessions_ = {}; }

 private:
  std::span<Session* const> sessions_;
};

void Session::write(std::span<Session* const> sessions, const Ids& tokens, float* logits) {
  check_write(sessions, tokens);
  if (tokens.batch == 0 || tokens.length == 0) return;
  for (Session* s : sessions) s->generation_.reset();
  const Model& model = *sessions.front()->model_;
  const Arena::Pins pinned = model.pin_states();  // longer than what is under way
  const WorkspacePool::Lease leased = model.lease();
  Workspace& ws = *leased;
  gather(sessions, tokens, ws);
  Writing writing(sessions);
  const Manifest& m = model.manifest();
  const int64_t d = m.d_model, width = model.outputs(), length = tokens.length, all = tokens.batch * length;
  const float* x = nullptr;
  const float* scores = logits;  // of all tokens; NULL: of the last ones alone
  const bool rules = restricts(m) || !m.more_ends.empty();
  if (ws.device && length == 1) {
    model.step(ws, {});
    const float* const made = ws.scores.get<float>(all * width);
    if (logits)
      ws.device->to_host(logits, made, all * width);
    else
      scores = ws.device->fetched(made, all * width);
  } else if (length == 1 && !logits) {
    x = model.decoder().step(ws, model.decoder().begin_step(ws));
    float* const made = ws.scores.get<float>(all * width);
    model.logits(ws, x, all, made);  // together, for the weights' sake
    scores = made;
  } else {
    x = model.decoder().step(ws, model.decoder().begin_step(ws));
    if (logits) model.logits(ws, x, all, logits);
  }
  int64_t row = 0;
  for (Session* s : sessions)
    for (int r = 0; r < s->rows(); ++r, ++row) {
      const int32_t n = ws.target.lengths[row];
      float* const rows = logits ? logits + row * length * width : nullptr;
      if (logits) std::fill(rows + n * width, rows + length * width, 0.0f);
      if (n == 0) continue;
      float* last = s->last_.data() + r * width;
      if (scores)
        std::copy_n(scores + (row * length + n - 1) * width, width, last);
      else
        model.logits(ws, x + (row * length + n - 1) * d, 1, last);
      // Those kept for generate() are as the model made them.
      for (int32_t i = 0; logits && rules && i < n; ++i) {
        const std::span scored(rows + i * width, static_cast<size_t>(width));
        if (!all_numbers(scored)) continue;
        restrict_scores(m, s->positions_[r] + i + 1, scored);
        join_ends(m, scored);
      }
    }
  advance(sessions, tokens);
  writing.done();
}

void Session::advance(std::span<Session* const> sessions, const Ids& tokens) {
  int64_t row = 0;
  for (Session* s : sessions)
    for (int r = 0; r < s->rows(); ++r, ++row) {
      const auto n = static_cast<int32_t>(tokens.length_of(row));
      if (n == 0) continue;
      const bool begins = n == 1 && s->begins_with_end(r);
      s->ended_[r] =
          s->ended_[r] || (!begins && is_end(s->model_->manifest(), tokens.data[row * tokens.stride + n - 1]));
      s->advance(r, n);
    }
}

Session::Steps::Steps(const Model& model) : model_(model), lease_(model.lease()) {}

void Session::Steps::write(std::span<Session* const> sessions, const Ids& tokens, const StepResult& result) {
  check_write(sessions, tokens);
  const Arena::Pins pinned = model_.pin_states();
  gather(sessions, tokens, *lease_);
  Writing writing(sessions);
  try {
    lease_->device->reserve(result, tokens.batch);
    model_.step(*lease_, result);
    lease_->device->fetch();
  } catch (...) {
    lease_->device->settle();
    throw;
  }
  Session::advance(sessions, tokens);
  writing.done();
  wrote_.assign(sessions.begin(), sessions.end());
}

const DeviceCompute& Session::Steps::results() const { return *lease_->device; }

void Session::Steps::finish() {
  size_t all = 0;
  for (const Session* s : wrote_) all += s->last_.size();
  const float* from = all > 0 ? lease_->scores.get<float>(static_cast<int64_t>(all)) : nullptr;
  for (Session* s : std::exchange(wrote_, {})) {
    const auto n = static_cast<int64_t>(s->last_.size());
    lease_->device->to_host(s->last_.data(), from, n);
    from += n;
  }
}

Session::Steps::~Steps() {
  try {
    finish();
  } catch (...) {  // the error that ended the steps is the one to hear of
  }
}

int64_t Session::default_limit() const {
  const Manifest& m = model_->manifest();
  const int64_t max_length = m.max_target();
  if (m.limit > 0) return std::min<int64_t>(m.limit, max_length);
  if (m.max_decode_length > 0) return std::max<int64_t>(1, m.max_decode_length - std::max<int64_t>(1, positions_[0]));
  return model_->has_encoder() ? core::default_limit(source_.length, max_length) : max_length;
}

std::vector<float> Session::next_scores(int row) const {
  std::vector<float> scores(last(row), last(row) + model_->outputs());
  if (!best_token(scores)) fail(ATTN_INTERNAL, "{}", nan_message(positions_[row] - 1));
  const Manifest& m = model_->manifest();
  restrict_scores(m, positions_[row], scores);
  join_ends(m, scores);
  check_some_may_come(scores[static_cast<size_t>(*best_token(scores))]);
  return scores;
}

void Session::check_some_may_come(float best) const {
  if (!may_come(best)) fail(ATTN_INVALID, "{}", nothing_left_message(positions_[0]));
}

constexpr const char* nothing_follows = "{} ends in </s>, which ends the target under [stream]: nothing can follow";

void Session::check_open() const {
  if (model_->manifest().stream && std::ranges::find(ended_, true) != ended_.end())
    fail(ATTN_INVALID, nothing_follows, "the target");
}

void Session::check_begun() const {
  check_usable();
  check_open();
  if (positions_[0] == 0 && model_->vocabulary(true)->begin_id() < 0)
    fail(ATTN_INVALID, "no token begins this model's texts: write a prompt first");
}

std::vector<int32_t> Session::generate(int64_t limit) {
  if (rows() == 1) return sample({}, Sampler(model_->manifest().sampling.greedy()), limit, {});
  check_begun();
  generation_.reset();
  return finished(search_beams(*this, limit > 0 ? limit : default_limit()));
}

std::vector<int32_t> Session::finished(std::unique_ptr<Generation> generation) {
  Session* const self = this;
  core::generate({&self, 1}, {&generation, 1}, 0);
  return std::move(generation->made);
}

std::vector<std::optional<std::vector<int32_t>>> Session::generate(std::span<Session* const> sessions, int64_t limit,
                                                                   int64_t steps, int64_t room) {
  // Out of the sessions meanwhile, which drop them when they are written.  Where the call fails, one that began here
  // and has written nothing leaves its session as it was.
  struct Under {
    std::span<Session* const> sessions;
    std::vector<std::unique_ptr<Generation>> generations;
    std::vector<int32_t> began;  // the position where it did; -1: in an earlier call
    bool failed = true;
    ~Under() {
      for (size_t i = 0; i < generations.size(); ++i)
        if (sessions[i]->usable_ && !(failed && sessions[i]->positions_[0] == began[i]))
          sessions[i]->generation_ = std::move(generations[i]);
    }
  } under{sessions, {}, {}};
  const Model* const model = sessions.front()->model_.get();
  for (size_t i = 0; i < sessions.size(); ++i) {
    Session& s = *sessions[i];
    if (s.model_.get() != model) fail(ATTN_INVALID, "the sessions of one call must belong to one model");
    try {
      s.check_begun();
      const int64_t most = s.generation_ ? std::min<int64_t>(s.generation_->limit, model->manifest().max_target()) : 0;
      if (most > room) fail(ATTN_INVALID, "room for {} tokens, and its first call allowed it {}", room, most);
    } catch (const Error& e) {
      if (sessions.size() == 1) throw;
      fail_of(static_cast<int64_t>(i), e);
    }
  }
  under.began.reserve(sessions.size());
  under.generations.reserve(sessions.size());  // so that none is lost on its way from a session
  for (Session* s : sessions) {
    const int64_t most = limit > 0 ? limit : s->default_limit();
    under.began.push_back(s->generation_ ? -1 : s->positions_[0]);
    under.generations.push_back(s->generation_   ? std::move(s->generation_)
                                : s->rows() == 1 ? draw(*s, Sampler(model->manifest().sampling.greedy()), most)
                                                 : search_beams(*s, most));
  }
  core::generate(sessions, under.generations, steps);
  under.failed = false;
  std::vector<std::optional<std::vector<int32_t>>> made(sessions.size());
  for (size_t i = 0; i < sessions.size(); ++i)
    if (under.generations[i]->over) {
      made[i] = std::move(under.generations[i]->made);
      under.generations[i].reset();
    }
  return made;
}

std::vector<int32_t> Session::sample(std::span<const int32_t> prompt, Sampler sampler, int64_t limit,
                                     std::function<bool(int32_t)> stop) {
  if (rows() > 1) fail(ATTN_INVALID, "a session of {} rows cannot sample: make one of one row", rows());
  Session* const self = this;
  const auto tokens_of = [](std::span<const int32_t> ids) {
    const auto length = static_cast<int64_t>(ids.size());
    return Ids{ids.data(), length, 1, length, nullptr};
  };
  const bool begins = prompt.size() == 1 && begins_with_end(0);
  check_open();
  if (model_->manifest().stream && !prompt.empty() && !begins && is_end(model_->manifest(), prompt.back()))
    fail(ATTN_INVALID, nothing_follows, "the prompt");
  if (prompt.empty()) check_begun();
  if (!prompt.empty()) {
    check_write({&self, 1}, tokens_of(prompt));
    sampler.saw(prompt);
    // The last token by itself, as every one after it and as hosts that decode batches write it.
    if (prompt.size() > 1) write({&self, 1}, tokens_of(prompt.first(prompt.size() - 1)), nullptr);
    write({&self, 1}, tokens_of(prompt.last(1)), nullptr);
  }
  generation_.reset();
  return finished(draw(*this, std::move(sampler), limit > 0 ? limit : default_limit(), std::move(stop)));
}

}  // namespace attnkit::core
