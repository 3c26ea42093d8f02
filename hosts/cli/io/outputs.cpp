#include "hosts/cli/io/outputs.hpp"

#include <numeric>

#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

Outputs::Outputs(const Arguments& arguments, size_t inputs, bool quiet)
    : path_(arguments.text("output")),
      live_(!quiet && !arguments.json() && path_.empty()),
      lines_(inputs),
      there_(inputs) {
  if (arguments.has("file") || arguments.has("audio-list")) progress_.emplace(arguments.progress(), inputs);
}

void Outputs::show(const std::string& beginning) {
  if (!live_ || beginning.size() <= shown_) return;
  print(std::string_view(beginning).substr(shown_));
  shown_ = beginning.size();
}

void Outputs::add(size_t index, const std::string& text, size_t tokens) {
  lines_[index] = text + "\n";
  there_[index] = true;
  tokens_ += tokens;
  std::string ready;
  for (; live_ && next_ < lines_.size() && there_[next_]; ++next_) {
    ready += lines_[next_].substr(shown_);
    shown_ = 0;
  }
  if (live_) print(ready);
  ++finished_;
  if (progress_) progress_->show(finished_, tokens_);
}

void Outputs::finish() {
  progress_.reset();
  if (!path_.empty()) write_file(path_, std::accumulate(lines_.begin(), lines_.end(), std::string()));
}

}  // namespace attnkit::cli
