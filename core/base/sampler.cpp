#include "core/base/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.hpp"
#include "core/base/greedy.hpp"

namespace attnkit::core {
namespace {

void check(const char* name, double value, double least, double most) {
  if (!(value >= least && value <= most))
    fail(ATTN_INVALID, "{} is {}: it must be from {} to {}", name, value, least, most);
}

}  // namespace

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
    before_.push_back(id);
    if (static_cast<size_t>(id) >= seen_.size()) seen_.resize(static_cast<size_t>(id) + 1);
    seen_[static_cast<size_t>(id)] = true;
  }
}

void Sampler::look_back(std::span<float> scores) const {
  const auto penalty = static_cast<float>(sampling_.repetition_penalty);
  for (size_t id = 0; penalty != 1 && id < std::min(seen_.size(), scores.size()); ++id)
    if (seen_[id]) scores[id] = scores[id] < 0 ? scores[id] * penalty : scores[id] / penalty;
  const auto may = [](float score) { return score > -std::numeric_limits<float>::infinity(); };
  // A token that must come, as a forced end, may have been there.
  if (sampling_.no_repeat == 0 || std::ranges::count_if(scores, may) < 2) return;
  const auto n = static_cast<size_t>(sampling_.no_repeat) - 1;  // tokens that stand before the next one
  if (before_.size() <= n) return;
  const auto last = before_.end() - static_cast<std::ptrdiff_t>(n);
  for (auto from = before_.begin(); from + static_cast<std::ptrdiff_t>(n) < before_.end(); ++from) {
    const auto next = static_cast<size_t>(from[static_cast<std::ptrdiff_t>(n)]);
    if (next < scores.size() && std::equal(last, before_.end(), from))
      scores[next] = -std::numeric_limits<float>::infinity();
  }
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
    if (const double top = scores[static_cast<size_t>(*id)]; std::isfinite(top))
      id = weighted(scores, top, [](size_t i) { return static_cast<int32_t>(i); });
  if (id) saw({&*id, 1});
  return id;
}

std::optional<int32_t> Sampler::draw(std::span<const int32_t> ids, std::span<const float> scores) {
  if (ids.empty() || ids.front() < 0) return std::nullopt;
  if (sampling_.temperature == 0 || !std::isfinite(scores.front())) return ids.front();
  return weighted(scores, scores.front(), [ids](size_t i) { return ids[i]; });
}

template <class Id>
int32_t Sampler::weighted(std::span<const float> scores, double top, const Id& id) {
  candidates_.clear();
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp((scores[i] - top) / sampling_.temperature);
    // Of what is suppressed nothing may come, not by rounding either.
    if (!(weight <= 0)) candidates_.push_back({id(i), weight});
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
