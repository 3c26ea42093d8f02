// Beam search: keeps the `rows` best unfinished hypotheses; score = log probability / length^length_penalty.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/greedy.hpp"
#include "core/session/session.hpp"

namespace attnkit {
namespace {

struct Hypothesis {
  std::vector<int32_t> ids;
  double log_probability = 0;
};

struct Candidate {
  double log_probability;
  uint32_t row;
  int32_t id;
};

double log_normaliser(const float* scores, int64_t n) {
  const double top = *std::max_element(scores, scores + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(scores[i] - top);
  return top + std::log(sum);
}

double score(double log_probability, size_t length, double penalty) {
  return log_probability / std::pow(static_cast<double>(length), penalty);
}

// The best continuations over all rows, best first; ties by row, then id, so that a search repeats itself.
std::vector<Candidate> best(const Session& session, const std::vector<Hypothesis>& alive, size_t count) {
  const int64_t outputs = session.model().outputs();
  std::vector<Candidate> all;
  for (uint32_t r = 0; r < alive.size(); ++r) {
    const float* scores = session.last(static_cast<int>(r));
    const double norm = log_normaliser(scores, outputs);
    if (std::isnan(norm)) fail(ATTN_INTERNAL, "{}", nan_message(session.position(static_cast<int>(r)) - 1));
    for (int64_t i = 0; i < outputs; ++i)
      all.push_back({alive[r].log_probability + scores[i] - norm, r, static_cast<int32_t>(i)});
  }
  count = std::min(count, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<int64_t>(count), all.end(),
                    [](const Candidate& a, const Candidate& b) {
                      return a.log_probability != b.log_probability ? a.log_probability > b.log_probability
                                                                    : std::pair(a.row, a.id) < std::pair(b.row, b.id);
                    });
  all.resize(count);
  return all;
}

}  // namespace

std::vector<int32_t> beam_search(Session& session, int64_t limit) {
  const Model& model = session.model();
  const Vocabulary& vocabulary = *model.vocabulary(true);
  const size_t rows = static_cast<size_t>(session.rows());
  const double penalty = model.manifest().length_penalty;
  std::vector<int32_t> next(rows, vocabulary.begin_id());
  Session* const self = &session;
  const auto push = [&] { Session::write({&self, 1}, {next.data(), 1, session.rows(), 1, nullptr}, nullptr); };
  if (session.position(0) == 0) push();
  std::vector<Hypothesis> alive(1);  // all rows are alike at first, so only one of them counts
  Hypothesis found;
  double found_score = -std::numeric_limits<double>::infinity();
  for (int64_t t = 0; t < limit; ++t) {
    std::vector<Hypothesis> grown;
    std::vector<uint32_t> parents;
    for (const Candidate& c : best(session, alive, 2 * rows)) {
      Hypothesis h{alive[c.row].ids, c.log_probability};
      h.ids.push_back(c.id);
      const double s = score(c.log_probability, h.ids.size(), penalty);
      if (c.id == vocabulary.end_id() || t + 1 == limit) {
        if (s > found_score) {
          found_score = s;
          found = std::move(h);
        }
      } else if (grown.size() < rows) {
        grown.push_back(std::move(h));
        parents.push_back(c.row);
      }
    }
    if (grown.empty()) break;
    // No hypothesis that is alive can still win when even certain continuations to the limit could not.
    const double hope = std::max(score(grown[0].log_probability, grown[0].ids.size(), penalty),
                                 score(grown[0].log_probability, static_cast<size_t>(limit), penalty));
    if (found_score >= hope || session.position(0) >= model.manifest().max_length) break;
    for (size_t r = 0; r < rows; ++r) next[r] = r < grown.size() ? grown[r].ids.back() : next[0];
    parents.resize(rows, parents[0]);
    session.reorder(parents);
    push();
    alive = std::move(grown);
  }
  return found.ids.empty() ? alive[0].ids : found.ids;
}

}  // namespace attnkit
