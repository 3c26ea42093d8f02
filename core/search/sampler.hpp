// Placements that another program proposes, such as attnkit.optuna; docs/search.md says what it is asked.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "core/search/settings.hpp"
#include "core/search/strategy.hpp"

namespace attnkit::core::search {

// The baseline and the homogeneous placements, then what Settings::sampler proposes, each once; ends with
// Settings::trials placements, with the space, when the sampler has no more, or when it repeats itself 100 times in a
// row.  known: what samplers proposed in the same journal before.  The same sampler proposes it again; of what it did
// not propose it is told once it proposes anything else.
// log_path: of what the program prints.  stop: asked every 0.1 s.
// next() throws Failure: interrupted (stop returned true), data (the sampler ends, is silent for longer than
// Settings::trial_timeout, refuses, or sends what is no placement of the space).
std::unique_ptr<Strategy> make_sampler(const Space& space, const Settings& settings, std::set<Placement> known,
                                       const std::string& log_path, const std::function<bool()>& stop);

}  // namespace attnkit::core::search
