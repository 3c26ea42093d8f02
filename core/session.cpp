#include "core/session.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

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
  Arena& arena = model_->self_arena();
  if (model_->has_encoder()) cross_slot_ = model_->cross_arena().acquire();
  try {
    for (int r = 0; r < rows; ++r) slots_.push_back(arena.acquire());
  } catch (...) {
    for (int32_t slot : slots_) arena.release(slot, model_->self_bytes(0));
    if (cross_slot_ >= 0) model_->cross_arena().release(cross_slot_, model_->cross_bytes(0));
    throw;
  }
  positions_.assign(static_cast<size_t>(rows), 0);
  last_.resize(static_cast<size_t>(rows) * model_->outputs());
  if (model_->manifest().predict == Predict::fixed) target_total_ = model_->manifest().fixed_length;
}

// Cross blocks take the source in before any target token is there, so nothing of the target can reach them.
void Session::check_carried() const {
  const std::vector<Layer>& layers = model_->decoder().layers;
  for (size_t giver = 0; giver < layers.size(); ++giver)
    for (const std::string& name : layers[giver].self.block->aux_names(ATTN_AUX_OUT))
      for (size_t l = giver; l < layers.size(); ++l)
        if (layers[l].cross.block && layers[l].cross.block->has_aux(ATTN_AUX_IN, name))
          fail(
              ATTN_UNSUPPORTED,
              "decoder.self.{} gives the sequence \"{}\" to decoder.cross.{}, which reads the source before there is a "
              "target: a session cannot do that, use another mechanism in one of them",
              giver + 1, name, l + 1);
}

Session::~Session() {
  try {
    for (int r = 0; r < rows(); ++r) model_->self_arena().release(slots_[r], used(r));
    if (cross_slot_ >= 0) model_->cross_arena().release(cross_slot_, model_->cross_bytes(source_length_));
  } catch (...) {
    // Out of memory while giving a slot back: the slot is lost, nothing else.
  }
}

std::vector<uint64_t> Session::used(int row) const { return model_->self_bytes(positions_[row]); }

void Session::copy_row(int32_t from, int32_t to, int64_t position) const {
  const Arena& arena = model_->self_arena();
  const std::vector<uint64_t> bytes = model_->self_bytes(position);
  for (size_t b = 0; b < bytes.size(); ++b) std::memcpy(arena.row(b, to), arena.row(b, from), bytes[b]);
}

std::unique_ptr<Session> Session::clone() const {
  auto copy = std::make_unique<Session>(model_, rows());
  for (int r = 0; r < rows(); ++r) copy_row(slots_[r], copy->slots_[r], positions_[r]);
  if (cross_slot_ >= 0) {
    const Arena& arena = model_->cross_arena();
    const std::vector<uint64_t> bytes = model_->cross_bytes(source_length_);
    for (size_t b = 0; b < bytes.size(); ++b)
      std::memcpy(arena.row(b, copy->cross_slot_), arena.row(b, cross_slot_), bytes[b]);
  }
  copy->positions_ = positions_;
  copy->source_length_ = source_length_;
  copy->has_source_ = has_source_;
  copy->target_total_ = target_total_;
  copy->beyond_ = beyond_;
  copy->last_ = last_;
  copy->aux_ = aux_;
  return copy;
}

void Session::reorder(const std::vector<uint32_t>& parents) {
  const size_t n = slots_.size();
  for (size_t i = 0; i < n; ++i)
    if (parents[i] >= n)
      fail(ATTN_INVALID, "row {} cannot continue row {}: this session has {} rows", i, parents[i], n);
  // The first child of a row keeps its slot; further children get copies in the slots of rows without children.
  std::vector<int32_t> slots(n, -1), positions(n);
  std::vector<bool> kept(n, false);
  for (size_t i = 0; i < n; ++i)
    if (!kept[parents[i]]) {
      kept[parents[i]] = true;
      slots[i] = slots_[parents[i]];
    }
  size_t unused = 0;
  std::vector<float> last(last_.size());
  const size_t width = static_cast<size_t>(model_->outputs());
  for (size_t i = 0; i < n; ++i) {
    positions[i] = positions_[parents[i]];
    std::copy_n(last_.begin() + parents[i] * width, width, last.begin() + i * width);
    if (slots[i] >= 0) continue;
    while (kept[unused]) ++unused;
    slots[i] = slots_[unused];
    const std::vector<uint64_t> have = model_->self_bytes(positions_[unused]), need = model_->self_bytes(positions[i]);
    for (size_t b = 0; b < have.size(); ++b)  // bytes past the copy must be as an empty state's
      if (have[b] > need[b]) std::memset(model_->self_arena().row(b, slots[i]) + need[b], 0, have[b] - need[b]);
    copy_row(slots_[parents[i]], slots[i], positions[i]);
    ++unused;
  }
  slots_ = std::move(slots);
  positions_ = std::move(positions);
  last_ = std::move(last);
}

void Session::read(const Ids& source) {
  if (!model_->has_encoder())
    fail(ATTN_INVALID, "this model has no encoder: write the prompt instead of reading a source");
  if (has_source_) fail(ATTN_INVALID, "the source was read already: a growing source is not supported in this version");
  if (source.batch != 1 || source.length < 1) fail(ATTN_INVALID, "the source must be one row of at least one id");
  model_->check_ids(source, false);
  const std::optional<double> total = target_total_ ? target_total_ : model_->target_total(source.length, std::nullopt);
  const Model::Lease leased = model_->lease();
  const float* hidden = nullptr;
  auto aux = std::make_shared<Aux>();
  model_->encode_one(*leased, source.data, source.length, hidden, *aux);
  model_->append_source(*leased, hidden, source.length, cross_slot_, total.value_or(0), *aux);
  aux_ = std::move(aux);
  target_total_ = total;
  source_length_ = source.length;
  has_source_ = true;
}

void Session::set_length(double target_length) {
  if (!std::isfinite(target_length) || target_length <= 0)
    fail(ATTN_INVALID, "target length {}: must be positive and finite", target_length);
  for (int32_t p : positions_)
    if (p > 0) fail(ATTN_INVALID, "the target length must be set before the first token is written");
  target_total_ = target_length;
}

int64_t Session::default_limit() const {
  const int64_t most = model_->manifest().max_length;
  return model_->has_encoder() ? std::min<int64_t>(most, source_length_ * 3 / 2 + 20) : most;
}

void Session::check_rows(const Ids& tokens, int64_t first_row) const {
  if (model_->has_encoder() && !has_source_) fail(ATTN_INVALID, "no source was read yet: read one before writing");
  if (!target_total_ && model_->manifest().predict == Predict::reference)
    fail(ATTN_INVALID, "[length] predict = \"reference\": set the target length before writing");
  const int64_t most = model_->manifest().max_length;
  for (int r = 0; r < rows(); ++r) {
    const int64_t n = tokens.lens ? tokens.lens[first_row + r] : tokens.length;
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
  model->check_ids(tokens, true);
  rows = 0;
  for (const Session* s : sessions) {
    s->check_rows(tokens, rows);
    rows += s->rows();
  }
}

// What the encoders gave out, for the rows of all sessions; nothing in models that carry nothing.
void Session::gather_aux(std::span<Session* const> sessions, Aux& to) {
  to.clear();
  for (const Session* s : sessions) {
    if (!s->aux_) continue;
    for (const auto& [name, value] : *s->aux_) {
      AuxValue& all = to[name];
      all.rows = value.rows;
      all.width = value.width;
      for (int r = 0; r < s->rows(); ++r) all.data.insert(all.data.end(), value.data.begin(), value.data.end());
    }
  }
}

Step Session::gather(std::span<Session* const> sessions, const Ids& tokens, ModelWorkspace& ws) {
  for (auto* v : {&ws.ids, &ws.lengths, &ws.positions, &ws.slots, &ws.cross_slots, &ws.k_positions}) v->clear();
  ws.totals.clear();
  ws.source_totals.clear();
  for (int64_t r = 0; r < tokens.batch; ++r) {
    ws.lengths.push_back(tokens.lens ? tokens.lens[r] : static_cast<int32_t>(tokens.length));
    ws.ids.insert(ws.ids.end(), tokens.data + r * tokens.stride, tokens.data + r * tokens.stride + tokens.length);
  }
  for (const Session* s : sessions)
    for (int r = 0; r < s->rows(); ++r) {
      ws.positions.push_back(s->positions_[r]);
      ws.slots.push_back(s->slots_[r]);
      ws.cross_slots.push_back(s->cross_slot_);
      ws.k_positions.push_back(static_cast<int32_t>(s->source_length_));
      ws.totals.push_back(s->target_total_.value_or(0));
      ws.source_totals.push_back(static_cast<double>(s->source_length_));
    }
  gather_aux(sessions, ws.aux);
  return {tokens.batch,    tokens.length,         ws.ids.data(),         ws.lengths.data(), ws.positions.data(),
          ws.slots.data(), ws.cross_slots.data(), ws.k_positions.data(), ws.totals.data(),  ws.source_totals.data()};
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
  const Model::Lease leased = model.lease();
  ModelWorkspace& ws = *leased;
  const float* x = model.step(ws, gather(sessions, tokens, ws));
  const int64_t d = model.manifest().d_model, width = model.outputs(), length = tokens.length;
  if (logits) model.logits(x, tokens.batch * length, logits);
  int64_t row = 0;
  for (Session* s : sessions)
    for (int r = 0; r < s->rows(); ++r, ++row) {
      const int32_t n = ws.lengths[row];
      float* rows = logits ? logits + row * length * width : nullptr;
      if (rows) std::fill(rows + n * width, rows + length * width, 0.0f);
      if (n == 0) continue;
      float* last = s->last_.data() + r * width;
      if (rows)
        std::copy_n(rows + (n - 1) * width, width, last);
      else
        model.logits(x + (row * length + n - 1) * d, 1, last);
      s->advance(r, n);
    }
}

std::vector<int32_t> Session::generate(int64_t limit) {
  if (limit <= 0) limit = default_limit();
  return rows() > 1 ? beam_search(*this, limit) : greedy(limit);
}

std::vector<int32_t> Session::greedy(int64_t limit) {
  const Vocabulary& vocabulary = *model_->vocabulary(true);
  Session* const self = this;
  const auto push = [&](int32_t id) { write({&self, 1}, {&id, 1, 1, 1, nullptr}, nullptr); };
  if (positions_[0] == 0) push(vocabulary.begin_id());
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(std::min<int64_t>(limit, model_->manifest().max_length)));
  while (static_cast<int64_t>(ids.size()) < limit) {
    const float* scores = last(0);
    const int32_t id = static_cast<int32_t>(std::max_element(scores, scores + model_->outputs()) - scores);
    if (std::isnan(scores[id]))
      fail(ATTN_INTERNAL,
           "the model's scores are not numbers (NaN) after {} tokens: its weights or a mechanism are broken",
           ids.size());
    ids.push_back(id);
    if (id == vocabulary.end_id()) break;
    // The longest target is written in full; nothing follows it.
    if (positions_[0] >= model_->manifest().max_length) break;
    push(id);
  }
  return ids;
}

}  // namespace attnkit
