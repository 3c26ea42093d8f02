// Beam search: keeps the `rows` best unfinished hypotheses, fewer where those that end take their rows along; score =
// log probability / length^length_penalty.  When it ends is what [decode] early_stop says.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/base/decoding/greedy.hpp"
#include "core/base/decoding/scores.hpp"
#include "core/session/generation.hpp"
#include "core/session/restrict.hpp"
#include "core/session/session.hpp"

namespace attnkit::core {
namespace {

struct Hypothesis {
  std::vector<int32_t> ids;
  double log_probability = 0;
  double score(size_t length, double penalty) const {
    return log_probability / std::pow(static_cast<double>(length), penalty);
  }
};

struct Candidate {
  double log_probability;
  uint32_t row;
  int32_t id;
};

// The `count` highest scores, best first; none of what may not come.
std::vector<Ranked> highest(std::span<const float> scores, size_t count) {
  constexpr size_t block = 64;
  std::vector<Ranked> found;
  float least = -std::numeric_limits<float>::infinity();  // what is not above it is none of them
  for (size_t from = 0; from < scores.size(); from += block) {
    const std::span<const float> some = scores.subspan(from, std::min(block, scores.size() - from));
    bool any = false;
    for (const float score : some) any |= score > least;
    for (size_t i = 0; any && i < some.size(); ++i)
      if (some[i] > least) found.push_back({static_cast<int32_t>(from + i), some[i]});
    if (found.size() < 2 * count) continue;
    rank(found);
    found.resize(count);
    least = found.back().score;
  }
  rank(found);
  found.resize(std::min(found.size(), count));
  return found;
}

class BeamSearch final : public Generation {
 public:
  BeamSearch(const Session& session, int64_t most)
      : Generation(session, most),
        m_(session.model().manifest()),
        vocabulary_(*session.model().vocabulary(true)),
        rows_(static_cast<size_t>(session.rows())),
        looks_(m_.early_stop == EarlyStop::shrink ? 1 : 2 + m_.more_ends.size()),
        begins_(session.position(0) == 0),
        width_(rows_) {
    next.reserve(rows_);
    ended_.reserve(rows_ + 1);
    // The longest target is written in full; nothing follows it.
    const int64_t longest = m_.max_target() - std::max<int64_t>(1, session.position(0)) + 1;
    max_tokens_ = static_cast<size_t>(std::min(most, longest));
  }

  StepResult needs(const Session& session) const override {
    const int64_t outputs = session.model().outputs(), most = std::min<int64_t>(kMostOfTop, outputs);
    // As many as are looked at, and as rules may take away or lower.
    const auto looked_at = static_cast<int64_t>(looks_ * rows_);
    const int64_t lowered = m_.sampling.looks_back() ? std::ssize(alive_[0].ids) + 1 : 0;
    const int64_t needed = std::min(outputs, looked_at + most_restricted(m_) + lowered);
    if (m_.sampling.repetition_penalty < 1 || needed > most) return {};
    return {StepResult::top, m_.sampling.looks_back() ? most : needed};
  }

  void choose(const Session& session, const DeviceCompute* found, int64_t first_row) override {
    const std::vector<Candidate> all = best(session, found, first_row);
    // Changes nothing before all memory is there.
    std::vector<Hypothesis> grown, ended;
    std::vector<uint32_t> from;
    from.reserve(rows_);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const Candidate& c = all[rank];
      Hypothesis h{alive_[c.row].ids, c.log_probability};
      const bool ends = is_end(m_, c.id);
      h.ids.push_back(ends ? vocabulary_.end_id() : c.id);
      if (ends || h.ids.size() == max_tokens_) {
        // An end counts where it is among the best, as elsewhere in the field.
        if (rank < width_) ended.push_back(std::move(h));
      } else if (grown.size() < width_) {
        grown.push_back(std::move(h));
        from.push_back(c.row);
      }
    }
    if (grown.empty() && ended.empty() && ended_.empty())
      fail(ATTN_INVALID, "{}", nothing_left_message(session.position(0)));
    for (Hypothesis& h : ended) end(std::move(h));
    alive_ = std::move(grown);
    if (m_.early_stop == EarlyStop::shrink) width_ = alive_.size();
    over = is_over();
    if (over) return;
    for (size_t r = 0; r < rows_; ++r) next.push_back(alive_[r < alive_.size() ? r : 0].ids.back());
    from.resize(rows_, from[0]);
    parents = std::move(from);
  }

 private:
  // The best continuations over all rows; ties by row, then id, so that a search repeats itself.
  std::vector<Candidate> best(const Session& session, const DeviceCompute* found, int64_t first_row) const {
    const size_t count = looks_ * width_;
    const bool rules = restricts(m_) || m_.sampling.looks_back();
    std::vector<Candidate> all;
    const auto add = [&](uint32_t r, double norm, std::span<const Ranked> tokens) {
      for (const auto& [id, score] : tokens)
        if (may_come(score)) all.push_back({alive_[r].log_probability + score - norm, r, id});
    };
    for (uint32_t r = 0; r < alive_.size(); ++r) {
      const std::span last(session.last(static_cast<int>(r)), static_cast<size_t>(session.model().outputs()));
      double norm = found ? found->norms()[static_cast<size_t>(first_row) + r] : log_sum(last);
      if (std::isnan(norm)) fail(ATTN_INTERNAL, "{}", nan_message(session.position(static_cast<int>(r)) - 1));
      if (found) {
        std::vector<Ranked> tokens = found->top(first_row + r);
        if (rules)
          obey(session, r, norm, tokens, [&tokens](const auto& visit) {
            for (auto& [id, score] : tokens) visit(score);
          });
        add(r, norm, tokens);
      } else if (rules) {
        std::vector<float> scores(last.begin(), last.end());
        obey(session, r, norm, scores, [&scores](const auto& visit) { std::ranges::for_each(scores, visit); });
        add(r, norm, highest(scores, count));
      } else {
        add(r, norm, highest(last, count));
      }
    }
    std::ranges::sort(all, [](const Candidate& a, const Candidate& b) {
      return a.log_probability != b.log_probability ? a.log_probability > b.log_probability
                                                    : std::pair(a.row, a.id) < std::pair(b.row, b.id);
    });
    all.resize(std::min(count, all.size()));
    return all;
  }

  // Changes the scores of a row, and their log sum, as [decode] says.  each: calls its argument with all that `scores`
  // has.
  template <class Scores, class Each>
  void obey(const Session& session, uint32_t r, double& norm, Scores& scores, const Each& each) const {
    // A suppressed token keeps its probability from the others, a forced one is certain, as with transformers.
    if (restrict_scores(m_, session.position(static_cast<int>(r)), scores))
      each([&norm](float score) { norm = may_come(score) ? score : norm; });
    if (!m_.sampling.looks_back()) return;
    // At log probabilities, as transformers does.
    each([norm](float& score) { score = static_cast<float>(score - norm); });
    norm = 0;
    const int32_t begin = vocabulary_.begin_id();
    Sampler before(m_.sampling);
    if (begins_) before.saw({&begin, 1});
    before.saw(alive_[r].ids);
    before.look_back(scores);
  }

  void end(Hypothesis h) {
    const double score = h.score(h.ids.size(), m_.length_penalty);
    const auto at = std::ranges::upper_bound(ended_, score, std::greater());
    if (at == ended_.begin()) made = std::move(h.ids);
    ended_.insert(at, score);
    if (ended_.size() > rows_) ended_.pop_back();
  }

  // Whether nothing is alive that is waited for.
  bool is_over() const {
    if (alive_.empty()) return true;
    if (ended_.empty() || m_.early_stop == EarlyStop::shrink) return false;
    // No hypothesis that is alive can still win when even a certain continuation of the best to the limit could not.
    if (m_.early_stop == EarlyStop::never) return ended_.front() >= alive_[0].score(max_tokens_, m_.length_penalty);
    if (ended_.size() < rows_) return false;
    return m_.early_stop == EarlyStop::full ||
           ended_.back() >= alive_[0].score(alive_[0].ids.size(), m_.length_penalty);
  }

  const Manifest& m_;
  const Tokenizer& vocabulary_;
  const size_t rows_;
  // For each row that the search keeps, so many candidates are looked at.  Of these at least one ends nothing; where
  // the search shrinks, none beyond the first is wanted.
  const size_t looks_;
  const bool begins_;  // <s> is written by the search
  size_t width_;       // rows that the search keeps
  size_t max_tokens_ = 0;
  std::vector<Hypothesis> alive_{1};  // all rows are alike at first, so only one of them counts
  std::vector<double> ended_;         // scores of the `rows` best that ended, best first
};

}  // namespace

std::unique_ptr<Generation> search_beams(const Session& session, int64_t limit) {
  return std::make_unique<BeamSearch>(session, limit);
}

}  // namespace attnkit::core
