// Collecting and ordering problems, and guessing what a misspelt word was meant to be.
#include "core/manifest/diagnostics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace attnkit {
namespace {

// Longer words are no typing errors of anything, and the distance is quadratic.
constexpr size_t longest_word = 64;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return out;
}

// Damerau-Levenshtein (restricted): insertions, deletions, substitutions and swaps of neighbours, each 1.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

void Diagnostics::error(int code, Place place, std::string message, std::string help, uint32_t area) {
  all_.push_back({ATTNKIT_ERROR, area, code, place, std::move(message), std::move(help)});
  ++errors_;
}

void Diagnostics::warn(int code, Place place, std::string message, std::string help, uint32_t area) {
  all_.push_back({ATTNKIT_WARNING, area, code, place, std::move(message), std::move(help)});
}

std::vector<Diagnostic> Diagnostics::sorted() const {
  auto result = all_;
  std::stable_sort(result.begin(), result.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  return result;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > longest_word) return {};
  const std::string wanted = lower(word);
  // One edit in three letters: a slip of a four-letter word is understood, another word is not.
  size_t best = std::max<size_t>(wanted.size(), 3) / 3 + 1;
  const std::string* found = nullptr;
  for (const auto& candidate : candidates) {
    if (candidate.empty() || candidate.size() > longest_word) continue;
    const size_t distance = edit_distance(wanted, lower(candidate));
    if (distance < best && distance < candidate.size()) {
      best = distance;
      found = &candidate;
    }
  }
  return found != nullptr ? *found : std::string();
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string meant = nearest(word, candidates);
  return meant.empty() ? std::string() : fmt::format("; did you mean \"{}\"?", meant);
}

}  // namespace attnkit
