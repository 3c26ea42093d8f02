// The model as sessions use it: one source encoded, its keys appended to cross states, target tokens pushed step by
// step.
#include <algorithm>
#include <bit>

#include "core/model.hpp"

namespace attnkit {
namespace {

// Plans are made for bounds rounded up, so that a session meets few of them.
int64_t round_up(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, n))));
}

}  // namespace

std::vector<uint64_t> Model::state_bytes(bool cross, int64_t length) const {
  std::vector<uint64_t> bytes;
  for (const Layer& layer : decoder_.layers) {
    const Block* block = (cross ? layer.cross : layer.self).block.get();
    if (block) bytes.push_back(length > 0 ? block->state_bytes(length) : 0);
  }
  return bytes;
}

std::vector<uint64_t> Model::self_bytes(int64_t length) const { return state_bytes(false, length); }
std::vector<uint64_t> Model::cross_bytes(int64_t length) const { return state_bytes(true, length); }

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

const StreamPlans& Model::plans(int64_t rows, int64_t queries) const {
  const int64_t batch = round_up(rows), length = std::min<int64_t>(round_up(queries), manifest_.max_length);
  std::lock_guard lock(mutex_);
  std::unique_ptr<StreamPlans>& slot = plans_[{0, batch, length}];
  if (!slot) {
    auto made = std::make_unique<StreamPlans>();
    for (const Layer& layer : decoder_.layers) {
      made->self.push_back(
          layer.self.block->plan_stream(runtime_->threads.workers(), batch, length, length, manifest_.max_length));
      if (layer.cross.block)
        made->cross.push_back(
            layer.cross.block->plan_stream(runtime_->threads.workers(), batch, length, 0, manifest_.max_length));
    }
    slot = std::move(made);
  }
  return *slot;
}

const StreamPlans& Model::append_plans(int64_t keys) const {
  const int64_t length = std::min<int64_t>(round_up(keys), manifest_.max_length);
  std::lock_guard lock(mutex_);
  std::unique_ptr<StreamPlans>& slot = plans_[{1, 1, length}];
  if (!slot) {
    auto made = std::make_unique<StreamPlans>();
    for (const Layer& layer : decoder_.layers)
      made->append.push_back(
          layer.cross.block->plan_stream(runtime_->threads.workers(), 1, 0, length, manifest_.max_length));
    slot = std::move(made);
  }
  return *slot;
}

void Model::encode_one(ModelWorkspace& ws, const int32_t* ids, int64_t length, const float*& hidden, Aux& aux) const {
  float* x = ws.memory.get<float>(length * manifest_.d_model);
  encode(ws, {ids, length, 1, length, nullptr}, x, aux, nullptr);
  hidden = x;
}

void Model::append_source(ModelWorkspace& ws, const float* hidden, int64_t length, int32_t slot, double target_total,
                          Aux aux) const {
  const StreamPlans& plan = append_plans(length);
  Arena& arena = cross_arena();
  const int32_t keys = static_cast<int32_t>(length), none = 0;
  const double total = static_cast<double>(length);
  for (size_t l = 0; l < decoder_.layers.size(); ++l) {
    BlockCall call;
    call.batch = 1;
    call.keys = length;
    call.context = hidden;
    call.q_len = call.q_pos = call.k_pos = &none;
    call.k_len = &keys;
    call.q_total = &target_total;
    call.k_total = &total;
    call.state = arena.base(l);
    call.state_stride = arena.stride(l);
    call.slots = &slot;
    call.aux = &aux;
    decoder_.layers[l].cross.block->run(runtime_->threads, ws.block, plan.append[l], call);
  }
}

const float* Model::step(ModelWorkspace& ws, const Step& step) const {
  const StreamPlans& plan = plans(step.rows, step.length);
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
