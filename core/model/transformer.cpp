#include "core/model/transformer.hpp"

#include "core/model/compute.hpp"

namespace attnkit::core {

void Transformer::load(LayerReader& from, const std::string& name, int count) {
  const int64_t d = manifest_.d_model;
  name_ = name;
  layers.resize(static_cast<size_t>(count));
  for (int l = 1; l <= count; ++l) {
    const std::string ffn = name + ".ffn." + std::to_string(l);
    const std::set<std::string>& bias = manifest_.bias;
    FeedForward& made = layers[l - 1].feed_forward;
    made.norm = from.norm(ffn + ".norm", d);
    made.in = from.dense(ffn + ".in", d, manifest_.ffn, bias.contains("in"));
    made.out = from.dense(ffn + ".out", manifest_.ffn, d, bias.contains("out"));
    if (manifest_.gated) made.gate = from.dense(ffn + ".gate", d, manifest_.ffn, bias.contains("gate"));
  }
  if (manifest_.final_norm) norm = from.norm(name + ".norm", d);
}

// f(in, type of in); type: what it takes beside f32.
template <class F>
void Transformer::residual(Workspace& ws, const LayerNorm& around, float* x, int64_t rows, DeviceType type,
                           F&& f) const {
  if (manifest_.norm == Norm::pre) {
    float* normed = ws.normed.get<float>(rows * manifest_.d_model);
    ws.compute->norm(around, x, normed, type, rows);
    f(normed, type);
  } else {
    f(x, DeviceType::f32);
    ws.compute->norm(around, x, x, DeviceType::f32, rows);
  }
}

void Transformer::run(Workspace& ws, const Walk& walk, float* x) const {
  const int64_t rows = static_cast<int64_t>(walk.self.lengths.size()) * walk.self.length;
  const auto show = [&](const std::string& layer) {
    if (walk.probe && walk.probe->show) walk.probe->show(layer, walk.self, x);
  };
  size_t block = 0, number = 0;
  for (const Layer& layer : layers) {
    for (const Attention* attention : {&layer.self, &layer.cross}) {
      if (!attention->block) continue;
      const bool cross = attention == &layer.cross;
      const Plan* plan = walk.plans ? &(*walk.plans)[block++] : nullptr;
      const DeviceType type = plan ? type_of(*plan) : DeviceType::f32;
      residual(ws, attention->norm, x, rows, type, [&](const void* in, DeviceType of_in) {
        const BlockCall call{walk.self, cross ? walk.cross : walk.self, in, of_in, cross ? walk.memory : in, x,
                             walk.aux};
        const BlockChoice& choice = attention->block->choice();
        if (walk.probe && walk.probe->role == choice.role && walk.probe->layer == choice.layer)
          attention->block->attention(ws, call, walk.probe->weights);
        attention->block->run(ws, plan, call);
      });
      show(attention->block->path());
    }
    const FeedForward& ffn = layer.feed_forward;
    const Dense* const gate = manifest_.gated ? &ffn.gate : nullptr;
    DeviceType type = ws.compute->takes(ffn.in);
    if (gate && ws.compute->takes(*gate) != type) type = DeviceType::f32;
    residual(ws, ffn.norm, x, rows, type, [&](const void* in, DeviceType of_in) {
      ws.compute->feed_forward(gate, ffn.in, ffn.out, in, of_in, x, rows, manifest_.activation, ws.hidden);
    });
    show(fmt::format("{}.ffn.{}", name_, ++number));
  }
  if (manifest_.final_norm) ws.compute->norm(norm, x, x, DeviceType::f32, rows);
  show(name_);
}

const Plans& Transformer::plans(Workspace& ws, PlanKind kind, int64_t rows, int64_t tokens, int64_t past) const {
  // Never so far that what is in the state already would not fit beside it; then by whole 64s, for plans stay.
  const int64_t batch = plan_bound(rows),
                capacity = kind == PlanKind::step ? manifest_.max_target() : manifest_.max_length;
  const int64_t room = capacity - past, near = (tokens + 63) / 64 * 64;
  int64_t bound = plan_bound(tokens);
  if (bound > room) bound = near <= room ? near : tokens;
  const PlanKey key{kind, batch, bound};
  // Plans once made stay, so a workspace keeps those it met: a step takes no lock.
  const Plans*& known = ws.plans[key];
  if (known) return *known;
  std::lock_guard lock(mutex_);
  std::unique_ptr<Plans>& made = plans_[key];
  if (!made) {
    auto plans = std::make_unique<Plans>();
    for (const Layer& layer : layers)
      for (const Attention* attention : {&layer.self, &layer.cross}) {
        const bool cross = attention == &layer.cross;
        if (!attention->block || (kind == PlanKind::append && !cross)) continue;
        plans->push_back(
            attention->block->plan_stream(ws.compute->workers(), batch, kind == PlanKind::append ? 0 : bound,
                                          kind == PlanKind::step && cross ? 0 : bound, attention->block->max_length()));
      }
    made = std::move(plans);
  }
  return *(known = made.get());
}

Arena& Transformer::states(bool cross) const {
  std::call_once(made_[cross], [&] {
    std::vector<uint64_t> bytes;
    for (const Layer& layer : layers)
      if (const Block* block = (cross ? layer.cross : layer.self).block.get())
        bytes.push_back(block->state_bytes(block->max_length()));
    states_[cross] = std::make_unique<Arena>(bytes, device);
  });
  return *states_[cross];
}

}  // namespace attnkit::core
