// The grid: every placement with one choice per role, those with equal encoders next to each other.
#include "core/search/batches.hpp"

namespace attnkit::search {
namespace {

class Grid : public BatchStrategy {
 public:
  explicit Grid(const Space& space) : BatchStrategy(space) {}

 private:
  std::vector<Placement> batch() override {
    if (!wanted().empty()) return {};
    std::vector<Placement> all = homogeneous(space());
    all.insert(all.begin(), space().baseline);
    // The encoder's role comes first in a space and so changes slowest.
    const std::vector<Unit> units = units_of(space(), false);
    for (uint64_t i = 0; i < size_of(space(), false); ++i) all.push_back(placement_at(space(), units, i));
    return all;
  }
};

}  // namespace

std::unique_ptr<Strategy> make_grid(const Space& space) { return std::make_unique<Grid>(space); }

}  // namespace attnkit::search
