#include "hosts/cli/io/output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/base/descriptor.hpp"
#include "hosts/cli/io/interrupt.hpp"

namespace attnkit::cli {

using namespace core;
namespace {

void send(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) {
      check_interrupt();  // a reader that does not read
      continue;
    }
    // The reader of the pipe has gone; it wants no message.
    if (n < 0 && errno == EPIPE) throw Failure(Exit::data, "");
    if (n < 0) fail(Exit::data, "standard output: {}", std::generic_category().message(errno));
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::string text_of(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

void guard_standard_streams() {
  // The wrong direction on purpose: using a stream that was closed must fail.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
}

void print(std::string_view text) {
  check_interrupt();
  send(text);
}

void print_json(const Json& document) { print(text_of(document)); }

void print_result(bool json, const Json& document, std::string_view text) {
  print(json ? text_of(document) : std::string(text));
}

void note(std::string_view text) { write_all(STDERR_FILENO, text); }

std::string diagnostic_text(const std::string& file, const Diagnostic& d) {
  std::string out = d.line > 0 ? fmt::format("{}:{}:{}: ", file, d.line, d.column) : file + ": ";
  out += fmt::format("{}[AK{}]: {}\n", d.is_error() ? "error" : "warning", d.code, d.message);
  if (!d.help.empty()) out += fmt::format("  help: {}\n", d.help);
  return out;
}

Json diagnostic_json(const std::string& file, const Diagnostic& d) {
  constexpr const char* areas[] = {"", "manifest", "plugin", "weights", "data"};  // by ATTNKIT_AREA_*
  Json json = {{"file", file},
               {"line", d.line},
               {"column", d.column},
               {"severity", d.is_error() ? "error" : "warning"},
               {"code", fmt::format("AK{}", d.code)},
               {"area", areas[d.area]},
               {"message", d.message}};
  if (!d.help.empty()) json["help"] = d.help;
  return json;
}

void print_failure(const Failure& failure) {
  Json json = {{"schema", "attnkit.error/1"}, {"exit", static_cast<int>(failure.exit())}, {"message", failure.what()}};
  if (!failure.help().empty()) json["help"] = failure.help();
  json["diagnostics"] = Json::array();
  for (const Diagnostic& d : failure.diagnostics()) json["diagnostics"].push_back(diagnostic_json(failure.file(), d));
  send(text_of(json));
}

void note_failure(const Failure& failure) {
  for (const Diagnostic& d : failure.diagnostics()) note(diagnostic_text(failure.file(), d));
  if (failure.diagnostics().empty() && *failure.what()) note(fmt::format("attnkit: {}\n", failure.what()));
  if (!failure.help().empty()) note(fmt::format("  help: {}\n", failure.help()));
}

}  // namespace attnkit::cli
