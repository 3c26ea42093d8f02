// Beam search: keeps the `rows` best unfinished hypotheses, fewer where those that end take their rows along; score =
// log probability / length^length_penalty.  When it ends is what [decode] early_stop says.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/base/greedy.hpp"
#include "core/base/sampler.hpp"
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

// The `count` best, best first; ties by row, then id, so that a search repeats itself.
std::vector<Candidate> sorted(std::vector<Candidate> all, size_t count) {
  count = std::min(count, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<int64_t>(count), all.end(),
                    [](const Candidate& a, const Candidate& b) {
                      return a.log_probability != b.log_probability ? a.log_probability > b.log_probability
                                                                    : std::pair(a.row, a.id) < std::pair(b.row, b.id);
                    });
  all.resize(count);
  return all;
}

// The same of those that a device found in each row, `each` of them.
std::vector<Candidate> best(const Session& session, const std::vector<Hypothesis>& alive, size_t count,
                            const DeviceCompute& found, size_t each) {
  std::vector<Candidate> all;
  for (uint32_t r = 0; r < alive.size(); ++r) {
    const double norm = found.norms()[r];
    if (std::isnan(norm)) fail(ATTN_INTERNAL, "{}", nan_message(session.position(static_cast<int>(r)) - 1));
    for (size_t i = r * each; i < (r + 1) * each; ++i)
      if (found.top()[i] > -std::numeric_limits<float>::infinity())
        all.push_back({alive[r].log_probability + found.top()[i] - norm, r, found.ids()[i]});
  }
  return sorted(std::move(all), count);
}

// The best continuations over all rows.
std::vector<Candidate> best(const Session& session, const std::vector<Hypothesis>& alive, size_t count) {
  const int64_t outputs = session.model().outputs();
  const int32_t begin = session.model().vocabulary(true)->begin_id();
  std::vector<Candidate> all;
  for (uint32_t r = 0; r < alive.size(); ++r) {
    const int row = static_cast<int>(r);
    std::vector<float> scores(session.last(row), session.last(row) + outputs);
    double norm = log_sum(scores);
    if (std::isnan(norm)) fail(ATTN_INTERNAL, "{}", nan_message(session.position(static_cast<int>(r)) - 1));
    // A suppressed token keeps its probability from the others, a forced one is certain, as with transformers.
    const Manifest& m = session.model().manifest();
    if (restrict_scores(m, session.position(row), scores)) norm = log_sum(scores);
    if (m.sampling.looks_back()) {  // at log probabilities, as transformers does
      for (float& score : scores) score = static_cast<float>(score - norm);
      norm = 0;
      Sampler before(m.sampling);
      before.saw({&begin, 1});
      before.saw(alive[r].ids);
      before.look_back(scores);
    }
    for (int64_t i = 0; i < outputs; ++i)
      if (scores[i] > -std::numeric_limits<float>::infinity())
        all.push_back({alive[r].log_probability + scores[i] - norm, r, static_cast<int32_t>(i)});
  }
  return sorted(std::move(all), count);
}

}  // namespace

std::vector<int32_t> beam_search(Session& session, int64_t limit) {
  const Model& model = session.model();
  const Tokenizer& vocabulary = *model.vocabulary(true);
  const size_t rows = static_cast<size_t>(session.rows());
  const Manifest& m = model.manifest();
  const double penalty = m.length_penalty;
  const bool shrinks = m.early_stop == EarlyStop::shrink;
  size_t width = rows;  // of the search
  Session* const self = &session;
  const auto write = [&](const std::vector<int32_t>& ids) {
    Session::write({&self, 1}, {ids.data(), 1, session.rows(), 1, nullptr}, nullptr);
  };
  if (session.position(0) == 0) write(std::vector<int32_t>(rows, vocabulary.begin_id()));
  // At least `width` of these end nothing; where the search shrinks, none beyond `width` is looked at.
  const size_t looks = shrinks ? 1 : 2 + m.more_ends.size(), each = looks * rows;
  std::optional<Session::Steps> steps;  // on a device that can say which scores are the highest
  if (model.on_device() && !restricts(m) && !m.sampling.looks_back() &&
      static_cast<int64_t>(each) <= std::min<int64_t>(kMostOfTop, model.outputs()))
    steps.emplace(session, StepResult{StepResult::top, static_cast<int64_t>(each)});
  // The longest target is written in full; nothing follows it.
  const auto max_tokens = static_cast<size_t>(std::min<int64_t>(limit, m.max_target() - session.position(0) + 1));
  std::vector<Hypothesis> alive(1);  // all rows are alike at first, so only one of them counts
  Hypothesis found;
  std::vector<double> ended;  // scores of the `rows` best that ended, best first
  // Whether nothing that is alive, of `length` tokens so far, is waited for.
  const auto is_over = [&](size_t length) {
    if (ended.empty() || shrinks) return false;
    // No hypothesis that is alive can still win when even a certain continuation of the best to the limit could not.
    if (m.early_stop == EarlyStop::never) return ended.front() >= alive[0].score(max_tokens, penalty);
    if (ended.size() < rows) return false;
    return m.early_stop == EarlyStop::full || ended.back() >= alive[0].score(length, penalty);
  };
  while (!alive.empty()) {
    std::vector<Hypothesis> grown;
    std::vector<uint32_t> parents;
    size_t rank = 0;
    const bool written = steps && alive[0].ids.size() > 0;  // by steps
    for (const Candidate& c :
         written ? best(session, alive, looks * width, steps->results(), each) : best(session, alive, looks * width)) {
      const bool leads = rank++ < width;
      Hypothesis h{alive[c.row].ids, c.log_probability};
      const bool ends = is_end(m, c.id);
      h.ids.push_back(ends ? vocabulary.end_id() : c.id);
      const size_t length = h.ids.size();
      if (ends || length == max_tokens) {
        // An end counts where it is among the best `rows`, as elsewhere in the field.
        if (!leads) continue;
        const double score = h.score(length, penalty);
        if (ended.empty() || score > ended.front()) found = std::move(h);
        ended.insert(std::ranges::upper_bound(ended, score, std::greater()), score);
        if (ended.size() > rows) ended.pop_back();
      } else if (grown.size() < width) {
        grown.push_back(std::move(h));
        parents.push_back(c.row);
      }
    }
    alive = std::move(grown);
    if (alive.empty()) break;
    if (shrinks) width = alive.size();
    if (is_over(alive[0].ids.size())) break;
    std::vector<int32_t> next;
    for (size_t r = 0; r < rows; ++r) next.push_back(alive[r < alive.size() ? r : 0].ids.back());
    parents.resize(rows, parents[0]);
    session.reorder(parents);
    if (steps)
      steps->write({next.data(), 1, session.rows(), 1, nullptr});
    else
      write(next);
  }
  if (steps) steps->finish();
  return found.ids;
}

}  // namespace attnkit::core
