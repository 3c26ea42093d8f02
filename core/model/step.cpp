// The model as sessions use it: one source encoded, its keys appended to cross states, target tokens pushed step by
// step.
#include <algorithm>
#include <bit>

#include "core/model/model.hpp"

namespace attnkit {
namespace {

// Plans are made for bounds rounded up, so that a session meets few of them.
int64_t round_up(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, n))));
}

std::vector<uint64_t> state_bytes(const Transformer& stack, Attention Layer::*which, int64_t length) {
  std::vector<uint64_t> bytes;
  for (const Layer& layer : stack.layers)
    if (const Block* block = (layer.*which).block.get()) bytes.push_back(length > 0 ? block->state_bytes(length) : 0);
  return bytes;
}

}  // namespace

std::vector<uint64_t> Model::self_bytes(int64_t length) const { return state_bytes(decoder_, &Layer::self, length); }

std::vector<uint64_t> Model::cross_bytes(int64_t length) const { return state_bytes(decoder_, &Layer::cross, length); }

std::vector<uint64_t> Model::encoder_bytes(int64_t length) const {
  return encoder_appends() ? state_bytes(encoder_, &Layer::self, length) : std::vector<uint64_t>();
}

Arena& Model::self_arena() const {
  std::lock_guard lock(mutex_);
  if (!self_arena_) self_arena_ = std::make_unique<Arena>(self_bytes(manifest_.max_length));
  return *self_arena_;
}

Arena& Model::cross_arena() const {
  std::lock_guard lock(mutex_);
  if (!cross_arena_) cross_arena_ = std::make_unique<Arena>(cross_bytes(manifest_.max_length));
  return *cross_arena_;
}

Arena& Model::encoder_arena() const {
  std::lock_guard lock(mutex_);
  if (!encoder_arena_) encoder_arena_ = std::make_unique<Arena>(encoder_bytes(manifest_.max_length));
  return *encoder_arena_;
}

// Rounded up for few plans, but never so far that what is in the state already would not fit beside it.
int64_t Model::bound(int64_t length, int64_t past) const {
  return std::max(length, std::min<int64_t>(round_up(length), manifest_.max_length - past));
}

// Plans once made stay, so a workspace remembers those it met: a step takes no lock.
template <class F>
const StreamPlans& Model::planned(ModelWorkspace& ws, const PlanKey& key, F&& make) const {
  const StreamPlans*& known = ws.plans[key];
  if (known) return *known;
  std::lock_guard lock(mutex_);
  std::unique_ptr<StreamPlans>& slot = plans_[key];
  if (!slot) slot = std::make_unique<StreamPlans>(make());
  return *(known = slot.get());
}

const StreamPlans& Model::plans(ModelWorkspace& ws, int64_t rows, int64_t queries, int64_t past) const {
  const int64_t batch = round_up(rows), length = bound(queries, past);
  const uint32_t workers = runtime_->threads.workers();
  return planned(ws, {0, batch, length}, [&] {
    StreamPlans made;
    for (const Layer& layer : decoder_.layers) {
      made.self.push_back(layer.self.block->plan_stream(workers, batch, length, length, manifest_.max_length));
      if (layer.cross.block)
        made.cross.push_back(layer.cross.block->plan_stream(workers, batch, length, 0, manifest_.max_length));
    }
    return made;
  });
}

const StreamPlans& Model::append_plans(ModelWorkspace& ws, int64_t keys, int64_t past) const {
  const int64_t length = bound(keys, past);
  const uint32_t workers = runtime_->threads.workers();
  return planned(ws, {1, 1, length}, [&] {
    StreamPlans made;
    for (const Layer& layer : decoder_.layers)
      made.append.push_back(layer.cross.block->plan_stream(workers, 1, 0, length, manifest_.max_length));
    return made;
  });
}

const StreamPlans& Model::encode_plans(ModelWorkspace& ws, int64_t tokens, int64_t past) const {
  const int64_t length = bound(tokens, past);
  const uint32_t workers = runtime_->threads.workers();
  return planned(ws, {2, 1, length}, [&] {
    StreamPlans made;
    for (const Layer& layer : encoder_.layers)
      made.encode.push_back(layer.self.block->plan_stream(workers, 1, length, length, manifest_.max_length));
    return made;
  });
}

bool Model::replays() const {
  return std::any_of(decoder_.layers.begin(), decoder_.layers.end(),
                     [](const Layer& l) { return l.cross.block && l.cross.block->choice().replays; });
}

void Model::embed_piece(const SourcePiece& piece, int64_t position, float* x) const {
  const int32_t at = static_cast<int32_t>(position);
  if (!piece.rows) return embed(encoder_, {piece.ids, piece.length, 1, piece.length, nullptr}, &at, x);
  std::copy_n(piece.rows, piece.length * manifest_.d_model, x);
  for (int64_t i = 0; i < piece.length; ++i) encoder_.embedding.add_position(position + i, x + i * manifest_.d_model);
}

void Model::encode_one(ModelWorkspace& ws, const SourcePiece& source, const float*& hidden, Aux& aux) const {
  float* x = ws.memory.get<float>(source.length * manifest_.d_model);
  embed_piece(source, 0, x);
  ws.source_lengths.assign(1, static_cast<int32_t>(source.length));
  run_encoder(ws, source.length, x, aux, nullptr);
  hidden = x;
}

void Model::encode_more(ModelWorkspace& ws, const SourcePiece& more, int64_t position, int32_t slot,
                        const float*& hidden, Aux& aux) const {
  const int64_t length = more.length;
  const StreamPlans& plan = encode_plans(ws, length, position);
  Arena& arena = encoder_arena();
  float* x = ws.memory.get<float>(length * manifest_.d_model);
  const int32_t at = static_cast<int32_t>(position), n = static_cast<int32_t>(length);
  embed_piece(more, position, x);
  BlockCall call;
  call.batch = 1;
  call.queries = call.keys = length;
  call.q_len = call.k_len = &n;
  call.q_pos = call.k_pos = &at;
  call.slots = &slot;
  call.aux = &aux;
  for (size_t l = 0; l < encoder_.layers.size(); ++l) {
    const Layer& layer = encoder_.layers[l];
    call.state = arena.base(l);
    call.state_stride = arena.stride(l);
    attend(ws, layer.self, x, call, &plan.encode[l], nullptr);
    feed_forward(ws, layer.feed_forward, x, length);
  }
  finish(encoder_, x, length);
  hidden = x;
}

int64_t Model::append_source(ModelWorkspace& ws, const SourceRows& rows, int32_t slot, Aux aux) const {
  Arena& arena = cross_arena();
  const std::vector<uint64_t> used = cross_bytes(rows.known);
  const double total = static_cast<double>(rows.length);
  const int32_t none = 0;
  int64_t replayed = 0;
  for (size_t l = 0; l < decoder_.layers.size(); ++l) {
    const Block& block = *decoder_.layers[l].cross.block;
    const bool anew = rows.known > 0 && (rows.all || block.choice().replays);
    if (anew) arena.empty(l, slot, used[l]);
    if (anew) replayed += rows.known;
    const int32_t first = static_cast<int32_t>(anew ? 0 : rows.known);
    const int32_t keys = static_cast<int32_t>(rows.length) - first;
    BlockCall call;
    call.batch = 1;
    call.keys = keys;
    call.context = rows.hidden + (first - rows.first) * manifest_.d_model;
    call.q_len = call.q_pos = &none;
    call.k_pos = &first;
    call.k_len = &keys;
    call.q_total = &rows.target_total;
    call.k_total = &total;
    call.state = arena.base(l);
    call.state_stride = arena.stride(l);
    call.slots = &slot;
    call.aux = &aux;
    block.run(runtime_->threads, ws.block, append_plans(ws, keys, first).append[l], call);
  }
  return replayed;
}

const float* Model::step(ModelWorkspace& ws, const Step& step) const {
  const int64_t past = step.rows > 0 ? *std::max_element(step.position, step.position + step.rows) : 0;
  const StreamPlans& plan = plans(ws, step.rows, step.length, past);
  const int64_t rows = step.rows * step.length;
  float* x = ws.x.get<float>(rows * manifest_.d_model);
  embed(decoder_, {step.ids, step.length, step.rows, step.length, step.len}, step.position, x);
  BlockCall self;
  self.batch = step.rows;
  self.queries = self.keys = step.length;
  self.q_len = self.k_len = step.len;
  self.q_pos = self.k_pos = step.position;
  self.q_total = self.k_total = step.target_total;
  self.slots = step.self_slots;
  self.aux = &ws.aux;
  BlockCall cross = self;
  cross.keys = 0;
  cross.k_len = nullptr;
  cross.k_pos = step.source_len;
  cross.k_total = step.source_total;
  cross.slots = step.cross_slots;
  for (size_t l = 0; l < decoder_.layers.size(); ++l) {
    const Layer& layer = decoder_.layers[l];
    self.state = self_arena_->base(l);
    self.state_stride = self_arena_->stride(l);
    attend(ws, layer.self, x, self, &plan.self[l], nullptr);
    if (layer.cross.block) {
      cross.state = cross_arena_->base(l);
      cross.state_stride = cross_arena_->stride(l);
      attend(ws, layer.cross, x, cross, &plan.cross[l], nullptr);
    }
    feed_forward(ws, layer.feed_forward, x, rows);
  }
  finish(decoder_, x, rows);
  return x;
}

}  // namespace attnkit
