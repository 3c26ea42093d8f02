// The codes of diagnostics, each with the sentence that documents it.
#pragma once

#include <span>

namespace attnkit {

namespace ak {
// form
constexpr int no_toml = 100;
constexpr int unknown_key = 101;
constexpr int missing_key = 102;
constexpr int wrong_type = 103;
constexpr int wrong_value = 104;
constexpr int too_large = 105;
constexpr int too_deep = 106;
constexpr int no_utf8 = 107;
// the model
constexpr int wrong_schema = 110;
constexpr int not_applicable = 113;
constexpr int widths_do_not_divide = 114;
// files
constexpr int bad_weights_file = 120;
constexpr int bad_vocabulary = 121;
constexpr int bad_length_table = 122;
// attention
constexpr int unknown_mechanism = 201;
constexpr int unusable_mechanism = 202;
constexpr int refused = 203;
constexpr int unknown_option = 204;
constexpr int wrong_option_type = 205;
constexpr int wrong_option_value = 206;
constexpr int option_given_twice = 207;
constexpr int no_such_block = 210;
constexpr int wrong_layers = 211;
constexpr int never_matches = 212;
constexpr int no_mechanism = 213;
constexpr int unused_entry = 214;
constexpr int listed_twice = 215;
// plugins
constexpr int faulty_plugin = 301;
// weights against the model
constexpr int weights_do_not_fit = 401;
constexpr int left_over_tensor = 402;
constexpr int no_adapters = 403;
}  // namespace ak

struct CodeRule {
  int code;
  const char* severity;  // "error", "warning"
  const char* area;      // "manifest", "plugin", "weights", "data"
  const char* meaning;
};

// Every code, ascending.
std::span<const CodeRule> manifest_codes();

}  // namespace attnkit
