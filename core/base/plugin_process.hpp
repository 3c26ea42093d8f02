// The program that loads plugins where they can harm nobody.
#pragma once

#include <string>

namespace attnkit::core {

// Returns attnkit/attnkit-plugin-process beside libattnkit: in the folder of this code, or, for a program, in one of
// the folders of libraries beside its own; it finds itself.  Empty where it is not.
std::string plugin_process();

}  // namespace attnkit::core
