#include "core/search/declared.hpp"

#include <algorithm>

namespace attnkit::search {

void Declared::add(const Space& space, const Placement& placement, const nlohmann::json& description) {
  for (size_t s = 0; s < space.sites.size(); ++s)
    for (const auto& block : description["blocks"]) {
      if (block["role"] != role_name(space.sites[s].role) || block["layer"] != space.sites[s].layer) continue;
      for (const auto& cost : block["costs"])
        costs_[{s, placement[s], cost["length"]}] = {cost.value("state_bytes", uint64_t{0}),
                                                     cost.value("flops", uint64_t{0}),
                                                     cost.value("step_flops", uint64_t{0})};
    }
}

DeclaredCost Declared::of(size_t site, int choice, int64_t length) const {
  const auto at = costs_.find({site, choice, length});
  return at == costs_.end() ? DeclaredCost() : at->second;
}

DeclaredCost Declared::of(const Placement& placement, int64_t length) const {
  DeclaredCost total;
  for (size_t s = 0; s < placement.size(); ++s) {
    const DeclaredCost one = of(s, placement[s], length);
    total.state_bytes += one.state_bytes;
    total.flops += one.flops;
    total.step_flops += one.step_flops;
  }
  return total;
}

}  // namespace attnkit::search
