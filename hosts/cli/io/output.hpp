// Results go to standard output, checked; remarks go to standard error.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

using Json = nlohmann::ordered_json;

// Opens descriptors 0 to 2 where the caller closed them, so that no file of ours takes their place.
void guard_standard_streams();

// Writes everything to standard output or throws Failure (data, without a message when the reader of a
// pipe has gone; interrupted when Ctrl-C came before).
void print(std::string_view text);
void print_json(const Json& document);
// A subcommand's result: the document with --json, else the text.
void print_result(bool json, const Json& document, std::string_view text);

// Writes to standard error; failures there are ignored.
void note(std::string_view text);

// `model.toml:18:21: error[AK203]: message` and a second line with the help, if any.
std::string diagnostic_text(const std::string& file, const Diagnostic& diagnostic);
Json diagnostic_json(const std::string& file, const Diagnostic& diagnostic);

// "attnkit.error/1", also after an interruption.
void print_failure(const Failure& failure);
// For people, on standard error; nothing when there is no message.
void note_failure(const Failure& failure);

}  // namespace attnkit::cli
