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

  Sampling greedy() const {
    Sampling best = *this;
    best.temperature = 0;
    return best;
  }
  bool looks_back() const { return repetition_penalty != 1 || no_repeat > 0; }
};

// A token and its score.  The highest scores stand best first, the lower id first among equals.
struct Ranked {
  int32_t id;
  float score;
};
void rank(std::vector<Ranked>& tokens);

// One text being drawn.  The same tokens for the same sampling, stream and scores, as far as exp() is the same.
class Sampler {
 public:
  // stream: texts of one seed that differ in it are unrelated.  Throws Error (ATTN_INVALID): out of bounds.
  explicit Sampler(const Sampling& sampling, uint64_t stream = 0);

  // The next token is one of so many that have the highest scores once look_back has lowered those of lowers() tokens;
  // 0: of all.
  int64_t draws_from() const {
    if (sampling_.repetition_penalty < 1) return 0;
    return sampling_.temperature == 0 ? 1 : sampling_.top_k;
  }
  int64_t lowers() const { return different_; }
  bool looks_back() const { return sampling_.looks_back(); }
  void saw(std::span<const int32_t> ids);  // tokens that were there, in order
  // Changes the scores of the next token by those that were there.
  void look_back(std::span<float> scores) const;
  void look_back(std::vector<Ranked>& highest) const;
  // The next one, which is then one that was there.  Returns nothing when any of the scores is NaN.
  std::optional<int32_t> draw(std::span<const float> scores);
  // The same of the highest scores alone, at least draws_from() + lowers() and two, or all.
  int32_t draw(std::vector<Ranked> highest);

 private:
  struct Candidate {
    int32_t id;
    double weight;
  };
  // Lowers the score of each token that would repeat what may not be repeated, unless these are all that may come.
  // score(id): where that of a token is; NULL: nowhere.  some(): how many may come.
  template <class Score, class Some>
  void forbid_repeats(const Score& score, const Some& some) const;
  // Of `count` tokens, the i-th of which is of(i); `top` is the highest score.
  template <class Of>
  int32_t weighted(size_t count, Ranked top, const Of& of);
  void sort_by_id();
  void keep_best();
  int32_t pick();

  Sampling sampling_;
  Random random_;
  std::vector<bool> seen_;  // by id
  int64_t different_ = 0;   // ids that were seen
  std::vector<int32_t> before_;
  std::vector<float> scores_;
  std::vector<Candidate> candidates_;
};

}  // namespace attnkit::core
