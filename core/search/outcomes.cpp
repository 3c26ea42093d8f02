#include "core/search/outcomes.hpp"

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int kResamples = 1000;
constexpr uint64_t kSeed = 1;

size_t size_of(Metric metric, const Outcomes& outcomes) {
  return metric == Metric::bleu ? outcomes.pairs.size() : outcomes.tokens.size();
}

void check(Metric metric, const Outcomes& outcomes, size_t n) {
  if (n > size_of(metric, outcomes)) fail(Fault::internal, "{} examples of {} measured", n, size_of(metric, outcomes));
}

// Every metric but bleu is a sum of parts over a sum of wholes.
struct Share {
  double part, whole;
};

Share share_of(Metric metric, const Outcomes& o, size_t i) {
  if (metric == Metric::exact) return {o.right[i] == o.tokens[i] ? 100.0 : 0.0, 1};
  const double tokens = o.tokens[i];
  if (metric == Metric::cosine) return {tokens - static_cast<double>(o.nll[i]), tokens};
  return metric == Metric::accuracy ? Share{100.0 * o.right[i], tokens} : Share{-static_cast<double>(o.nll[i]), tokens};
}

Share sum_of(Metric metric, const Outcomes& o, size_t n) {
  Share sum{0, 0};
  for (size_t i = 0; i < n; ++i) {
    const Share one = share_of(metric, o, i);
    sum.part += one.part;
    sum.whole += one.whole;
  }
  return sum;
}

BleuStats corpus_of(const Outcomes& o, size_t n) {
  return std::accumulate(o.pairs.begin(), o.pairs.begin() + static_cast<std::ptrdiff_t>(n), BleuStats(),
                         [](BleuStats sum, const BleuStats& pair) { return sum += pair; });
}

// The gradient of log(bleu) in the counts of the corpus, times the counts of one pair.
double log_bleu_slope(const BleuStats& corpus, const BleuStats& pair) {
  double slope = 0;
  for (size_t i = 0; i < corpus.totals.size(); ++i) {
    if (corpus.matches[i] > 0)
      slope += static_cast<double>(pair.matches[i]) / static_cast<double>(corpus.matches[i]) / 4;
    slope -= static_cast<double>(pair.totals[i]) / static_cast<double>(corpus.totals[i]) / 4;
  }
  const double hypothesis = static_cast<double>(corpus.hypothesis), reference = static_cast<double>(corpus.reference);
  if (corpus.hypothesis < corpus.reference)
    slope += reference / hypothesis * (static_cast<double>(pair.hypothesis) / hypothesis) -
             static_cast<double>(pair.reference) / hypothesis;
  return slope;
}

std::vector<double> bleu_influences(const Outcomes& o, size_t n) {
  const BleuStats corpus = corpus_of(o, n);
  const double value = bleu(corpus);
  std::vector<double> found(n, 0);
  if (value == 0) return found;
  for (size_t i = 0; i < n; ++i) found[i] = value * static_cast<double>(n) * log_bleu_slope(corpus, o.pairs[i]);
  // If n-grams without a match are smoothed, the gradient is not of degree 0.
  const double mean = std::accumulate(found.begin(), found.end(), 0.0) / static_cast<double>(n);
  for (double& f : found) f -= mean;
  return found;
}

Interval bleu_bootstrap(const Outcomes& a, const Outcomes& b, size_t n) {
  std::mt19937_64 random(kSeed);
  std::vector<double> differences;
  for (int r = 0; r < kResamples; ++r) {
    BleuStats sum_a, sum_b;
    for (size_t i = 0; i < n; ++i) {
      const size_t drawn = random() % n;
      sum_a += a.pairs[drawn];
      sum_b += b.pairs[drawn];
    }
    differences.push_back(bleu(sum_a) - bleu(sum_b));
  }
  return {quantile(differences, 0.025), quantile(differences, 0.975)};
}

double mcnemar(int64_t won, int64_t lost) {
  if (won == lost) return 1;
  const boost::math::binomial even(static_cast<double>(won + lost), 0.5);
  return std::min(1.0, 2 * boost::math::cdf(even, static_cast<double>(std::min(won, lost))));
}

}  // namespace

void Outcomes::resize(size_t examples) {
  tokens.resize(examples);
  right.resize(examples);
  nll.resize(examples);
}

void Outcomes::set(size_t example, int64_t count, int64_t right_ones, double nats) {
  tokens[example] = static_cast<int32_t>(count);
  right[example] = static_cast<int32_t>(right_ones);
  nll[example] = static_cast<float>(nats);
}

void Outcomes::put(size_t from, const Outcomes& piece) {
  const auto place = [from](auto& to, const auto& part) {
    to.resize(std::max(to.size(), from + part.size()));
    std::ranges::copy(part, to.begin() + static_cast<std::ptrdiff_t>(from));
  };
  place(tokens, piece.tokens);
  place(right, piece.right);
  place(nll, piece.nll);
  place(pairs, piece.pairs);
}

void to_json(nlohmann::json& json, const Outcomes& outcomes) {
  json = {{"tokens", outcomes.tokens}, {"right", outcomes.right}, {"nll", outcomes.nll}};
  if (outcomes.pairs.empty()) return;
  json["pairs"] = nlohmann::json::array();
  for (const BleuStats& p : outcomes.pairs) {
    nlohmann::json counts = p.matches;
    for (const int64_t total : p.totals) counts.push_back(total);
    counts.push_back(p.hypothesis);
    counts.push_back(p.reference);
    json["pairs"].push_back(std::move(counts));
  }
}

void from_json(const nlohmann::json& json, Outcomes& outcomes) {
  json.at("tokens").get_to(outcomes.tokens);
  json.at("right").get_to(outcomes.right);
  json.at("nll").get_to(outcomes.nll);
  if (!json.contains("pairs")) return;
  for (const auto& counts : json["pairs"]) {
    BleuStats& p = outcomes.pairs.emplace_back();
    for (size_t i = 0; i < 4; ++i) {
      p.matches[i] = counts.at(i);
      p.totals[i] = counts.at(4 + i);
    }
    p.hypothesis = counts.at(8);
    p.reference = counts.at(9);
  }
}

bool is_share(Metric metric, const Outcomes& outcomes, size_t n) {
  const auto end = outcomes.tokens.begin() + static_cast<std::ptrdiff_t>(std::min(n, outcomes.tokens.size()));
  return metric == Metric::exact ||
         (metric == Metric::accuracy && std::all_of(outcomes.tokens.begin(), end, [](int32_t n) { return n == 1; }));
}

double score_of(Metric metric, const Outcomes& outcomes, size_t n) {
  check(metric, outcomes, n);
  if (metric == Metric::bleu) return n == 0 ? kNaN : bleu(corpus_of(outcomes, n));
  const Share sum = sum_of(metric, outcomes, n);
  return sum.whole == 0 ? kNaN : sum.part / sum.whole;
}

std::vector<double> influences(Metric metric, const Outcomes& outcomes, size_t n) {
  check(metric, outcomes, n);
  if (metric == Metric::bleu) return bleu_influences(outcomes, n);
  const Share sum = sum_of(metric, outcomes, n);
  std::vector<double> found;
  for (size_t i = 0; i < n; ++i) {
    const Share one = share_of(metric, outcomes, i);
    found.push_back((one.part - sum.part / sum.whole * one.whole) * static_cast<double>(n) / sum.whole);
  }
  return found;
}

Difference difference(Metric metric, const Outcomes& candidate, const Outcomes& other, size_t n, bool resample) {
  Difference found{score_of(metric, candidate, n) - score_of(metric, other, n), {kNaN, kNaN}};
  if (n == 0) return found;
  if (metric == Metric::bleu && resample) {
    found.interval = bleu_bootstrap(candidate, other, n);
    return found;
  }
  const std::vector<double> a = influences(metric, candidate, n), b = influences(metric, other, n);
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  double centre = found.value, count = static_cast<double>(n);
  if (is_share(metric, other, n)) {
    int64_t won = 0, lost = 0;
    for (size_t i = 0; i < n; ++i) {
      const bool mine = candidate.right[i] == candidate.tokens[i], theirs = other.right[i] == other.tokens[i];
      won += mine && !theirs;
      lost += theirs && !mine;
    }
    found.p = mcnemar(won, lost);
    count += 2;
    centre *= static_cast<double>(n) / count;
    squares = 100.0 * 100.0 * static_cast<double>(won + lost + 2) - count * centre * centre;
  }
  const double half = kNormal95 * std::sqrt(squares) / count;
  found.interval = {centre - half, centre + half};
  return found;
}

}  // namespace attnkit::core::search
