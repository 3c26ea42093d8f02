#include "hosts/cli/io/outputs.hpp"

#include <unistd.h>

#include <algorithm>

#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

ProgressBar::ProgressBar(Progress mode, size_t total)
    : mode_(mode), total_(total), quiet_(mode == Progress::automatic), start_(Clock::now()), last_(start_) {
  if (mode_ == Progress::automatic) mode_ = isatty(STDERR_FILENO) ? Progress::bar : Progress::plain;
}

ProgressBar::~ProgressBar() {
  if (drawn_) note("\r\x1b[K");
}

void ProgressBar::show(size_t done, size_t tokens) {
  using namespace std::chrono_literals;
  constexpr size_t width = 30;
  if (mode_ == Progress::none || total_ == 0) return;
  const Clock::time_point now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  if (quiet_ && elapsed < 1) return;
  const double rate = static_cast<double>(tokens) / std::max(elapsed, 1e-9);
  if (mode_ == Progress::bar) {
    if (now - last_ < 100ms && drawn_ && done < total_) return;
    const size_t filled = done * width / total_;
    const double left = done ? elapsed / static_cast<double>(done) * static_cast<double>(total_ - done) : 0;
    note(fmt::format("\r[{}{}] {}/{} {:.0f} tokens/s, {:.0f} s left\x1b[K", std::string(filled, '#'),
                     std::string(width - filled, '.'), done, total_, rate, left));
    drawn_ = true;
  } else {
    if (done * 10 / total_ <= shown_ && now - last_ < 30s) return;
    shown_ = done * 10 / total_;
    note(fmt::format("{}/{} inputs ({} %), {:.0f} tokens/s\n", done, total_, done * 100 / total_, rate));
  }
  last_ = now;
}

Outputs::Outputs(const Arguments& arguments, size_t inputs, bool quiet)
    : path_(arguments.text("output")),
      json_(arguments.json()),
      live_(!quiet && !json_ && path_.empty()),
      lines_(inputs) {
  if (arguments.has("file") || arguments.has("audio-list")) progress_.emplace(arguments.progress(), inputs);
}

void Outputs::show(const std::string& more) {
  if (!live_ || more.empty()) return;
  print(more);
  shown_ += more.size();
}

void Outputs::add(size_t index, std::string text, size_t tokens) {
  if (progress_)
    std::ranges::replace_if(
        text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  lines_[index] = std::move(text) + "\n";
  tokens_ += tokens;
  std::string ready;
  for (; live_ && next_ < lines_.size() && lines_[next_]; ++next_) {
    const std::string& line = *lines_[next_];
    size_t from = std::min(shown_, line.size() - 1);
    // A last character that stayed half may change how those before it are spelled, which were shown.
    while ((line[from] & 0xc0) == 0x80) ++from;
    ready += line.substr(from);
    shown_ = 0;
  }
  if (live_) print(ready);
  ++finished_;
  if (progress_) progress_->show(finished_, tokens_);
}

Exit Outputs::finish(const Json& document, const std::string& summary) {
  progress_.reset();
  std::string all = content_.value_or("");
  for (const auto& line : lines_)
    if (!content_) all += *line;
  if (!path_.empty()) write_file(path_, all);
  if (json_) print_json(document);
  note(summary);
  return Exit::success;
}

}  // namespace attnkit::cli
