#include "core/import/import.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/gguf.hpp"
#include "core/base/text.hpp"
#include "core/import/architecture.hpp"

namespace attnkit {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_json = uint64_t{16} << 20;
constexpr const char* guide = "docs/importing.md lists what is supported, and shows how to add an architecture";

[[noreturn]] void refuse(const std::string& message, const std::string& help = guide) {
  throw ImportFailure(message, help);
}

// A JSON file of the checkpoint.
class Document {
 public:
  explicit Document(const fs::path& path) : path_(path.string()), json_(read_json(path_, max_json)) {}
  JsonValue root() const { return {json_, path_}; }

 private:
  std::string path_;
  nlohmann::json json_;
};

struct Pooling {
  std::string pool = "mean";
  bool normalise = false;
};

class Importer {
 public:
  explicit Importer(const ImportRequest& request) : request_(request), folder_(request.folder) {}

  Imported run() {
    if (fs::is_regular_file(folder_)) return run_gguf();
    if (!fs::is_directory(folder_))
      refuse(fmt::format("{}: is no folder and no file", request_.folder),
             "give the folder that config.json is in, or a GGUF file");
    read_modules();
    const Document config(take(transformer_ / "config.json", "every checkpoint of Hugging Face has one"));
    const Architecture architecture = architecture_of(config.root());
    add_entries(architecture, config.root());
    add_tokenizer();
    add_text_limit();
    add_head();
    made_.toml = text(architecture, weights());
    return std::move(made_);
  }

 private:
  // All that a folder says in several files, a GGUF file says in its metadata.
  Imported run_gguf() {
    const fs::path path = *find(folder_);
    const auto file = MappedFile::open(path.string());
    if (!is_gguf(file->bytes()))
      refuse(fmt::format("{}: is a file, and no GGUF file", path.string()),
             "give the folder that config.json is in, or a GGUF file");
    const Gguf gguf = Gguf::read(file->bytes(), path.string());
    const JsonValue metadata(gguf.metadata, path.string());
    const std::string type = metadata["general.architecture"].text();
    const Architecture architecture = gguf_architecture(type, metadata);
    add_entries(architecture, metadata);
    const std::string vocabulary = toml_of(seen_from_manifest(path));
    add("model.decoder", "vocab", vocabulary);
    add("model.decoder", "tokenizer", toml_of("gguf"));
    made_.toml = text(architecture, path);
    return std::move(made_);
  }

  Architecture gguf_architecture(const std::string& type, const JsonValue& metadata) {
    std::vector<std::string> files = shipped_architectures(), known;
    if (!request_.architecture.empty()) {
      made_.files.push_back(fs::absolute(request_.architecture).string());
      files = {made_.files.back()};
    }
    for (const std::string& name : files) {
      const Architecture one = open_architecture(name, "");
      if (!one.gguf) continue;
      if (std::ranges::find(one.gguf->model_types, type) != one.gguf->model_types.end()) return *one.gguf;
      known.insert(known.end(), one.gguf->model_types.begin(), one.gguf->model_types.end());
    }
    if (known.empty()) known.emplace_back("none");
    refuse(fmt::format("{}: general.architecture {} is not supported; {} are", metadata.path(), quote(type),
                       fmt::join(known, ", ")));
  }

  void add_entries(const Architecture& architecture, const JsonValue& config) {
    made_.architecture = architecture.name;
    for (const auto& [key, supported] : architecture.only) check_only(config[key], supported, architecture.name);
    for (const ManifestEntry& entry : architecture.manifest) add(entry.table, entry.key, value_of(entry.value, config));
  }

  using Lines = std::vector<std::pair<std::string, std::string>>;  // keys and values, in order

  static std::string toml_of(const std::string& text) {
    std::string quoted = nlohmann::json(text).dump();  // a string of JSON is one of TOML, all but DEL
    for (size_t at = 0; (at = quoted.find('\x7f', at)) != std::string::npos;) quoted.replace(at, 1, "\\u007f");
    return quoted;
  }

  void add(const std::string& table, const std::string& key, const std::string& value) {
    tables_[table].emplace_back(key, value);
  }

  std::optional<fs::path> find(const fs::path& path) {
    if (!fs::exists(path)) return {};
    made_.files.push_back(path.string());
    return path;
  }
  fs::path take(const fs::path& path, const std::string& help) {
    if (!fs::exists(path)) refuse(fmt::format("{}: is not there", path.string()), help);
    return *find(path);
  }

  // sentence-transformers: which folder the transformer is in, and what is done with its rows.
  void read_modules() {
    transformer_ = folder_;
    const auto path = find(folder_ / "modules.json");
    if (!path) {
      made_.notes.push_back("no modules.json says how rows become a vector: their mean, not normalised");
      return;
    }
    const Document modules(*path);
    bool pooled = false;
    for (const JsonValue& module : modules.root().items()) {
      const std::string type = module["type"].text(), kind = type.substr(type.rfind('.') + 1);
      const fs::path place = folder_ / plain_path(module["path"]);
      if (kind == "Transformer") {
        transformer_ = place;
      } else if (kind == "Pooling") {
        read_pooling(place / "config.json");
        pooled = true;
      } else if (kind == "Normalize") {
        pooling_.normalise = true;
      } else {
        refuse(fmt::format("{}: the module {} is not supported; Transformer, Pooling and Normalize are", path->string(),
                           quote(type)));
      }
    }
    if (const auto own = find(folder_ / "config_sentence_transformers.json")) {
      const Document document(*own);
      if (const JsonValue prompt = document.root()["default_prompt_name"])
        made_.notes.push_back(fmt::format(
            "config_sentence_transformers.json puts the prompt {} before every text: here texts must bring it along",
            quote(prompt.text())));
    }
    if (!pooled) refuse(fmt::format("{}: names no module Pooling, which makes one vector of a text", path->string()));
  }

  // A folder below this one.
  static fs::path plain_path(const JsonValue& value) {
    const fs::path path = value ? value.text() : "";
    if (path.is_absolute() || std::ranges::find(path, fs::path("..")) != path.end())
      value.wrong(fmt::format("is {}, which leads out of the folder", quote(path.string())));
    return path;
  }

  void read_pooling(const fs::path& path) {
    const Document document(take(path, "modules.json names it"));
    const JsonValue config = document.root();
    std::vector<std::string> modes;
    for (const auto& [key, value] : config.members())
      if (key.starts_with("pooling_mode_") && value.truth()) modes.push_back(key);
    if (config["pooling_mode"]) modes.push_back("pooling_mode_" + config["pooling_mode"].text());
    const bool mean = modes == std::vector<std::string>{"pooling_mode_mean_tokens"} ||
                      modes == std::vector<std::string>{"pooling_mode_mean"};
    const bool first = modes == std::vector<std::string>{"pooling_mode_cls_token"} ||
                       modes == std::vector<std::string>{"pooling_mode_cls"};
    if (!mean && !first)
      refuse(fmt::format("{}: pools by {}, which is not supported; the mean of the tokens, or the first token, is",
                         path.string(), modes.empty() ? "nothing" : quote(fmt::format("{}", fmt::join(modes, ", ")))));
    pooling_.pool = mean ? "mean" : "first";
  }

  Architecture architecture_of(const JsonValue& config) {
    const std::string type = config["model_type"].text();
    if (!request_.architecture.empty()) {
      const fs::path own = fs::absolute(request_.architecture);
      made_.files.push_back(own.string());
      Architecture one = open_architecture(own.string(), "");
      if (!one.model_types.empty() && std::ranges::find(one.model_types, type) == one.model_types.end())
        refuse(fmt::format("{}: is of model_type {}; {} is for {}", config.path(), quote(type), request_.architecture,
                           fmt::join(one.model_types, ", ")));
      return one;
    }
    std::vector<std::string> known;
    for (const std::string& name : shipped_architectures()) {
      Architecture one = open_architecture(name, "");
      if (std::ranges::find(one.model_types, type) != one.model_types.end()) return one;
      known.insert(known.end(), one.model_types.begin(), one.model_types.end());
    }
    refuse(
        fmt::format("{}: model_type {} is not supported; {} are", config.path(), quote(type), fmt::join(known, ", ")));
  }

  static void check_only(const JsonValue& value, const std::vector<std::string>& supported,
                         const std::string& architecture) {
    if (!value || std::ranges::find(supported, value.json().dump()) != supported.end()) return;
    const std::string said = value.is_text() ? quote(value.text()) : value.json().dump().substr(0, 60);
    refuse(fmt::format("{}: {} is {}, which {} does not support; {} is", value.path(), value.place(), said,
                       quote(architecture), fmt::join(supported, " or ")));
  }

  static std::string value_of(const ManifestValue& value, const JsonValue& config) {
    if (!value.constant.empty()) return value.constant;
    const JsonValue said = config[value.config];
    if (!said) {
      if (value.fallback.empty()) said.wrong("is not there");
      return value.fallback;
    }
    if (!value.values.empty()) {
      const auto means = value.values.find(said.text());
      if (means != value.values.end()) return means->second;
      std::vector<std::string> known;
      for (const auto& [one, other] : value.values) known.push_back(one);
      said.wrong(fmt::format("is {}, which is not supported; {} are", quote(said.text()), fmt::join(known, ", ")));
    }
    if (value.plus != 0) {
      int64_t sum = 0;
      if (__builtin_add_overflow(said.integer(), value.plus, &sum)) said.wrong("is too large");
      return std::to_string(sum);
    }
    const nlohmann::json& json = said.json();
    if (!json.is_number() && !json.is_boolean() && !json.is_string())
      said.wrong("must be text, a number, true or false");
    return json.is_string() ? toml_of(said.text()) : json.dump();
  }

  void add_tokenizer() {
    const auto config_path = find(transformer_ / "tokenizer_config.json");
    if (const auto path = find(transformer_ / "tokenizer.json")) {
      add_vocabulary(*path, "huggingface");
      const Document document(*path);
      const JsonValue normalizer = document.root()["normalizer"];
      lowercases_ = normalizer.is_object() && normalizer["lowercase"].truth(false);
      return;
    }
    const fs::path path = take(transformer_ / "vocab.txt", "a tokenizer.json or BERT's vocab.txt is needed");
    add_vocabulary(path, "wordpiece");
    lowercases_ = true;
    if (config_path) {
      const Document document(*config_path);
      const JsonValue config = document.root();
      lowercases_ = config["do_lower_case"].truth(true);
      if (config["strip_accents"].truth(lowercases_) != lowercases_ || !config["tokenize_chinese_chars"].truth(true))
        refuse(fmt::format("{}: without a tokenizer.json, accents are stripped exactly where letters are lower-cased, "
                           "and Chinese characters are words",
                           config.path()),
               "save the tokenizer with transformers, which writes a tokenizer.json");
    }
    add("model.encoder", "lowercase", lowercases_ ? "true" : "false");
  }

  void add_vocabulary(const fs::path& path, const char* kind) {
    add("model.encoder", "vocab", toml_of(seen_from_manifest(path)));
    add("model.encoder", "tokenizer", toml_of(kind));
  }

  // What sentence-transformers says of long texts; else as many tokens as the model takes.
  void add_text_limit() {
    int64_t longest = 0;
    for (const auto& [key, value] : tables_["model"])
      if (key == "max_length") longest = parse_number<int64_t>(value).value_or(0);
    if (const auto path = find(transformer_ / "sentence_bert_config.json")) {
      const Document document(*path);
      const JsonValue said = document.root()["max_seq_length"], lower = document.root()["do_lower_case"];
      if (said && said.integer() < 2) said.wrong("must be 2 or more");
      if (said) longest = longest > 0 ? std::min(longest, said.integer()) : said.integer();
      if (lower.truth(false) && !lowercases_) lower.wrong("is true, and the tokenizer does not lower-case");
    }
    if (longest > 0) add("model.encoder", "truncate", std::to_string(longest));
  }

  void add_head() {
    add("model.head", "type", toml_of("embedding"));
    add("model.head", "pool", toml_of(pooling_.pool));
    add("model.head", "normalise", pooling_.normalise ? "true" : "false");
  }

  std::string seen_from_manifest(const fs::path& path) const {
    const fs::path whole = fs::absolute(path).lexically_normal();
    const fs::path from = fs::absolute(request_.manifest).lexically_normal().parent_path();
    std::error_code bad;
    // Through a link, ".." would lead elsewhere.
    if (fs::weakly_canonical(from, bad) != from || bad) return whole.string();
    const fs::path seen = whole.lexically_relative(from);
    return (seen.empty() ? whole : seen).string();
  }

  fs::path weights() {
    for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
      if (const auto path = find(transformer_ / name)) return *path;
    refuse(fmt::format("{}: holds neither model.safetensors nor model.safetensors.index.json", transformer_.string()),
           "other formats are not read: save the model with transformers, which writes safetensors");
  }

  // "{ layers = 6, vocab = ... }"
  std::string inline_table(const std::string& table) const {
    std::vector<std::string> parts;
    for (const auto& [key, value] : tables_.at(table)) parts.push_back(key + " = " + value);
    return fmt::format("{{ {} }}", fmt::join(parts, ", "));
  }

  std::string text(const Architecture& architecture, const fs::path& file) {
    made_.weights = file.string();
    std::string name = request_.name;
    if (name.empty() && file == folder_) name = folder_.stem().string();
    if (name.empty()) name = fs::absolute(folder_ / "").lexically_normal().parent_path().filename().string();
    std::string out = fmt::format("schema = \"attnkit.model/1\"\n\n[model]\nname = {}\n", toml_of(name));
    for (const auto& [key, value] : tables_["model"]) out += key + " = " + value + "\n";
    for (const auto& [table, lines] : tables_)
      if (table.starts_with("model.")) out += table.substr(6) + " = " + inline_table(table) + "\n";
    const std::string names =
        request_.architecture.empty() ? architecture.name : seen_from_manifest(request_.architecture);
    out += fmt::format(
        "\n[weights]\nfile = {}\nnames = {}\nseed = 1  # of what another mechanism has of its own and the file lacks\n",
        toml_of(seen_from_manifest(file)), toml_of(names));
    for (const auto& [table, lines] : tables_) {
      if (table == "model" || table.starts_with("model.")) continue;
      out += fmt::format("\n[{}]\n", table);
      for (const auto& [key, value] : lines) out += key + " = " + value + "\n";
    }
    return out;
  }

  const ImportRequest& request_;
  fs::path folder_, transformer_;
  Pooling pooling_;
  bool lowercases_ = false;
  std::map<std::string, Lines> tables_;
  Imported made_;
};

}  // namespace

Imported import_folder(const ImportRequest& request) {
  try {
    return Importer(request).run();
  } catch (const Error& e) {
    refuse(e.what());
  } catch (const nlohmann::json::type_error&) {  // of a text that a manifest cannot hold
    refuse(fmt::format("{}: a name there is not UTF-8, and a manifest must be", quote(request.folder)), "rename it");
  } catch (const fs::filesystem_error& e) {
    refuse(fmt::format("{}: {}", e.path1().string(), e.code().message()), "");
  }
}

}  // namespace attnkit
