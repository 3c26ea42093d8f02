// JSON documents, one a line, over a connected socket or a pair of pipes; both the search and its workers speak through
// it.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/descriptor.hpp"

namespace attnkit::core::search {

// A document as one line without its end; text that is no UTF-8 (a plugin's message) is repaired, not refused.
std::string one_line(const nlohmann::json& document);

// Lines in both directions, as they come in pieces.  Does not own the descriptors.  Not for two threads at once.
class LineChannel {
 public:
  static constexpr size_t max_line = size_t{64} << 20;  // bytes received

  enum class Arrival {
    some,
    none,      // nothing there yet; only on a socket that does not block
    ended,     // the other end is closed and had read all that was sent
    unread,    // the other end is closed and had not
    too_long,  // a line of more than max_line
  };

  explicit LineChannel(int socket) : in_(socket), out_(socket) {}
  LineChannel(int in, int out) : in_(in), out_(out) {}

  // Queues the document; flush() sends what the socket takes (all of it where it blocks) and remembers a closed end.
  void put(const nlohmann::json& document);
  void flush();
  bool has_unsent() const { return !unsent_.empty(); }
  bool is_lost() const { return lost_; }

  // Reads once; throws Failure (internal) on errors other than a closed end.
  Arrival receive();
  bool has_received() const { return !received_.empty(); }
  std::optional<std::string> next_line();

 private:
  int in_, out_;
  std::string unsent_, received_;
  size_t sent_ = 0;     // of unsent_
  size_t scanned_ = 0;  // of received_: holds no end of line
  bool lost_ = false;
};

// The worker's end, made from the number in its last argument, or of standard input and output; owns the descriptors.
class WorkerChannel {
 public:
  // Throws Failure (usage) unless the number is an open socket.
  explicit WorkerChannel(int descriptor);
  // Takes standard input and output for the search: what is printed after that goes to standard error.  From then on a
  // reader that has gone raises no signal, and the process ends when its input does, whatever it is busy with; once in
  // a process.  Throws Failure (usage) where one of the three is closed.
  static WorkerChannel of_standard_files();
  // The next request; no value when the search has gone.  Throws Failure (internal) when it is no JSON.
  std::optional<nlohmann::json> receive();
  // Throws Failure (internal) when the search has gone.
  void send(const nlohmann::json& reply);

 private:
  WorkerChannel(Descriptor in, Descriptor out)
      : descriptor_(std::move(in)), out_(std::move(out)), lines_(descriptor_.get(), out_.get()) {}

  Descriptor descriptor_, out_;  // out_: none where one socket does both
  LineChannel lines_;
};

}  // namespace attnkit::core::search
