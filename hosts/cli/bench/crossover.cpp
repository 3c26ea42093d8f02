// Where the costs of a token meet.
#include <algorithm>
#include <cmath>

#include "hosts/cli/commands/bench.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

Crossover crossover_of(std::vector<Timing> own, std::vector<Timing> other) {
  const auto shorter = [](const Timing& a, const Timing& b) { return a.context < b.context; };
  std::sort(own.begin(), own.end(), shorter);
  std::sort(other.begin(), other.end(), shorter);
  // How much more the other one costs, as a logarithm; it is the last change of sign that counts.
  const auto more = [&](size_t i) { return std::log(other[i].median / own[i].median); };
  size_t from = own.size();
  while (from > 0 && more(from - 1) > 0) --from;
  if (from == own.size()) return {Crossover::beyond, static_cast<double>(own.back().context)};
  if (from == 0) return {Crossover::below, static_cast<double>(own.front().context)};
  const double before = more(from - 1), after = more(from);
  const double left = std::log(static_cast<double>(own[from - 1].context));
  const double right = std::log(static_cast<double>(own[from].context));
  return {Crossover::between, std::exp(left + (right - left) * before / (before - after))};
}

std::string text_of(const Crossover& crossover) {
  const char* const places[] = {"below ", "about ", "beyond "};
  return places[crossover.place] + grouped_text(static_cast<uint64_t>(std::lround(crossover.context)));
}

}  // namespace attnkit::cli
