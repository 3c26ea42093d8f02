#include "core/base/decoding/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/decoding/greedy.hpp"
#include "core/base/decoding/scores.hpp"
#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

void check(const char* name, double value, double least, double most) {
  if (!(value >= least && value <= most))
    fail(ATTN_INVALID, "{} is {}: it must be from {} to {}", name, value, least, most);
}

constexpr float kNever = -std::numeric_limits<float>::infinity();
float penalised(float score, float penalty) { return score < 0 ? score * penalty : score / penalty; }

}  // namespace

void rank(std::vector<Ranked>& tokens) {
  std::ranges::sort(
      tokens, [](const Ranked& a, const Ranked& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; });
}

Sampler::Sampler(const Sampling& sampling, uint64_t stream) : sampling_(sampling), random_(sampling.seed, stream) {
  check("temperature", sampling.temperature, 0, 1000);
  check("top_k", static_cast<double>(sampling.top_k), 0, 1 << 24);
  check("top_p", sampling.top_p, 0, 1);
  check("repetition_penalty", sampling.repetition_penalty, 0.01, 100);
  check("no_repeat", static_cast<double>(sampling.no_repeat), 0, 1 << 20);
}

void Sampler::saw(std::span<const int32_t> ids) {
  if (!sampling_.looks_back()) return;
  for (const int32_t id : ids) {
    if (id < 0) continue;
    if (static_cast<size_t>(id) >= seen_.size()) seen_.resize(static_cast<size_t>(id) + 1);
    before_.push_back(id);  // behind it no memory is needed
    different_ += !seen_[static_cast<size_t>(id)];
    seen_[static_cast<size_t>(id)] = true;
  }
}

template <class Score, class Some>
void Sampler::forbid_repeats(const Score& score, const Some& some) const {
  if (sampling_.no_repeat == 0) return;
  const auto n = static_cast<size_t>(sampling_.no_repeat) - 1;  // tokens that stand before the next one
  if (before_.size() <= n) return;
  const auto last = before_.end() - static_cast<std::ptrdiff_t>(n);
  std::vector<float*> repeats;
  for (auto from = before_.begin(); from + static_cast<std::ptrdiff_t>(n) < before_.end(); ++from)
    if (std::equal(last, before_.end(), from))
      if (float* const s = score(static_cast<size_t>(from[static_cast<std::ptrdiff_t>(n)])); s && may_come(*s))
        repeats.push_back(s);
  std::ranges::sort(repeats);
  repeats.erase(std::unique(repeats.begin(), repeats.end()), repeats.end());
  // A token that must come, as a forced end, may have been there.
  if (!repeats.empty() && std::ssize(repeats) < some())
    for (float* const s : repeats) *s = kNever;
}

void Sampler::look_back(std::span<float> scores) const {
  const auto penalty = static_cast<float>(sampling_.repetition_penalty);
  for (size_t id = 0; penalty != 1 && id < std::min(seen_.size(), scores.size()); ++id)
    if (seen_[id]) scores[id] = penalised(scores[id], penalty);
  forbid_repeats([scores](size_t i) { return i < scores.size() ? &scores[i] : nullptr; },
                 [scores] { return std::ranges::count_if(scores, may_come); });
}

void Sampler::look_back(std::vector<Ranked>& highest) const {
  if (!sampling_.looks_back()) return;
  const auto penalty = static_cast<float>(sampling_.repetition_penalty);
  for (auto& [id, score] : highest)
    if (penalty != 1 && static_cast<size_t>(id) < seen_.size() && seen_[static_cast<size_t>(id)])
      score = penalised(score, penalty);
  forbid_repeats(
      [&highest](size_t id) {
        const auto found = std::ranges::find(highest, static_cast<int32_t>(id), &Ranked::id);
        return found == highest.end() ? nullptr : &found->score;
      },
      [&highest] { return std::ranges::count_if(highest, may_come, &Ranked::score); });
  rank(highest);
}

std::optional<int32_t> Sampler::draw(std::span<const float> given) {
  std::span<const float> scores = given;
  if (sampling_.looks_back()) {
    scores_.assign(given.begin(), given.end());
    look_back(scores_);
    scores = scores_;
  }
  std::optional<int32_t> id = best_token(scores);
  if (id && sampling_.temperature > 0)
    id = weighted(scores.size(), {*id, scores[static_cast<size_t>(*id)]}, [scores](size_t i) {
      return Ranked{static_cast<int32_t>(i), scores[i]};
    });
  if (id) saw({&*id, 1});
  return id;
}

int32_t Sampler::draw(std::vector<Ranked> highest) {
  look_back(highest);
  int32_t id = highest.front().id;
  if (sampling_.temperature > 0)
    id = weighted(highest.size(), highest.front(), [&highest](size_t i) { return highest[i]; });
  saw({&id, 1});
  return id;
}

template <class Of>
int32_t Sampler::weighted(size_t count, Ranked top, const Of& of) {
  if (!std::isfinite(top.score)) return top.id;  // where all are infinite nothing tells them apart
  candidates_.clear();
  for (size_t i = 0; i < count; ++i) {
    const auto [id, score] = of(i);
    const double weight = std::exp((score - double{top.score}) / sampling_.temperature);
    // Of what is suppressed nothing may come, not by rounding either.
    if (!(weight <= 0)) candidates_.push_back({id, weight});
  }
  sort_by_id();
  keep_best();
  return pick();
}

// Sums of weights are of the same order everywhere.
void Sampler::sort_by_id() {
  if (!std::ranges::is_sorted(candidates_, {}, &Candidate::id)) std::ranges::sort(candidates_, {}, &Candidate::id);
}

void Sampler::keep_best() {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  };
  const auto k = static_cast<size_t>(sampling_.top_k);
  if (k > 0 && k < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k), candidates_.end(),
                     better);
    candidates_.resize(k);
    sort_by_id();
  }
  if (sampling_.top_p >= 1) return;
  double sum = 0;
  for (const Candidate& c : candidates_) sum += c.weight;
  // Those that have less than this have together less than is left out, so they need not be sorted.
  const double least = (1 - sampling_.top_p) * sum / static_cast<double>(candidates_.size());
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < least; });
  std::ranges::sort(candidates_, better);
  double kept = 0;
  size_t n = 0;
  while (n < candidates_.size() && (n == 0 || kept < sampling_.top_p * sum)) kept += candidates_[n++].weight;
  candidates_.resize(n);
}

int32_t Sampler::pick() {
  double sum = 0;
  for (const Candidate& c : candidates_) sum += c.weight;
  double left = random_.uniform() * sum;
  for (const Candidate& c : candidates_)
    if ((left -= c.weight) < 0) return c.id;
  return candidates_.back().id;
}

}  // namespace attnkit::core
