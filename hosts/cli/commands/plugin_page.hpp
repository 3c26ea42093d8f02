// One mechanism in full, for people.
#pragma once

#include <string>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

// plugin: an entry of "plugins" in "attnkit.runtime/1".
std::string plugin_page(const Json& plugin);

}  // namespace attnkit::cli
