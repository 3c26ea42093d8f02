#include "core/session/session.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/greedy.hpp"

namespace attnkit {

void Session::Use::mark() {
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
  acquire(rows);
  positions_.assign(static_cast<size_t>(rows), 0);
  ended_.assign(static_cast<size_t>(rows), false);
  last_.resize(static_cast<size_t>(rows) * model_->outputs());
  if (model_->manifest().predict == Predict::fixed) target_total_ = model_->manifest().fixed_length;
}

void Session::acquire(int rows) {
  try {
    if (model_->has_encoder()) cross_slot_ = model_->states(ATTN_DECODER_CROSS).acquire();
    if (model_->encoder().appends()) encoder_slot_ = model_->states(ATTN_ENCODER_SELF).acquire();
    for (int r = 0; r < rows; ++r) {
      slots_.push_back(-1);
      slots_.back() = model_->states(ATTN_DECODER_SELF).acquire();
    }
  } catch (...) {
    positions_.assign(slots_.size(), 0);
    release();
    throw;
  }
}

void Session::release() {
  for (int r = 0; r < rows(); ++r)
    if (slots_[r] >= 0) model_->states(ATTN_DECODER_SELF).release(slots_[r], used(r));
  if (cross_slot_ >= 0)
    model_->states(ATTN_DECODER_CROSS).release(cross_slot_, model_->state_bytes(ATTN_DECODER_CROSS, reach_));
  if (encoder_slot_ >= 0)
    model_->states(ATTN_ENCODER_SELF).release(encoder_slot_, model_->state_bytes(ATTN_ENCODER_SELF, reach_));
}

void Session::check_usable() const {
  if (!usable_)
    fail(ATTN_INVALID,
         "an earlier read of this session failed half way and left its states undefined: destroy the session");
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

Session::~Session() {
  try {
    release();
  } catch (...) {
    // Out of memory while giving a slot back: the slot is lost, nothing else.
  }
}

std::vector<uint64_t> Session::used(int row) const { return model_->state_bytes(ATTN_DECODER_SELF, positions_[row]); }

void Session::set_length(double target_length) {
  if (!std::isfinite(target_length) || target_length <= 0)
    fail(ATTN_INVALID, "target length {}: must be positive and finite", target_length);
  for (int32_t p : positions_)
    if (p > 0) fail(ATTN_INVALID, "the target length must be set before the first token is written");
  if (source_.length > 0 && target_length != target_total_ && !model_->measures_by_target().empty())
    fail(ATTN_INVALID,
         "{} has measured the source against the target length {:g} already: set the length before the source is read",
         model_->measures_by_target(), target_total_.value_or(0));
  target_total_ = target_length;
  told_ = true;
}

int64_t Session::default_limit() const {
  const int64_t most = model_->manifest().max_length;
  return model_->has_encoder() ? attnkit::default_limit(source_.length, most) : most;
}

void Session::check_rows(const Ids& tokens, int64_t first_row) const {
  check_usable();
  if (model_->has_encoder() && source_.length == 0) {
    if (source_.units > 0) model_->frontend()->require_row(source_.kind, source_.units);
    fail(ATTN_INVALID, "no source was read yet: read one before writing");
  }
  if (!target_total_ && model_->manifest().predict == Predict::reference)
    fail(ATTN_INVALID, "[length] predict = \"reference\": set the target length before writing");
  const int64_t most = model_->manifest().max_length;
  for (int r = 0; r < rows(); ++r) {
    const int64_t n = tokens.lens ? tokens.lens[first_row + r] : tokens.length;
    if (n > 0 && model_->manifest().stream) {
      const int32_t* ids = tokens.data + (first_row + r) * tokens.stride;
      if (ended_[r] || std::find(ids, ids + n - 1, model_->vocabulary(true)->end_id()) != ids + n - 1)
        fail(ATTN_INVALID, "row {}: a token after </s>, which ends the target under [stream]", first_row + r);
    }
    if (positions_[r] + n > most)
      fail(ATTN_INVALID, "row {}: {} tokens after {} are more than max_length {}", first_row + r, n, positions_[r],
           most);
    if (model_->within_total() && target_total_ && static_cast<double>(positions_[r] + n) > *target_total_)
      fail(ATTN_UNSUPPORTED,
           "row {}: token {} is beyond the target length {:g} that a mechanism was told, and it allows none beyond",
           first_row + r, positions_[r] + n, *target_total_);
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

// What the encoders gave out, for the rows of all sessions; nothing in models that carry nothing.
void Session::gather_aux(std::span<Session* const> sessions, Aux& to) {
  for (auto& [name, value] : to) {
    value.data.clear();
    value.rows = value.width = 0;
  }
  for (const Session* s : sessions) {
    if (!s->source_.aux) continue;
    for (const auto& [name, value] : *s->source_.aux) {
      AuxValue& all = to[name];
      all.rows = value.rows;
      all.width = value.width;
      for (int r = 0; r < s->rows(); ++r) all.data.insert(all.data.end(), value.data.begin(), value.data.end());
    }
  }
}

void Session::gather(std::span<Session* const> sessions, const Ids& tokens, Workspace& ws) {
  Side &target = ws.target, &source = ws.source;
  target.reset(tokens.length);
  source.reset(0);
  ws.ids.clear();
  for (int64_t r = 0; r < tokens.batch; ++r) {
    target.lengths.push_back(static_cast<int32_t>(tokens.length_of(r)));
    ws.ids.insert(ws.ids.end(), tokens.data + r * tokens.stride, tokens.data + r * tokens.stride + tokens.length);
  }
  for (const Session* s : sessions)
    for (int r = 0; r < s->rows(); ++r) {
      target.positions.push_back(s->positions_[r]);
      target.slots.push_back(s->slots_[r]);
      target.totals.push_back(s->target_total_.value_or(0));
      source.positions.push_back(static_cast<int32_t>(s->source_.length));
      source.slots.push_back(s->cross_slot_);
      source.totals.push_back(static_cast<double>(s->source_.length));
    }
  gather_aux(sessions, ws.aux);
}

void Session::advance(int row, int32_t tokens) {
  const int64_t before = positions_[row];
  positions_[row] += tokens;
  if (!target_total_) return;
  const int64_t whole = static_cast<int64_t>(std::floor(std::min(*target_total_, 1e15)));
  beyond_ += std::max<int64_t>(0, positions_[row] - std::max(before, whole));
}

void Session::write(std::span<Session* const> sessions, const Ids& tokens, float* logits) {
  check_write(sessions, tokens);
  if (tokens.batch == 0 || tokens.length == 0) return;
  const Model& model = *sessions.front()->model_;
  const WorkspacePool::Lease leased = model.lease();
  Workspace& ws = *leased;
  gather(sessions, tokens, ws);
  const float* x = model.decoder().step(ws);
  const int64_t d = model.manifest().d_model, width = model.outputs(), length = tokens.length;
  if (logits) model.logits(ws, x, tokens.batch * length, logits);
  const int32_t end = model.vocabulary(true)->end_id();
  int64_t row = 0;
  for (Session* s : sessions)
    for (int r = 0; r < s->rows(); ++r, ++row) {
      const int32_t n = ws.target.lengths[row];
      float* rows = logits ? logits + row * length * width : nullptr;
      if (rows) std::fill(rows + n * width, rows + length * width, 0.0f);
      if (n == 0) continue;
      float* last = s->last_.data() + r * width;
      if (rows)
        std::copy_n(rows + (n - 1) * width, width, last);
      else
        model.logits(ws, x + (row * length + n - 1) * d, 1, last);
      s->ended_[r] = s->ended_[r] || tokens.data[row * tokens.stride + n - 1] == end;
      s->advance(r, n);
    }
}

std::vector<int32_t> Session::generate(int64_t limit) {
  check_usable();
  if (limit <= 0) limit = default_limit();
  return rows() > 1 ? beam_search(*this, limit) : greedy(limit);
}

int32_t Session::best(int row) const {
  const std::optional<int32_t> id = best_token({last(row), static_cast<size_t>(model_->outputs())});
  if (!id) fail(ATTN_INTERNAL, "{}", nan_message(positions_[row] - 1));
  return *id;
}

std::vector<int32_t> Session::greedy(int64_t limit) {
  const Vocabulary& vocabulary = *model_->vocabulary(true);
  Session* const self = this;
  const auto push = [&](int32_t id) { write({&self, 1}, {&id, 1, 1, 1, nullptr}, nullptr); };
  if (positions_[0] == 0) push(vocabulary.begin_id());
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(std::min<int64_t>(limit, model_->manifest().max_length)));
  while (static_cast<int64_t>(ids.size()) < limit) {
    const int32_t id = best(0);
    ids.push_back(id);
    if (id == vocabulary.end_id()) break;
    // The longest target is written in full; nothing follows it.
    if (positions_[0] >= model_->manifest().max_length) break;
    push(id);
  }
  return ids;
}

}  // namespace attnkit
