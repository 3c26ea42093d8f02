#include "core/manifest/toml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <tuple>

#include "core/manifest/codes.hpp"
#include "core/base/text.hpp"
#include "core/base/tomlpp.hpp"

namespace attnkit {
namespace {

class Converter {
 public:
  explicit Converter(std::string_view text) : text_(text) {
    starts_.push_back(0);
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
    Node to;
    to.place = place(from.source().begin);
    if (const auto* table = from.as_table()) {
      convert_table(*table, to);
    } else if (const auto* array = from.as_array()) {
      to.kind = Node::Kind::array;
      for (const toml::node& item : *array) to.items.push_back(convert(item));
    } else {
      convert_value(from, to);
    }
    return to;
  }

 private:
  void convert_table(const toml::table& from, Node& to) const {
    for (const auto& [key, value] : from)
      to.entries.push_back({std::string(key.str()), place(key.source().begin), convert(value)});
    std::stable_sort(to.entries.begin(), to.entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
    });
  }

  static void convert_value(const toml::node& from, Node& to) {
    if (const auto* text = from.as_string()) {
      to.kind = Node::Kind::text;
      to.text = text->get();
    } else if (const auto* integer = from.as_integer()) {
      to.kind = Node::Kind::integer;
      to.integer = integer->get();
    } else if (const auto* number = from.as_floating_point()) {
      to.kind = Node::Kind::number;
      to.number = number->get();
    } else if (const auto* boolean = from.as_boolean()) {
      to.kind = Node::Kind::boolean;
      to.boolean = boolean->get();
    } else {
      to.kind = Node::Kind::date;
    }
  }

  std::string_view text_;
  std::vector<size_t> starts_;
};

std::string one_line(std::string_view text) {
  std::string out(text.substr(0, 300));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return out.substr(0, valid_utf8(out));
}

// False when the parser must not see the text.
bool acceptable(std::string_view text, Diagnostics& diagnostics) {
  if (text.size() > largest_manifest) {
    diagnostics.error(ak::too_large, {1, 1},
                      fmt::format("the manifest has {} bytes; at most {} are allowed", text.size(), largest_manifest));
    return false;
  }
  if (const size_t valid = valid_utf8(text); valid < text.size()) {
    diagnostics.error(ak::no_utf8, place_after(text.substr(0, valid)), "the manifest is not UTF-8 here",
                      "save the file as UTF-8");
    return false;
  }
  return check_depth(text, diagnostics);
}

}  // namespace

const Entry* Node::find(std::string_view key) const {
  const auto at = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == key; });
  return at == entries.end() ? nullptr : &*at;
}

const char* kind_name(Node::Kind kind) {
  switch (kind) {
    case Node::Kind::table:
      return "a table";
    case Node::Kind::array:
      return "an array";
    case Node::Kind::text:
      return "text";
    case Node::Kind::integer:
      return "an integer";
    case Node::Kind::number:
      return "a number";
    case Node::Kind::boolean:
      return "true or false";
    case Node::Kind::date:
      break;
  }
  return "a date or time";
}

std::string toml_text(const Node& value) {
  std::ostringstream out;
  const auto write = [&](const auto& v) {
    const toml::value node(v);
    out << toml::toml_formatter(node, toml::format_flags::allow_unicode_strings);
  };
  switch (value.kind) {
    case Node::Kind::text:
      write(value.text);
      break;
    case Node::Kind::integer:
      write(value.integer);
      break;
    case Node::Kind::number:
      write(value.number);
      break;
    default:
      write(value.boolean);
  }
  return out.str();
}

Node parse_toml(std::string_view text, Diagnostics& diagnostics) {
  constexpr std::string_view byte_order_mark = "\ufeff";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  Node root;
  root.place = {1, 1};
  if (!acceptable(text, diagnostics)) return root;
  const Converter converter(text);
  try {
    root = converter.convert(toml::parse(text));
    root.place = {1, 1};
  } catch (const toml::parse_error& e) {
    std::string_view description = e.description();
    constexpr std::string_view opening = "Error ";
    if (description.starts_with(opening)) description.remove_prefix(opening.size());
    diagnostics.error(ak::no_toml, converter.place(e.source().begin), "not TOML: " + one_line(description));
  }
  return root;
}

}  // namespace attnkit
