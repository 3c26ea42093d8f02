// Compiles the scanned headers into text, and compares two such texts.
#include "layout.hpp"

#include <attnkit/attnkit.h>
#include <fmt/format.h>

#include <map>
#include <sstream>
#include <utility>

std::string current_layout() {
  std::string out;
// The table has one line for everything that layout_scan found in the headers.
#define ITEM(text) out += text "\n";
#define STRUCT(type, kind) out += fmt::format("struct {} {} {}\n", #type, sizeof(type), kind);
#define FIELD(type, field, text) \
  out += fmt::format("  {} {} {} {}\n", offsetof(type, field), sizeof(type::field), #field, text);
#include "layout_table.inc"
#undef ITEM
#undef STRUCT
#undef FIELD
  return out;
}

namespace {

struct Field {
  size_t offset = 0, size = 0;
  std::string text;  // name and type
  bool operator==(const Field&) const = default;
};

struct Struct {
  size_t size = 0;
  std::string kind;
  std::vector<Field> fields;
};

struct Layout {
  std::map<std::string, Struct> structs;
  std::map<std::string, std::string> items;  // constants, callbacks, functions
};

Layout parse(const std::string& text) {
  Layout layout;
  Struct* open = nullptr;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind, name;
    if (line.starts_with("  ")) {
      Field field;
      words >> field.offset >> field.size >> std::ws;
      std::getline(words, field.text);
      if (open != nullptr) open->fields.push_back(field);
    } else if (words >> kind >> name && kind == "struct") {
      open = &layout.structs[name];
      words >> open->size >> open->kind;
    } else {
      std::getline(words >> std::ws, layout.items[kind + " " + name]);
    }
  }
  return layout;
}

const std::string minor_name = "constant ATTN_ABI_MINOR";

int minor_of(const Layout& layout) {
  const auto found = layout.items.find(minor_name);
  return found == layout.items.end() ? -1 : std::stoi(found->second);
}

class Comparison {
 public:
  Comparison(const Layout& before, const Layout& after) : before_(before), after_(after) {}

  std::vector<std::string> run() {
    for (const auto& [name, old] : before_.items) compare_item(name, old);
    for (const auto& [name, old] : before_.structs) compare_struct(name, old);
    for (const auto& [name, now] : after_.structs) {
      check_end(name, now);
      appended_ = appended_ || !before_.structs.contains(name);
    }
    appended_ = appended_ || after_.items.size() > before_.items.size();
    const int then = minor_of(before_), now = minor_of(after_);
    if (now < then) found_.push_back(fmt::format("ATTN_ABI_MINOR fell from {} to {}", then, now));
    if (appended_ && now <= then) found_.push_back("something was appended but ATTN_ABI_MINOR was not raised");
    return std::move(found_);
  }

 private:
  void compare_item(const std::string& name, const std::string& old) {
    const auto now = after_.items.find(name);
    if (now == after_.items.end()) {
      found_.push_back(fmt::format("{} was removed", name));
    } else if (now->second != old && name != minor_name) {
      found_.push_back(fmt::format("{} changed from \"{}\" to \"{}\"", name, old, now->second));
    }
  }

  void compare_struct(const std::string& name, const Struct& old) {
    const auto found = after_.structs.find(name);
    if (found == after_.structs.end()) {
      found_.push_back(fmt::format("struct {} was removed", name));
      return;
    }
    const Struct& now = found->second;
    if (now.kind != old.kind) found_.push_back(fmt::format("struct {} went from {} to {}", name, old.kind, now.kind));
    for (size_t i = 0; i < old.fields.size(); ++i) {
      if (i < now.fields.size() && now.fields[i] == old.fields[i]) continue;
      found_.push_back(fmt::format("struct {}: field \"{}\" moved, changed or went", name, old.fields[i].text));
      return;
    }
    if (now.fields.size() == old.fields.size()) {
      if (now.size != old.size) found_.push_back(fmt::format("struct {} changed its size without a field", name));
      return;
    }
    appended_ = true;
    const Field& first = now.fields[old.fields.size()];
    if (old.kind == "frozen") found_.push_back(fmt::format("struct {} is frozen but grew", name));
    if (first.offset < old.size) {
      found_.push_back(fmt::format("struct {}: field \"{}\" hides in what was padding", name, first.text));
    }
  }

  void check_end(const std::string& name, const Struct& now) {
    if (now.fields.empty()) return;
    const Field& last = now.fields.back();
    if (last.offset + last.size != now.size) found_.push_back(fmt::format("struct {} ends in padding", name));
  }

  const Layout &before_, &after_;
  std::vector<std::string> found_;
  bool appended_ = false;
};

}  // namespace

std::vector<std::string> breaks(const std::string& before, const std::string& after) {
  const Layout old = parse(before), now = parse(after);
  return Comparison(old, now).run();
}
