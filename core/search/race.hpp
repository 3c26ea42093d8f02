// Racing: placements are measured further only while nothing says with confidence that they are worse than the leader
// (after Maron and Moore 1994, with paired differences).  Knows nothing of models: measurements come from callbacks, so
// that recorded ones can be replayed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/search/outcomes.hpp"
#include "core/search/settings.hpp"

namespace attnkit::core::search {

// One placement as it is measured so far.
struct Racer {
  const Outcomes* outcomes = nullptr;  // of `examples` at least
  std::vector<double> speeds;          // by timing block the throughput over the baseline's
  double memory = 1;                   // over the baseline's
  bool usable = true;  // false: a trial failed, or it is beyond a limit that no further measurement moves
};

// The rank of a placement by n examples, and how sure that is.  s = std_bench, G the gain in throughput (and memory), D
// the denominator: the rank value is G / D^b for rcp and rcp_mem, G for throughput, the score for quality.
struct Standing {
  std::optional<double> value;     // of the rank; no value: D is not positive, or something is not measured
  double score = 0;                // quality, higher is better
  std::vector<double> influences;  // of the score, by example
  double log_speed = 0, log_speed_variance = 0;
  double gain = 0, gain_slope = 0;  // G^(1/b), and d log(G^(1/b)) / d log_speed
  double denominator = 1;           // D
  double order = 0;                 // the place by the rank, also where D is not positive; more is better
};

// A difference of two placements: positive where the first is better; in what unit depends on the rank.
struct Advantage {
  double value = 0, deviation = 0;
};

// Compares placements on the first n examples.  Borrows nothing but the baseline's outcomes while it is constructed.
class Comparison {
 public:
  // std_bench: no value, or 0, where it is unknown; then only who is as good as the baseline has a value, and quality
  // alone drops, unless the weights leave it out.
  Comparison(const Settings& settings, std::optional<double> std_bench, const Outcomes& baseline, size_t n);

  // block_variance: of one block's log speed, as all racers have it together (below).
  Standing standing(const Racer& racer, double block_variance) const;

  // For rcp and rcp_mem the sign of G_a^(1/b) D_b - G_b^(1/b) D_a is that of the difference of the values, and it is
  // linear in both qualities, so that its deviation holds also where D is close to 0.
  Advantage advantage(const Standing& a, const Standing& b) const;

  // By how much a placement's score is above a share of the baseline's (perplexity: of its inverse).
  Advantage above(const Standing& a, double share) const;

  // Were the leader the best: with probability `confidence` no other placement looks better than it by more than so
  // many deviations at any rung.  From the joint distribution of all these comparisons (simulated with the influences'
  // covariance), so that more placements make it larger, but those that go together or are far behind hardly do.
  // Differences count as they were seen, less what noise alone would show (times 1 - 1/t^2 where t is the difference
  // over its deviation).
  double boundary(const std::vector<Standing>& all, size_t leader, const std::vector<int64_t>& rungs,
                  double confidence) const;

  // The 95 % interval of the rank value, and of its ratio to another's (of the difference for Rank::quality).  No value
  // where a rank has none.
  std::optional<Interval> interval(const Standing& a) const;
  std::optional<Interval> ratio(const Standing& a, const Standing& b) const;
  // Of rcp or rcp_mem whatever the rank asked for.
  Comparison with(Rank rank) const;

 private:
  // Weights of both scores, the baseline's, and both log speeds in an advantage.
  struct Terms {
    double a, b, base, speed_a, speed_b;
  };
  Terms terms(const Standing& a, const Standing& b) const;
  double deviation(const Standing& a, const Standing& b, double wa, double wb, double wbase, double speed_a,
                   double speed_b) const;
  bool has_interval() const {
    return rank_ == Rank::throughput || (n_ > 1 && (std_bench_ > 0 || rank_ == Rank::quality));
  }
  double slope(const Standing& a) const;

  Metric metric_;
  Rank rank_;
  RcpSettings weights_;
  double std_bench_;  // 0: unknown
  double baseline_score_;
  std::vector<double> baseline_;  // influences
  size_t n_;
  bool is_share_;
};

// The variance of one block's log speed, shared by all racers: the mean of their sample variances.
double block_variance(const std::vector<Racer>& racers);

// The point that a standard normal variable is above with this probability.
double normal_point(double probability);

struct RaceStage {
  int64_t examples = 0;
  int blocks = 0;
  size_t raced = 0, kept = 0;
};

struct RaceResult {
  std::vector<RaceStage> stages;
  std::vector<size_t>
      top;  // the best value first, then whatever is not worse with confidence; empty: nothing can be ranked
};

struct RaceTrack {
  std::vector<int64_t> rungs;  // numbers of examples, rising
  int blocks = 2;              // of the first rung; one more with each rung where timing is what is unknown
  int max_blocks = 16;
  const Outcomes* baseline = nullptr;  // of all examples
  std::optional<double> std_bench;
  // Measure these placements on so many examples, and in so many timing blocks; what is measured already is not done
  // again.
  std::function<void(const std::vector<size_t>&, int64_t examples, int blocks)> measure;
  std::function<Racer(size_t)> racer;
};

// Races placements 0 .. count - 1.  At each rung those beyond their boundary are dropped; with probability
// settings.confidence the best one never is.  When one is left, it alone is measured to the end.
RaceResult race(const Settings& settings, const RaceTrack& track, size_t count);

}  // namespace attnkit::core::search
