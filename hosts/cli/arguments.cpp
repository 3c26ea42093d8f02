#include "hosts/cli/arguments.hpp"

#include <algorithm>
#include <boost/program_options/parsers.hpp>
#include <boost/program_options/positional_options.hpp>
#include <boost/program_options/value_semantic.hpp>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

namespace po = boost::program_options;

int64_t to_integer(const std::string& option, std::string_view text, int64_t min, int64_t max) {
  const auto n = parse_number<int64_t>(text);
  if (!n || *n < min || *n > max)
    fail(Exit::usage, "--{} {} must be an integer from {} to {}", option, quote(text), min, max);
  return *n;
}

[[noreturn]] void fail_unknown(const std::string& token, const std::string& subcommand, const Options& options) {
  const std::string name = token.substr(0, token.find('='));
  std::vector<std::string> names;
  for (const Option& option : options) names.push_back("--" + split(option.name, ',')[0]);
  fail(Exit::usage, "unknown option {} of \"attnkit {}\"{}", quote(name), subcommand, did_you_mean(name, names));
}

po::variables_map parse(const std::string& subcommand, const Options& visible, const std::string& positional,
                        const std::vector<std::string>& tokens) {
  constexpr int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
  po::options_description all;
  for (const auto& [name, value, meaning, repeated] : visible)
    !value     ? all.add_options()(name, meaning)
    : repeated ? all.add_options()(name, po::value<std::vector<std::string>>()->composing())
               : all.add_options()(name, po::value<std::string>());
  po::positional_options_description order;
  // Registered without limit, so that a second one is refused in our words.
  all.add_options()("(positional)", po::value<std::vector<std::string>>());
  order.add("(positional)", -1);
  po::variables_map map;
  try {
    po::store(po::command_line_parser(tokens).options(all).positional(order).style(style).run(), map);
  } catch (const po::unknown_option& e) {
    fail_unknown(e.get_option_name(), subcommand, visible);
  } catch (const po::error& e) {
    fail(Exit::usage, "{}; see \"attnkit {} --help\"", e.what(), subcommand);
  }
  for (const Option& option : visible) {
    const std::string name = split(option.name, ',')[0], value = option.value ? option.value : "";
    if ((value == "FILE" || value == "DIR") && !option.repeated && map.count(name) &&
        map[name].as<std::string>().empty())
      fail(Exit::usage, "--{} is empty: name a {}", name, value == "DIR" ? "folder" : "file");
  }
  const size_t given = map.count("(positional)") ? map["(positional)"].as<std::vector<std::string>>().size() : 0;
  if (given > (positional.empty() ? 0 : 1))
    fail(Exit::usage, "unexpected argument {}; see \"attnkit {} --help\"",
         quote(map["(positional)"].as<std::vector<std::string>>().back()), subcommand);
  return map;
}

}  // namespace

Arguments::Arguments(const std::string& subcommand, const Options& own, const std::string& positional,
                     const std::vector<std::string>& tokens)
    : tokens_(tokens) {
  Options visible = own;
  visible.insert(visible.end(), global_options.begin(), global_options.end());
  values_ = parse(subcommand, visible, positional, tokens);
  if (values_.count("(positional)") == 0) return;
  const std::string given = values_["(positional)"].as<std::vector<std::string>>().front();
  values_.insert({positional, po::variable_value(boost::any(given), false)});
}

std::string Arguments::text(const std::string& name, const std::string& fallback) const {
  return has(name) ? values_[name].as<std::string>() : fallback;
}

std::vector<std::string> Arguments::texts(const std::string& name) const {
  return has(name) ? values_[name].as<std::vector<std::string>>() : std::vector<std::string>{};
}

int64_t Arguments::integer(const std::string& name, int64_t fallback, int64_t min, int64_t max) const {
  return has(name) ? to_integer(name, text(name), min, max) : fallback;
}

double Arguments::number(const std::string& name, double fallback, double min, double max) const {
  if (!has(name)) return fallback;
  const auto x = parse_number<double>(text(name));
  if (!x || !(*x >= min && *x <= max))
    fail(Exit::usage, "--{} {}: it must be a number from {} to {}", name, quote(text(name)), min, max);
  return *x;
}

std::vector<int64_t> Arguments::integers(const std::string& name, std::vector<int64_t> fallback, int64_t min,
                                         int64_t max) const {
  if (!has(name)) return fallback;
  std::vector<int64_t> numbers;
  for (const std::string& part : split(text(name), ',')) numbers.push_back(to_integer(name, part, min, max));
  return numbers;
}

size_t Arguments::choice(const std::string& name, size_t fallback, const std::vector<std::string>& choices) const {
  if (!has(name)) return fallback;
  const std::string given = text(name);
  const auto at = std::find(choices.begin(), choices.end(), given);
  if (at == choices.end())
    fail(Exit::usage, "--{} {} must be one of {}{}", name, quote(given), joined(choices, ", "),
         did_you_mean(given, choices));
  return static_cast<size_t>(at - choices.begin());
}

Progress Arguments::progress() const {
  return static_cast<Progress>(choice("progress", 0, {"auto", "bar", "plain", "none"}));
}

const Options global_options = {
    {"plugin-dir", "DIR", "a folder of plugins, searched first; may be repeated", true},
    {"threads", "N", "threads of one call; 0, the default: one per processor that this process may use"},
    {"device", "cpu|cuda", "where models run, whatever their manifests say"},
    {"json", nullptr, "exactly one JSON document on standard output, errors too"},
    {"progress", "auto|bar|plain|none", "how progress is shown on standard error"},
    {"help,h", nullptr, "what this subcommand does"},
    {"version", nullptr, "version of the command and of the ABI"},
};

bool takes_value(const std::string& token) {
  return std::ranges::any_of(global_options,
                             [&](const Option& o) { return o.value && token == "--" + std::string(o.name); });
}

}  // namespace attnkit::cli
