// READ and WRITE as JSON lines: live on standard output, or a file written when all is over.
#pragma once

#include <string>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

class EventLines {
 public:
  // path: "" for nobody, "-" for standard output.
  explicit EventLines(std::string path) : path_(std::move(path)) {}
  bool wanted() const { return !path_.empty(); }
  bool on_standard_output() const { return path_ == "-"; }
  void add(const Json& event);
  void finish() const;

 private:
  std::string path_, lines_;
};

}  // namespace attnkit::cli
