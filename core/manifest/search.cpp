// [search]: the space of mechanisms by role, and the measures that a search judges by.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/manifest/options.hpp"
#include "core/manifest/read.hpp"
#include "core/manifest/reader.hpp"

namespace attnkit::core {
namespace {

using Json = nlohmann::ordered_json;

struct Unit {
  const char* name;
  double factor;
};
constexpr Unit byte_units[] = {{"B", 1}, {"KiB", 1024}, {"MiB", 1024.0 * 1024}, {"GiB", 1024.0 * 1024 * 1024}};
constexpr Unit time_units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};

// From here on doubles skip integers.
constexpr double max_bytes = 9007199254740992.0, max_seconds = 1e6;

// The options that a use comes to, so that two ways to say the same are seen.
std::vector<OptionValue> effective(const Use& use, const Reading& to) {
  if (!use.plugin) return {};
  OptionSet options(*use.plugin);
  Diagnostics reported;
  const auto params = to.params.find(use.mechanism);
  if (params != to.params.end()) options.apply(params->second, reported);
  options.apply(use.options, reported);
  return options.values;
}

std::vector<SearchChoice> read_choices(const Entry& entry, const Reading& to) {
  if (entry.value.items.empty())
    to.error(ak::wrong_value, entry.value.place, fmt::format("\"{}\" is empty: nothing could sit there", entry.key),
             "list mechanisms, or leave the role out: it then stays as [attention] says");
  std::vector<SearchChoice> choices;
  std::vector<std::pair<std::string, std::vector<OptionValue>>> listed;
  for (const Node& item : entry.value.items) {
    if (item.kind != Node::Kind::text && item.kind != Node::Kind::table) {
      to.error(ak::wrong_type, item.place,
               fmt::format("an entry of \"{}\" must be a mechanism's name or {{ use = name, option = value, ... }}, "
                           "not {}",
                           entry.key, kind_name(item.kind)));
      continue;
    }
    const Use use = read_use(item, entry.key, to, Naming::search);
    if (use.mechanism.empty() || !use.sound) continue;
    const std::pair choice(use.plugin ? use.mechanism : use.choice().toml, effective(use, to));
    if (std::find(listed.begin(), listed.end(), choice) != listed.end())
      to.error(ak::listed_twice, item.place,
               fmt::format("\"{}\" lists {} twice with the same options", entry.key, quote(use.mechanism)),
               "keep one of them");
    listed.push_back(choice);
    choices.push_back(use.choice());
  }
  return choices;
}

Json read_space(const Node& space, const Reading& to) {
  const TableReader roles(space, "search.space", to.diagnostics);
  if (space.entries.empty())
    to.error(ak::wrong_value, space.place, "\"space\" is empty: nothing could be tried",
             "space = { \"encoder.self\" = [\"name\", { use = \"name\", option = value }] }");
  Json read = Json::object();
  for (const uint32_t role : all_roles) {
    const Entry* entry = roles.given(role_name(role));
    if (entry && check_role(entry->place, role, to)) read[role_name(role)] = read_choices(*entry, to);
  }
  return read;
}

std::vector<int64_t> read_lengths(const TableReader& table, const Reading& to) {
  if (!table.mentioned("lengths")) return {64, 512, 4096};
  const Entry* entry = table.given("lengths");
  if (!entry) return {};
  const KeyRule& rule = table.rule("lengths");
  const auto wrong = [&](int code, Place place, const std::string& message) {
    to.error(code, place, message, fmt::format("\"lengths\" is {}", type_text(rule)));
  };
  std::vector<int64_t> lengths;
  if (entry->value.items.empty()) wrong(ak::wrong_value, entry->value.place, "\"lengths\" is empty");
  for (const Node& item : entry->value.items) {
    if (item.kind != Node::Kind::integer)
      wrong(ak::wrong_type, item.place, fmt::format("a length must be an integer, not {}", kind_name(item.kind)));
    else if (item.number < rule.min || item.number > rule.max)
      wrong(ak::wrong_value, item.place,
            fmt::format("length {} is out of bounds: {} to {} are possible", item.integer, rule.min, rule.max));
    else if (std::find(lengths.begin(), lengths.end(), item.integer) != lengths.end())
      wrong(ak::listed_twice, item.place, fmt::format("\"lengths\" has {} twice", item.integer));
    else
      lengths.push_back(item.integer);
  }
  return lengths;
}

// "1.5MiB" in units of factor 1, or an integer of them.
std::optional<double> quantity(const TableReader& limits, const char* key, std::span<const Unit> units, double max,
                               const Reading& to) {
  const Entry* entry = limits.given(key);
  if (!entry) return {};
  double value = entry->value.number;
  std::string suggestion;
  if (entry->value.kind == Node::Kind::text) {
    const std::string_view text = entry->value.text;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
    const auto at = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return unit == u.name; });
    std::vector<std::string> names;
    for (const Unit& u : units) names.emplace_back(u.name);
    if (error == std::errc() && !unit.empty()) suggestion = did_you_mean(unit, names);
    value = error == std::errc() && at != units.end() ? value * at->factor : NAN;
  }
  if (value > 0 && value <= max) return value;
  to.error(ak::wrong_value, entry->value.place,
           fmt::format("\"{}\" cannot be {}{}", key, value_text(entry->value), suggestion),
           fmt::format("it is {}, more than 0", type_text(limits.rule(key))));
  return {};
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// The value of a key of a plain type; null where there is none.
Json value_of(const TableReader& table, const char* key) {
  const KeyType type = table.rule(key).type;
  return type == KeyType::integer   ? or_null(table.integer(key))
         : type == KeyType::number  ? or_null(table.number(key))
         : type == KeyType::boolean ? or_null(table.boolean(key))
                                    : or_null(table.text(key));
}

}  // namespace

void read_search(const Node& search, Reading& to) {
  const TableReader table(search, "search", to.diagnostics);
  const Node none;
  const auto table_of = [&](const char* key) -> const Node& {
    const Entry* given = table.given(key);
    return given ? given->value : none;
  };
  const TableReader limits(table_of("limits"), "search.limits", to.diagnostics),
      exponents(table_of("exponents"), "search.exponents", to.diagnostics);
  // In the order of descriptions.
  Json j;
  if (const Entry* space = table.given("space")) j["space"] = read_space(space->value, to);
  for (const char* key : {"strategy", "per_layer", "metric", "data", "test", "rank", "length"})
    j[key] = value_of(table, key);
  for (const char* key : {"data", "test"})
    if (const auto file = table.text(key))
      j[key] = std::filesystem::absolute(join_path(to.dir, *file)).lexically_normal().string();
  j["lengths"] = read_lengths(table, to);
  j["baseline"] = nullptr;
  if (const Entry* baseline = table.given("baseline"))
    if (const Use use = read_use(baseline->value, baseline->key, to, Naming::search); !use.mechanism.empty())
      j["baseline"] = use.choice();
  for (const char* key : {"trials", "seed"}) j[key] = value_of(table, key);
  const auto bytes = quantity(limits, "max_state", byte_units, max_bytes, to);
  j["limits"] = {{"min_quality_ratio", value_of(limits, "min_quality_ratio")},
                 {"max_state", bytes ? Json(static_cast<int64_t>(std::ceil(*bytes))) : Json()},
                 {"max_latency", or_null(quantity(limits, "max_latency", time_units, max_seconds, to))}};
  for (const char* key : {"throughput", "quality", "memory"}) j["exponents"][key] = value_of(exponents, key);
  j["quality_weight"] = value_of(table, "quality_weight");
  to.manifest.search = std::make_shared<const Json>(std::move(j));
}

}  // namespace attnkit::core
