#include "core/manifest/options.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.hpp"
#include "core/manifest/codes.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

std::vector<std::string> choices_of(const attn_option& option) {
  return {option.choices, option.choices + (option.choices ? option.n_choices : 0)};
}

std::string bounds_text(const attn_option& option) {
  return option.min == option.max ? "" : fmt::format(" from {} to {}", option.min, option.max);
}

// "an integer from 1 to 64": what a value must be.
std::string need_text(const attn_option& option) {
  switch (option.fallback.type) {
    case ATTN_INT:
      return "an integer" + bounds_text(option);
    case ATTN_FLOAT:
      return "a number" + bounds_text(option);
    case ATTN_BOOL:
      return "true or false";
    default:
      break;
  }
  if (option.n_choices == 0) return "text";
  return fmt::format("one of \"{}\"", fmt::join(choices_of(option), "\", \""));
}

std::string fallback_text(const attn_value& v) {
  switch (v.type) {
    case ATTN_INT:
      return fmt::format("{}", v.i);
    case ATTN_FLOAT:
      return fmt::format("{}", v.f);
    case ATTN_BOOL:
      return v.i ? "true" : "false";
    default:
      return quote(v.s ? v.s : "");
  }
}

std::string help_text(const attn_option& option) {
  std::string text =
      fmt::format("{} is {}; {} when not given", option.name, need_text(option), fallback_text(option.fallback));
  return option.doc && *option.doc ? fmt::format("{}: {}", text, option.doc) : text;
}

bool type_fits(uint32_t type, Node::Kind kind) {
  using Kind = Node::Kind;
  if (type == ATTN_INT) return kind == Kind::integer;
  if (type == ATTN_FLOAT) return kind == Kind::number || kind == Kind::integer;
  if (type == ATTN_BOOL) return kind == Kind::boolean;
  return kind == Kind::text;
}

OptionValue convert(uint32_t type, const Node& node) {
  OptionValue v;
  v.type = type;
  if (type == ATTN_INT) v.i = node.integer;
  if (type == ATTN_BOOL) v.i = node.boolean;
  if (type == ATTN_FLOAT) v.f = node.kind == Node::Kind::integer ? static_cast<double>(node.integer) : node.number;
  if (type == ATTN_TEXT) v.s = node.text;
  return v;
}

Node text_node(const std::string& text) {
  Node node;
  node.kind = Node::Kind::text;
  node.text = text;
  return node;
}

Node to_node(const OptionValue& v) {
  if (v.type == ATTN_TEXT) return text_node(v.s);
  Node node;
  node.kind = v.type == ATTN_INT ? Node::Kind::integer : v.type == ATTN_BOOL ? Node::Kind::boolean : Node::Kind::number;
  node.integer = v.i;
  node.number = v.f;
  node.boolean = v.i != 0;
  return node;
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

std::string shown(const Node& node) {
  if (node.kind == Node::Kind::text) return quote(node.text);
  return node.kind == Node::Kind::integer ? fmt::format("{}", node.integer) : fmt::format("{}", node.number);
}

bool apply_one(const Plugin& plugin, const attn_option& option, const Node& node, OptionValue& value,
               Diagnostics& diagnostics) {
  const std::string who = fmt::format("{}'s option \"{}\"", plugin.name, option.name);
  if (!type_fits(option.fallback.type, node.kind)) {
    diagnostics.error(ak::wrong_option_type, node.place,
                      fmt::format("{} must be {}, not {}", who, need_text(option), kind_name(node.kind)),
                      help_text(option));
    return false;
  }
  OptionValue given = convert(option.fallback.type, node);
  if (!value_fits(option, given)) {
    diagnostics.error(ak::wrong_option_value, node.place,
                      fmt::format("{} is {}; it must be {}{}", who, shown(node), need_text(option),
                                  did_you_mean(given.s, choices_of(option))),
                      help_text(option));
    return false;
  }
  value = std::move(given);
  return true;
}

void report_unknown(const Plugin& plugin, const Entry& entry, Diagnostics& diagnostics) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < plugin.table.n_options; ++i) names.emplace_back(plugin.table.options[i]->name);
  diagnostics.error(ak::unknown_option, entry.place,
                    fmt::format("{} has no option {}{}", plugin.name, quote(entry.key), did_you_mean(entry.key, names)),
                    names.empty() ? "it has none" : fmt::format("its options: {}", fmt::join(names, ", ")));
}

}  // namespace

OptionSet default_options(const Plugin& plugin) {
  OptionSet set;
  for (uint32_t i = 0; i < plugin.table.n_options; ++i) {
    const attn_value& v = plugin.table.options[i]->fallback;
    set.values.push_back({v.type, v.i, v.f, v.type == ATTN_TEXT && v.s ? v.s : ""});
  }
  set.places.resize(set.values.size());
  return set;
}

bool apply_options(const Plugin& plugin, const std::vector<const Entry*>& entries, OptionSet& options,
                   Diagnostics& diagnostics) {
  bool sound = true;
  for (const Entry* entry : entries) {
    uint32_t i = 0;
    while (i < plugin.table.n_options && plugin.table.options[i]->name != entry->key) ++i;
    if (i == plugin.table.n_options) {
      report_unknown(plugin, *entry, diagnostics);
      sound = false;
    } else if (apply_one(plugin, *plugin.table.options[i], entry->value, options.values[i], diagnostics)) {
      options.places[i] = entry->value.place;
    } else {
      sound = false;
    }
  }
  return sound;
}

std::vector<OptionValue> read_options(const Plugin& plugin, const char* toml) {
  OptionSet options = default_options(plugin);
  if (!toml) return options.values;
  Diagnostics diagnostics;
  const Node root = parse_toml(fmt::format("options = {{{}}}", toml), diagnostics);
  const Entry* table = root.find("options");
  if (table && root.entries.size() == 1 && table->value.kind == Node::Kind::table) {
    std::vector<const Entry*> entries;
    for (const Entry& e : table->value.entries) entries.push_back(&e);
    apply_options(plugin, entries, options, diagnostics);
  } else if (!diagnostics.failed()) {
    fail(ATTN_INVALID, "options {} are not the content of one inline table, such as \"eps = 0.1\"", quote(toml));
  }
  if (diagnostics.failed()) fail(ATTN_INVALID, "options {}: {}", quote(toml), diagnostics.sorted().front().message);
  return options.values;
}

std::string options_text(const Plugin& plugin, const std::vector<OptionValue>& options,
                         const std::vector<Place>* given) {
  std::string text;
  for (size_t i = 0; i < options.size(); ++i)
    if (!given || given->at(i).line > 0)
      text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", plugin.table.options[i]->name,
                          toml_text(to_node(options[i])));
  return text;
}

std::string use_text(const std::string& mechanism, const std::string& options) {
  const std::string name = toml_text(text_node(mechanism));
  return options.empty() ? name : fmt::format("{{ use = {}, {} }}", name, options);
}

std::vector<attn_value> to_values(const std::vector<OptionValue>& options) {
  std::vector<attn_value> values;
  for (const OptionValue& o : options)
    values.push_back({o.type, 0, o.i, o.f, o.type == ATTN_TEXT ? o.s.c_str() : nullptr});
  return values;
}

}  // namespace attnkit
