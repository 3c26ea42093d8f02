#include "core/search/race.hpp"

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <cmath>
#include <numeric>
#include <random>

#include "core/search/cholesky.hpp"

namespace attnkit::core::search {
namespace {

// The sample variance of a few blocks says little; this many more come from all racers together.
constexpr double kSharedBlocks = 4;
// Further blocks are timed while timing makes up more than this part of what is unknown about a comparison.
constexpr double kTimingShare = 0.02;
// With each rung all get one more block where timing makes up more than this part for most: where it is less, what more
// examples would say is so much more that another block would drop nobody.
constexpr double kLargeTimingShare = 0.1;

std::vector<double> logs(std::vector<double> values) {
  for (double& v : values) v = std::log(v);
  return values;
}

constexpr int kDraws = 400;     // of a simulation, at least
constexpr double kBeyond = 20;  // of them, at least, are beyond the boundary
constexpr uint64_t kDrawSeed = 1;
// While timings are repeated a placement must be this much farther behind, since each repetition is one more chance to
// be unlucky.
constexpr double kOpen = 1;
// Deviations beyond a boundary within which the widest gap is looked for.
constexpr double kGap = 0.5;

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
      n_(n),
      is_share_(is_share(metric_, baseline, n)) {
  if (weights_.weighs_quality()) return;
  if (weights_.quality == 0) weights_.quality = 1;
  weights_.quality_weight = 0;
  std_bench_ = 1;  // any unit
}

Comparison Comparison::with(Rank rank) const {
  Comparison other = *this;
  other.rank_ = rank;
  return other;
}

Standing Comparison::standing(const Racer& racer, double block_variance) const {
  Standing s;
  s.score = score_of(metric_, *racer.outcomes, n_);
  s.influences = influences(metric_, *racer.outcomes, n_);
  if (rank_ == Rank::quality) s.value = s.order = s.score;
  if (racer.speeds.empty()) return s;
  const std::vector<double> blocks = logs(racer.speeds);
  const double count = static_cast<double>(blocks.size()), own = blocks.size() < 2 ? 0 : sample_deviation(blocks);
  s.log_speed = median(blocks);
  const double variance = ((count - 1) * square(own) + kSharedBlocks * block_variance) / (count - 1 + kSharedBlocks);
  // The median of many normal values varies by pi / 2 more than their mean; of two it is the mean.
  s.log_speed_variance = variance / count * (blocks.size() > 2 ? M_PI / 2 : 1);
  const double speed = std::exp(weights_.throughput * s.log_speed), space = std::pow(1 / racer.memory, weights_.memory);
  const double power = weights_.quality;
  s.gain = std::pow(rank_ == Rank::rcp_mem ? (speed + space) / 2 : speed, 1 / power);
  s.gain_slope = weights_.throughput * (rank_ == Rank::rcp_mem ? speed / (speed + space) : 1) / power;
  constexpr double last = -std::numeric_limits<double>::infinity();
  if (rank_ == Rank::throughput) {
    s.order = std::isfinite(s.log_speed) ? s.log_speed : last;
    if (std::isfinite(s.log_speed)) s.value = std::exp(s.log_speed);
  }
  if (rank_ == Rank::quality || rank_ == Rank::throughput) return s;
  s.denominator = std_bench_ > 0 ? 1 + weights_.quality_weight * (baseline_score_ - s.score) / std_bench_
                                 : s.score == baseline_score_;
  if (s.denominator > 0 && std::isfinite(s.gain)) s.value = std::pow(s.gain / s.denominator, power);
  // By gain / D as an angle, which goes on where D is not positive; without a unit of quality by that alone.
  if (std_bench_ > 0) s.order = std::isfinite(s.gain) ? std::atan2(s.gain, s.denominator) : last;
  return s;
}

Comparison::Terms Comparison::terms(const Standing& a, const Standing& b) const {
  if (rank_ == Rank::throughput) return {0, 0, 0, 1, -1};
  // Without a unit of quality nothing can be weighed against it.
  if (rank_ == Rank::quality || std_bench_ == 0) return {1, -1, 0, 0, 0};
  const double w = weights_.quality_weight / std_bench_;
  return {w * b.gain, -w * a.gain, w * (a.gain - b.gain), a.gain * b.denominator * a.gain_slope,
          -b.gain * a.denominator * b.gain_slope};
}

// Of wa * score_a + wb * score_b + wbase * baseline's score + speed_a * log_speed_a + speed_b * log_speed_b.
double Comparison::deviation(const Standing& a, const Standing& b, double wa, double wb, double wbase, double speed_a,
                             double speed_b) const {
  double squares = 0;
  for (size_t i = 0; i < n_; ++i) squares += square(wa * a.influences[i] + wb * b.influences[i] + wbase * baseline_[i]);
  // That no example is right for one and wrong for the other is no certainty: two more are counted, one for each side.
  if (is_share_) squares += 100.0 * 100.0 * (square(wa) + square(wb));
  // One example has no spread.
  if (n_ < 2 && (wa != 0 || wb != 0)) return std::numeric_limits<double>::infinity();
  const double quality = squares / square(static_cast<double>(n_));
  return std::sqrt(quality + square(speed_a) * a.log_speed_variance + square(speed_b) * b.log_speed_variance);
}

Advantage Comparison::advantage(const Standing& a, const Standing& b) const {
  const Terms t = terms(a, b);
  const double value = rank_ == Rank::throughput                   ? a.log_speed - b.log_speed
                       : rank_ == Rank::quality || std_bench_ == 0 ? a.score - b.score
                                                                   : a.gain * b.denominator - b.gain * a.denominator;
  return {value, deviation(a, b, t.a, t.b, t.base, t.speed_a, t.speed_b)};
}

Advantage Comparison::above(const Standing& a, double share) const {
  if (metric_ == Metric::perplexity)
    return {a.score - baseline_score_ - std::log(share), deviation(a, a, 1, 0, -1, 0, 0)};
  return {a.score - share * baseline_score_, deviation(a, a, 1, 0, -share, 0, 0)};
}

// d log(value) / d score.
double Comparison::slope(const Standing& a) const {
  if (rank_ == Rank::throughput) return 0;
  return weights_.quality * weights_.quality_weight / std_bench_ / a.denominator;
}

std::optional<Interval> Comparison::interval(const Standing& a) const {
  if (!a.value || !has_interval()) return {};
  if (rank_ == Rank::quality) {
    const double half = kNormal95 * deviation(a, a, 1, 0, 0, 0, 0);
    return Interval{*a.value - half, *a.value + half};
  }
  const double power = weights_.quality, s = slope(a);
  const double half = kNormal95 * deviation(a, a, s, 0, -s, power * a.gain_slope, 0);
  return Interval{*a.value * std::exp(-half), *a.value * std::exp(half)};
}

std::optional<Interval> Comparison::ratio(const Standing& a, const Standing& b) const {
  if (!a.value || !b.value || !has_interval()) return {};
  if (rank_ == Rank::quality) {
    const Advantage d = advantage(a, b);
    return Interval{d.value - kNormal95 * d.deviation, d.value + kNormal95 * d.deviation};
  }
  const double power = weights_.quality, sa = slope(a), sb = slope(b);
  const double half = kNormal95 * deviation(a, b, sa, -sb, sb - sa, power * a.gain_slope, -power * b.gain_slope);
  const double centre = std::log(*a.value / *b.value);
  return Interval{std::exp(centre - half), std::exp(centre + half)};
}

double Comparison::boundary(const std::vector<Standing>& all, size_t leader, const std::vector<int64_t>& rungs,
                            double confidence) const {
  // Scores of all placements and, last, of the baseline: their joint spread for one example.
  const size_t count = all.size(), width = count + 1;
  const auto influence = [&](size_t i) -> const std::vector<double>& {
    return i < count ? all[i].influences : baseline_;
  };
  const double n = static_cast<double>(n_);
  std::vector<double> spread(width * width);
  for (size_t i = 0; i < width; ++i)
    for (size_t j = 0; j <= i; ++j)
      spread[i * width + j] = spread[j * width + i] =
          std::inner_product(influence(i).begin(), influence(i).end(), influence(j).begin(), 0.0) / n;
  // Placements that err alike make the matrix singular; deviations are those of what is drawn, so with this in them.
  double most = 0;
  for (size_t i = 0; i < width; ++i) most = std::max(most, spread[i * width + i]);
  for (size_t i = 0; i < width; ++i) spread[i * width + i] += 1e-9 * most + 1e-9;
  // The advantage of a rival over the leader, were the leader the best: its mean and weights in units of its deviation.
  struct Rival {
    size_t place;
    double mean, own, leader, base, own_speed, leader_speed;
  };
  std::vector<Rival> rivals;
  std::vector<double> speed_spread;  // of a log speed, on the scale of one example
  for (const Standing& s : all) speed_spread.push_back(std::sqrt(n * s.log_speed_variance));
  for (size_t r = 0; r < count; ++r) {
    if (r == leader) continue;
    const Terms t = terms(all[r], all[leader]);
    const auto at = [&](size_t a, size_t b) { return spread[a * width + b]; };
    const double scale =
        std::sqrt(square(t.a) * at(r, r) + square(t.b) * at(leader, leader) + square(t.base) * at(count, count) +
                  2 * (t.a * t.b * at(r, leader) + t.base * (t.a * at(r, count) + t.b * at(leader, count))) +
                  square(t.speed_a * speed_spread[r]) + square(t.speed_b * speed_spread[leader]));
    const Advantage behind = advantage(all[leader], all[r]);
    if (!(scale > 0) || !(behind.deviation > 0)) continue;
    const double seen = std::max(0.0, behind.value / behind.deviation);
    rivals.push_back({r, -seen * std::max(0.0, 1 - 1 / square(seen)), t.a / scale, t.b / scale, t.base / scale,
                      t.speed_a / scale, t.speed_b / scale});
  }
  cholesky(spread, width);
  std::mt19937_64 random(kDrawSeed);
  std::normal_distribution<double> normal;
  std::vector<double> drawn(width), score(width), speed(count), highest;
  const int draws = std::max(kDraws, static_cast<int>(std::ceil(kBeyond / (1 - confidence))));
  for (int draw = 0; draw < draws; ++draw) {
    std::ranges::fill(score, 0);
    std::ranges::fill(speed, 0);
    double top = 0;
    for (size_t k = 0; k < rungs.size(); ++k) {
      // A rung holds the sums of those before it; what it adds has the same spread by example.
      const double before = k == 0 ? 0 : static_cast<double>(rungs[k - 1]), now = static_cast<double>(rungs[k]);
      const double kept = std::sqrt(before / now), added = std::sqrt((now - before) / now), scale = std::sqrt(now / n);
      for (double& d : drawn) d = normal(random);
      for (size_t i = 0; i < width; ++i) {
        const auto row = spread.begin() + static_cast<std::ptrdiff_t>(i * width);
        score[i] = kept * score[i] +
                   added * std::inner_product(row, row + static_cast<std::ptrdiff_t>(i + 1), drawn.begin(), 0.0);
      }
      for (size_t i = 0; i < count; ++i) speed[i] = kept * speed[i] + added * speed_spread[i] * normal(random);
      for (const Rival& r : rivals)
        top = std::max(top, scale * r.mean + r.own * score[r.place] + r.leader * score[leader] + r.base * score[count] +
                                r.own_speed * speed[r.place] + r.leader_speed * speed[leader]);
    }
    highest.push_back(top);
  }
  // A leader that is ahead by luck makes the others look far behind; no boundary is lower than that of one comparison
  // at every rung.
  return std::max(quantile(highest, confidence), normal_point((1 - confidence) / static_cast<double>(rungs.size())));
}

namespace {

// One race under way.
class Race {
 public:
  Race(const Settings& settings, const RaceTrack& track, size_t count)
      : settings_(settings), track_(track), wanted_blocks_(track.blocks) {
    left_.resize(count);
    std::iota(left_.begin(), left_.end(), size_t{0});
  }

  RaceResult run() {
    for (size_t r = 0; r < track_.rungs.size(); ++r) {
      const size_t before = left_.size();
      stage(track_.rungs[r], r + 1 == track_.rungs.size());
      result_.stages.push_back({track_.rungs[r], blocks_, before, left_.size()});
      if (left_.empty()) break;
    }
    result_.top = left_;
    return result_;
  }

 private:
  void stage(int64_t examples, bool is_last) {
    blocks_ = std::min(wanted_blocks_, track_.max_blocks);
    // In the order in which they were proposed, in which those that share an encoder are neighbours.
    std::ranges::sort(left_);
    track_.measure(left_, examples, blocks_);
    std::vector<size_t> close = drop(static_cast<size_t>(examples), is_last, is_last && blocks_ < track_.max_blocks);
    while (is_last && !close.empty() && blocks_ < track_.max_blocks) {
      track_.measure(close, examples, ++blocks_);
      close = drop(static_cast<size_t>(examples), true, blocks_ < track_.max_blocks);
    }
    if (is_last && !left_.empty()) drop(static_cast<size_t>(examples), true, false);
  }

  // Puts the best first and takes away what is worse with confidence; is_open: more timings may come.  Returns those
  // that further timings could tell from the leader, and the leader.
  std::vector<size_t> drop(size_t n, bool is_last, bool is_open) {
    std::vector<Racer> racers;
    for (const size_t i : left_) racers.push_back(track_.racer(i));
    std::erase_if(left_, [&, at = size_t{0}](size_t) mutable { return !racers[at++].usable; });
    std::erase_if(racers, [](const Racer& r) { return !r.usable; });
    if (left_.empty()) return {};
    const Comparison comparison(settings_, track_.std_bench, *track_.baseline, n);
    const double shared = block_variance(racers);
    std::vector<Standing> all;
    for (const Racer& racer : racers) all.push_back(comparison.standing(racer, shared));
    const std::optional<double> limit = settings_.limits.min_quality_ratio;
    const auto is_within = [&](size_t i, double tolerance) {
      if (!limit) return true;
      const Advantage above = comparison.above(all[i], *limit);
      // The deviation of one example is infinite.
      return (tolerance > 0 ? above.value + tolerance * above.deviation : above.value) >= 0;
    };
    const auto order = [&](size_t i) {
      // Of equals the one that nothing dominates.
      return std::tuple(is_within(i, 0), all[i].order, all[i].score, all[i].value.value_or(0),
                        std::isfinite(all[i].gain) ? all[i].gain : 0);
    };
    std::vector<size_t> by_value(left_.size());
    std::iota(by_value.begin(), by_value.end(), size_t{0});
    std::ranges::stable_sort(by_value, [&](size_t a, size_t b) { return order(a) > order(b); });
    const size_t leader = by_value.front();
    const bool has_leader = is_within(leader, 0);
    const double boundary = has_leader ? comparison.boundary(all, leader, track_.rungs, settings_.confidence) : 0;
    std::vector<double> beyond;  // by how many deviations a placement is farther behind than the boundary
    for (const Standing& s : all) {
      const Advantage behind = comparison.advantage(all[leader], s);
      beyond.push_back(has_leader && behind.value > 0 ? behind.value / behind.deviation - boundary : -boundary);
    }
    const double cut = is_open   ? kOpen
                       : is_last ? cut_of(beyond)
                                 : 0,
                 tolerance = is_last ? 0 : normal_point(1 - settings_.confidence) * 2;
    std::vector<size_t> kept, close;
    size_t timed = 0;
    for (const size_t i : by_value) {
      if (!is_within(i, tolerance) || beyond[i] > cut) continue;
      kept.push_back(left_[i]);
      // Behind by less than a deviation it may be the best, beside the boundary it may be dropped.
      const bool is_close = beyond[i] < 1 - boundary || std::abs(beyond[i]) < kGap;
      const double timing = i == leader ? 0 : timing_share(comparison, all[leader], all[i]);
      timed += timing > kLargeTimingShare;
      if (is_close && timing > kTimingShare) close.push_back(left_[i]);
    }
    if (!is_last && 2 * timed + 1 > kept.size()) ++wanted_blocks_;
    if (!close.empty()) close.push_back(left_[leader]);
    left_ = kept;
    return close;
  }

  // Repeating a search moves timings a little: a cut in the widest gap just beyond the boundary is crossed by the
  // fewest.
  static double cut_of(std::vector<double> beyond) {
    std::ranges::sort(beyond);
    double cut = 0, widest = 0, last = 0;
    for (double b : beyond) {
      b = std::min(b, kGap);
      if (b <= 0) continue;
      if (b - last > widest) {
        widest = b - last;
        cut = last;
      }
      last = b;
    }
    return cut;
  }

  // The part of what is unknown about a comparison that timing makes up.
  static double timing_share(const Comparison& comparison, Standing a, Standing b) {
    const double deviation = comparison.advantage(a, b).deviation;
    a.log_speed_variance = b.log_speed_variance = 0;
    const double quality = comparison.advantage(a, b).deviation;
    return deviation > 0 ? 1 - square(quality / deviation) : 0;
  }

  const Settings& settings_;
  const RaceTrack& track_;
  std::vector<size_t> left_;
  int wanted_blocks_, blocks_ = 0;
  RaceResult result_;
};

}  // namespace

RaceResult race(const Settings& settings, const RaceTrack& track, size_t count) {
  return Race(settings, track, count).run();
}

}  // namespace attnkit::core::search
