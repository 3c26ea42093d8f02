#include "hosts/cli/search/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

using namespace std::chrono_literals;

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// 0: unknown.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// A line that a terminal wraps is not cleared by the next one, so the trial's name gives way.
std::string fitted(const std::string& before, std::string latest, const std::string& after, size_t columns) {
  const size_t others = before.size() + after.size() + 1;
  if (columns > 0 && others + latest.size() > columns) {
    const size_t room = columns > others + 3 ? columns - others - 3 : 0;
    latest = latest.substr(0, room) + "...";
  }
  const std::string line = before + latest + after;
  return columns > 0 ? line.substr(0, columns - 1) : line;
}

}  // namespace

SearchProgress::SearchProgress(Progress mode) : mode_(mode), start_(Clock::now()), last_(start_) {
  if (mode_ == Progress::automatic) mode_ = isatty(STDERR_FILENO) ? Progress::bar : Progress::plain;
}

void SearchProgress::clear() {
  if (drawn_) note("\r\x1b[K");
  drawn_ = false;
}

void SearchProgress::show(const search::Progress& p) {
  if (mode_ == Progress::none || p.total == 0) return;
  const Clock::time_point now = Clock::now();
  if (p.stage != stage_ || p.done == 1) {
    stage_ = p.stage;
    start_ = last_;
    done_before_ = p.done - 1;
  }
  const bool bar = mode_ == Progress::bar;
  if (p.done < p.total && now - last_ < (bar ? 100ms : 30s)) return;
  last_ = now;
  const double elapsed = std::max(1e-3, std::chrono::duration<double>(now - start_).count());
  const double rate = static_cast<double>(p.done - done_before_) / elapsed;
  const std::string line = fitted(
      fmt::format("[{}/{}] {} ", p.done, p.total, p.stage), p.latest,
      fmt::format(" {} % {:.1f} trials/s eta {}{}", p.done * 100 / p.total, rate,
                  clock_text(static_cast<double>(p.total - p.done) / rate), p.best.empty() ? "" : " best " + p.best),
      bar ? terminal_columns() : 0);
  note(bar ? "\r" + line + "\x1b[K" : line + "\n");
  drawn_ = bar;
}

}  // namespace attnkit::cli
