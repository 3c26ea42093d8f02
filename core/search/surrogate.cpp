#include "core/search/surrogate.hpp"

#include <algorithm>
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/simd.hpp>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/search/cholesky.hpp"

namespace attnkit::core::search {
namespace {

constexpr size_t max_shaping = 128;  // placements that decide on the shape: it is known from few
constexpr int max_sweeps = 20;       // of a climb, which ends by itself after three or four

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Makes b what root * root' takes to it.
struct Solve {
  const double* root;
  double* b;
  size_t n;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (size_t i = 0; i < n; ++i)
      b[i] = (b[i] - simd::dot<Isa>(root + i * n, static_cast<const double*>(b), static_cast<int64_t>(i))) /
             root[i * n + i];
    for (size_t i = n; i-- > 0;) {
      b[i] /= root[i * n + i];
      for (size_t j = 0; j < i; ++j) b[j] -= b[i] * root[i * n + j];
    }
  }
};

std::vector<double> solve(const std::vector<double>& root, std::vector<double> b) {
  simd::dispatch(Solve{root.data(), b.data(), b.size()});
  return b;
}

// The diagonal of the inverse of root * root'.
struct InverseDiagonal {
  const double* root;
  double* diagonal;
  double* column;
  size_t n;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (size_t i = 0; i < n; ++i) {
      const double* const known = column + i;
      for (size_t k = i; k < n; ++k) {
        const double sum = simd::dot<Isa>(root + k * n + i, known, static_cast<int64_t>(k - i));
        column[k] = ((k == i ? 1 : 0) - sum) / root[k * n + k];
      }
      diagonal[i] = simd::dot<Isa>(known, known, static_cast<int64_t>(n - i));
    }
  }
};

std::vector<double> inverse_diagonal(const std::vector<double>& root, size_t n) {
  std::vector<double> diagonal(n), column(n);
  simd::dispatch(InverseDiagonal{root.data(), diagonal.data(), column.data(), n});
  return diagonal;
}

// A fixed number for each pair of numbers, as if drawn from a normal distribution: 64 tossed coins are near enough.
double normal(uint64_t a, uint64_t b) { return (std::popcount(Random::mix(Random::plain(a).bits() + b)) - 32) / 4.0; }

uint64_t cell(size_t block, int choice) { return block * 4096 + static_cast<uint64_t>(choice) + 1; }

int agreement(const Placement& a, const Placement& b) {
  int same = 0;
  for (size_t s = 0; s < a.size(); ++s) same += a[s] == b[s];
  return same;
}

}  // namespace

HeldOut compare(std::span<const double> predicted, std::span<const double> measured) {
  const size_t n = measured.size();
  double squares = 0, concordance = 0, untied_predicted = 0, untied_measured = 0;
  const auto sign = [](double x) { return (x > 0) - (x < 0); };
  for (size_t i = 0; i < n; ++i) {
    squares += (predicted[i] - measured[i]) * (predicted[i] - measured[i]);
    for (size_t j = 0; j < i; ++j) {
      const int p = sign(predicted[i] - predicted[j]), m = sign(measured[i] - measured[j]);
      concordance += p * m;
      untied_predicted += p * p;
      untied_measured += m * m;
    }
  }
  return {std::sqrt(squares / static_cast<double>(n)), concordance / std::sqrt(untied_predicted * untied_measured), n};
}

Surrogate::Surrogate(const std::vector<Placement>& placements, std::vector<double> values)
    : placements_(placements), blocks_(placements.front().size()), values_(std::move(values)) {
  const auto n = static_cast<double>(values_.size());
  mean_ = std::accumulate(values_.begin(), values_.end(), 0.0) / n;
  for (double v : values_) spread_ += (v - mean_) * (v - mean_) / n;
  spread_ = std::sqrt(spread_);
  // Rounding is no spread.
  if (!(spread_ > 1e-12 * std::abs(mean_))) spread_ = 0;
  for (double& v : values_) v = spread_ > 0 ? (v - mean_) / spread_ : 0;
  if (spread_ > 0) {
    double best = -std::numeric_limits<double>::infinity();
    for (double pairs : {0.1, 0.3, 0.6, 0.9})
      for (double noise : {0.001, 0.01, 0.1, 0.5}) {
        const double found = likelihood({pairs, noise});
        if (found > best) shape_ = {pairs, noise};
        best = std::max(best, found);
      }
  }
  kernel_ = kernel(shape_);
  root_ = covariance(shape_, 1, values_.size());
  cholesky(root_, values_.size());
  scale_ = std::sqrt(dot(values_, solve(root_, values_)) / n);
}

std::vector<double> Surrogate::kernel(const Shape& shape) const {
  std::vector<double> by_agreement;
  const auto b = static_cast<double>(blocks_);
  for (double m = 0; m <= b; ++m)
    by_agreement.push_back(1 + (1 - shape.pairs) * m / b + shape.pairs * m * (m - 1) / std::max(1.0, b * (b - 1)));
  return by_agreement;
}

// Of every stride-th placement, noise included.
std::vector<double> Surrogate::covariance(const Shape& shape, size_t stride, size_t count) const {
  const std::vector<double> by_agreement = kernel(shape);
  std::vector<double> matrix(count * count);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      const int same = agreement(placements_[i * stride], placements_[j * stride]);
      matrix[i * count + j] = by_agreement[static_cast<size_t>(same)];
    }
    matrix[i * count + i] += shape.noise;
  }
  return matrix;
}

// The logarithm of the probability of the values, at the scale that makes it highest.
double Surrogate::likelihood(const Shape& shape) const {
  const size_t stride = (values_.size() + max_shaping - 1) / max_shaping, count = (values_.size() - 1) / stride + 1;
  std::vector<double> root = covariance(shape, stride, count), some;
  for (size_t i = 0; i < count; ++i) some.push_back(values_[i * stride]);
  cholesky(root, count);
  const auto n = static_cast<double>(count);
  double result = -n / 2 * std::log(std::max(1e-12, dot(some, solve(root, some)) / n));
  for (size_t i = 0; i < count; ++i) result -= std::log(root[i * count + i]);
  return result;
}

std::vector<double> Surrogate::held_out() const {
  const size_t n = values_.size();
  const std::vector<double> weights = solve(root_, values_), diagonal = inverse_diagonal(root_, n);
  std::vector<double> predicted;
  for (size_t i = 0; i < n; ++i) predicted.push_back(mean_ + spread_ * (values_[i] - weights[i] / diagonal[i]));
  return predicted;
}

// Matheron's rule: a function drawn before anything was measured, and what the measurements, each with noise of its
// own, correct of it.
Surrogate::Draw Surrogate::draw(uint64_t seed, double boldness) const {
  const auto b = static_cast<double>(blocks_);
  const double scale = boldness * scale_;
  Draw draw;
  draw.of_ = this;
  draw.seed_ = Random::mix(seed);
  draw.single_ = scale * std::sqrt((1 - shape_.pairs) / b);
  draw.pair_ = scale * std::sqrt(2 * shape_.pairs / std::max(1.0, b * (b - 1)));
  draw.weights_ = values_;
  for (size_t i = 0; boldness > 0 && i < values_.size(); ++i)
    draw.weights_[i] -= draw.prior(placements_[i], {0, 0}) +
                        scale * std::sqrt(shape_.noise) * normal(draw.seed_, ~static_cast<uint64_t>(i));
  draw.weights_ = solve(root_, std::move(draw.weights_));
  return draw;
}

double Surrogate::Draw::effect(size_t block, int choice) const { return single_ * normal(seed_, cell(block, choice)); }

double Surrogate::Draw::effect(size_t a, int choice_a, size_t b, int choice_b) const {
  if (a > b) return effect(b, choice_b, a, choice_a);
  return pair_ * normal(seed_, cell(a, choice_a) << 32 | cell(b, choice_b));
}

// Of the blocks that are not in `outside`.
double Surrogate::Draw::prior(const Placement& placement, Unit outside) const {
  double sum = 0;
  const auto counts = [&](size_t s) { return s < outside.first || s >= outside.last; };
  for (size_t s = 0; s < placement.size(); ++s) {
    if (!counts(s)) continue;
    sum += effect(s, placement[s]);
    for (size_t t = 0; t < s; ++t)
      if (counts(t)) sum += effect(t, placement[t], s, placement[s]);
  }
  return sum;
}

std::vector<double> Surrogate::Draw::by_choice(const Placement& placement, Unit unit, size_t choices) const {
  std::vector<double> values(choices, 0);
  // A measurement counts by how many blocks agree: outside the unit they agree with every choice alike.
  std::vector<int> inside(choices, 0);
  double rest = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Placement& other = of_->placements_[i];
    auto same = static_cast<size_t>(agreement(placement, other));
    for (size_t s = unit.first; s < unit.last; ++s) {
      same -= placement[s] == other[s];
      ++inside[static_cast<size_t>(other[s])];
    }
    rest += weights_[i] * of_->kernel_[same];
    for (size_t s = unit.first; s < unit.last; ++s) {
      const auto c = static_cast<size_t>(other[s]);
      const auto more = static_cast<size_t>(std::exchange(inside[c], 0));
      values[c] += weights_[i] * (of_->kernel_[same + more] - of_->kernel_[same]);
    }
  }
  if (single_ > 0 || pair_ > 0) {
    rest += prior(placement, unit);
    for (size_t c = 0; c < choices; ++c)
      for (size_t s = unit.first; s < unit.last; ++s) {
        const int choice = static_cast<int>(c);
        values[c] += effect(s, choice);
        for (size_t t = 0; t < placement.size(); ++t)
          if (t < unit.first || t >= unit.last)
            values[c] += effect(t, placement[t], s, choice);
          else if (t < s)
            values[c] += effect(t, choice, s, choice);
      }
  }
  for (double& v : values) v = of_->mean_ + of_->spread_ * (v + rest);
  return values;
}

Climb climb(const Space& space, const std::vector<Unit>& units, Placement start, std::span<const Surrogate::Draw> draws,
            const std::function<double(std::span<const double>)>& score) {
  constexpr double lowest = -std::numeric_limits<double>::infinity();
  Climb result{std::move(start), lowest, {}};
  std::vector<double> one(draws.size());
  // Calls f with every allowed choice of the unit and its score.
  const auto look = [&](Unit unit, auto&& f) {
    std::vector<std::vector<double>> values;
    for (const Surrogate::Draw& draw : draws) values.push_back(draw.by_choice(result.top, unit, space.choices.size()));
    for (int choice : space.allowed[unit.first]) {
      for (size_t d = 0; d < draws.size(); ++d) one[d] = values[d][static_cast<size_t>(choice)];
      f(choice, score(one));
    }
  };
  bool is_higher = true;
  for (int sweep = 0; is_higher && sweep < max_sweeps; ++sweep) {
    is_higher = false;
    for (Unit unit : units) {
      // The start may hold what the space does not allow; then any choice is better.
      const bool keeps = is_allowed(space, unit, result.top);
      double own = lowest, best = lowest;
      int chosen = space.allowed[unit.first].front();
      look(unit, [&](int choice, double found) {
        if (keeps && choice == result.top[unit.first]) own = found;
        if (found > best) chosen = choice;
        best = std::max(best, found);
      });
      result.score = best;
      if (keeps && !(best > own)) continue;
      is_higher = true;
      result.top = with_choice(std::move(result.top), unit, chosen);
    }
  }
  for (Unit unit : units)
    look(unit,
         [&](int choice, double found) { result.beside.emplace_back(found, with_choice(result.top, unit, choice)); });
  std::ranges::stable_sort(result.beside, std::ranges::greater(), [](const auto& other) { return other.first; });
  return result;
}

}  // namespace attnkit::core::search
