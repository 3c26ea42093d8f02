#include "core/model/decoder.hpp"

#include <algorithm>

#include "core/model/compute.hpp"

namespace attnkit::core {

void Decoder::load(LayerReader& from) {
  vocabulary = manifest_.decoder.tokenizer;
  embedding = from.embedding("decoder", manifest_, manifest_.decoder);
  stack.load(from, "decoder", manifest_.decoder.layers);
}

float* Decoder::run(Workspace& ws, const Ids& target, const float* memory, Aux& aux, const Probe* probe) const {
  float* x = ws.x.get<float>(target.batch * target.length * manifest_.d_model);
  ws.compute->place({&ws.target, &ws.source}, &target);
  ws.compute->embed(embedding, target, ws.target, x);
  stack.run(ws, {ws.target, ws.source, memory, aux, nullptr, probe}, x);
  return x;
}

Ids Decoder::begin_step(Workspace& ws) const {
  Side &target = ws.target, &source = ws.source;
  target.states = &stack.states(false);
  if (manifest_.encoder.layers > 0) source.states = &stack.states(true);
  const Ids ids{ws.ids.data(), target.length, static_cast<int64_t>(target.lengths.size()), target.length,
                target.lengths.data()};
  ws.compute->place({&target, &source}, &ids);
  return ids;
}

const float* Decoder::step(Workspace& ws, const Ids& ids) const {
  const Side& target = ws.target;
  float* x = ws.x.get<float>(ids.batch * ids.length * manifest_.d_model);
  ws.compute->embed(embedding, ids, target, x);
  const int32_t past = ids.batch > 0 ? *std::max_element(target.positions.begin(), target.positions.end()) : 0;
  const Plans& plans = stack.plans(ws, PlanKind::step, ids.batch, ids.length, past);
  stack.run(ws, {target, ws.source, nullptr, ws.aux, &plans, nullptr}, x);
  return x;
}

void Decoder::append(Workspace& ws, std::span<SourceKeys> sources, const float* encoded, bool all, Aux& aux) const {
  Arena& states = stack.states(true);
  const auto batch = static_cast<int64_t>(sources.size());
  Side &none = ws.target, &keys = ws.source;
  none.reset(0);
  none.lengths.assign(sources.size(), 0);
  none.positions.assign(sources.size(), 0);
  for (const SourceKeys& s : sources) none.totals.push_back(s.target_total);
  for (size_t l = 0; l < stack.layers.size(); ++l) {
    const Block& block = *stack.layers[l].cross.block;
    const bool anew = all || block.choice().replays;
    keys.reset(0, &states);
    int64_t past = 0;
    for (SourceKeys& s : sources) {
      if (anew && s.known > 0) states.empty(l, s.slot, block.state_bytes(s.known));
      if (anew) s.replayed += s.known;
      const int64_t first = anew ? 0 : s.known, end = s.hidden.first + s.hidden.length;
      keys.length = std::max(keys.length, end - first);
      past = std::max(past, first);
      keys.lengths.push_back(static_cast<int32_t>(end - first));
      keys.positions.push_back(static_cast<int32_t>(first));
      keys.slots.push_back(s.slot);
      keys.totals.push_back(static_cast<double>(end));
    }
    ws.compute->place({&none, &keys}, nullptr);
    block.run(ws, &stack.plans(ws, PlanKind::append, batch, keys.length, past)[l],
              {none, keys, nullptr, DeviceType::f32, encoded ? encoded : side_by_side(ws, sources), nullptr, aux});
  }
}

// The rows (sources, length, D) that ws.source says, where they lie or in ws.x.
const float* Decoder::side_by_side(Workspace& ws, std::span<const SourceKeys> sources) const {
  const Side& keys = ws.source;
  const int64_t d = manifest_.d_model, width = keys.length * d;
  const auto rows = [&](size_t i) {
    return sources[i].hidden.rows + (keys.positions[i] - sources[i].hidden.first) * d;
  };
  if (sources.size() == 1) return rows(0);
  float* const x = ws.x.get<float>(static_cast<int64_t>(sources.size()) * width);
  for (size_t i = 0; i < sources.size(); ++i) {
    float* const end = std::copy_n(rows(i), keys.lengths[i] * d, x + static_cast<int64_t>(i) * width);
    std::fill(end, x + static_cast<int64_t>(i + 1) * width, 0.0f);
  }
  return x;
}

}  // namespace attnkit::core
