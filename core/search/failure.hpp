// Reasons why a search cannot go on; hosts turn the kind into an exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace attnkit::core::search {

enum class Fault {
  usage,        // settings that contradict each other or the model
  manifest,     // the manifest, or a placement made from it
  data,         // data sets, journals, folders, full disks
  interrupted,  // asked to stop; what was finished is in the journal
  internal
};

class Failure : public std::runtime_error {
 public:
  Failure(Fault fault, const std::string& message, std::string help = {})
      : std::runtime_error(message), fault_(fault), help_(std::move(help)) {}
  Fault fault() const { return fault_; }
  const std::string& help() const { return help_; }

 private:
  Fault fault_;
  std::string help_;
};

template <class... Args>
[[noreturn]] void fail(Fault fault, fmt::format_string<Args...> text, Args&&... args) {
  throw Failure(fault, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace attnkit::core::search
