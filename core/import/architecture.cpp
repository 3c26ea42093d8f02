#include "core/import/architecture.hpp"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/formats/toml_depth.hpp"
#include "core/base/formats/tomlpp.hpp"
#include "core/base/text.hpp"
#include "core/import/shipped.hpp"

namespace attnkit::core {
namespace {

constexpr uint64_t max_file = 64 * 1024;
constexpr std::string_view schema = "attnkit.architecture/1", ending = ".toml";
constexpr int max_bases = 8;

struct File {
  std::string text, path;  // path: its name, of a shipped one
};

File open(const std::string& name, const std::string& folder) {
  if (!name.ends_with(ending)) return {shipped_architecture(name), name};
  const std::string path = join_path(folder, name);
  const std::vector<std::byte> bytes = read_file(path, max_file);
  return {{reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path};
}

// A value with parts of its own, not a table of values.
bool is_value(const toml::table& table) {
  return table.contains("tensor") || table.contains("first") || table.contains("lacks") || table.contains("has") ||
         table.contains("numbers") || (table.contains("config") && !table["config"].is_table());
}

// Puts the entries of `from` into `to`, in place of those there.  Nodes that move keep their places in their files.
void merge(toml::table&& from, toml::table& to) {
  for (auto&& [key, node] : from) {
    toml::table* inner = to[key].as_table();
    if (inner && node.is_table() && !is_value(*inner) && !is_value(*node.as_table()))
      merge(std::move(*node.as_table()), *inner);
    else
      node.visit([&, &key = key](auto& value) { to.insert_or_assign(key, std::move(value)); });
  }
}

// The part of an architecture for files of another format.
struct Part {
  const char *name, *type;
  std::shared_ptr<const Architecture> Architecture::*whole;
  std::shared_ptr<const NameMap> NameMap::*names;
};

class Reader {
 public:
  Reader(const std::string& toml, std::string source) : source_(std::move(source)), root_(parse(toml, source_, 0)) {}

  Architecture read() const {
    only_keys(root_, {"schema", "base", "config", "manifest", "tokenizer", "tensors", "gguf", "ctranslate2", "marian"});
    if (text(root_, "schema") != schema) wrong(root_, fmt::format("schema must be {}", quote(schema)));
    Architecture made;
    made.name = source_;
    // A file may be for GGUF or CTranslate2 alone.
    if (root_.contains("tensors") || !(root_.contains("gguf") || root_.contains("ctranslate2")))
      made.tensors = tensors(table(root_, "tensors"));
    // A file that gives names alone serves manifests that people write.
    if (root_.contains("config")) {
      const toml::table& config = table(root_, "config");
      only_keys(config, {"model_type", "only"});
      made.model_types = texts(config, "model_type");
      read_only(config, made);
    }
    if (root_.contains("manifest")) add_entries(table(root_, "manifest"), "", made.manifest);
    if (root_.contains("tokenizer")) {
      const toml::table& tokenizer = table(root_, "tokenizer");
      only_keys(tokenizer, {"more_tokens", "source", "fairseq"});
      made.more = more_tokens(tokenizer);
      if (tokenizer.contains("fairseq")) {
        only_keys(table(tokenizer, "fairseq"), {"more_tokens", "source"});
        made.fairseq = more_tokens(table(tokenizer, "fairseq"));
      }
    }
    for (const auto& [part, type, whole, names] :
         {Part{"gguf", "architecture", &Architecture::gguf, &NameMap::gguf},
          Part{"ctranslate2", "spec", &Architecture::ctranslate2, &NameMap::ctranslate2},
          Part{"marian", "type", &Architecture::marian, &NameMap::marian}}) {
      if (!root_.contains(part)) continue;
      auto of_file = std::make_shared<Architecture>(this->of_file(table(root_, part), type));
      made.tensors.*names = std::make_shared<NameMap>(of_file->tensors);
      made.*whole = std::move(of_file);
    }
    return made;
  }

 private:
  // The tables of a file over those of its base, all but what says which checkpoints are the base's own.
  toml::table parse(const std::string& toml, const std::string& source, int depth) const {
    toml::table own;
    if (shallow_part(toml) < toml.size())
      fail(ATTN_INVALID, "{}: is nested deeper than {} levels", source, max_toml_depth);
    try {
      own = toml::parse(toml, source);
    } catch (const toml::parse_error& e) {
      fail(ATTN_INVALID, "{}:{}:{}: {}", source, e.source().begin.line, e.source().begin.column, e.description());
    }
    if (!own.contains("base")) return own;
    const std::string base = text(own, "base");
    if (depth >= max_bases)
      wrong(*own.get("base"), fmt::format("more than {} files begin one with another", max_bases));
    toml::table whole;
    try {
      const auto [text, path] = open(base, std::filesystem::path(source).parent_path().string());
      whole = parse(text, path, depth + 1);
    } catch (const Error& e) {
      wrong(*own.get("base"), e.what());
    }
    if (toml::table* config = whole["config"].as_table()) config->erase("model_type");
    for (const auto& [part, type] : {std::pair("gguf", "architecture"), {"ctranslate2", "spec"}, {"marian", "type"}}) {
      if (!own.contains(part)) whole.erase(part);
      if (toml::table* of_file = whole[part].as_table()) of_file->erase(type);
    }
    merge(std::move(own), whole);
    return whole;
  }

  void read_only(const toml::table& in, Architecture& to) const {
    if (in.contains("only"))
      for (const auto& [key, values] : table(in, "only")) to.only[std::string(key)] = literals(values);
  }

  MoreTokens more_tokens(const toml::table& in) const {
    return {texts(in, "more_tokens"), in.contains("source") ? text(in, "source") : std::string()};
  }

  // A part of its own for files of another format, which name what they hold by `key`.
  Architecture of_file(const toml::table& in, const char* key) const {
    only_keys(in, {key, "only", "manifest", "tensors"});
    Architecture made;
    made.name = source_;
    made.model_types = texts(in, key);
    read_only(in, made);
    if (in.contains("manifest")) add_entries(table(in, "manifest"), "", made.manifest);
    made.tensors = tensors(table(in, "tensors"));
    return made;
  }

  [[noreturn]] void wrong(const toml::node& node, const std::string& message) const {
    const std::string& file = node.source().path ? *node.source().path : source_;
    fail(ATTN_INVALID, "{}:{}:{}: {}", file, node.source().begin.line, node.source().begin.column, message);
  }

  void only_keys(const toml::table& in, std::vector<std::string> known) const {
    for (const auto& [key, node] : in)
      if (std::ranges::find(known, key.str()) == known.end())
        wrong(node, fmt::format("unknown key {}{}", quote(key.str()), did_you_mean(key.str(), known)));
  }

  const toml::node& node(const toml::table& in, const char* key) const {
    if (const toml::node* found = in.get(key)) return *found;
    wrong(in, fmt::format("needs \"{}\"", key));
  }

  const toml::table& table(const toml::table& in, const char* key) const {
    const toml::node& found = node(in, key);
    if (!found.is_table()) wrong(found, fmt::format("\"{}\" must be a table", key));
    return *found.as_table();
  }

  std::string text_of(const toml::node& value) const {
    if (!value.is_string()) wrong(value, "must be text");
    return value.as_string()->get();
  }
  std::string text(const toml::table& in, const char* key) const { return text_of(node(in, key)); }

  std::vector<std::string> texts(const toml::table& in, const char* key) const {
    std::vector<std::string> all;
    if (const toml::node* list = in.get(key)) {
      if (!list->is_array()) wrong(*list, fmt::format("\"{}\" must be an array", key));
      for (const toml::node& item : *list->as_array()) all.push_back(text_of(item));
    }
    return all;
  }

  // Values that are the same in TOML and JSON.
  std::string literal(const toml::node& value) const {
    if (value.is_string()) return nlohmann::json(value.as_string()->get()).dump();
    if (value.is_integer()) return std::to_string(value.as_integer()->get());
    if (value.is_boolean()) return value.as_boolean()->get() ? "true" : "false";
    if (value.is_floating_point()) return nlohmann::json(value.as_floating_point()->get()).dump();
    if (value.is_array()) return fmt::format("[{}]", fmt::join(literals(value), ", "));
    wrong(value, "must be text, a number, true or false, or an array of these");
  }
  std::vector<std::string> literals(const toml::node& values) const {
    if (!values.is_array()) wrong(values, "must be an array of the values that are supported");
    std::vector<std::string> all;
    for (const toml::node& value : *values.as_array()) all.push_back(literal(value));
    return all;
  }

  // toml++ keeps entries sorted by name; a manifest has them as they were written.
  static std::vector<std::pair<std::string, const toml::node*>> as_written(const toml::table& in) {
    std::vector<std::pair<std::string, const toml::node*>> all;
    for (const auto& [key, node] : in) all.emplace_back(key.str(), &node);
    std::ranges::stable_sort(all, {}, [](const auto& entry) {
      const toml::array* several = entry.second->as_array();  // one of tables has no place of its own
      const toml::source_region& at = (several && several->get(0) ? *several->get(0) : *entry.second).source();
      return std::tuple(at.path ? *at.path : std::string(), at.begin.line, at.begin.column);
    });
    return all;
  }

  void add_entries(const toml::table& in, const std::string& path, std::vector<ManifestEntry>& to) const {
    for (const auto& [key, node] : as_written(in)) {
      const toml::table* inner = node->as_table();
      const toml::array* several = node->as_array();
      if (several && several->size() > 0 && several->is_homogeneous<toml::table>()) {
        for (size_t i = 0; i < several->size(); ++i)
          add_entries(*(*several)[i].as_table(), fmt::format("{}.{}[{}]", path, key, i), to);
        continue;
      }
      if (inner && !is_value(*inner))
        add_entries(*inner, path.empty() ? key : path + "." + key, to);
      else
        to.push_back({path, key, value_from(*node)});
    }
  }

  ManifestValue constant(const toml::node& node) const {
    ManifestValue value;
    value.constant = literal(node);
    return value;
  }

  ManifestValue value_from(const toml::node& node) const {
    return node.is_table() ? from_config(*node.as_table()) : constant(node);
  }

  ManifestValue from_config(const toml::table& in) const {
    ManifestValue value;
    for (const char* key : {"has", "lacks"})
      if (const toml::node* names = in.get(key)) {
        only_keys(in, {key});
        value.tensors = names->is_array() ? texts(in, key) : std::vector{text_of(*names)};
        value.lacks = key == std::string_view("lacks");
        return value;
      }
    if (const toml::node* name = in.get("numbers")) {
      only_keys(in, {"numbers"});
      value.numbers = text_of(*name);
      return value;
    }
    if (in.contains("first")) {
      only_keys(in, {"first", "last"});
      value.range = {value_from(node(in, "first")), value_from(node(in, "last"))};
      return value;
    }
    if (in.empty()) return value;
    only_keys(in, {"config", "where", "same", "default", "absent", "optional", "values", "plus", "times"});
    if (in.contains("where")) value.where = text(in, "where");
    const toml::node& config = node(in, "config");
    value.config = config.is_array() ? texts(in, "config") : std::vector{text_of(config)};
    if (value.config.empty()) wrong(config, "\"config\" needs a key");
    value.same = texts(in, "same");
    if (const toml::node* optional = in.get("optional")) {
      if (!optional->is_boolean()) wrong(*optional, "must be true or false");
      value.optional = optional->as_boolean()->get();
    }
    if (const toml::node* fallback = in.get("default")) value.fallback = {value_from(*fallback)};
    for (const auto& [key, number] : {std::pair("plus", &value.plus), {"times", &value.times}})
      if (const toml::node* given = in.get(key)) {
        if (!given->is_integer()) wrong(*given, "must be an integer");
        *number = given->as_integer()->get();
      }
    if (in.contains("values"))
      for (const auto& [said, means] : table(in, "values")) value.values.emplace(said.str(), value_from(means));
    if (const toml::node* absent = in.get("absent")) {
      value.absent = absent->is_string() ? text_of(*absent) : literal(*absent);
      if (!value.values.contains(value.absent)) wrong(*absent, "must be a word of \"values\"");
      if (in.contains("default"))
        wrong(*absent, "\"default\" says what an absent key means, too: one of them is enough");
    }
    return value;
  }

  std::string pattern(const toml::node& at, const std::string& name) const {
    if (!is_pattern(name))
      wrong(at, fmt::format("{} is no name: {{layer}} or {{layer-1}} stand for numbers, a * at its end for any rest",
                            quote(name)));
    return name;
  }

  NameMap tensors(const toml::table& in) const {
    only_keys(in, {"prefix", "endings", "positions", "ignore", "names"});
    NameMap map;
    map.source = source_;
    if (in.contains("prefix")) map.prefix = text(in, "prefix");
    if (in.contains("positions")) map.positions = text(in, "positions");
    if (in.contains("endings"))
      for (const auto& [theirs, ours] : table(in, "endings")) map.endings[std::string(theirs)] = text_of(ours);
    map.ignored = texts(in, "ignore");
    for (const std::string& ignored : map.ignored) pattern(node(in, "ignore"), ignored);
    for (const auto& [ours, value] : table(in, "names")) {
      const toml::array* several = value.as_array();
      if (!several) map.rules.push_back(rule(std::string(ours), value));
      for (size_t i = 0; several && i < several->size(); ++i)
        map.rules.push_back(rule(std::string(ours), (*several)[i]));
    }
    return map;
  }

  NameRule rule(const std::string& ours, const toml::node& value) const {
    NameRule made;
    made.ours = pattern(value, ours);
    const toml::table* in = value.as_table();
    made.theirs = pattern(value, in ? text(*in, "tensor") : text_of(value));
    if (!in) return made;
    only_keys(*in, {"tensor", "transposed", "flat", "part", "plus"});
    if (const toml::node* plus = in->get("plus")) {
      const auto number = plus->value<double>();
      if (!number) wrong(*plus, "must be a number");
      made.plus = static_cast<float>(*number);
    }
    for (const auto& [key, truth] : {std::pair("transposed", &made.transposed), {"flat", &made.flat}})
      if (const toml::node* given = in->get(key)) {
        if (!given->is_boolean()) wrong(*given, "must be true or false");
        *truth = given->as_boolean()->get();
      }
    if (!in->contains("part")) return made;
    const std::vector<std::string> part = split(text(*in, "part"), '/');
    std::vector<std::string> sizes = split(part.back(), ':');
    const auto n = parse_number<int>(part.front());
    const auto of = sizes.size() > 1 ? static_cast<int>(sizes.size()) : parse_number<int>(part.back());
    if (part.size() != 2 || !n || !of || *n < 1 || *n > *of || *of > 1024)
      wrong(node(*in, "part"), "\"part\" must be such as \"1/3\", the first third, or \"1/heads:kv_heads:kv_heads\"");
    made.part = *n;
    made.parts = *of;
    if (sizes.size() == 1) return made;
    for (const std::string& size : sizes) {
      const auto number = parse_number<int64_t>(size);
      const std::vector<std::string> known(part_sizes.begin(), part_sizes.end());
      if (number ? *number < 1 || *number > 1048576 : std::ranges::find(known, size) == known.end())
        wrong(node(*in, "part"), fmt::format("a part as large as {}{}: numbers from 1 to 1048576 are possible, and {}",
                                             quote(size), did_you_mean(size, known), fmt::join(known, ", ")));
    }
    made.sizes = std::move(sizes);
    return made;
  }

  std::string source_;
  toml::table root_;
};

}  // namespace

Architecture Architecture::read(const std::string& toml, const std::string& source) {
  return Reader(toml, source).read();
}

std::vector<std::string> shipped_architectures() {
  std::vector<std::string> names;
  for (const Shipped& one : shipped) names.emplace_back(one.name);
  return names;
}

std::string shipped_architecture(const std::string& name) {
  for (const Shipped& one : shipped)
    if (one.name == name) return one.toml;
  fail(ATTN_INVALID,
       "{} is no architecture that ships with attnkit{}; there are {}; the name of a file of your own ends "
       "in {}",
       quote(name), did_you_mean(name, shipped_architectures()), fmt::join(shipped_architectures(), ", "), ending);
}

Architecture open_architecture(const std::string& name, const std::string& folder) {
  const File file = open(name, folder);
  return Architecture::read(file.text, file.path);
}

}  // namespace attnkit::core
