// Problems of a manifest and the files it names: their codes, and a collection that reports all at once, by place.
#pragma once

#include <attnkit/attnkit.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace attnkit::core {

namespace ak {
// form
constexpr int no_toml = 100, unknown_key = 101, missing_key = 102, wrong_type = 103, wrong_value = 104, too_large = 105,
              too_deep = 106, no_utf8 = 107;
// the model
constexpr int wrong_schema = 110, not_applicable = 113, widths_do_not_divide = 114;
// files
constexpr int bad_weights_file = 120, bad_vocabulary = 121, bad_length_table = 122, bad_names = 123;
// attention
constexpr int unknown_mechanism = 201, unusable_mechanism = 202, refused = 203, unknown_option = 204,
              wrong_option_type = 205, wrong_option_value = 206, option_given_twice = 207, unused_mechanism = 208,
              not_searched = 209, no_such_block = 210, wrong_layers = 211, never_matches = 212, no_mechanism = 213,
              unused_entry = 214, listed_twice = 215, lost_positions = 216;
// plugins
constexpr int faulty_plugin = 301;
// weights against the model
constexpr int weights_do_not_fit = 401, left_over_tensor = 402, no_adapters = 403, packed_cache = 404, slow_type = 405;
}  // namespace ak

struct CodeRule {
  int code;
  uint32_t severity;  // ATTNKIT_ERROR, ATTNKIT_WARNING
  uint32_t area;      // ATTNKIT_AREA_*
  const char* meaning;
};

// Every code, ascending.
std::span<const CodeRule> manifest_codes();

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
  // An error or a warning, as manifest_codes() says.  area: in place of the code's own.
  void add(int code, Place place, std::string message, std::string help = {}, std::optional<uint32_t> area = {});
  bool failed() const { return errors_ > 0; }
  // Stable order by place.
  std::vector<Diagnostic> sorted() const;

 private:
  std::vector<Diagnostic> all_;
  int errors_ = 0;
};

}  // namespace attnkit::core
