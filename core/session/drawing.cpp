// One token after another, the best or drawn.
#include <algorithm>

#include "core/base/decoding/greedy.hpp"
#include "core/session/generation.hpp"
#include "core/session/restrict.hpp"
#include "core/session/session.hpp"

namespace attnkit::core {
namespace {

class Drawing final : public Generation {
 public:
  Drawing(const Session& session, Sampler sampler, int64_t limit, std::function<bool(int32_t)> stop)
      : Generation(session, limit), sampler_(std::move(sampler)), stop_(std::move(stop)) {
    sampler_.saw(next);
    next.reserve(1);
  }

  // The highest scores are enough: as many as the next token is one of, and as rules may take away.
  StepResult needs(const Session& session) const override {
    const Manifest& m = session.model().manifest();
    const int64_t outputs = session.model().outputs(), most = std::min<int64_t>(kMostOfTop, outputs);
    const int64_t from = sampler_.draws_from();
    if (from == 1 && !sampler_.looks_back() && !restricts(m) && m.more_ends.empty()) return {StepResult::best};
    const int64_t taken = most_restricted(m) + std::ssize(m.more_ends) + sampler_.lowers();
    const int64_t needed = std::min(outputs, std::max<int64_t>(from, 2) + taken);
    if (from == 0 || needed > most) return {};
    return {StepResult::top, sampler_.looks_back() ? most : needed};
  }

  void choose(const Session& session, const DeviceCompute* found, int64_t first_row) override {
    // Room for the token before the sampler counts it.
    if (made.size() == made.capacity()) made.reserve(2 * made.size() + 8);
    const std::optional<int32_t> id =
        found ? best_of(session, *found, first_row) : sampler_.draw(session.next_scores(0));
    if (!id || *id < 0) fail(ATTN_INTERNAL, "{}", nan_message(session.position(0) - 1));
    made.push_back(*id);
    const bool stopped = stop_ && stop_(*id);
    // The longest target is written in full; nothing follows it.
    const Model& model = session.model();
    const bool last = *id == model.vocabulary(true)->end_id() || session.position(0) >= model.manifest().max_target();
    over = last || stopped || std::ssize(made) >= limit;
    // The last is not written if mechanisms allow no further token.
    if (!last && !(over && session.at_total())) next.assign(1, *id);
  }

 private:
  std::optional<int32_t> best_of(const Session& session, const DeviceCompute& found, int64_t row) {
    if (found.kind() == StepResult::best) return found.best(row);
    std::vector<Ranked> highest = found.top(row);
    if (highest.front().id < 0) return std::nullopt;
    const Manifest& m = session.model().manifest();
    restrict_scores(m, session.position(0), highest);
    join_ends(m, highest);
    if (!may_come(highest.front().score)) fail(ATTN_INVALID, "{}", nothing_left_message(session.position(0)));
    return sampler_.draw(std::move(highest));
  }

  Sampler sampler_;
  const std::function<bool(int32_t)> stop_;
};

}  // namespace

std::unique_ptr<Generation> draw(const Session& session, Sampler sampler, int64_t limit,
                                 std::function<bool(int32_t)> stop) {
  return std::make_unique<Drawing>(session, std::move(sampler), limit, std::move(stop));
}

}  // namespace attnkit::core
