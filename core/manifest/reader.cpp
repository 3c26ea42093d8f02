#include "core/manifest/reader.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

bool type_fits(const KeyRule& rule, const Node& value) {
  const KeyType type = rule.type;
  using T = KeyType;
  using K = Node::Kind;
  static const std::set<std::pair<T, K>> fitting = {
      {T::text, K::text},      {T::choice, K::text},    {T::time, K::text},       {T::integer, K::integer},
      {T::number, K::number},  {T::number, K::integer}, {T::boolean, K::boolean}, {T::table, K::table},
      {T::tables, K::array},   {T::use, K::text},       {T::use, K::table},       {T::uses, K::array},
      {T::integers, K::array}, {T::numbers, K::array},  {T::bytes, K::integer},   {T::bytes, K::text},
      {T::layers, K::integer}, {T::layers, K::text},    {T::layers, K::array},    {T::tokens, K::array},
      {T::texts, K::array},    {T::set, K::text},       {T::set, K::boolean},     {T::set, K::array},
      {T::factor, K::boolean}, {T::factor, K::number},  {T::factor, K::integer}};
  const auto is_table = [](const Node& item) { return item.kind == K::table; };
  // The words of a set are text, or true and false.
  if (type == T::set && value.kind != (choices_of(rule).front() == "true" ? K::boolean : K::text) &&
      value.kind != K::array)
    return false;
  return fitting.contains({type, value.kind}) &&
         (type != T::tables || std::all_of(value.items.begin(), value.items.end(), is_table));
}

bool plain_text(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

}  // namespace

TableReader::TableReader(const Node& table, std::string_view path, Diagnostics& diagnostics)
    : table_(table), path_(path), rules_(rules_of(path)), diagnostics_(diagnostics) {
  for (const Entry& entry : table.entries) {
    const auto at = std::find_if(rules_.begin(), rules_.end(), [&](const KeyRule* r) { return r->key == entry.key; });
    if (at == rules_.end())
      report_unknown(entry);
    else
      check(**at, entry);
  }
  for (const KeyRule* rule : rules_)
    if (!rule->fallback && !table.find(rule->key)) report_missing(*rule);
}

void TableReader::report_unknown(const Entry& entry) {
  std::vector<std::string> names;
  for (const KeyRule* rule : rules_) names.emplace_back(rule->key);
  std::string near = nearest(entry.key, names), help;
  for (const KeyRule& other : manifest_keys())
    if (other.key == entry.key && *other.table) help = fmt::format("\"{}\" is a key of [{}]", other.key, other.table);
  for (const std::string& name : names)
    if (name.starts_with(entry.key + ".")) {
      help = fmt::format("a key with a dot needs quotes: \"{}\" = ...", name);
      near.clear();
    }
  suggested_.insert(near);
  if (help.empty() && near.empty()) help = fmt::format("{} has the keys {}", title(), fmt::join(names, ", "));
  diagnostics_.add(ak::unknown_key, entry.place,
                   fmt::format("unknown key {}{}", quote(entry.key), did_you_mean(entry.key, {near})), help);
}

void TableReader::report_missing(const KeyRule& rule) {
  if (suggested_.contains(rule.key)) return;  // a misspelling of it was reported
  const bool table = rule.type == KeyType::table && path_.empty();
  diagnostics_.add(ak::missing_key, table_.place,
                   table ? fmt::format("{} needs [{}]", title(), rule.key)
                         : fmt::format("{} needs \"{}\", {}", title(), rule.key, type_text(rule)),
                   rule.meaning);
}

void TableReader::check(const KeyRule& rule, const Entry& entry) {
  const Node& value = entry.value;
  const auto wrong = [&](int code, std::string message, std::string help) {
    wrong_.insert(entry.key);
    diagnostics_.add(code, value.place, std::move(message), std::move(help));
  };
  if (!type_fits(rule, value)) {
    wrong(ak::wrong_type, fmt::format("\"{}\" must be {}, not {}", rule.key, type_text(rule), kind_name(value.kind)),
          rule.meaning);
  } else if (rule.type == KeyType::text && !plain_text(value.text)) {
    wrong(ak::wrong_value, fmt::format("\"{}\" must not be empty or hold control characters", rule.key), rule.meaning);
  } else if (rule.type == KeyType::texts) {
    check_texts(rule, value);
  } else if (rule.type == KeyType::set && value.kind == Node::Kind::array) {
    check_members(rule, value, wrong);
  } else if (rule.type == KeyType::choice || (rule.type == KeyType::set && value.kind == Node::Kind::text)) {
    const std::vector<std::string> choices = choices_of(rule);
    if (std::find(choices.begin(), choices.end(), value.text) == choices.end())
      wrong(ak::wrong_value,
            fmt::format("\"{}\" cannot be {}{}", rule.key, quote(value.text), did_you_mean(value.text, choices)),
            fmt::format("it is {}", type_text(rule)));
  } else if ((value.kind == Node::Kind::integer || value.kind == Node::Kind::number) && rule.min < rule.max &&
             !(value.number >= rule.min && value.number <= rule.max)) {
    wrong(ak::wrong_value, fmt::format("\"{}\" is {}; it must be {}", rule.key, value_text(value), type_text(rule)),
          rule.meaning);
  }
}

template <class Wrong>
void TableReader::check_members(const KeyRule& rule, const Node& array, const Wrong& wrong) {
  const std::vector<std::string> members = members_of(rule);
  std::set<std::string> seen;
  for (const Node& item : array.items) {
    const bool is_text = item.kind == Node::Kind::text;
    if (is_text && std::ranges::find(members, item.text) != members.end() && seen.insert(item.text).second) continue;
    if (!is_text)
      wrong(ak::wrong_type, fmt::format("\"{}\" must hold text, not {}", rule.key, kind_name(item.kind)), rule.meaning);
    else if (seen.contains(item.text))
      wrong(ak::wrong_value, fmt::format("\"{}\" has {} twice", rule.key, quote(item.text)), rule.meaning);
    else
      wrong(ak::wrong_value,
            fmt::format("\"{}\" cannot hold {}{}", rule.key, quote(item.text), did_you_mean(item.text, members)),
            fmt::format("it is {}", type_text(rule)));
    return;
  }
}

void TableReader::check_texts(const KeyRule& rule, const Node& array) {
  std::set<std::string> seen;
  for (const Node& item : array.items) {
    const bool is_text = item.kind == Node::Kind::text, is_plain = is_text && plain_text(item.text);
    if (is_plain && seen.insert(item.text).second) continue;
    wrong_.insert(rule.key);
    diagnostics_.add(is_text ? ak::wrong_value : ak::wrong_type, item.place,
                     !is_text ? fmt::format("\"{}\" must hold text, not {}", rule.key, kind_name(item.kind))
                     : is_plain
                         ? fmt::format("\"{}\" has {} twice", rule.key, quote(item.text))
                         : fmt::format("a text of \"{}\" must not be empty or hold control characters", rule.key),
                     rule.meaning);
  }
}

const KeyRule& TableReader::rule(std::string_view key) const {
  return **std::find_if(rules_.begin(), rules_.end(), [&](const KeyRule* r) { return r->key == key; });
}

const Entry* TableReader::given(std::string_view key) const {
  return wrong_.contains(key) ? nullptr : table_.find(key);
}

Place TableReader::place(std::string_view key) const {
  const Entry* entry = table_.find(key);
  return entry ? entry->value.place : table_.place;
}

std::optional<std::string> TableReader::text(std::string_view key) const {
  if (wrong_.contains(key)) return {};
  if (const Entry* entry = table_.find(key)) return entry->value.text;
  const char* fallback = rule(key).fallback;
  return fallback && *fallback ? std::optional<std::string>(fallback) : std::nullopt;
}

std::optional<int64_t> TableReader::integer(std::string_view key) const {
  if (const Entry* entry = given(key)) return entry->value.integer;
  const auto fallback = text(key);
  return fallback ? parse_number<int64_t>(*fallback) : std::nullopt;
}

std::optional<double> TableReader::number(std::string_view key) const {
  if (const Entry* entry = given(key)) return entry->value.number;
  const auto fallback = text(key);
  return fallback ? parse_number<double>(*fallback) : std::nullopt;
}

std::optional<bool> TableReader::boolean(std::string_view key) const {
  if (const Entry* entry = given(key)) return entry->value.boolean;
  const auto fallback = text(key);
  return fallback ? std::optional<bool>(*fallback == "true") : std::nullopt;
}

std::optional<int> TableReader::choice(std::string_view key) const {
  const auto chosen = text(key);
  if (!chosen) return {};
  const std::vector<std::string> choices = choices_of(rule(key));
  return static_cast<int>(std::find(choices.begin(), choices.end(), *chosen) - choices.begin());
}

std::vector<std::string> TableReader::words(std::string_view key) const {
  const Entry* entry = given(key);
  if (entry && entry->value.kind == Node::Kind::boolean) return {entry->value.boolean ? "true" : "false"};
  if (!entry || entry->value.kind != Node::Kind::array) {
    const auto word = text(key);
    return word ? std::vector{*word} : std::vector<std::string>();
  }
  std::vector<std::string> all;
  for (const Node& item : entry->value.items) all.push_back(item.text);
  return all;
}

}  // namespace attnkit::core
