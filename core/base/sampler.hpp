// Draws the next token from scores, the same in sessions and in hosts that decode batches.
#pragma once

#include <attnkit/kernels/random.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace attnkit::core {

// The changes to the scores, in this order.
struct Sampling {
  double repetition_penalty = 1;  // scores of tokens that were there: divided by it, or times it where below 0 (Keskar
                                  // et al. 2019, arXiv:1909.05858, 4.1)
  int64_t no_repeat = 0;          // no so many tokens in a row come twice; 0: they may
  double temperature = 0;         // all scores are divided by it; 0: the best token, always
  int64_t top_k = 0;              // only so many of the best; 0: all
  double top_p = 1;               // only the best that have this probability together (Holtzman et al. 2020,
                                  // arXiv:1904.09751)
  uint64_t seed = 0;

  bool looks_back() const { return repetition_penalty != 1 || no_repeat > 0; }
};

// One text being drawn.  The same tokens for the same sampling, stream and scores, as far as exp() is the same.
class Sampler {
 public:
  // stream: texts of one seed that differ in it are unrelated.  Throws Error (ATTN_INVALID): out of bounds.
  explicit Sampler(const Sampling& sampling, uint64_t stream = 0);

  // The next token is one of so many that have the highest scores, whatever was there before; 0: of all.
  int64_t draws_from() const {
    if (sampling_.looks_back()) return 0;
    return sampling_.temperature == 0 ? 1 : sampling_.top_k;
  }
  void saw(std::span<const int32_t> ids);  // tokens that were there, in order
  // Changes the scores of the next token by those that were there.
  void look_back(std::span<float> scores) const;
  // The next one, which is then one that was there.  Returns nothing when any of the scores is NaN.
  std::optional<int32_t> draw(std::span<const float> scores);
  // The same of the draws_from() best alone, best first and the lower id among equals; an id below 0 says that a score
  // is NaN.
  std::optional<int32_t> draw(std::span<const int32_t> ids, std::span<const float> scores);

 private:
  struct Candidate {
    int32_t id;
    double weight;
  };
  // Of tokens id(i) with these scores, the highest of which is top, and finite: where all are infinite nothing tells
  // them apart.
  template <class Id>
  int32_t weighted(std::span<const float> scores, double top, const Id& id);
  void sort_by_id();
  void keep_best();
  int32_t pick();

  Sampling sampling_;
  Random random_;
  std::vector<bool> seen_;  // by id
  std::vector<int32_t> before_;
  std::vector<float> scores_;
  std::vector<Candidate> candidates_;
};

}  // namespace attnkit::core
