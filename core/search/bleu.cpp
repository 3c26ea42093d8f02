// BLEU of a corpus, equal to sacreBLEU's default: 13a tokens, orders 1 to 4, exponential smoothing.
#include "core/search/bleu.hpp"

#include <algorithm>
#include <boost/algorithm/string/replace.hpp>
#include <cmath>
#include <random>
#include <unordered_map>

#include "core/base/text.hpp"

namespace attnkit::core::search {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_stop(char c) { return c == '.' || c == ','; }

// ASCII marks that always are tokens: all but the apostrophe, and but comma, hyphen and period, which depend on digits.
bool is_mark(char c) {
  return (c >= ' ' && c <= '/' && c != '\'' && c != ',' && c != '-' && c != '.') || (c >= ':' && c <= '@') ||
         (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

// As white_space, of what Python's str.split() takes for it.
size_t space_at(std::string_view text) {
  return text.front() >= '\x1c' && text.front() <= '\x1f' ? 1 : white_space(text);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> tokens;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const size_t space = space_at(text.substr(i));
    if (space == 0) {
      if (!inside) tokens.emplace_back();
      tokens.back() += text[i];
    }
    inside = space == 0;
    i += std::max<size_t>(space, 1);
  }
  return tokens;
}

std::string_view without_trailing_space(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t space = space_at(text.substr(i));
    i += std::max<size_t>(space, 1);
    if (space == 0) end = i;
  }
  return text.substr(0, end);
}

std::string separate_marks(std::string_view text) {
  std::string out;
  for (char c : text) is_mark(c) ? out.append({' ', c, ' '}) : out.append(1, c);
  return out;
}

// Writes every pair of neighbours that matches as `before` them, a space between them and `after` them.  Left to right
// and without overlap, as regular expressions substitute; bytes do for characters since all conditions are on ASCII.
template <class Matches>
std::string separate_pairs(std::string_view text, std::string_view before, std::string_view after, Matches matches) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool found = i + 1 < text.size() && matches(text[i], text[i + 1]);
    if (found) out.append(before).append({text[i], ' ', text[i + 1]}).append(after);
    if (found) ++i;
    if (!found) out += text[i];
  }
  return out;
}

using Counts = std::unordered_map<std::string, int64_t>;

Counts count_ngrams(std::span<const std::string> tokens, size_t order) {
  Counts counts;
  for (size_t i = 0; i + order <= tokens.size(); ++i) {
    std::string ngram;
    for (const std::string& token : tokens.subspan(i, order)) ngram += token + ' ';
    ++counts[ngram];
  }
  return counts;
}

}  // namespace

std::vector<std::string> tokenize_13a(std::string_view text) {
  std::string line(text);
  boost::replace_all(line, "<skipped>", "");
  boost::replace_all(line, "-\n", "");
  boost::replace_all(line, "\n", " ");
  boost::replace_all(line, "&quot;", "\"");
  boost::replace_all(line, "&amp;", "&");
  boost::replace_all(line, "&lt;", "<");
  boost::replace_all(line, "&gt;", ">");
  line = separate_marks(" " + line + " ");
  line = separate_pairs(line, "", " ", [](char a, char b) { return !is_digit(a) && is_stop(b); });
  line = separate_pairs(line, " ", "", [](char a, char b) { return is_stop(a) && !is_digit(b); });
  line = separate_pairs(line, "", " ", [](char a, char b) { return is_digit(a) && b == '-'; });
  return words_of(line);
}

BleuStats& BleuStats::operator+=(const BleuStats& other) {
  for (size_t i = 0; i < matches.size(); ++i) {
    matches[i] += other.matches[i];
    totals[i] += other.totals[i];
  }
  hypothesis += other.hypothesis;
  reference += other.reference;
  return *this;
}

BleuStats bleu_stats(std::string_view hypothesis, std::string_view reference) {
  const std::vector<std::string> said = tokenize_13a(without_trailing_space(hypothesis));
  const std::vector<std::string> meant = tokenize_13a(without_trailing_space(reference));
  BleuStats stats;
  stats.hypothesis = static_cast<int64_t>(said.size());
  stats.reference = static_cast<int64_t>(meant.size());
  for (size_t order = 1; order <= stats.totals.size(); ++order) {
    const Counts available = count_ngrams(meant, order);
    for (const auto& [ngram, count] : count_ngrams(said, order)) {
      const auto found = available.find(ngram);
      stats.totals[order - 1] += count;
      stats.matches[order - 1] += found == available.end() ? 0 : std::min(count, found->second);
    }
  }
  return stats;
}

double bleu(const BleuStats& corpus) {
  if (corpus.matches == std::array<int64_t, 4>{} || corpus.totals.back() == 0) return 0;
  double smoothing = 1, logarithms = 0;
  for (size_t i = 0; i < corpus.totals.size(); ++i) {
    const double total = static_cast<double>(corpus.totals[i]);
    if (corpus.matches[i] == 0) smoothing *= 2;
    const double matches = corpus.matches[i] == 0 ? 1 / smoothing : static_cast<double>(corpus.matches[i]);
    logarithms += std::log(100 * matches / total);
  }
  const double lack = static_cast<double>(corpus.reference) / static_cast<double>(corpus.hypothesis);
  const double mean = std::exp(logarithms / static_cast<double>(corpus.totals.size()));
  return std::min(100.0, std::exp(std::min(0.0, 1 - lack)) * mean);
}

Interval bleu_interval(std::span<const BleuStats> pairs, int resamples, uint64_t seed) {
  if (pairs.empty() || resamples < 1) {
    BleuStats corpus;
    for (const BleuStats& pair : pairs) corpus += pair;
    return {bleu(corpus), bleu(corpus)};
  }
  // std::uniform_int_distribution differs between standard libraries; the remainder's bias is below 1e-12 here.
  std::mt19937_64 random(seed);
  std::vector<double> scores;
  for (int r = 0; r < resamples; ++r) {
    BleuStats corpus;
    for (size_t i = 0; i < pairs.size(); ++i) corpus += pairs[random() % pairs.size()];
    scores.push_back(bleu(corpus));
  }
  return {quantile(scores, 0.025), quantile(scores, 0.975)};
}

}  // namespace attnkit::core::search
