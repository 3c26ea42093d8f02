// [search]: which mechanisms may sit where, and how a search judges them.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <span>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/options.hpp"
#include "core/manifest/parts.hpp"
#include "core/manifest/reader.hpp"
#include "core/manifest/sites.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

struct Unit {
  const char* name;
  double factor;
};
constexpr std::array byte_units{Unit{"B", 1}, Unit{"KiB", 1024}, Unit{"MiB", 1024.0 * 1024},
                                Unit{"GiB", 1024.0 * 1024 * 1024}};
constexpr std::array time_units{Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1}};

// From here on doubles skip integers.
constexpr double most_bytes = 9007199254740992.0, most_seconds = 1e6;

class SearchReader {
 public:
  SearchReader(const Node& table, ManifestCheck& check)
      : check_(check), diagnostics_(check.diagnostics), reader_(table, "search", check.diagnostics) {}

  SearchTable read();

 private:
  // An entry of a role's space with what it comes to, so that two ways to say the same are seen.
  struct Listed {
    std::string mechanism;
    std::vector<OptionValue> effective;
  };

  void read_space(const Node& space);
  void read_role(uint32_t role, const Entry& entry);
  void read_lengths();
  void read_limits(const Node& limits);
  void read_exponents(const Node& exponents);
  std::vector<OptionValue> effective(const Use& use) const;
  std::optional<double> quantity(const TableReader& limits, const char* key, std::span<const Unit> units, double most);
  std::string path(const char* key) const;

  ManifestCheck& check_;
  Diagnostics& diagnostics_;
  TableReader reader_;
  SearchTable to_;
};

SearchTable SearchReader::read() {
  if (const Entry* space = reader_.given("space")) read_space(space->value);
  to_.strategy = reader_.text("strategy").value_or("");
  to_.metric = reader_.text("metric").value_or("");
  to_.rank = reader_.text("rank").value_or("");
  to_.per_layer = reader_.boolean("per_layer").value_or(false);
  to_.data = path("data");
  to_.test = path("test");
  to_.length = reader_.integer("length").value_or(0);
  to_.trials = reader_.integer("trials").value_or(0);
  to_.seed = reader_.integer("seed").value_or(0);
  to_.quality_weight = reader_.number("quality_weight").value_or(0);
  read_lengths();
  if (const Entry* baseline = reader_.given("baseline")) {
    const Use use = read_use(baseline->value, baseline->key, check_);
    if (use.plugin) to_.baseline = choice_of(use);
  }
  if (const Entry* limits = reader_.given("limits")) read_limits(limits->value);
  const Node none;
  const Entry* exponents = reader_.given("exponents");
  read_exponents(exponents ? exponents->value : none);
  return std::move(to_);
}

void SearchReader::read_space(const Node& space) {
  const TableReader roles(space, "search.space", diagnostics_);
  if (space.entries.empty())
    diagnostics_.error(ak::wrong_value, space.place, "\"space\" is empty: nothing could be tried",
                       "space = { \"encoder.self\" = [\"name\", { use = \"name\", option = value }] }");
  for (const uint32_t role : all_roles) {
    const Entry* entry = roles.given(role_name(role));
    if (entry && check_role(entry->place, role, check_)) read_role(role, *entry);
  }
}

void SearchReader::read_role(uint32_t role, const Entry& entry) {
  to_.space.push_back({role, {}});
  if (entry.value.items.empty())
    diagnostics_.error(ak::wrong_value, entry.value.place,
                       fmt::format("\"{}\" is empty: nothing could sit there", entry.key),
                       "list mechanisms, or leave the role out: it then stays as [attention] says");
  std::vector<Listed> listed;
  for (const Node& item : entry.value.items) {
    if (item.kind != Node::Kind::text && item.kind != Node::Kind::table) {
      diagnostics_.error(ak::wrong_type, item.place,
                         fmt::format("an entry of \"{}\" must be a mechanism's name or {{ use = name, option = value, "
                                     "... }}, not {}",
                                     entry.key, kind_name(item.kind)));
      continue;
    }
    const Use use = read_use(item, entry.key, check_);
    if (!use.plugin || !use.sound) continue;
    const std::vector<OptionValue> options = effective(use);
    const bool again = std::any_of(listed.begin(), listed.end(), [&](const Listed& l) {
      return l.mechanism == use.mechanism && l.effective == options;
    });
    if (again)
      diagnostics_.error(ak::listed_twice, item.place,
                         fmt::format("\"{}\" lists {} twice with the same options", entry.key, quote(use.mechanism)),
                         "keep one of them");
    listed.push_back({use.mechanism, options});
    to_.space.back().choices.push_back(choice_of(use));
  }
}

std::vector<OptionValue> SearchReader::effective(const Use& use) const {
  OptionSet options = default_options(*use.plugin);
  Diagnostics reported;
  const auto params = check_.params.find(use.mechanism);
  if (params != check_.params.end()) apply_options(*use.plugin, params->second, options, reported);
  apply_options(*use.plugin, use.options, options, reported);
  return options.values;
}

void SearchReader::read_lengths() {
  if (!reader_.mentioned("lengths")) to_.lengths = {64, 512, 4096};
  const Entry* entry = reader_.given("lengths");
  if (!entry) return;
  const KeyRule& rule = reader_.rule("lengths");
  const auto wrong = [&](int code, Place place, const std::string& message) {
    diagnostics_.error(code, place, message, fmt::format("\"lengths\" is {}", type_text(rule)));
  };
  if (entry->value.items.empty()) wrong(ak::wrong_value, entry->value.place, "\"lengths\" is empty");
  for (const Node& item : entry->value.items) {
    if (item.kind != Node::Kind::integer)
      wrong(ak::wrong_type, item.place, fmt::format("a length must be an integer, not {}", kind_name(item.kind)));
    else if (static_cast<double>(item.integer) < rule.min || static_cast<double>(item.integer) > rule.max)
      wrong(ak::wrong_value, item.place,
            fmt::format("length {} is out of bounds: {} to {} are possible", item.integer, rule.min, rule.max));
    else if (std::find(to_.lengths.begin(), to_.lengths.end(), item.integer) != to_.lengths.end())
      wrong(ak::listed_twice, item.place, fmt::format("\"lengths\" has {} twice", item.integer));
    else
      to_.lengths.push_back(item.integer);
  }
}

void SearchReader::read_limits(const Node& table) {
  const TableReader limits(table, "search.limits", diagnostics_);
  to_.min_quality_ratio = limits.number("min_quality_ratio");
  to_.max_latency = quantity(limits, "max_latency", time_units, most_seconds);
  if (const auto bytes = quantity(limits, "max_state", byte_units, most_bytes))
    to_.max_state = static_cast<int64_t>(std::ceil(*bytes));
}

void SearchReader::read_exponents(const Node& table) {
  const TableReader exponents(table, "search.exponents", diagnostics_);
  to_.throughput = exponents.number("throughput").value_or(0);
  to_.quality = exponents.number("quality").value_or(0);
  to_.memory = exponents.number("memory").value_or(0);
}

// "1.5MiB" in units of factor 1, or an integer of them.
std::optional<double> SearchReader::quantity(const TableReader& limits, const char* key, std::span<const Unit> units,
                                             double most) {
  const Entry* entry = limits.given(key);
  if (!entry) return {};
  const std::string_view text = entry->value.text;
  double value = static_cast<double>(entry->value.integer);
  std::string suggestion;
  if (entry->value.kind == Node::Kind::text) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
    const auto at = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return unit == u.name; });
    std::vector<std::string> names;
    for (const Unit& u : units) names.emplace_back(u.name);
    if (error == std::errc() && !unit.empty()) suggestion = did_you_mean(unit, names);
    value = error == std::errc() && at != units.end() ? value * at->factor : NAN;
  }
  if (value > 0 && value <= most) return value;
  const std::string shown =
      entry->value.kind == Node::Kind::text ? quote(text) : fmt::format("{}", entry->value.integer);
  diagnostics_.error(ak::wrong_value, entry->value.place, fmt::format("\"{}\" cannot be {}{}", key, shown, suggestion),
                     fmt::format("it is {}, more than 0", type_text(limits.rule(key))));
  return {};
}

std::string SearchReader::path(const char* key) const {
  const auto file = reader_.text(key);
  return file ? std::filesystem::absolute(join_path(check_.dir, *file)).lexically_normal().string() : "";
}

}  // namespace

void check_search(const Node& search, ManifestCheck& check) {
  check.manifest.search = SearchReader(search, check).read();
}

}  // namespace attnkit
