// What mechanisms declare of their costs in each block, gathered from descriptions of models.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/search/placement.hpp"

namespace attnkit::search {

// Of one block, or of all blocks of a placement; session of one row.
struct DeclaredCost {
  uint64_t state_bytes = 0, flops = 0,
           step_flops = 0;  // kept at a length; attention of a whole pass; of one more token
};

class Declared {
 public:
  // description: "attnkit.model-description/1" of a placement, at lengths.
  void add(const Space& space, const Placement& placement, const nlohmann::json& description);
  DeclaredCost of(const Placement& placement, int64_t length) const;
  DeclaredCost of(size_t site, int choice, int64_t length) const;

 private:
  std::map<std::tuple<size_t, int, int64_t>, DeclaredCost> costs_;
};

}  // namespace attnkit::search
