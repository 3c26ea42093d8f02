#include "hosts/cli/stream/events.hpp"

#include "hosts/cli/io/files.hpp"

namespace attnkit::cli {

void EventLines::add(const Json& event) {
  if (!wanted()) return;
  const std::string line = event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (on_standard_output())
    print(line);
  else
    lines_ += line;
}

void EventLines::finish() const {
  if (wanted() && !on_standard_output()) write_file(path_, lines_);
}

}  // namespace attnkit::cli
