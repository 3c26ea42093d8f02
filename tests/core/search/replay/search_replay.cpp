// search_replay RECORDED [--runs N] [--seed N] [--screen N] [--blocks N] [--confidence X]: how often a default search
// would have found the placement that is best when everything is measured, and how often one without a race would that
// reads so many times as many examples.
#include <fmt/core.h>

#include <boost/program_options.hpp>
#include <iostream>

#include "tests/core/search/replay/replay.hpp"

namespace po = boost::program_options;
using namespace attnkit::core::search;

namespace {

std::string share(int64_t part, const ReplayTable& of) {
  const Interval i = wilson(part, of.runs);
  return fmt::format("{:.1f} % ({:.1f}-{:.1f})", 100.0 * static_cast<double>(part) / of.runs, 100 * i.low,
                     100 * i.high);
}

}  // namespace

int main(int argc, char** argv) {
  std::string recorded;
  int runs = 1000;
  uint64_t seed = 1;
  Settings settings;
  po::options_description options;
  options.add_options()("recorded", po::value(&recorded)->required())("runs", po::value(&runs))(
      "seed", po::value(&seed))("screen", po::value(&settings.screen))("blocks", po::value(&settings.blocks))(
      "most-blocks", po::value(&settings.max_blocks))("confidence", po::value(&settings.confidence));
  po::positional_options_description positions;
  positions.add("recorded", 1);
  try {
    po::variables_map map;
    po::store(po::command_line_parser(argc, argv).options(options).positional(positions).run(), map);
    po::notify(map);
    const Recorded all(recorded);
    fmt::print(
        "| resampled | runs | top group has the best | winner within 1 % | mean loss | top group | examples | blocks "
        "|\n");
    fmt::print("|---|---|---|---|---|---|---|---|\n");
    for (const auto& [kind, name] :
         {std::pair(Resampling::order, "order"), std::pair(Resampling::examples, "examples")}) {
      const ReplayTable t = replay(all, settings, kind, runs, seed);
      fmt::print("| {} | {} | {} | {} | {:.2f} % | {:.1f} | {:.0f} % | {:.1f} |\n", name, t.runs, share(t.covered, t),
                 share(t.close, t), 100 * t.regret, t.tied, 100 * t.examples, t.blocks);
    }
    fmt::print("\n| examples, all read | winner within 1 % | mean loss |\n|---|---|---|\n");
    for (const size_t times : {1, 2, 4, 8, 16, 32}) {
      const size_t examples = times * all.examples();
      const ReplayTable t = measure_all(all, settings, examples, runs, seed);
      fmt::print("| {} | {} | {:.2f} % |\n", examples, share(t.close, t), 100 * t.regret);
    }
  } catch (const std::exception& e) {
    std::cerr << "search_replay: " << e.what() << '\n';
    return 2;
  }
}
