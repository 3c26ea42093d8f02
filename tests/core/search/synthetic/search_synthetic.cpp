// search_synthetic [--choices N] [--deep] [--trials N]... [--models N]: what random search, evolution and guided
// evolution find at equal cost in made-up spaces of N^9 placements whose truth is known; a table of
// docs/benchmarks/search-proof.md.
#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <iostream>

#include "tests/core/search/synthetic/compare.hpp"

namespace po = boost::program_options;
using namespace attnkit::core::search;

namespace {

// Mean and half of its 95 % interval.
std::string mean_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (double v : values) sum += v;
  return fmt::format("{:.3f} ± {:.3f}", sum / n, kNormal95 * sample_deviation(values) / std::sqrt(n));
}

// By strategy the true value of what it recommends, as a share of the highest one of the model.
void print_table(int choices, bool is_deep, const std::vector<int>& all_trials, int models) {
  constexpr int countable = 5;  // choices
  fmt::print(
      "| trials | strategy | value found / best | nine of ten exceed | best found | more than evolution | tau of "
      "quality |\n"
      "|---|---|---|---|---|---|---|\n");
  std::vector<double> best;
  double longest = 0;
  for (int m = 1; m <= models; ++m) {
    const SyntheticModel model(choices, static_cast<uint64_t>(m), is_deep);
    best.push_back(choices <= countable ? best_of_all(model) : best_known(model, 1));
  }
  for (int trials : all_trials) {
    std::vector<std::vector<double>> shares(contestant_names.size());
    for (size_t who : {size_t{1}, size_t{0}, size_t{2}}) {
      std::vector<double> gain, tau;
      for (int m = 1; m <= models; ++m) {
        const auto seed = static_cast<uint64_t>(m);
        const Found found = search(static_cast<Contestant>(who), SyntheticModel(choices, seed, is_deep), trials, seed);
        shares[who].push_back(found.value / best[static_cast<size_t>(m) - 1]);
        gain.push_back(shares[who].back() - shares[1][static_cast<size_t>(m) - 1]);
        longest = std::max(longest, found.longest_step);
        if (found.seen.quality) tau.push_back(found.seen.quality->tau);
      }
      const auto right = std::ranges::count_if(shares[who], [](double share) { return share > 1 - 1e-9; });
      fmt::print("| {} | {} | {} | {:.3f} | {} of {} | {} | {} |\n", trials, contestant_names[who],
                 mean_of(shares[who]), quantile(shares[who], 0.1), right, models, who == 1 ? "" : mean_of(gain),
                 tau.empty() ? "" : mean_of(tau));
      std::fflush(stdout);
    }
  }
  fmt::print("\nThe longest step of a strategy took {:.2f} s of the processor.\n", longest);
}

}  // namespace

int main(int argc, char** argv) {
  int choices = 4, models = 100;
  bool is_deep = false;
  std::vector<int> trials = {64, 128, 300};
  po::options_description options;
  options.add_options()("choices", po::value(&choices))("deep", po::bool_switch(&is_deep))(
      "trials", po::value(&trials)->multitoken())("models", po::value(&models));
  try {
    po::variables_map map;
    po::store(po::parse_command_line(argc, argv, options), map);
    po::notify(map);
    print_table(choices, is_deep, trials, models);
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 2;
  }
}
