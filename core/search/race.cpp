#include "core/search/race.hpp"

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <cmath>
#include <numeric>

namespace attnkit::search {
namespace {

// The sample variance of a few blocks says little; this many more come from all racers together.
constexpr double kSharedBlocks = 4;
// Further blocks are timed while timing makes up more than this part of what is unknown about a comparison.
constexpr double kTimingShare = 0.1;

std::vector<double> logs(std::vector<double> values) {
  for (double& v : values) v = std::log(v);
  return values;
}

double square(double x) { return x * x; }

}  // namespace

double normal_point(double probability) {
  return boost::math::quantile(boost::math::complement(boost::math::normal(), probability));
}

double block_variance(const std::vector<Racer>& racers) {
  double sum = 0, blocks = 0;
  for (const Racer& r : racers) {
    const double deviation = sample_deviation(logs(r.speeds)), count = static_cast<double>(r.speeds.size()) - 1;
    if (!r.usable || !std::isfinite(deviation)) continue;
    sum += count * square(deviation);
    blocks += count;
  }
  return blocks > 0 ? sum / blocks : 0;
}

Comparison::Comparison(const Settings& settings, std::optional<double> std_bench, const Outcomes& baseline, size_t n)
    : metric_(settings.metric),
      rank_(settings.rank),
      weights_(settings.weights),
      std_bench_(std_bench && std::isfinite(*std_bench) ? std::max(*std_bench, 0.0) : 0),
      baseline_score_(score_of(metric_, baseline, n)),
      baseline_(influences(metric_, baseline, n)),
      n_(n) {}

Comparison Comparison::with(Rank rank) const {
  Comparison other = *this;
  other.rank_ = rank;
  return other;
}

Standing Comparison::standing(const Racer& racer, double block_variance) const {
  Standing s;
  s.score = score_of(metric_, *racer.outcomes, n_);
  s.influences = influences(metric_, *racer.outcomes, n_);
  if (rank_ == Rank::quality) s.value = s.score;
  if (racer.speeds.empty()) return s;
  const std::vector<double> blocks = logs(racer.speeds);
  const double count = static_cast<double>(blocks.size()), own = blocks.size() < 2 ? 0 : sample_deviation(blocks);
  s.log_speed = median(blocks);
  const double variance = ((count - 1) * square(own) + kSharedBlocks * block_variance) / (count - 1 + kSharedBlocks);
  // The median of many normal values varies by pi / 2 more than their mean; of two it is the mean.
  s.log_speed_variance = variance / count * (blocks.size() > 2 ? M_PI / 2 : 1);
  const double speed = std::exp(weights_.throughput * s.log_speed), space = std::pow(1 / racer.memory, weights_.memory);
  const double power = weights_.quality > 0 ? weights_.quality : 1;
  s.gain = std::pow(rank_ == Rank::rcp_mem ? (speed + space) / 2 : speed, 1 / power);
  s.gain_slope = weights_.throughput * (rank_ == Rank::rcp_mem ? speed / (speed + space) : 1) / power;
  if (rank_ == Rank::throughput && std::isfinite(s.log_speed)) s.value = std::exp(s.log_speed);
  if (rank_ == Rank::quality || rank_ == Rank::throughput) return s;
  s.denominator = std_bench_ > 0 ? 1 + weights_.quality_weight * (baseline_score_ - s.score) / std_bench_
                                 : s.score == baseline_score_;
  if (s.denominator > 0 && std::isfinite(s.gain)) s.value = std::pow(s.gain / s.denominator, power);
  return s;
}

// Of wa * score_a + wb * score_b + wbase * baseline's score + speed_a * log_speed_a + speed_b * log_speed_b.
double Comparison::deviation(const Standing& a, const Standing& b, double wa, double wb, double wbase, double speed_a,
                             double speed_b) const {
  double squares = 0;
  for (size_t i = 0; i < n_; ++i) squares += square(wa * a.influences[i] + wb * b.influences[i] + wbase * baseline_[i]);
  // That no example is right for one and wrong for the other is no certainty: two more are counted, one for each side.
  if (metric_ == Metric::exact) squares += 100.0 * 100.0 * (square(wa) + square(wb));
  const double quality = squares / square(static_cast<double>(n_));
  return std::sqrt(quality + square(speed_a) * a.log_speed_variance + square(speed_b) * b.log_speed_variance);
}

Advantage Comparison::advantage(const Standing& a, const Standing& b) const {
  // Without a unit of quality nothing can be weighed against it.
  if (rank_ == Rank::quality || (std_bench_ == 0 && rank_ != Rank::throughput))
    return {a.score - b.score, deviation(a, b, 1, -1, 0, 0, 0)};
  if (rank_ == Rank::throughput) return {a.log_speed - b.log_speed, deviation(a, b, 0, 0, 0, 1, -1)};
  const double w = weights_.quality_weight / std_bench_;
  const double left = a.gain * b.denominator, right = b.gain * a.denominator;
  return {left - right,
          deviation(a, b, w * b.gain, -w * a.gain, w * (a.gain - b.gain), left * a.gain_slope, -right * b.gain_slope)};
}

Advantage Comparison::above(const Standing& a, double share) const {
  if (metric_ == Metric::perplexity)
    return {a.score - baseline_score_ - std::log(share), deviation(a, a, 1, 0, -1, 0, 0)};
  return {a.score - share * baseline_score_, deviation(a, a, 1, 0, -share, 0, 0)};
}

double Comparison::log_value(const Standing& a) const { return std::log(*a.value); }

// d log(value) / d score.
double Comparison::slope(const Standing& a) const {
  if (rank_ == Rank::throughput) return 0;
  const double power = weights_.quality > 0 ? weights_.quality : 1;
  return power * weights_.quality_weight / std_bench_ / a.denominator;
}

std::optional<Interval> Comparison::interval(const Standing& a) const {
  if (!a.value || !has_interval()) return {};
  if (rank_ == Rank::quality) {
    const double half = kNormal95 * deviation(a, a, 1, 0, 0, 0, 0);
    return Interval{*a.value - half, *a.value + half};
  }
  const double power = weights_.quality > 0 ? weights_.quality : 1, s = slope(a);
  const double half = kNormal95 * deviation(a, a, s, 0, -s, power * a.gain_slope, 0);
  return Interval{*a.value * std::exp(-half), *a.value * std::exp(half)};
}

std::optional<Interval> Comparison::ratio(const Standing& a, const Standing& b) const {
  if (!a.value || !b.value || !has_interval()) return {};
  if (rank_ == Rank::quality) {
    const Advantage d = advantage(a, b);
    return Interval{d.value - kNormal95 * d.deviation, d.value + kNormal95 * d.deviation};
  }
  const double power = weights_.quality > 0 ? weights_.quality : 1, sa = slope(a), sb = slope(b);
  const double half = kNormal95 * deviation(a, b, sa, -sb, sb - sa, power * a.gain_slope, -power * b.gain_slope);
  const double centre = log_value(a) - log_value(b);
  return Interval{std::exp(centre - half), std::exp(centre + half)};
}

namespace {

// One race under way.
class Race {
 public:
  Race(const Settings& settings, const RaceTrack& track, size_t count)
      : settings_(settings), track_(track), raced_(count) {
    left_.resize(count);
    std::iota(left_.begin(), left_.end(), size_t{0});
  }

  RaceResult run() {
    const double risk = (1 - settings_.confidence) / 2;
    const size_t rungs = track_.rungs.size();
    int blocks = track_.blocks;
    for (size_t r = 0; r < rungs; ++r, ++blocks) {
      const bool is_last = r + 1 == rungs;
      const double share = is_last ? static_cast<double>(std::max<size_t>(left_.size(), 2) - 1)
                                   : static_cast<double>(raced_ * (rungs - 1));
      const size_t before = left_.size();
      stage(track_.rungs[r], blocks, normal_point(risk / share), is_last);
      result_.stages.push_back({track_.rungs[r], blocks_, before, left_.size()});
      if (left_.empty()) break;
    }
    result_.top = left_;
    return result_;
  }

 private:
  void stage(int64_t examples, int blocks, double point, bool is_last) {
    for (bool more = true; more; ++blocks) {
      blocks_ = std::min(blocks, track_.most_blocks);
      track_.measure(left_, examples, blocks_);
      more = drop(static_cast<size_t>(examples), point, is_last) && is_last && blocks_ < track_.most_blocks;
    }
  }

  // Puts the best first and takes away what is worse with confidence.  Returns whether further timing could tell some
  // of the others apart.
  bool drop(size_t n, double point, bool is_last) {
    std::vector<Racer> racers;
    for (const size_t i : left_) racers.push_back(track_.racer(i));
    std::erase_if(left_, [&, at = size_t{0}](size_t) mutable { return !racers[at++].usable; });
    std::erase_if(racers, [](const Racer& r) { return !r.usable; });
    if (left_.empty()) return false;
    const Comparison comparison(settings_, track_.std_bench, *track_.baseline, n);
    const double shared = block_variance(racers);
    std::vector<Standing> standings;
    for (const Racer& racer : racers) standings.push_back(comparison.standing(racer, shared));
    const std::optional<double> limit = settings_.limits.min_quality_ratio;
    const auto is_within = [&](const Standing& s, double tolerance) {
      if (!limit) return true;
      const Advantage above = comparison.above(s, *limit);
      return above.value + tolerance * above.deviation >= 0;
    };
    // The leader is within the limits by what is measured; at the end so is whoever is tied with it.
    const auto order = [&](size_t i) {
      const Standing& s = standings[i];
      return std::tuple(is_within(s, 0), s.value.has_value(), s.value.value_or(0), s.score);
    };
    std::vector<size_t> by_value(left_.size());
    std::iota(by_value.begin(), by_value.end(), size_t{0});
    std::ranges::stable_sort(by_value, [&](size_t a, size_t b) { return order(a) > order(b); });
    const Standing& leader = standings[by_value.front()];
    const bool has_leader = is_within(leader, 0);
    std::vector<size_t> kept;
    bool more = false;
    for (const size_t i : by_value) {
      if (!is_within(standings[i], is_last ? 0 : point)) continue;
      if (has_leader && i != by_value.front()) {
        const Advantage behind = comparison.advantage(leader, standings[i]);
        if (behind.value > point * behind.deviation) continue;
        more |= is_timing(comparison, leader, standings[i], behind.deviation);
      }
      kept.push_back(left_[i]);
    }
    left_ = kept;
    return more;
  }

  static bool is_timing(const Comparison& comparison, Standing a, Standing b, double deviation) {
    a.log_speed_variance = b.log_speed_variance = 0;
    const double quality = comparison.advantage(a, b).deviation;
    return square(deviation) - square(quality) > kTimingShare * square(deviation);
  }

  const Settings& settings_;
  const RaceTrack& track_;
  const size_t raced_;
  std::vector<size_t> left_;
  int blocks_ = 0;
  RaceResult result_;
};

}  // namespace

RaceResult race(const Settings& settings, const RaceTrack& track, size_t count) {
  return Race(settings, track, count).run();
}

}  // namespace attnkit::search
