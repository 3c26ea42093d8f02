// Made-up spaces and objectives to run strategies on, without a model.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/search/strategy.hpp"

namespace attnkit::core::search {

using Objective = std::function<Outcome(const Placement&)>;

// `layers` blocks in each of the three roles, where everything is allowed; the baseline is choice 0.
inline Space space_of(int layers, int choices) {
  Space space;
  for (uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS})
    for (int layer = 1; layer <= layers; ++layer) space.blocks.push_back({role, layer});
  std::vector<int> all;
  for (int c = 0; c < choices; ++c) {
    const std::string label(1, static_cast<char>('a' + c));
    space.choices.push_back({label, "\"" + label + "\""});
    all.push_back(c);
  }
  space.allowed.assign(space.blocks.size(), all);
  space.baseline.assign(space.blocks.size(), 0);
  return space;
}

// An arbitrary but fixed number from 0 to 1 for a choice in a block.
inline double noise(size_t block, int choice, uint64_t salt) {
  uint64_t x =
      salt * 0x9e3779b97f4a7c15u + block * 0xbf58476d1ce4e5b9u + static_cast<uint64_t>(choice) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  return static_cast<double>(x >> 11) / 9007199254740992.0;
}

// Sums over blocks, the higher choices faster and worse as a rule.  Ranked by quality and speed together.
inline Outcome separable(const Placement& placement) {
  double loss = 0, time = 0, memory = 0;
  for (size_t s = 0; s < placement.size(); ++s) {
    loss += placement[s] * 0.4 + noise(s, placement[s], 1);
    time += 1 / (1.0 + placement[s]) + noise(s, placement[s], 2) * 0.4;
    memory += 1 / (1.0 + placement[s] * placement[s]) + noise(s, placement[s], 3) * 0.2;
  }
  return {placement, true, -loss, 1 / time, memory, -loss - time};
}

// The same choice in all layers of every role?
inline bool is_per_role(const Space& space, const Placement& placement) {
  const std::vector<Unit> roles = units_of(space, false);
  return std::ranges::all_of(roles, [&](Unit unit) { return is_uniform(placement, unit); });
}

struct History {
  std::vector<std::vector<Placement>> batches;
  std::vector<Outcome> finished;

  std::vector<Placement> placements() const {
    std::vector<Placement> all;
    for (const Outcome& outcome : finished) all.push_back(outcome.placement);
    return all;
  }
};

// Until the strategy is done or has had `max` batches.
inline History run(Strategy& strategy, const Objective& objective, int max = 5000) {
  History history;
  for (int i = 0; i < max; ++i) {
    const std::vector<Placement> batch = strategy.next(history.finished);
    if (batch.empty()) break;
    history.batches.push_back(batch);
    for (const Placement& placement : batch) history.finished.push_back(objective(placement));
  }
  return history;
}

inline History run(const std::unique_ptr<Strategy>& strategy, const Objective& objective, int max = 5000) {
  return run(*strategy, objective, max);
}

inline std::set<Placement> set_of(const std::vector<Placement>& placements) {
  return {placements.begin(), placements.end()};
}

inline bool contains(const std::vector<Placement>& placements, const Placement& placement) {
  return std::find(placements.begin(), placements.end(), placement) != placements.end();
}

}  // namespace attnkit::core::search
