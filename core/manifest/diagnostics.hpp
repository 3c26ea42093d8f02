// Problems of a manifest, collected so that all are reported at once, in order of place.
#pragma once

#include <attnkit/attnkit.h>

#include <string>
#include <string_view>
#include <vector>

namespace attnkit {

struct Place {
  int line = 0, column = 0;  // from 1; 0: none
};

struct Diagnostic {
  uint32_t severity;  // ATTNKIT_ERROR, ATTNKIT_WARNING
  uint32_t area;      // ATTNKIT_AREA_*
  int code;           // AK<code>, listed in docs/manifest.md
  Place place;
  std::string message, help;  // help may be empty
};

class Diagnostics {
 public:
  void error(int code, Place place, std::string message, std::string help = {}, uint32_t area = ATTNKIT_AREA_MANIFEST);
  void warn(int code, Place place, std::string message, std::string help = {}, uint32_t area = ATTNKIT_AREA_MANIFEST);
  bool failed() const { return errors_ > 0; }
  // Stable order by place.
  std::vector<Diagnostic> sorted() const;

 private:
  std::vector<Diagnostic> all_;
  int errors_ = 0;
};

// The candidate nearest to word by edit distance when it is near enough to be meant, else empty.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean "x"?" or an empty string.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace attnkit
