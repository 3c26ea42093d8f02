// Recordings named on the command line or in a list.
#pragma once

#include "hosts/cli/io/inputs.hpp"

namespace attnkit::cli {

// Of --audio (with the references of --target or --target-file) or --audio-list, not opened yet.  Throws Failure:
// (usage) neither or both; (data) a list that cannot be read or has a line without a path, references for some lines
// alone.
std::vector<Input> named_recordings(const Arguments& arguments);

// Reads each once, so that what is no good is refused before anything is decoded, and notes how long it is.
void check_recordings(const SpeechFormat& format, LiveAudio live, std::vector<Input>& inputs);

}  // namespace attnkit::cli
