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

// Adds the continuations of a row.  norm: log sum of its scores.  each: calls its argument with the id and the score of
// all that `scores` has.
template <class Scores, class Each>
void add_row(const Session& session, const Hypothesis& h, uint32_t r, double norm, Scores& scores, const Each& each,
             std::vector<Candidate>& all) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  const Manifest& m = session.model().manifest();
  const int64_t written = session.position(static_cast<int>(r));
  if (std::isnan(norm)) fail(ATTN_INTERNAL, "{}", nan_message(written - 1));
  // A suppressed token keeps its probability from the others, a forced one is certain, as with transformers.
  if (restrict_scores(m, written, scores)) each([&](int32_t, float score) { norm = score > never ? score : norm; });
  if (m.sampling.looks_back()) {  // at log probabilities, as transformers does
    each([norm](int32_t, float& score) { score = static_cast<float>(score - norm); });
    norm = 0;
    const int32_t begin = session.model().vocabulary(true)->begin_id();
    Sampler before(m.sampling);
    before.saw({&begin, 1});
    before.saw(h.ids);
    before.look_back(scores);
  }
  each([&](int32_t id, float score) {
    if (score > never) all.push_back({h.log_probability + score - norm, r, id});
  });
}

// The best continuations over all rows, of the highest scores of each that a device found where it did.
std::vector<Candidate> best(const Session& session, const std::vector<Hypothesis>& alive, size_t count,
                            const DeviceCompute* found) {
  std::vector<Candidate> all;
  for (uint32_t r = 0; r < alive.size(); ++r) {
    if (found) {
      std::vector<Ranked> highest = found->top(r);
      const auto each = [&highest](const auto& visit) {
        for (auto& [id, score] : highest) visit(id, score);
      };
      add_row(session, alive[r], r, found->norms()[r], highest, each, all);
    } else {
      const float* const last = session.last(static_cast<int>(r));
      std::vector<float> scores(last, last + session.model().outputs());
      const auto each = [&scores](const auto& visit) {
        for (size_t i = 0; i < scores.size(); ++i) visit(static_cast<int32_t>(i), scores[i]);
      };
      add_row(session, alive[r], r, log_sum(scores), scores, each, all);
    }
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
  const size_t looks = shrinks ? 1 : 2 + m.more_ends.size();
  std::vector<Hypothesis> alive(1);  // all rows are alike at first, so only one of them counts
  // On a device the highest scores of each row are enough: as many, and as many as rules may take away or lower.
  const int64_t most = std::min<int64_t>(kMostOfTop, model.outputs());
  const auto needed = [&] {
    const auto length = std::ssize(alive[0].ids), lowered = m.sampling.looks_back() ? length + 1 : 0;
    return std::min<int64_t>(model.outputs(), static_cast<int64_t>(looks * rows) + most_restricted(m) + lowered);
  };
  std::optional<Session::Steps> steps;
  if (model.on_device() && m.sampling.repetition_penalty >= 1 && needed() <= most)
    steps.emplace(session, StepResult{StepResult::top, m.sampling.looks_back() ? most : needed()});
  // The longest target is written in full; nothing follows it.
  const auto max_tokens = static_cast<size_t>(std::min<int64_t>(limit, m.max_target() - session.position(0) + 1));
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
    if (steps && needed() > most) {
      steps->finish();
      steps.reset();
    }
    const bool written = steps && alive[0].ids.size() > 0;  // by steps
    for (const Candidate& c : best(session, alive, looks * width, written ? &steps->results() : nullptr)) {
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
  if (ended.empty()) fail(ATTN_INVALID, "{}", nothing_left_message(session.position(0)));
  return found.ids;
}

}  // namespace attnkit::core
