#include "core/search/worker/channel.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/search/failure.hpp"

namespace attnkit::core::search {

std::string one_line(const nlohmann::json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void LineChannel::put(const nlohmann::json& document) { unsent_ += one_line(document) + '\n'; }

void LineChannel::flush() {
  while (sent_ < unsent_.size() && !lost_) {
    ssize_t n = ::send(out_, unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL);
    if (n < 0 && errno == ENOTSOCK) n = ::write(out_, unsent_.data() + sent_, unsent_.size() - sent_);
    if (n >= 0) {
      sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno == EPIPE || errno == ECONNRESET) {
      lost_ = true;
    } else if (errno != EINTR) {
      fail(Fault::internal, "cannot write to the search's channel: {}", std::strerror(errno));
    }
  }
  unsent_.clear();
  sent_ = 0;
}

LineChannel::Arrival LineChannel::receive() {
  std::array<char, 1 << 16> piece;
  ssize_t n = 0;
  do {
    n = ::read(in_, piece.data(), piece.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return Arrival::none;
  // The kernel resets a local connection whose closed end had bytes left to read.
  if (n < 0 && errno == ECONNRESET) return Arrival::unread;
  if (n < 0) fail(Fault::internal, "cannot read from the search's channel: {}", std::strerror(errno));
  if (n == 0) return lost_ ? Arrival::unread : Arrival::ended;
  received_.append(piece.data(), static_cast<size_t>(n));
  const size_t line = std::min(received_.find('\n', scanned_), received_.size());
  return line > max_line ? Arrival::too_long : Arrival::some;
}

std::optional<std::string> LineChannel::next_line() {
  const size_t end = received_.find('\n', scanned_);
  if (end == std::string::npos) {
    scanned_ = received_.size();
    return std::nullopt;
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  scanned_ = 0;
  return line;
}

WorkerChannel::WorkerChannel(int descriptor) : lines_(descriptor) {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0)
    fail(Fault::usage, "descriptor {} is no socket of a search; workers are started by attnkit search alone",
         descriptor);
  descriptor_ = Descriptor(descriptor);
  // A program that a plugin starts must not keep the connection open after the worker's end.
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

WorkerChannel WorkerChannel::of_standard_files() {
  Descriptor in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)), out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (in.get() < 0 || out.get() < 0 || nothing.get() < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0 ||
      ::dup2(nothing.get(), STDIN_FILENO) < 0)
    fail(Fault::usage,
         "a worker needs its standard input, output and error; workers are started by attnkit search alone");
  std::signal(SIGPIPE, SIG_IGN);
  // The host on another machine can only close this program's input; a plugin that hangs must not outlive that.
  std::thread([file = in.get()] {
    pollfd end{file, POLLRDHUP, 0};
    while (::poll(&end, 1, -1) < 0 || (end.revents & (POLLHUP | POLLRDHUP | POLLERR)) == 0) continue;
    std::_Exit(0);
  }).detach();
  return {std::move(in), std::move(out)};
}

std::optional<nlohmann::json> WorkerChannel::receive() {
  for (;;) {
    if (const auto line = lines_.next_line()) {
      nlohmann::json request = nlohmann::json::parse(*line, nullptr, false);
      if (request.is_discarded())
        fail(Fault::internal, "the search sent a request of {} bytes that is no JSON", line->size());
      return request;
    }
    switch (lines_.receive()) {
      case LineChannel::Arrival::some:
      case LineChannel::Arrival::none:
        break;
      case LineChannel::Arrival::ended:
      case LineChannel::Arrival::unread:
        return std::nullopt;
      case LineChannel::Arrival::too_long:
        fail(Fault::internal, "the search sent a request of more than {} MiB", LineChannel::max_line >> 20);
    }
  }
}

void WorkerChannel::send(const nlohmann::json& reply) {
  lines_.put(reply);
  lines_.flush();
  if (lines_.is_lost()) fail(Fault::internal, "the search that started this worker has gone");
}

}  // namespace attnkit::core::search
