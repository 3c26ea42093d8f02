#include "hosts/cli/io/progress.hpp"

#include <unistd.h>

#include <algorithm>

#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

using namespace std::chrono_literals;

constexpr size_t bar_width = 30;

double seconds(ProgressBar::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

ProgressBar::ProgressBar(Progress mode, size_t total)
    : mode_(mode), total_(total), quiet_(mode == Progress::automatic), start_(Clock::now()), last_(start_) {
  if (mode_ == Progress::automatic) mode_ = isatty(STDERR_FILENO) ? Progress::bar : Progress::plain;
}

ProgressBar::~ProgressBar() {
  if (drawn_) note("\r\x1b[K");
}

void ProgressBar::show(size_t done, size_t tokens) {
  if (mode_ == Progress::none || total_ == 0) return;
  const Clock::time_point now = Clock::now();
  const double elapsed = seconds(now - start_);
  if (quiet_ && elapsed < 1) return;
  const double rate = static_cast<double>(tokens) / std::max(elapsed, 1e-9);
  if (mode_ == Progress::bar) {
    if (now - last_ < 100ms && drawn_ && done < total_) return;
    last_ = now;
    return draw(done, rate);
  }
  if (done * 10 / total_ <= shown_ && now - last_ < 30s) return;
  shown_ = done * 10 / total_;
  last_ = now;
  line(done, rate);
}

void ProgressBar::draw(size_t done, double rate) {
  const size_t filled = done * bar_width / total_;
  const double elapsed = seconds(Clock::now() - start_);
  const double left = done ? elapsed / static_cast<double>(done) * static_cast<double>(total_ - done) : 0;
  note(fmt::format("\r[{}{}] {}/{} {:.0f} tokens/s, {:.0f} s left\x1b[K", std::string(filled, '#'),
                   std::string(bar_width - filled, '.'), done, total_, rate, left));
  drawn_ = true;
}

void ProgressBar::line(size_t done, double rate) {
  note(fmt::format("{}/{} inputs ({} %), {:.0f} tokens/s\n", done, total_, done * 100 / total_, rate));
}

}  // namespace attnkit::cli
