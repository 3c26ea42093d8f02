// Beam search against all outputs that there are, and against a search that never stops early.
#include <algorithm>
#include <set>

#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

constexpr int32_t begin = 1, end = 2;
const std::vector<int32_t> source = {3, 4, 3, 2};

// Of five tokens, two of which are <pad> and <s>.
std::shared_ptr<const Model> model_with(double penalty, unsigned seed, int max_length = 40,
                                        const std::string& early_stop = "never",
                                        const std::string& extra_decoder = "") {
  TinyModel tiny;
  tiny.vocab = 5;
  tiny.seed = seed;
  tiny.max_length = max_length;
  tiny.extra_decoder = extra_decoder;
  tiny.tail = "[decode]\nlength_penalty = " + std::to_string(penalty) + "\nearly_stop = \"" + early_stop + "\"\n";
  return load(tiny);
}

std::unique_ptr<Session> open(const std::shared_ptr<const Model>& model, int rows) {
  auto session = std::make_unique<Session>(model, rows);
  session->read(ids_of(source));
  return session;
}

struct Output {
  std::vector<int32_t> ids;
  double log_probability = 0;
  double score(double penalty) const { return log_probability / std::pow(static_cast<double>(ids.size()), penalty); }
};

// The possible next tokens: the log probability of each token after these, in a session of their own.
std::vector<double> log_probabilities(const std::shared_ptr<const Model>& model, const std::vector<int32_t>& ids) {
  const auto session = open(model, 1);
  write({session.get()}, {begin}, 1);
  for (const int32_t id : ids) write({session.get()}, {id}, 1);
  const float* scores = session->last(0);
  std::vector<double> out(scores, scores + model->outputs());
  const double top = *std::max_element(out.begin(), out.end());
  double sum = 0;
  for (const double s : out) sum += std::exp(s - top);
  for (double& s : out) s -= top + std::log(sum);
  return out;
}

// All outputs of up to `limit` tokens: those that end in </s>, and those that the limit cuts off.
void enumerate(const std::shared_ptr<const Model>& model, size_t limit, const Output& begun, std::vector<Output>& all) {
  const std::vector<double> next = log_probabilities(model, begun.ids);
  for (int32_t id = 0; id < static_cast<int32_t>(next.size()); ++id) {
    Output grown = begun;
    grown.ids.push_back(id);
    grown.log_probability += next[static_cast<size_t>(id)];
    if (id == end || grown.ids.size() == limit)
      all.push_back(grown);
    else
      enumerate(model, limit, grown, all);
  }
}

// A beam search that goes on to the limit; where it shrinks, until all its rows have ended.  An output that ends in one
// of `ends` is written with </s>.
std::vector<int32_t> full_search(const std::shared_ptr<const Model>& model, size_t rows, size_t limit, double penalty,
                                 bool shrinks = false, const std::set<int32_t>& ends = {end}) {
  std::vector<Output> alive(1), found;
  for (size_t t = 0; t < limit && !alive.empty(); ++t) {
    std::vector<Output> grown;
    for (const Output& a : alive) {
      const std::vector<double> next = log_probabilities(model, a.ids);
      for (size_t id = 0; id < next.size(); ++id) {
        grown.push_back(a);
        grown.back().ids.push_back(ends.contains(static_cast<int32_t>(id)) ? end : static_cast<int32_t>(id));
        grown.back().log_probability += next[id];
      }
    }
    std::stable_sort(grown.begin(), grown.end(),
                     [](const Output& a, const Output& b) { return a.log_probability > b.log_probability; });
    grown.resize(std::min(grown.size(), shrinks ? rows : (1 + ends.size()) * rows));
    alive.clear();
    for (size_t rank = 0; rank < grown.size(); ++rank)
      if (const Output& g = grown[rank]; g.ids.back() != end && t + 1 < limit) {
        if (alive.size() < rows) alive.push_back(g);
      } else if (rank < rows) {
        found.push_back(g);
      }
    if (shrinks) rows = alive.size();
  }
  return std::max_element(found.begin(), found.end(),
                          [&](const Output& a, const Output& b) { return a.score(penalty) < b.score(penalty); })
      ->ids;
}

TEST(BeamSearch, FindsTheBestOutputOfAllWhenNoneIsDropped) {
  std::set<size_t> lengths;
  for (const unsigned seed : {1u, 2u, 3u, 5u}) {
    constexpr size_t limit = 4;
    std::vector<Output> all;
    enumerate(model_with(1, seed), limit, {}, all);
    for (const double penalty : {0.0, 0.5, 1.0, 2.0, 6.0}) {
      const std::vector<int32_t> ids = open(model_with(penalty, seed), 64)->generate(limit);
      const auto best = std::max_element(all.begin(), all.end(), [&](const Output& a, const Output& b) {
        return a.score(penalty) < b.score(penalty);
      });
      EXPECT_EQ(ids, best->ids) << "seed " << seed << ", penalty " << penalty;
      lengths.insert(ids.size());
    }
  }
  EXPECT_GE(lengths.size(), 3u) << "the penalties lead to outputs of many lengths";
}

TEST(BeamSearch, StopsEarlyOnlyWhereNothingBetterCanCome) {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u, 6u})
    for (const double penalty : {0.0, 0.5, 1.0, 3.0})
      for (const int rows : {2, 3}) {
        const auto model = model_with(penalty, seed);
        for (const size_t limit : {size_t{1}, size_t{3}, size_t{9}})
          EXPECT_EQ(open(model, rows)->generate(static_cast<int64_t>(limit)),
                    full_search(model, static_cast<size_t>(rows), limit, penalty))
              << "seed " << seed << ", penalty " << penalty << ", " << rows << " rows, limit " << limit;
      }
}

TEST(BeamSearch, LooksFurtherWhereSeveralTokensEndATarget) {
  for (const unsigned seed : {1u, 10u})
    for (const double penalty : {0.0, 3.0})
      for (const int rows : {2, 3}) {
        const auto model = model_with(penalty, seed, 40, "never", ", more_ends = [2, 3, 4]");
        EXPECT_EQ(open(model, rows)->generate(9),
                  full_search(model, static_cast<size_t>(rows), 9, penalty, false, {end, 3, 4}))
            << "seed " << seed << ", penalty " << penalty << ", " << rows << " rows";
      }
}

TEST(BeamSearch, MayGiveARowAwayWithEachOutputThatEnds) {
  int others = 0;
  for (unsigned seed = 1; seed <= 20 && (seed <= 2 || others == 0); ++seed)
    for (const double penalty : {0.0, 1.0, 3.0})
      for (const int rows : {2, 4}) {
        const auto model = model_with(penalty, seed, 40, "shrink");
        const std::vector<int32_t> ids = open(model, rows)->generate(9);
        EXPECT_EQ(ids, full_search(model, static_cast<size_t>(rows), 9, penalty, true))
            << "seed " << seed << ", penalty " << penalty << ", " << rows << " rows";
        others += ids != open(model_with(penalty, seed), rows)->generate(9);
      }
  EXPECT_GT(others, 0) << "another search finds the same outputs";
}

// If max_length ends the search instead of the limit, outputs that could not end are compared with those that did.
TEST(BeamSearch, EndsAtMaxLengthAsAtALimit) {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
    const auto model = model_with(1, seed, 5);
    const std::vector<int32_t> ids = open(model, 3)->generate(5);
    EXPECT_EQ(ids, open(model, 3)->generate(100)) << "seed " << seed;
    const auto begun = open(model, 3);
    write({begun.get()}, {begin, begin, begin}, 1);
    EXPECT_EQ(ids, begun->generate(100)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace attnkit::test
