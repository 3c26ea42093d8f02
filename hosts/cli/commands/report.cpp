// attnkit report: the page of a search's result, or its table.
#include "hosts/cli/search/report/report.hpp"

#include <cstdint>
#include <filesystem>

#include "hosts/cli/command.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/table.hpp"
#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {

const Options report_options = {
    {"output,o", "FILE", "the page; by default report.html beside the result; - is standard output"},
    {"table", nullptr, "print the table that the search printed, and write no page"},
};

namespace {

namespace fs = std::filesystem;

Json read_result(const std::string& path) {
  const std::string text = read_file(path), name = path == "-" ? "standard input" : path;
  Json result;
  try {
    result = Json::parse(text);
  } catch (const Json::exception& e) {
    const std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    const size_t end = what.find("] ");
    fail(Exit::data, "{}: is no JSON: {}", quote(name), quote(what.substr(end == std::string::npos ? 0 : end + 2)));
  }
  const std::string schema = text_in(result, "schema");
  if (schema == "attnkit.search/1") return result;
  if (schema.starts_with("attnkit.bench"))
    throw Failure(Exit::data,
                  fmt::format("{}: schema {}: reports of benches are not in this version", quote(name), quote(schema)),
                  "give the result.json of attnkit search");
  throw Failure(Exit::data,
                schema.empty() ? fmt::format("{}: has no schema; a report needs \"attnkit.search/1\"", quote(name))
                               : fmt::format("{}: schema {} is not \"attnkit.search/1\"", quote(name), quote(schema)),
                "give the result.json of attnkit search");
}

std::string output_of(const Arguments& arguments, const std::string& input) {
  if (arguments.has("output")) return arguments.text("output");
  if (input == "-") fail(Exit::usage, "RESULT is standard input: say with --output where the page goes");
  return (fs::path(input).parent_path() / "report.html").string();
}

// The page never replaces the result, nor what the search wrote beside it.
void check_kept(const std::string& input, const std::string& output, const Json& result) {
  if (same_file(input == "-" ? "/dev/stdin" : input, output))
    fail(Exit::usage, "--output {} is an input of this command, the result: choose another file", quote(output));
  for (const char* kept : {"winner", "journal"}) {
    const std::string path = text_in(member(result, "files"), kept);
    if (path.empty()) continue;
    if (same_file(path, output) || same_file(fs::path(input).parent_path() / fs::path(path).filename(), output))
      fail(Exit::usage, "--output {} is the search's {}: choose another file", quote(output), kept);
  }
}

}  // namespace

Exit report_command(const Arguments& arguments) {
  const std::string input = arguments.text("RESULT");
  if (arguments.has("table")) {
    if (arguments.has("output") || arguments.json()) fail(Exit::usage, "--table goes with neither --output nor --json");
    print(search_table(read_result(input), SIZE_MAX));
    return Exit::success;
  }
  const std::string output = output_of(arguments, input);
  check_output(arguments);
  const Json result = read_result(input);
  if (output != "-") check_kept(input, output, result);
  check_writable(output);
  write_file(output, search_html(result));
  if (arguments.json())
    print_json({{"schema", "attnkit.report/1"}, {"report", output}});
  else if (output != "-")
    note(output + "\n");
  return Exit::success;
}

}  // namespace attnkit::cli
