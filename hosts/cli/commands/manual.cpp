// attnkit manual: the help of all subcommands as a page of man, and as what bash, zsh and fish complete.
#include "hosts/cli/manual.hpp"

#include <algorithm>

#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

struct Form {
  const char* name;
  std::string (*make)();
};

std::string replaced(std::string_view text, std::string_view characters, std::string_view before) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != characters.npos) out += before;
    out += c;
  }
  return out;
}

std::string long_name(const Option& option) { return split(option.name, ',')[0]; }

std::string short_name(const Option& option) {
  const std::vector<std::string> names = split(option.name, ',');
  return names.size() > 1 ? names[1] : "";
}

Options options_of(const Command& c) { return c.options ? *c.options : Options(); }

// The values of an option or an argument: one of these words, a file, or anything.
std::vector<std::string> choices(std::string_view value) {
  const auto lower = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '|'; };
  const bool words = value.find('|') != value.npos && std::all_of(value.begin(), value.end(), lower);
  return words ? split(std::string(value), '|') : std::vector<std::string>();
}

bool is_path(std::string_view value) {
  const auto has = [&](const char* word) { return value.find(word) != value.npos; };
  return has("FILE") || has("DIR") || has("MANIFEST") || has("RESULT");
}

// A line of roff: nothing in it is a request or an escape.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  return (out.starts_with('.') || out.starts_with('\'') ? "\\&" : "") + out;
}

std::string option_lines(const Options& options) {
  std::string out;
  for (const Option& o : options) {
    out += ".TP\n";
    if (!short_name(o).empty()) out += "\\fB\\-" + short_name(o) + "\\fR, ";
    out += "\\fB\\-\\-" + roff(long_name(o)) + "\\fR";
    if (o.value) out += " \\fI" + roff(o.value) + "\\fR";
    out += "\n" + roff(o.meaning) + "\n";
  }
  return out;
}

std::string man_page() {
  std::string out = fmt::format(".TH ATTNKIT 1 \"\" \"attnkit {}\"\n.SH NAME\nattnkit \\- {}\n", attnkit_version(),
                                roff("transformers composed at run time from attention plugins"));
  out += fmt::format(
      ".SH SYNOPSIS\n\\fBattnkit\\fR \\fISUBCOMMAND\\fR [\\fIARGUMENT\\fR] [\\fIOPTION\\fR ...]\n"
      ".SH DESCRIPTION\n{}\n.SH SUBCOMMANDS\n",
      roff(about));
  for (const Command& c : commands())
    out += fmt::format(".SS {}\n\\fBattnkit\\fR {}\n.PP\n{}\n{}", c.name, roff(c.synopsis), roff(c.summary),
                       option_lines(options_of(c)));
  out += ".SH OPTIONS OF EVERY SUBCOMMAND\n" + option_lines(global_options);
  return out + ".SH EXIT STATUS\n" + roff(exit_statuses) + "\n";
}

// The subcommand is the first word that is one.
std::string bash() {
  std::string names, values, options;
  const auto add_value = [&](const std::string& command, const Option& o) {
    if (!o.value) return;
    const std::string also = short_name(o).empty() ? "" : fmt::format(" | {}:-{}", command, short_name(o));
    const std::vector<std::string> words = choices(o.value);
    const char* paths = "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$current\")); ";
    values += fmt::format("    {}:--{}{}) {}return ;;\n", command, long_name(o), also,
                          !words.empty()
                              ? fmt::format("COMPREPLY=($(compgen -W \"{}\" -- \"$current\")); ", joined(words, " "))
                          : is_path(o.value) ? paths
                                             : "");
  };
  const auto words_of = [](const Options& list) {
    std::string out;
    for (const Option& o : list) out += " --" + long_name(o);
    return out;
  };
  for (const Command& c : commands()) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", c.name);
    options += fmt::format("    {}) options=\"{}\" file={} ;;\n", c.name, words_of(options_of(c)),
                           is_path(c.positional) ? 1 : 0);
    for (const Option& o : options_of(c)) add_value(c.name, o);
  }
  for (const Option& o : global_options) add_value("*", o);
  return fmt::format(R"(# Completions of bash for attnkit; made by "attnkit manual bash".
_attnkit() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= options= file=0 word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case " {0} " in *" $word "*) command=$word; break ;; esac
  done
  COMPREPLY=()
  case $command:$previous in
{1}  esac
  case $command in
{2}    *) options="{0}" ;;
  esac
  if [[ $current == -* || $file = 0 ]]; then
    COMPREPLY=($(compgen -W "$options{3}" -- "$current"))
  else
    compopt -o filenames
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -F _attnkit attnkit
)",
                     names, values, options, words_of(global_options));
}

std::string zsh() {
  const auto argument = [](std::string_view value) {
    const std::vector<std::string> words = choices(value);
    return fmt::format(":{}:{}", replaced(value, ":", "\\"),
                       !words.empty()   ? "(" + joined(words, " ") + ")"
                       : is_path(value) ? "_files"
                                        : " ");
  };
  const auto lines = [&](const Options& list) {
    std::string out;
    for (const Option& o : list) {
      const std::string what =
          fmt::format("[{}]{}", replaced(o.meaning, "[]:\\", "\\"), o.value ? argument(o.value) : "");
      out += fmt::format("      {} \\\n", shell_word((o.repeated ? "*--" : "--") + long_name(o) + what));
      if (!short_name(o).empty()) out += fmt::format("      {} \\\n", shell_word("-" + short_name(o) + what));
    }
    return out;
  };
  std::string names, cases;
  for (const Command& c : commands()) {
    names += fmt::format("    {}\n", shell_word(std::string(c.name) + ":" + replaced(c.summary, ":\\", "\\")));
    cases += fmt::format("    {}) _arguments -s \\\n{}{}      {} ;;\n", c.name, lines(options_of(c)),
                         lines(global_options), *c.positional ? shell_word("1" + argument(c.positional)) : "");
  }
  return fmt::format(R"(#compdef attnkit
# Completions of zsh for attnkit; made by "attnkit manual zsh".
_attnkit() {{
  local -a commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe subcommand commands
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{}  esac
}}
_attnkit "$@"
)",
                     names, cases);
}

std::string fish() {
  std::string names, out = "# Completions of fish for attnkit; made by \"attnkit manual fish\".\n";
  const auto quoted = [](std::string_view text) { return "'" + replaced(text, "'\\", "\\") + "'"; };
  const auto add = [&](const std::string& when, const Options& list) {
    for (const Option& o : list) {
      const std::vector<std::string> words = choices(o.value ? o.value : "");
      out += fmt::format("complete -c attnkit{} -l {}", when, long_name(o));
      if (!short_name(o).empty()) out += " -s " + short_name(o);
      if (o.value) out += is_path(o.value) ? " -rF" : " -x";
      if (!words.empty()) out += " -a " + quoted(joined(words, " "));
      out += " -d " + quoted(o.meaning) + "\n";
    }
  };
  for (const Command& c : commands()) {
    names += fmt::format(" {}", c.name);
    const std::string when = fmt::format(" -n '__fish_seen_subcommand_from {}'", c.name);
    out += fmt::format("complete -c attnkit -n __fish_use_subcommand -f -a {} -d {}\n", c.name, quoted(c.summary));
    if (!is_path(c.positional)) out += fmt::format("complete -c attnkit{} -f\n", when);
    add(when, options_of(c));
  }
  add("", global_options);
  return out;
}

constexpr Form forms[] = {{"man", man_page}, {"bash", bash}, {"zsh", zsh}, {"fish", fish}};

}  // namespace

Exit manual_command(const Arguments& arguments) {
  const std::string asked = arguments.text("FORM");
  std::vector<std::string> names;
  for (const Form& form : forms) {
    names.emplace_back(form.name);
    if (asked != form.name) continue;
    const std::string text = form.make();
    print_result(arguments.json(), {{"schema", "attnkit.manual/1"}, {"form", asked}, {"text", text}}, text);
    return Exit::success;
  }
  fail(Exit::usage, "there is no manual {}; it must be one of {}{}", quote(asked), joined(names, ", "),
       did_you_mean(asked, names));
}

}  // namespace attnkit::cli
