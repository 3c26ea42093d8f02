// The attnkit command: finds the subcommand, parses its options, runs it and reports failures.
#include <algorithm>
#include <cstdlib>

#include "hosts/cli/command.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"
#include "hosts/cli/manual.hpp"

namespace attnkit::cli {

using namespace core;
namespace {

constexpr Command all_commands[] = {
    {"doctor", "", false, &doctor_options, doctor_command, "doctor [OPTION ...]",
     "version, processor, plugin folders, plugins, and every skipped file with the reason"},
    {"plugins", "NAME", false, nullptr, plugins_command, "plugins [NAME] [OPTION ...]",
     "the mechanisms; with NAME the options, weights, roles and refusals of one"},
    {"import", "DIR", true, &import_options, import_command, "import DIR -o MANIFEST [OPTION ...]",
     "a manifest for a checkpoint of Hugging Face, Marian or CTranslate2 or a GGUF file, which stays where it is"},
    {"validate", "MANIFEST", true, nullptr, validate_command, "validate MANIFEST [OPTION ...]",
     "every problem of a manifest and of what it names, with line and column"},
    {"validate-plugin", "FILE", false, &validate_plugin_options, validate_plugin_command,
     "validate-plugin FILE [OPTION ...]",
     "a plugin's file against every law of the contract, each in a process of its own"},
    {"inspect", "MANIFEST", true, &inspect_options, inspect_command, "inspect MANIFEST [OPTION ...]",
     "the grid of mechanisms, which line decided each, costs, attention weights"},
    {"run", "MANIFEST", true, &run_options, run_command,
     "run MANIFEST (--text TEXT ... | --file FILE | --audio FILE ... | --audio-list FILE) [OPTION ...]",
     "translates, continues, classifies or embeds texts, transcribes or translates speech"},
    {"tokenize", "MANIFEST", true, &tokenize_options, tokenize_command,
     "tokenize MANIFEST (--text TEXT ... | --file FILE | --decode IDS ...) [OPTION ...]",
     "the ids of texts, as the model takes them, and the texts of ids"},
    {"stream", "MANIFEST", true, &stream_options, stream_command,
     "stream MANIFEST (--text TEXT ... | --file FILE | --audio FILE ... | --audio-list FILE) "
     "[--policy wait-k:3] [OPTION ...]",
     "translates while the source still arrives, and measures the lag"},
    {"verify", "MANIFEST", true, &verify_options, verify_command, "verify MANIFEST [OPTION ...]",
     "the model against golden activations, layer by layer"},
    {"bench", "MANIFEST", false, &bench_options, bench_command, "bench MANIFEST | --block MECHANISM [OPTION ...]",
     "a model's speed and memory against the length, or one more token of one mechanism"},
    {"search", "MANIFEST", true, &search_options, search_command, "search MANIFEST [OPTION ...]",
     "finds the mechanism for every block by quality, throughput and memory"},
    {"report", "RESULT", true, &report_options, report_command, "report RESULT.json [OPTION ...]",
     "the page of a search's result: figures, ranking, how to read them"},
    {"bundle", "MANIFEST", true, &bundle_options, bundle_command, "bundle MANIFEST -o DIR [OPTION ...]",
     "a model in a folder to copy: manifest, the weights that it uses, vocabulary, licence, figures"},
    {"quantize", "MANIFEST", true, &quantize_options, quantize_command,
     "quantize MANIFEST --type int8 -o DIR [OPTION ...]",
     "the same with weights of fewer bits, and what that costs layer by layer and in quality"},
    {"manual", "FORM", true, nullptr, manual_command, "manual man|bash|zsh|fish",
     "all of this help as a page of man, and as what a shell completes"}};
// Not for people, and so in no list.
constexpr Command worker_command = {"search-worker",
                                    "DESCRIPTOR",
                                    true,
                                    &search_worker_options,
                                    search_worker_command,
                                    "search-worker (DESCRIPTOR | -) [OPTION ...]",
                                    "answers the trials of attnkit search"};

// A title and two columns: options and their meanings.
std::string options_table(const char* title, const Options& options) {
  if (options.empty()) return "";
  Table table({title, ""});
  for (const Option& o : options) {
    const std::vector<std::string> names = split(o.name, ',');
    const std::string dash = names.size() > 1 ? "-" + names[1] + ", " : "";
    table.add({fmt::format("  {}--{}{}{}", dash, names[0], o.value ? " " : "", o.value ? o.value : ""), o.meaning});
  }
  return "\n" + table.text();
}

Options options_of(const Command& c) { return c.options ? *c.options : Options(); }

std::string main_help() {
  std::string out = std::string(about) + "\n\n";
  out += "usage: attnkit SUBCOMMAND [ARGUMENT] [OPTION ...]\n\nSubcommands:\n";
  for (const Command& c : all_commands) out += fmt::format("  {:<10} {}\n", c.name, c.summary);
  out += options_table("Options of every subcommand:", global_options);
  return out + "\nExit status: " + exit_statuses + "  \"attnkit SUBCOMMAND --help\" tells more.\n";
}

std::string help_of(const Command& c) {
  return fmt::format("usage: attnkit {}\n\n{}\n{}{}", c.synopsis, c.summary, options_table("Options:", options_of(c)),
                     options_table("Options of every subcommand:", global_options));
}

Exit print_help(bool json, const std::string& text) {
  print_result(json, {{"schema", "attnkit.help/1"}, {"text", text}}, text);
  return Exit::success;
}

Exit print_version(bool json) {
  const std::string version = attnkit_version();
  const uint32_t minor = attnkit_abi_minor();
  print_result(json, {{"schema", "attnkit.version/1"}, {"version", version}, {"abi", {{"major", 1}, {"minor", minor}}}},
               fmt::format("attnkit {} (ABI 1.{})\n", version, minor));
  return Exit::success;
}

const Command& find_command(const std::string& name) {
  if (name == worker_command.name) return worker_command;
  std::vector<std::string> names;
  for (const Command& c : all_commands) {
    if (name == c.name) return c;
    names.emplace_back(c.name);
  }
  throw Failure(Exit::usage, fmt::format("unknown subcommand {}{}", quote(name), did_you_mean(name, names)),
                "subcommands are: " + joined(names, ", "));
}

// Takes the subcommand out of the tokens: the first that is neither an option nor the value of one.
std::string take_subcommand(std::vector<std::string>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].starts_with("-") && tokens[i] != "-") {
      i += takes_value(tokens[i]);
      continue;
    }
    const std::string name = tokens[i];
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i));
    return name;
  }
  return "";
}

Exit dispatch(std::vector<std::string> tokens) {
  bool help = tokens.empty();
  std::string name = take_subcommand(tokens);
  help = help || name == "help";
  if (help) name = take_subcommand(tokens);
  if (name.empty()) {
    const Arguments globals("", Options(), "", tokens);
    if (globals.has("version")) return print_version(globals.json());
    if (!help && !globals.has("help")) throw Failure(Exit::usage, "no subcommand given", "attnkit --help lists them");
    return print_help(globals.json(), main_help());
  }
  const Command& command = find_command(name);
  const Arguments arguments(name, options_of(command), command.positional, tokens);
  if (arguments.has("version")) return print_version(arguments.json());
  if (help || arguments.has("help")) return print_help(arguments.json(), help_of(command));
  arguments.progress();  // a wrong value is refused by every subcommand
  if (command.needs_positional && !arguments.has(command.positional))
    fail(Exit::usage, "{} is missing; usage: attnkit {}", command.positional, command.synopsis);
  return command.run(arguments);
}

int report(const Failure& failure, bool json) {
  note_failure(failure);
  if (json && failure.exit() != Exit::success) {
    try {
      print_failure(failure);
    } catch (const Failure&) {  // standard output is what failed, or it failed as well
    }
  }
  return static_cast<int>(failure.exit());
}

// Until main returns: nothing of attnkit ends the process before.
bool is_running = false;

void tell_who_ended() {
  if (!is_running) return;
  note("attnkit: a plugin ended the process\n  help: \"attnkit validate-plugin FILE\" says whether a plugin does\n");
  std::_Exit(static_cast<int>(Exit::plugin));
}

int run(int argc, char** argv) {
  bool json = false;
  try {
    const std::vector<std::string> tokens(argv + std::min(argc, 1), argv + argc);
    json = std::find(tokens.begin(), tokens.end(), "--json") != tokens.end();
    return static_cast<int>(dispatch(tokens));
  } catch (const Failure& e) {
    return report(e, json);
  } catch (const attnkit::Error& e) {
    const bool ours = e.code() == ATTN_INVALID || e.code() == ATTN_UNSUPPORTED;
    return report(Failure(ours ? Exit::data : Exit::internal, e.what()), json);
  } catch (const std::bad_alloc&) {
    return report(Failure(Exit::internal, "out of memory"), json);
  } catch (const std::exception& e) {
    return report(Failure(Exit::internal, e.what()), json);
  }
}

}  // namespace

const char* const about = "attnkit composes transformers at run time from attention plugins, as a manifest says.";
const char* const exit_statuses =
    "0 success, 1 internal, 2 usage, 3 manifest, 4 plugin or ABI, 5 weights, 6 data or I/O,\n"
    "7 numerical, 8 a gate failed, 130 interrupted.";

std::span<const Command> commands() { return all_commands; }

}  // namespace attnkit::cli

int main(int argc, char** argv) {
  using namespace attnkit::cli;
  guard_standard_streams();
  catch_interrupts();
  std::atexit(tell_who_ended);
  // The search tells how its workers ended.
  is_running = argc < 2 || worker_command.name != std::string_view(argv[1]);
  const int code = run(argc, argv);
  is_running = false;
  return code;
}
