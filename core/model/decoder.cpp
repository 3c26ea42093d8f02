#include "core/model/decoder.hpp"

#include <algorithm>

namespace attnkit::core {

void Decoder::load(LayerReader& from) {
  vocabulary = manifest_.decoder.tokenizer;
  embedding = from.embedding("decoder", manifest_, manifest_.decoder);
  stack.load(from, "decoder", manifest_.decoder.layers);
}

float* Decoder::run(Workspace& ws, const Ids& target, const float* memory, Aux& aux, const Probe* probe) const {
  float* x = ws.x.get<float>(target.batch * target.length * manifest_.d_model);
  embedding.apply(target, ws.target.positions, x);
  stack.run(ws, {ws.target, ws.source, memory, aux, nullptr, probe}, x);
  return x;
}

const float* Decoder::step(Workspace& ws) const {
  Side &target = ws.target, &source = ws.source;
  const int64_t rows = static_cast<int64_t>(target.lengths.size()), length = target.length;
  target.states = &stack.states(false);
  if (manifest_.encoder.layers > 0) source.states = &stack.states(true);
  float* x = ws.x.get<float>(rows * length * manifest_.d_model);
  embedding.apply({ws.ids.data(), length, rows, length, target.lengths.data()}, target.positions, x);
  const int32_t past = rows > 0 ? *std::max_element(target.positions.begin(), target.positions.end()) : 0;
  const Plans& plans = stack.plans(ws, PlanKind::step, rows, length, past);
  stack.run(ws, {target, source, nullptr, ws.aux, &plans, nullptr}, x);
  return x;
}

int64_t Decoder::append(Workspace& ws, const SourcePart& hidden, int64_t known, bool all, double target_total,
                        int32_t slot, Aux& aux) const {
  Arena& states = stack.states(true);
  const int64_t length = hidden.first + hidden.length;
  Side &none = ws.target, &keys = ws.source;
  none.reset(0);
  none.lengths.assign(1, 0);
  none.positions.assign(1, 0);
  none.totals.assign(1, target_total);
  int64_t replayed = 0;
  for (size_t l = 0; l < stack.layers.size(); ++l) {
    const Block& block = *stack.layers[l].cross.block;
    const bool anew = known > 0 && (all || block.choice().replays);
    if (anew) states.empty(l, slot, block.state_bytes(known));
    if (anew) replayed += known;
    const int64_t first = anew ? 0 : known;
    keys.reset(length - first, &states);
    keys.lengths.assign(1, static_cast<int32_t>(length - first));
    keys.positions.assign(1, static_cast<int32_t>(first));
    keys.slots.assign(1, slot);
    keys.totals.assign(1, static_cast<double>(length));
    const float* rows = hidden.rows + (first - hidden.first) * manifest_.d_model;
    block.run(ws, &stack.plans(ws, PlanKind::append, 1, keys.length, first)[l],
              {none, keys, nullptr, rows, nullptr, aux});
  }
  return replayed;
}

}  // namespace attnkit::core
