#include "core/manifest/toml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <tuple>

#include "core/base/formats/toml_depth.hpp"
#include "core/base/formats/tomlpp.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

Place place_after(std::string_view text) {
  const size_t line_start = text.rfind('\n') + 1;  // npos + 1 is 0
  return {static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1,
          static_cast<int>(text.size() - line_start) + 1};
}

// False when the parser must not see the text.
bool check_text(std::string_view text, Diagnostics& diagnostics) {
  const auto refuse = [&](int code, Place place, std::string message, std::string help = {}) {
    diagnostics.add(code, place, std::move(message), std::move(help));
    return false;
  };
  if (text.size() > max_manifest_bytes)
    return refuse(ak::too_large, {1, 1},
                  fmt::format("the manifest has {} bytes; at most {} are allowed", text.size(), max_manifest_bytes));
  if (const size_t valid = valid_utf8(text); valid < text.size())
    return refuse(ak::no_utf8, place_after(text.substr(0, valid)), "the manifest is not UTF-8 here",
                  "save the file as UTF-8");
  if (const size_t shallow = shallow_part(text); shallow < text.size())
    return refuse(ak::too_deep, place_after(text.substr(0, shallow)),
                  fmt::format("nested deeper than {} levels", max_toml_depth));
  return true;
}

class Converter {
 public:
  explicit Converter(std::string_view text) : text_(text) {
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == '\n') starts_.push_back(i + 1);
  }

  // The parser counts columns in characters.
  Place place(const toml::source_position& from) const {
    if (from.line == 0 || from.line > starts_.size()) return {1, 1};
    size_t at = starts_[from.line - 1];
    for (toml::source_index c = 1; c < from.column && at < text_.size(); ++c) {
      ++at;
      while (at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xc0) == 0x80) ++at;
    }
    return {static_cast<int>(from.line), static_cast<int>(at - starts_[from.line - 1]) + 1};
  }

  Node convert(const toml::node& from) const {
    using Kind = Node::Kind;
    Node to;
    to.place = place(from.source().begin);
    if (const auto* table = from.as_table()) {
      for (const auto& [key, value] : *table)
        to.entries.push_back({std::string(key.str()), place(key.source().begin), convert(value)});
      std::stable_sort(to.entries.begin(), to.entries.end(), [](const Entry& a, const Entry& b) {
        return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
      });
      return to;
    }
    if (const auto* array = from.as_array())
      for (const toml::node& item : *array) to.items.push_back(convert(item));
    to.text = from.value_exact<std::string>().value_or("");
    to.integer = from.value_exact<int64_t>().value_or(0);
    to.number = from.value_exact<double>().value_or(static_cast<double>(to.integer));
    to.boolean = from.value_exact<bool>().value_or(false);
    to.kind = from.is_array()            ? Kind::array
              : from.is_string()         ? Kind::text
              : from.is_integer()        ? Kind::integer
              : from.is_floating_point() ? Kind::number
              : from.is_boolean()        ? Kind::boolean
                                         : Kind::date;
    return to;
  }

 private:
  std::string_view text_;
  std::vector<size_t> starts_ = {0};  // of lines
};

std::string one_line(std::string_view text) {
  std::string out(text.substr(0, 300));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return out.substr(0, valid_utf8(out));
}

template <class T>
std::string written(const T& value) {
  const toml::value node(value);
  std::ostringstream out;
  out << toml::toml_formatter(node, toml::format_flags::allow_unicode_strings);
  return out.str();
}

}  // namespace

const Entry* Node::find(std::string_view key) const {
  const auto at = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == key; });
  return at == entries.end() ? nullptr : &*at;
}

Node parse_toml(std::string_view text, Diagnostics& diagnostics) {
  constexpr std::string_view byte_order_mark = "\ufeff", opening = "Error ";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  Node root;
  if (check_text(text, diagnostics)) {
    const Converter converter(text);
    try {
      root = converter.convert(toml::parse(text));
    } catch (const toml::parse_error& e) {
      std::string_view description = e.description();
      if (description.starts_with(opening)) description.remove_prefix(opening.size());
      diagnostics.add(ak::no_toml, converter.place(e.source().begin), "not TOML: " + one_line(description));
    }
  }
  root.place = {1, 1};
  return root;
}

std::string toml_text(const std::string& value) { return written(value); }
std::string toml_text(int64_t value) { return written(value); }
std::string toml_text(double value) { return written(value); }
std::string toml_text(bool value) { return written(value); }

const char* kind_name(Node::Kind kind) {
  constexpr const char* names[] = {"a table",  "an array",      "text",          "an integer",
                                   "a number", "true or false", "a date or time"};
  return names[static_cast<size_t>(kind)];
}

std::string value_text(const Node& value) {
  if (value.kind == Node::Kind::text) return quote(value.text);
  return value.kind == Node::Kind::integer ? fmt::format("{}", value.integer) : fmt::format("{}", value.number);
}

}  // namespace attnkit::core
