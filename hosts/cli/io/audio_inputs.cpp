#include "hosts/cli/io/audio_inputs.hpp"

#include <algorithm>
#include <filesystem>

#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;

Input recording(const std::string& name, const std::string& path, const std::string& origin) {
  Input input{name, origin, {}, {}, {}};
  input.audio = Recording{path, 0, {}};
  return input;
}

// A line "path", or "path TAB reference".
Input listed(const std::string& line, const fs::path& folder, const std::string& place) {
  const size_t tab = line.find('\t');
  const std::string name = line.substr(0, tab);
  if (name.empty()) fail(Exit::data, "{}: a path is needed, and after a tab, if there is one, its reference", place);
  // Never a dash alone, which would be standard input.
  Input input = recording(name, (folder / name).string(), place + ": " + name);
  if (tab != std::string::npos) input.reference = line.substr(tab + 1);
  return input;
}

std::vector<Input> list_of(const std::string& file) {
  const fs::path folder = file == "-" ? fs::path(".") : fs::absolute(file).parent_path();
  std::vector<Input> inputs;
  for (const std::string& line : read_lines(file)) {
    const std::string place = fmt::format("{}:{}", file == "-" ? "standard input" : file, inputs.size() + 1);
    inputs.push_back(listed(line, folder, place));
    if (inputs.back().reference.has_value() != inputs.front().reference.has_value())
      fail(Exit::data, "{}: {} reference, unlike the first line: give one to every recording or to none", place,
           inputs.back().reference ? "has a" : "has no");
  }
  return inputs;
}

}  // namespace

std::vector<Input> named_recordings(const Arguments& arguments) {
  if (arguments.has("audio") == arguments.has("audio-list"))
    fail(Exit::usage, "this model takes speech: give either --audio FILE, which may be repeated, or --audio-list FILE");
  if (arguments.has("audio-list")) {
    if (arguments.has("target") || arguments.has("target-file"))
      fail(Exit::usage,
           "references of --audio-list stand in the list, after a tab: leave --target and --target-file out");
    return list_of(arguments.text("audio-list"));
  }
  std::vector<Input> inputs;
  for (const std::string& path : arguments.texts("audio"))
    inputs.push_back(recording(path, path, path == "-" ? "standard input" : path));
  if (std::count_if(inputs.begin(), inputs.end(), [](const Input& i) { return i.audio->path == "-"; }) > 1)
    fail(Exit::usage, "--audio - : standard input can be read but once");
  return inputs;
}

void check_recordings(const SpeechFormat& format, LiveAudio live, std::vector<Input>& inputs) {
  for (Input& input : inputs) {
    check_interrupt();
    const bool standard = input.audio->path == "-";
    if (standard && live == LiveAudio::left) continue;
    std::vector<float> samples = read_audio(input.audio->path, input.origin, format);
    if (is_silent(samples)) note(fmt::format("attnkit: warning: {}: is silent, all samples are 0\n", input.origin));
    input.audio->samples = static_cast<int64_t>(samples.size());
    if (standard) input.audio->held = std::move(samples);
  }
}

}  // namespace attnkit::cli
