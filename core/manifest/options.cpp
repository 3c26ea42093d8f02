#include "core/manifest/options.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

std::vector<std::string> choices_of(const attn_option& option) {
  return {option.choices, option.choices + (option.choices ? option.n_choices : 0)};
}

// "an integer from 1 to 64", of the values that are possible.
std::string need_text(const attn_option& option) {
  const uint32_t type = option.fallback.type;
  if (type == ATTN_BOOL) return "true or false";
  if (type == ATTN_TEXT)
    return option.n_choices == 0 ? "text" : fmt::format("one of \"{}\"", fmt::join(choices_of(option), "\", \""));
  const char* number = type == ATTN_INT ? "an integer" : "a number";
  return option.min == option.max ? number : fmt::format("{} from {} to {}", number, option.min, option.max);
}

std::string fallback_text(const attn_value& v) {
  if (v.type == ATTN_TEXT) return quote(v.s);
  if (v.type == ATTN_BOOL) return v.i ? "true" : "false";
  return v.type == ATTN_INT ? fmt::format("{}", v.i) : fmt::format("{}", v.f);
}

std::string help_text(const attn_option& option) {
  std::string text =
      fmt::format("{} is {}; {} when not given", option.name, need_text(option), fallback_text(option.fallback));
  return option.doc && *option.doc ? fmt::format("{}: {}", text, clean_line(option.doc)) : text;
}

// Nothing: the node is of another type.
std::optional<OptionValue> convert(uint32_t type, const Node& node) {
  using Kind = Node::Kind;
  if (type == ATTN_INT && node.kind == Kind::integer) return OptionValue{type, node.integer, 0, ""};
  if (type == ATTN_BOOL && node.kind == Kind::boolean) return OptionValue{type, node.boolean, 0, ""};
  if (type == ATTN_TEXT && node.kind == Kind::text) return OptionValue{type, 0, 0, node.text};
  if (type == ATTN_FLOAT && (node.kind == Kind::number || node.kind == Kind::integer))
    return OptionValue{type, 0, node.number, ""};
  return {};
}

// "option = value, ..."; given: only those with a place.  May be empty.
std::string options_text(const Plugin& plugin, const std::vector<OptionValue>& options,
                         const std::vector<Place>* given = nullptr) {
  std::string text;
  for (size_t i = 0; i < options.size(); ++i) {
    if (given && given->at(i).line == 0) continue;
    const OptionValue& v = options[i];
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", plugin.table.options[i]->name,
                        v.type == ATTN_INT     ? toml_text(v.i)
                        : v.type == ATTN_FLOAT ? toml_text(v.f)
                        : v.type == ATTN_BOOL  ? toml_text(v.i != 0)
                                               : toml_text(v.s));
  }
  return text;
}

std::string use_of(const std::string& mechanism, const std::string& options) {
  const std::string name = toml_text(mechanism);
  return options.empty() ? name : fmt::format("{{ use = {}, {} }}", name, options);
}

SearchChoice choice_of(const std::string& mechanism, const std::string& options) {
  return {options.empty() ? mechanism : fmt::format("{}{{{}}}", mechanism, options), use_of(mechanism, options),
          mechanism};
}

bool is_value(const Node& node) {
  using Kind = Node::Kind;
  return node.kind == Kind::text || node.kind == Kind::integer || node.kind == Kind::number ||
         node.kind == Kind::boolean;
}

bool value_fits(const attn_option& option, const OptionValue& v) {
  if (v.type == ATTN_TEXT) {
    const std::vector<std::string> choices = choices_of(option);
    const bool chosen = std::find(choices.begin(), choices.end(), v.s) != choices.end();
    return v.s.find('\0') == std::string::npos && (choices.empty() || chosen);
  }
  if (v.type == ATTN_BOOL) return true;
  const double number = v.type == ATTN_INT ? static_cast<double>(v.i) : v.f;
  return std::isfinite(number) && (option.min == option.max || (number >= option.min && number <= option.max));
}

bool apply_one(const Plugin& plugin, const attn_option& option, const Node& node, OptionValue& value,
               Diagnostics& diagnostics) {
  const std::string who = fmt::format("{}'s option \"{}\"", plugin.name, option.name);
  const auto given = convert(option.fallback.type, node);
  if (given && value_fits(option, *given)) {
    value = *given;
    return true;
  }
  diagnostics.add(given ? ak::wrong_option_value : ak::wrong_option_type, node.place,
                  given ? fmt::format("{} is {}; it must be {}{}", who, value_text(node), need_text(option),
                                      did_you_mean(given->s, choices_of(option)))
                        : fmt::format("{} must be {}, not {}", who, need_text(option), kind_name(node.kind)),
                  help_text(option));
  return false;
}

void report_unknown(const Plugin& plugin, const Entry& entry, Diagnostics& diagnostics) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < plugin.table.n_options; ++i) names.emplace_back(plugin.table.options[i]->name);
  diagnostics.add(ak::unknown_option, entry.place,
                  fmt::format("{} has no option {}{}", plugin.name, quote(entry.key), did_you_mean(entry.key, names)),
                  names.empty() ? "it has none" : fmt::format("its options: {}", fmt::join(names, ", ")));
}

}  // namespace

OptionSet::OptionSet(const Plugin& of) : plugin(of), values(default_options(of)), places(values.size()) {}

bool OptionSet::apply(const std::vector<const Entry*>& entries, Diagnostics& diagnostics) {
  bool sound = true;
  for (const Entry* entry : entries) {
    uint32_t i = 0;
    while (i < plugin.table.n_options && plugin.table.options[i]->name != entry->key) ++i;
    if (i == plugin.table.n_options) {
      report_unknown(plugin, *entry, diagnostics);
      sound = false;
    } else if (apply_one(plugin, *plugin.table.options[i], entry->value, values[i], diagnostics)) {
      places[i] = entry->value.place;
    } else {
      sound = false;
    }
  }
  return sound;
}

SearchChoice OptionSet::choice() const { return choice_of(plugin.name, options_text(plugin, values, &places)); }

bool check_values(const std::vector<const Entry*>& entries, Diagnostics& diagnostics) {
  bool sound = true;
  for (const Entry* entry : entries) {
    if (is_value(entry->value)) continue;
    diagnostics.add(ak::wrong_option_type, entry->value.place,
                    fmt::format("an option must be a number, true, false or text, and \"{}\" is {}", entry->key,
                                kind_name(entry->value.kind)));
    sound = false;
  }
  return sound;
}

SearchChoice choice_as_written(const std::string& mechanism, const std::vector<const Entry*>& entries) {
  std::vector<std::string> options;
  for (const Entry* entry : entries) {
    const Node& v = entry->value;
    options.push_back(fmt::format("{} = {}", entry->key,
                                  v.kind == Node::Kind::integer  ? toml_text(v.integer)
                                  : v.kind == Node::Kind::number ? toml_text(v.number)
                                  : v.kind == Node::Kind::text   ? toml_text(v.text)
                                                                 : toml_text(v.boolean)));
  }
  return choice_of(mechanism, fmt::format("{}", fmt::join(options, ", ")));
}

std::vector<OptionValue> read_options(const Plugin& plugin, const char* toml) {
  OptionSet options(plugin);
  if (!toml) return options.values;
  Diagnostics diagnostics;
  const Node root = parse_toml(fmt::format("options = {{{}}}", toml), diagnostics);
  const Entry* table = root.find("options");
  if (table && root.entries.size() == 1 && table->value.kind == Node::Kind::table) {
    std::vector<const Entry*> entries;
    for (const Entry& e : table->value.entries) entries.push_back(&e);
    options.apply(entries, diagnostics);
  } else if (!diagnostics.failed()) {
    fail(ATTN_INVALID, "options {} are not the content of one inline table, such as \"eps = 0.1\"", quote(toml));
  }
  if (diagnostics.failed()) fail(ATTN_INVALID, "options {}: {}", quote(toml), diagnostics.sorted().front().message);
  return options.values;
}

std::string use_text(const Plugin& plugin, const std::vector<OptionValue>& options, const std::string* before) {
  std::vector<Place> kept(options.size());
  for (Place& place : kept) place.line = 1;
  const std::vector<OptionValue> defaults = OptionSet(plugin).values;
  for (size_t i = 0; before && i < options.size(); ++i) {
    if (before->find(fmt::format(" {} = ", plugin.table.options[i]->name)) != std::string::npos) continue;
    std::vector<Place> alone(options.size());
    alone[i].line = 1;
    if (options_text(plugin, options, &alone) == options_text(plugin, defaults, &alone)) kept[i].line = 0;
  }
  return use_of(plugin.name, options_text(plugin, options, &kept));
}

}  // namespace attnkit::core
