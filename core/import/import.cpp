#include "core/import/import.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/formats/ctranslate2.hpp"
#include "core/base/formats/gguf.hpp"
#include "core/base/formats/npz.hpp"
#include "core/base/formats/yaml.hpp"
#include "core/base/text.hpp"
#include "core/import/architecture.hpp"

namespace attnkit::core {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_json = uint64_t{64} << 20;
constexpr double max_tokens = 1048576;  // of a manifest's lengths
constexpr int64_t max_sentinels = 1000;
constexpr const char* model_settings = "special:model.yml";
constexpr int64_t marian_beams = 12;  // where a decoder.yml says none
constexpr const char* guide = "docs/importing.md lists what is supported, and shows how to add an architecture";

[[noreturn]] void refuse(const std::string& message, const std::string& help = guide) {
  throw ImportFailure(message, help);
}

// A JSON file of the checkpoint.
class Document {
 public:
  explicit Document(const fs::path& path) : path_(path.string()), json_(read_json(path_, max_json)) {}
  JsonValue root() const { return {json_, path_}; }
  // Puts another file's values under a key.
  void add(const char* key, const fs::path& path) {
    if (json_.is_object()) json_[key] = read_json(path.string(), max_json);
  }

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
    const bool huggingface = fs::exists(folder_ / "config.json") || fs::exists(folder_ / "modules.json");
    if (!huggingface && is_of_marian() && named("", ".npz").empty())
      if (const auto models = named("", ".bin"); !models.empty()) refuse_marian_binary(models.front());
    if (fs::exists(folder_ / "model.bin") && !fs::exists(folder_ / "model.safetensors")) return run_ctranslate2();
    if (!huggingface)
      if (const auto models = named("", ".npz"); !models.empty()) return run_marian(models);
    if (const auto models = named("", ".gguf"); !huggingface && !models.empty())
      refuse(fmt::format("{}: has no config.json", request_.folder),
             fmt::format("name the GGUF file: attnkit import {}", models.front().string()));
    read_modules();
    Document config(take(transformer_ / "config.json", "every checkpoint of Hugging Face has one"));
    for (const char* beside : {"generation_config", "preprocessor_config"})
      if (const auto path = find(transformer_ / fmt::format("{}.json", beside))) config.add(beside, *path);
    if (const JsonValue quantised = config.root()["quantization_config"])
      quantised.wrong(
          "says that the weights are quantised, which is not supported; the checkpoint before that, or a "
          "GGUF file, is");
    const Architecture architecture = architecture_of(config.root());
    add_entries(architecture, config.root());
    const JsonValue root = config.root();
    add_tokenizer(architecture, &root);
    if (tables_.contains("model.decoder")) {
      add_frame(config.root());
    } else {
      add_text_limit();
      add_head();
    }
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
    for (const auto& tensor : gguf.tensors) {
      tensors_.insert(tensor.name);
      if (tensor.type != "F32" || tensor.shape.size() != 1 || tensor.shape[0] > max_numbers) continue;
      std::vector<float>& numbers = numbers_[tensor.name];
      numbers.resize(static_cast<size_t>(tensor.shape[0]));
      std::memcpy(numbers.data(), tensor.data.data(), tensor.data.size());
    }
    const JsonValue metadata(gguf.metadata, path.string());
    const std::string type = metadata["general.architecture"].text();
    const Architecture architecture = file_architecture("general.architecture", type, metadata, &Architecture::gguf);
    add_entries(architecture, metadata);
    const std::string vocabulary = toml_of(seen_from_manifest(path));
    add("model.decoder", "vocab", vocabulary);
    add("model.decoder", "tokenizer", toml_of("gguf"));
    add_gguf_ends(metadata);
    made_.toml = text(architecture, path);
    return std::move(made_);
  }

  // Beside the end of texts all that llama.cpp ends at: the ids that the file has for it, and what is called so.
  void add_gguf_ends(const JsonValue& metadata) {
    const auto at = [&](const char* key) { return metadata[fmt::format("tokenizer.ggml.{}", key)]; };
    const std::vector<JsonValue> tokens = at("tokens").items();
    std::set<int64_t> ends;
    const auto add_id = [&](const char* key) {
      const JsonValue id = at(key);
      if (id && id.integer() >= 0 && id.integer() < std::ssize(tokens)) ends.insert(id.integer());
      return static_cast<bool>(id);
    };
    const auto add_named = [&](const std::set<std::string>& names, bool all) {
      for (size_t id = 0; id < tokens.size(); ++id)
        if (names.contains(tokens[id].text())) {
          ends.insert(static_cast<int64_t>(id));
          if (!all) return;
        }
    };
    for (const char* key : {"eot_token_id", "eom_token_id"}) add_id(key);
    add_named({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>",
               "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>"},
              true);
    // Of models that fill in the middle of code.
    if (!add_id("fim_pad_token_id")) add_named({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}, false);
    if (!add_id("fim_rep_token_id"))
      add_named({"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}, false);
    if (!add_id("fim_sep_token_id")) add_named({"<|file_sep|>"}, false);
    if (const JsonValue end = at("eos_token_id")) ends.erase(end.integer());
    std::vector<std::string> all;
    for (const int64_t id : ends) all.push_back(toml_of(tokens[static_cast<size_t>(id)].text()));
    if (!all.empty()) add("model.decoder", "more_ends", fmt::format("[{}]", fmt::join(all, ", ")));
  }

  // A model.bin says what the model is, config.json which tokens it writes.
  Imported run_ctranslate2() {
    transformer_ = folder_;
    const fs::path path = *find(folder_ / "model.bin");
    const auto file = MappedFile::open(path.string());
    if (!is_ctranslate2(file->bytes()))
      refuse(fmt::format("{}: is no model of CTranslate2, and there is no model.safetensors", path.string()),
             "save the model with transformers, which writes safetensors");
    Ctranslate2 model = Ctranslate2::read(file->bytes(), path.string());
    for (const auto& tensor : model.tensors)
      if (!tensor.alias) tensors_.insert(tensor.name);
    const fs::path config = take(folder_ / "config.json", "every model of CTranslate2 has one");
    model.metadata["config"] = read_json(config.string(), max_json);
    name_scales(model.metadata);
    const JsonValue metadata(model.metadata, path.string());
    const Architecture architecture =
        file_architecture("spec", metadata["spec"].text(), metadata, &Architecture::ctranslate2);
    add_entries(architecture, metadata);
    add_tokenizer(architecture, nullptr);
    add_source_end(metadata["config"]);
    made_.toml = text(architecture, path);
    return std::move(made_);
  }

  // Translators of transformers leave the end of a source to its tokenizer, which puts one; all others say whether
  // there is one.  Those begin targets with <s>, and these never.
  void add_source_end(const JsonValue& config) {
    if (!config["add_source_eos"] || config["add_source_eos"].truth() || fs::exists(folder_ / "tokenizer.json")) return;
    if (const JsonValue start = config["decoder_start_token"]; start && start.text() == "<s>")
      add("model.encoder", "end", "false");
  }

  // Whether embeddings are multiplied by the root of their width, which a file says as a truth or as the factor.
  static void name_scales(nlohmann::json& metadata) {
    for (const auto& [scale, width] : {std::pair("encoder/scale_embeddings", "encoder/embeddings_0/weight[1]"),
                                       {"decoder/scale_embeddings", "decoder/embeddings/weight[1]"}}) {
      if (!metadata.contains(scale)) continue;
      nlohmann::json& said = metadata[scale];
      const double factor = said.is_number() ? said.get<double>() : 0;
      const double root = metadata.contains(width) ? std::sqrt(metadata[width].get<double>()) : 0;
      if (said.is_number_integer() ? factor == 1 : std::abs(factor - root) < 1e-5 * root)
        said = true;
      else if (factor == 0 || factor == 1)
        said = false;
    }
  }

  // Whether there is what Marian's models have beside them.
  bool is_of_marian() const {
    return !named("", "decoder.yml").empty() || !named("vocab", ".spm").empty() || !named("vocab", ".yml").empty();
  }

  [[noreturn]] void refuse_marian_binary(const fs::path& path) {
    refuse(fmt::format("{}: is Marian's binary format, which is not supported; .npz is", path.string()),
           "give the folder of the .npz that marian-conv made it of");
  }

  // A model that Marian trained brings its settings along; decoder.yml says which vocabularies are its.
  Imported run_marian(std::vector<fs::path> models) {
    std::vector<fs::path> vocabularies;
    std::vector<fs::path> settings = named("", "decoder.yml");
    if (settings.size() > 1)
      refuse(fmt::format("{}: there are {} and {}; one is needed", folder_.string(), settings[0].filename().string(),
                         settings[1].filename().string()),
             "give a folder with one model");
    if (settings.empty()) {
      vocabularies = named("vocab", ".yml");
      if (vocabularies.empty()) vocabularies = named("vocab", ".spm");
    } else {
      const std::string path = find(settings.front())->string();
      const nlohmann::json document = read_yaml(path, max_json);
      const JsonValue decoder(document, path);
      models = listed(decoder["models"]);
      vocabularies = listed(decoder["vocabs"]);
      add_marian_search(decoder);
    }
    if (models.size() != 1)
      refuse(fmt::format("{}: there are {} models; one is supported", folder_.string(), models.size()),
             "give a folder with one .npz, or a decoder.yml that names one");
    const fs::path path = take(models.front(), "decoder.yml names it");
    if (path.extension() == ".bin") refuse_marian_binary(path);
    const auto file = MappedFile::open(path.string());
    nlohmann::json settings_of_model;
    nlohmann::json sizes = nlohmann::json::object();
    for (const NpzTensor& tensor : read_npz(file->bytes(), path.string())) {
      if (tensor.name == model_settings) {
        std::string text(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
        settings_of_model = parse_yaml(text.substr(0, text.find('\0')), path.string() + " " + model_settings);
      }
      tensors_.insert(tensor.name);
      for (size_t i = 0; i < tensor.shape.size(); ++i) sizes[fmt::format("{}[{}]", tensor.name, i)] = tensor.shape[i];
    }
    if (!settings_of_model.is_object())
      refuse(fmt::format("{}: has no {}, in which Marian keeps a model's settings", path.string(), model_settings));
    settings_of_model.update(sizes);
    // Behind "rnn" stands the cell.
    if (auto& decoder = settings_of_model["transformer-decoder-autoreg"]; decoder == "rnn")
      decoder = settings_of_model["dec-cell"];
    const JsonValue metadata(settings_of_model, path.string());
    const Architecture architecture =
        file_architecture("type", metadata["type"].text(), metadata, &Architecture::marian);
    add_entries(architecture, metadata);
    add_marian_vocabularies(vocabularies);
    made_.toml = text(architecture, path);
    return std::move(made_);
  }

  // Takes the settings of the search from decoder.yml, unless they were given.
  void add_marian_search(const JsonValue& decoder) {
    const JsonValue beams = decoder["beam-size"];
    const int64_t rows = beams ? beams.integer() : marian_beams;
    if (rows < 1 || rows > 64) beams.wrong("must be 1 to 64");
    add("decode", "beams", std::to_string(rows));
    // By itself it means 1, without it there is none.
    const JsonValue power = decoder["normalize"];
    if (power && !power.json().is_number() && !power.json().is_boolean()) power.wrong("must be a number");
    const double penalty = !power ? 0 : power.json().is_boolean() ? power.truth() : power.json().get<double>();
    if (!(penalty >= 0 && penalty <= 10)) power.wrong("must be 0 to 10");
    add("decode", "length_penalty", nlohmann::json(penalty).dump());
    for (const char* key : {"word-penalty", "allow-unk", "allow-special", "max-length-factor", "output-sampling"})
      if (const JsonValue said = decoder[key]; said && said.json() != 0 && said.json() != false)
        made_.notes.push_back(fmt::format("{} says {} = {} of how texts are written, and the manifest does not",
                                          said.path(), key, said.json().dump().substr(0, 60)));
  }

  // SentencePiece's files as they are, or lists of its pieces beside source.spm and target.spm.
  void add_marian_vocabularies(std::vector<fs::path> files) {
    if (files.size() == 1) files.push_back(files.front());
    if (files.size() != 2)
      refuse(fmt::format("{}: there are {} vocabularies; one, or one for each side, is needed", folder_.string(),
                         files.size()),
             "give a decoder.yml that names them");
    const char* const sides[] = {"model.encoder", "model.decoder"};
    for (size_t i = 0; i < 2; ++i) {
      const fs::path path = take(files[i], "decoder.yml names it");
      const bool is_list = path.extension() == ".yml" || path.extension() == ".yaml";
      if (!is_list && path.extension() != ".spm")
        refuse(fmt::format("{}: is no vocabulary that is supported; .spm and .yml are", path.string()));
      const fs::path pieces =
          is_list ? take(folder_ / (i == 0 ? "source.spm" : "target.spm"), "it makes the tokens of the .yml") : path;
      add(sides[i], "vocab", toml_of(seen_from_manifest(pieces)));
      add(sides[i], "tokenizer", toml_of("huggingface"));
      if (is_list) add(sides[i], "ids", toml_of(seen_from_manifest(path)));
    }
  }

  // Files of a decoder.yml, which lie beside it.
  std::vector<fs::path> listed(const JsonValue& files) const {
    std::vector<fs::path> all;
    for (const JsonValue& file : files.items()) all.push_back(folder_ / fs::path(file.text()).filename());
    return all;
  }

  // Files of the folder whose names have `part` in them and end in `ending`, sorted.
  std::vector<fs::path> named(std::string_view part, std::string_view ending) const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.find(part) != std::string::npos && name.ends_with(ending)) all.push_back(entry.path());
    }
    std::ranges::sort(all);
    return all;
  }

  // Returns the architecture with a part for files of this format, which say by `key` that they are of `type`.
  Architecture file_architecture(const char* key, const std::string& type, const JsonValue& metadata,
                                 std::shared_ptr<const Architecture> Architecture::*part) {
    std::vector<std::string> files = shipped_architectures(), known;
    if (!request_.architecture.empty()) {
      made_.files.push_back(fs::absolute(request_.architecture).string());
      files = {made_.files.back()};
    }
    for (const std::string& name : files) {
      const Architecture one = open_architecture(name, "");
      if (!(one.*part)) continue;
      const std::vector<std::string>& types = (one.*part)->model_types;
      if (std::ranges::find(types, type) != types.end()) return *(one.*part);
      known.insert(known.end(), types.begin(), types.end());
    }
    if (known.empty()) known.emplace_back("none");
    refuse(
        fmt::format("{}: {} {} is not supported; {} are", metadata.path(), key, quote(type), fmt::join(known, ", ")));
  }

  void add_entries(const Architecture& architecture, const JsonValue& config) {
    made_.architecture = architecture.name;
    for (const auto& [key, supported] : architecture.only) check_only(find(config, key), supported, architecture.name);
    for (const ManifestEntry& entry : architecture.manifest)
      if (const auto value = value_of(entry.value, config)) add(entry.table, entry.key, *value);
  }

  using Lines = std::vector<std::pair<std::string, std::string>>;  // keys and values, in order

  static std::string toml_of(const std::string& text) {
    std::string quoted = nlohmann::json(text).dump();  // a string of JSON is one of TOML, all but DEL
    for (size_t at = 0; (at = quoted.find('\x7f', at)) != std::string::npos;) quoted.replace(at, 1, "\\u007f");
    return quoted;
  }

  bool is_said(const std::string& table, const std::string& key) const {
    const auto found = tables_.find(table);
    return found != tables_.end() &&
           std::ranges::any_of(found->second, [&](const auto& line) { return line.first == key; });
  }
  // Unless it is said already: an architecture's file goes before what other files say.
  void add(const std::string& table, const std::string& key, const std::string& value) {
    if (!is_said(table, key)) tables_[table].emplace_back(key, value);
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
    if (!path) return;
    pooling_.emplace();
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
        pooling_->normalise = true;
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
    pooling_->pool = mean ? "mean" : "first";
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
    refuse(fmt::format(
        "{}: {} is {}, which {} does not support; {}", value.path(), value.place(), said, quote(architecture),
        supported.empty() ? "it must not be there" : fmt::format("{} is", fmt::join(supported, " or "))));
  }

  // Of "a.b" b in a; {architecture} is what a GGUF file says of itself.
  static JsonValue find(const JsonValue& config, std::string key) {
    constexpr std::string_view itself = "{architecture}";
    if (key.starts_with(itself)) key.replace(0, itself.size(), config["general.architecture"].text());
    const size_t dot = key.find('.');
    if (dot == std::string::npos) return config[key];
    const JsonValue outer = config[key.substr(0, dot)];
    return outer.is_object() ? find(outer, key.substr(dot + 1)) : config[key];
  }

  std::optional<std::string> value_of(const ManifestValue& value, const JsonValue& config) const {
    if (!value.constant.empty()) return value.constant;
    const auto is_there = [&](const std::string& name) { return tensors_.contains(name); };
    if (!value.tensors.empty()) return std::ranges::any_of(value.tensors, is_there) != value.lacks ? "true" : "false";
    if (!value.numbers.empty()) {
      const auto found = numbers_.find(value.numbers);
      if (found == numbers_.end() && is_there(value.numbers))
        fail(ATTN_UNSUPPORTED, "tensor {}: is not a row of at most {} numbers of type F32", quote(value.numbers),
             max_numbers);
      if (found == numbers_.end()) return {};
      return fmt::format("[{}]", fmt::join(found->second, ", "));
    }
    if (!value.range.empty()) {
      std::vector<int64_t> ends;
      for (const ManifestValue& end : value.range)
        if (const auto text = value_of(end, config)) ends.push_back(parse_number<int64_t>(*text).value_or(0));
      if (ends.size() < 2 || ends[0] > ends[1]) return {};
      return toml_of(fmt::format("{}..{}", ends[0], ends[1]));
    }
    if (value.config.empty()) return {};
    JsonValue said = find(config, value.config.front());
    for (size_t i = 1; i < value.config.size() && !said; ++i) said = find(config, value.config[i]);
    if (const auto none = value.values.find("null"); said.is_null() && none != value.values.end())
      return value_of(none->second, config);
    if (!said) {
      if (!value.absent.empty()) return value_of(value.values.at(value.absent), config);
      if (value.optional) return {};
      if (value.fallback.empty()) said.wrong("is not there");
      return value_of(value.fallback.front(), config);
    }
    for (const std::string& key : value.same)
      if (const JsonValue other = find(config, key); other && other.json() != said.json())
        other.wrong(fmt::format("is {}, and {} is {}: they must be the same", other.json().dump(), said.place(),
                                said.json().dump()));
    if (!value.values.empty()) {
      const std::string key = said.is_text() ? said.text() : said.json().dump();
      for (const std::string& one : {key, std::string("*")})
        if (const auto means = value.values.find(one); means != value.values.end())
          return value_of(means->second, config);
      std::vector<std::string> known;
      for (const auto& [one, other] : value.values) known.push_back(one);
      said.wrong(fmt::format("is {}, which is not supported; {} are", said.is_text() ? quote(key) : key.substr(0, 60),
                             fmt::join(known, ", ")));
    }
    if (!value.where.empty()) {
      std::vector<size_t> places;
      const std::vector<JsonValue> items = said.items();
      for (size_t i = 0; i < items.size(); ++i)
        if (items[i].is_text() && items[i].text() == value.where) places.push_back(i + 1);
      if (places.empty()) return {};
      return fmt::format("[{}]", fmt::join(places, ", "));
    }
    if (value.plus != 0 || value.times != 1) {
      int64_t number = 0;
      if (__builtin_mul_overflow(said.integer(), value.times, &number) ||
          __builtin_add_overflow(number, value.plus, &number))
        said.wrong("is too large");
      return std::to_string(number);
    }
    const nlohmann::json& json = said.json();
    const bool numbers =
        json.is_array() && std::ranges::all_of(json, [](const auto& item) { return item.is_number(); });
    if (!json.is_number() && !json.is_boolean() && !json.is_string() && !numbers)
      said.wrong("must be text, a number, true or false, or an array of numbers");
    return json.is_string() ? toml_of(said.text()) : json.dump();
  }

  // SentencePiece's files, with the model's ids in another file: one for both sides, or one for each.
  bool add_sentencepiece(const Architecture& architecture) {
    const auto any = [&](std::initializer_list<const char*> names) {
      std::optional<fs::path> found;
      for (const char* name : names)
        if (!found) found = find(transformer_ / name);
      return found;
    };
    const auto ids = any({"vocab.json", "shared_vocabulary.json", "source_vocabulary.json"});
    const auto one = any({"sentencepiece.bpe.model", "sentencepiece.model"}),
               source = find(transformer_ / "source.spm");
    if (!ids || (!one && !source)) return false;
    const fs::path target_ids = any({"target_vocab.json", "target_vocabulary.json"}).value_or(*ids);
    for (const auto& [side, own, own_ids] :
         {std::tuple("model.encoder", "source.spm", &*ids), {"model.decoder", "target.spm", &target_ids}}) {
      const fs::path file =
          one ? *one
              : take(transformer_ / own, fmt::format("there is a {}, whose tokens it makes", ids->filename().string()));
      add(side, "vocab", toml_of(seen_from_manifest(file)));
      add(side, "tokenizer", toml_of("huggingface"));
      add(side, "ids", toml_of(seen_from_manifest(*own_ids)));
      add_more_tokens(side, architecture.more);
    }
    const Document document(target_ids);
    if (document.root().is_array())
      for (const JsonValue& token : document.root().items())
        tokens_[static_cast<int64_t>(tokens_.size())] = token.text();
    else
      for (const auto& [token, id] : document.root().members()) tokens_[id.integer()] = token;
    for (const std::string& token : architecture.more.tokens)
      tokens_[tokens_.empty() ? 0 : tokens_.rbegin()->first + 1] = token;
    return true;
  }

  void add_more_tokens(const std::string& side, const MoreTokens& more) {
    std::vector<std::string> tokens;
    for (const std::string& token : more.tokens) tokens.push_back(toml_of(token));
    if (!tokens.empty()) add(side, "more_tokens", fmt::format("[{}]", fmt::join(tokens, ", ")));
    if (more.source.empty() || side != "model.encoder") return;
    add(side, "begin", toml_of(more.source));
    if (tables_.contains("model.decoder"))
      made_.notes.push_back(
          fmt::format("texts are read as {}: \"begin\" of [model.encoder] says another language, and \"forced\" of "
                      "[decode] the one that is written",
                      quote(more.source)));
  }

  // SentencePiece's file alone, with ids as fairseq has them: XLM-R and NLLB.
  bool add_fairseq(const Architecture& architecture) {
    if (!architecture.fairseq) return false;
    const auto file = find(transformer_ / "sentencepiece.bpe.model");
    if (!file) return false;
    add_vocabulary(*file, "huggingface");
    for (const char* side : {"model.encoder", "model.decoder"}) {
      if (!tables_.contains(side)) continue;
      add(side, "numbering", toml_of("fairseq"));
      add_more_tokens(side, *architecture.fairseq);
    }
    // Ids behind the pieces, whose number the file alone knows, stay ids in the manifest.
    tokens_ = {{0, "<s>"}, {1, "<pad>"}, {2, "</s>"}, {3, "<unk>"}};
    return true;
  }

  // SentencePiece's file alone, whose ids are the model's, as T5 has it.  Beside it stands which tokens begin and end
  // texts, and config.json has their ids.
  bool add_pieces(const Architecture& architecture, const JsonValue& config) {
    const auto file = find(transformer_ / "spiece.model");
    if (!file) return false;
    add_vocabulary(*file, "huggingface");
    add_tokens_behind(*file, architecture, config);
    std::map<std::string, std::string> said = {{"pad", "<pad>"}, {"eos", "</s>"}, {"unk", "<unk>"}};
    for (const char* beside : {"special_tokens_map.json", "tokenizer_config.json"})
      if (const auto path = find(transformer_ / beside)) {
        const Document document(*path);
        for (auto& [kind, token] : said)
          if (const JsonValue own = document.root()[kind + "_token"])
            token = own.is_object() ? own["content"].text() : own.text();
      }
    for (const auto& [kind, token] : said)
      if (const JsonValue id = config[kind + "_token_id"]) tokens_[id.integer()] = token;
    return true;
  }

  // The tokens behind the pieces of a file: T5's sentinels, and what added_tokens.json has.
  void add_tokens_behind(const fs::path& file, const Architecture& architecture, const JsonValue& config) {
    std::vector<std::string> tokens = architecture.more.tokens;
    if (const auto settings = find(transformer_ / "tokenizer_config.json")) {
      const Document document(*settings);
      if (const JsonValue said = document.root()["extra_ids"]) {
        const int64_t count = said.integer();
        if (count < 0 || count > max_sentinels)
          said.wrong(fmt::format("is {}; 0 to {} are possible", count, max_sentinels));
        tokens.clear();
        for (int64_t i = count - 1; i >= 0; --i) tokens.push_back(fmt::format("<extra_id_{}>", i));
      }
    }
    const int64_t pieces = pieces_of(file);
    // Without a word of them there may be fewer ids.
    if (const JsonValue size = config["vocab_size"]; size && pieces + std::ssize(tokens) > size.integer())
      tokens.clear();
    if (const auto path = find(transformer_ / "added_tokens.json")) {
      const Document added(*path);
      std::map<int64_t, std::string> by_id;
      for (const auto& [token, id] : added.root().members())
        if (std::ranges::find(tokens, token) == tokens.end()) by_id[id.integer()] = token;
      for (const auto& [id, token] : by_id) {
        if (id < pieces) continue;  // a piece itself
        if (id != pieces + std::ssize(tokens))
          refuse(fmt::format("{}: {} has the id {}, and the token behind those that are there is {}", path->string(),
                             quote(token), id, pieces + std::ssize(tokens)),
                 "save the tokenizer with transformers, which writes a tokenizer.json");
        tokens.push_back(token);
      }
    }
    for (size_t i = 0; i < tokens.size(); ++i) tokens_[pieces + static_cast<int64_t>(i)] = tokens[i];
    for (std::string& token : tokens) token = toml_of(token);
    for (const char* side : {"model.encoder", "model.decoder"})
      if (!tokens.empty()) add(side, "more_tokens", fmt::format("[{}]", fmt::join(tokens, ", ")));
  }

  // The number of pieces of a SentencePiece file: of its fields of number 1.  What is damaged is refused when it is
  // read.
  static int64_t pieces_of(const fs::path& path) {
    const std::vector<std::byte> file = read_file(path.string(), max_json);
    size_t at = 0;
    const auto number = [&] {
      uint64_t made = 0;
      for (int shift = 0; at < file.size() && shift < 64; shift += 7) {
        const auto byte = std::to_integer<uint64_t>(file[at++]);
        made |= (byte & 127) << shift;
        if (byte < 128) break;
      }
      return made;
    };
    int64_t pieces = 0;
    while (at < file.size()) {
      const uint64_t key = number();
      if ((key & 7) != 2) break;
      pieces += key >> 3 == 1;
      const uint64_t size = number();
      if (size > file.size() - at) break;
      at += size;
    }
    return pieces;
  }

  // config: NULL: of another format.
  void add_tokenizer(const Architecture& architecture, const JsonValue* config) {
    const auto config_path = find(transformer_ / "tokenizer_config.json");
    if (const auto path = find(transformer_ / "tokenizer.json")) {
      add_vocabulary(*path, "huggingface");
      const Document document(*path);
      const JsonValue normalizer = document.root()["normalizer"];
      lowercases_ = normalizer.is_object() && normalizer["lowercase"].truth(false);
      if (tables_.contains("model.decoder")) read_tokens(document.root());
      return;
    }
    if (tables_.contains("model.decoder") && add_sentencepiece(architecture)) return;
    if (tables_.contains("model.decoder") && config && add_pieces(architecture, *config)) return;
    if (add_fairseq(architecture)) return;
    if (tables_.contains("model.decoder"))
      refuse(fmt::format("{}: holds no tokenizer.json, no spiece.model, and no vocab.json with SentencePiece's file",
                         transformer_.string()),
             "save the tokenizer with transformers, which writes one");
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
    for (const char* side : {"model.encoder", "model.decoder"}) {
      if (!tables_.contains(side) || tables_.contains(std::string(side) + ".features")) continue;
      add(side, "vocab", toml_of(seen_from_manifest(path)));
      add(side, "tokenizer", toml_of(kind));
    }
  }

  // The tokens that begin and end what a decoder writes, by their ids in config.json.
  void add_frame(const JsonValue& config) {
    const auto generation_path = find(transformer_ / "generation_config.json");
    std::optional<Document> generation;
    if (generation_path) generation.emplace(*generation_path);
    const JsonValue writing = generation ? generation->root() : config;
    // Without one nothing begins a target, and nothing ends it.
    const auto said = [&](const char* key) { return writing[key] ? writing[key] : config[key]; };
    if (generation) note_beside(config, writing);
    for (const auto& [key, ours] : {std::pair("forced_decoder_ids", "forced"),
                                    {"suppress_tokens", "suppress"},
                                    {"begin_suppress_tokens", "suppress_first"}})
      if (const JsonValue own = writing[key]; own && !is_said("decode", ours)) note_unsaid(own, key);
    add_writing(writing, said("eos_token_id"));
    // A decoder alone goes on from what its tokenizer puts before a text.
    if (const JsonValue start = said("decoder_start_token_id"); start && tables_.contains("model.encoder"))
      add("model.decoder", "begin", toml_of(token_of(start)));
    if (const JsonValue forced = writing["forced_bos_token_id"]; forced && tables_.contains("model.encoder"))
      add("decode", "forced", fmt::format("[{}]", in_list(forced)));
    add_suppressed(writing["bad_words_ids"]);
    const JsonValue end = said("eos_token_id");
    if (!end) return;
    const std::vector<JsonValue> ends = end.is_array() ? end.items() : std::vector{end};
    if (ends.empty()) end.wrong("is empty");
    add("model.decoder", "end", toml_of(token_of(ends.front())));
    std::vector<std::string> others;
    for (size_t i = 1; i < ends.size(); ++i) others.push_back(in_list(ends[i]));
    if (!others.empty()) add("model.decoder", "more_ends", fmt::format("[{}]", fmt::join(others, ", ")));
  }

  // Settings of config.json, which transformers does not look at where there is a generation_config.json.
  void note_beside(const JsonValue& config, const JsonValue& generation) {
    using nlohmann::json;
    const std::pair<const char*, json> neutral[] = {{"num_beams", 1},
                                                    {"length_penalty", 1},
                                                    {"early_stopping", false},
                                                    {"max_length", 20},
                                                    {"max_new_tokens", {}},
                                                    {"min_length", 0},
                                                    {"repetition_penalty", 1},
                                                    {"no_repeat_ngram_size", 0},
                                                    {"do_sample", false},
                                                    {"temperature", 1},
                                                    {"top_k", 50},
                                                    {"top_p", 1},
                                                    {"bad_words_ids", {}},
                                                    {"suppress_tokens", {}},
                                                    {"begin_suppress_tokens", {}},
                                                    {"forced_bos_token_id", {}},
                                                    {"forced_eos_token_id", {}}};
    std::vector<std::string> settings;
    for (const auto& [key, nothing] : neutral)
      if (const JsonValue own = config[key]; own && own.json() != nothing)
        if (const JsonValue counts = generation[key]; !counts || counts.json() != own.json())
          settings.push_back(fmt::format("{} = {}", key, own.json().dump().substr(0, 60)));
    if (!settings.empty())
      made_.notes.push_back(fmt::format("{} says {} of how texts are written, which counts for nothing beside {}",
                                        config.path(), fmt::join(settings, ", "), generation.path()));
  }

  void note_unsaid(const JsonValue& value, const char* key) {
    made_.notes.push_back(fmt::format("{} says {} = {} of how texts are written, and the manifest does not",
                                      value.path(), key, value.json().dump().substr(0, 60)));
  }

  // The defaults of transformers' generate().
  void add_writing(const JsonValue& generation, const JsonValue& end) {
    const auto number = [&](const char* key, double neutral) {
      const JsonValue value = generation[key];
      if (value && !value.json().is_number()) value.wrong("must be a number");
      return value ? value.json().get<double>() : neutral;
    };
    // A number within the bounds of our key, where it is not the one that changes nothing.
    const auto take = [&](const char* key, const char* ours, double neutral, double least, double most) {
      const double value = number(key, neutral);
      if (value == neutral) return;
      if (value >= least && value <= most)
        add("decode", ours, generation[key].json().dump());
      else
        note_unsaid(generation[key], key);
    };
    take("num_beams", "beams", 1, 1, 64);
    take("length_penalty", "length_penalty", 1, 0, 10);
    const JsonValue early = generation["early_stopping"];
    add("decode", "early_stop", toml_of(early && early.is_text() ? "never" : early.truth(false) ? "full" : "guess"));
    // Of a decoder alone the text that it goes on from does not count; else one token begins the target.
    if (const JsonValue most = generation["max_new_tokens"]; most && tables_.contains("model.encoder"))
      add("decode", "max_length", std::to_string(most.integer() + 1));
    else if (most)
      take("max_new_tokens", "limit", 0, 1, max_tokens);
    else
      take("max_length", "max_length", 0, 2, max_tokens);
    take("min_length", "min_length", 0, 1, max_tokens);
    if (const JsonValue forced = generation["forced_eos_token_id"]; forced && is_said("decode", "max_length")) {
      if (end && forced.json() == (end.is_array() && end.json().size() > 1 ? end.json().front() : end.json()))
        add("decode", "force_end", "true");
      else
        note_unsaid(forced, "forced_eos_token_id");
    } else if (forced && !tables_.contains("model.encoder")) {
      note_unsaid(forced, "forced_eos_token_id");
    }
    take("repetition_penalty", "repetition_penalty", 1, 0.01, 100);
    take("no_repeat_ngram_size", "no_repeat", 0, 1, max_tokens);
    if (generation["do_sample"].truth(false) && number("temperature", 1) != 0) {
      if (is_said("decode", "beams")) {
        note_unsaid(generation["do_sample"], "do_sample");
      } else {
        add("decode", "temperature", nlohmann::json(number("temperature", 1)).dump());
        if (const double k = number("top_k", 50); k >= 1)
          add("decode", "top_k", std::to_string(static_cast<int64_t>(k)));
        take("top_p", "top_p", 1, 0, 1);
      }
    }
    for (const auto& [key, neutral] : {std::pair("min_new_tokens", 0.0),
                                       {"encoder_no_repeat_ngram_size", 0},
                                       {"encoder_repetition_penalty", 1},
                                       {"num_beam_groups", 1},
                                       {"diversity_penalty", 0},
                                       {"typical_p", 1},
                                       {"min_p", 0},
                                       {"epsilon_cutoff", 0},
                                       {"eta_cutoff", 0},
                                       {"penalty_alpha", 0},
                                       {"guidance_scale", 1}})
      if (number(key, neutral) != neutral) note_unsaid(generation[key], key);
    for (const char* key : {"sequence_bias", "exponential_decay_length_penalty", "watermarking_config", "stop_strings"})
      if (generation[key]) note_unsaid(generation[key], key);
  }

  // Lists of tokens that must not be written one after another; of one alone: never.
  void add_suppressed(const JsonValue& lists) {
    if (!lists) return;
    std::vector<std::string> tokens;
    for (const JsonValue& list : lists.items()) {
      const std::vector<JsonValue> ids = list.items();
      if (ids.size() == 1)
        tokens.push_back(in_list(ids.front()));
      else
        made_.notes.push_back(
            fmt::format("{} has {}, which the manifest cannot say of several tokens", list.path(), list.place()));
    }
    if (!tokens.empty()) add("decode", "suppress", fmt::format("[{}]", fmt::join(tokens, ", ")));
  }

  // The tokens of a tokenizer.json by their ids.
  void read_tokens(const JsonValue& tokenizer) {
    const JsonValue vocabulary = tokenizer["model"]["vocab"], added = tokenizer["added_tokens"];
    if (vocabulary.is_object())
      for (const auto& [token, id] : vocabulary.members()) tokens_[id.integer()] = token;
    if (vocabulary.is_array())
      for (const JsonValue& piece : vocabulary.items())
        for (const JsonValue& part : piece.items())
          if (part.is_text()) tokens_[static_cast<int64_t>(tokens_.size())] = part.text();
    if (added)
      for (const JsonValue& one : added.items()) tokens_[one["id"].integer()] = one["content"].text();
  }

  std::string token_of(const JsonValue& id) const {
    const auto found = tokens_.find(id.integer());
    if (found == tokens_.end()) id.wrong(fmt::format("is {}, which is no token of the vocabulary", id.integer()));
    return found->second;
  }

  // A token of a list, which may hold ids.  Of fairseq's numbering those behind the pieces are in no file.
  std::string in_list(const JsonValue& id) const {
    const bool unnamed = is_said("model.decoder", "numbering") && !tokens_.contains(id.integer());
    return unnamed ? std::to_string(id.integer()) : toml_of(token_of(id));
  }

  // Takes sentence-transformers' limit of texts; else as many tokens as the model takes.
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
    if (!pooling_) {
      made_.notes.push_back("no modules.json says how rows become a vector: their mean, not normalised");
      pooling_.emplace();
    }
    add("model.head", "type", toml_of("embedding"));
    add("model.head", "pool", toml_of(pooling_->pool));
    add("model.head", "normalise", pooling_->normalise ? "true" : "false");
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

  // "{ layers = 6, vocab = ..., features = { ... } }"
  std::string inline_table(const std::string& table) const {
    std::vector<std::string> parts;
    for (const auto& [key, value] : tables_.at(table)) parts.push_back(key + " = " + value);
    for (const auto& [inner, lines] : tables_)
      if (inner.starts_with(table + ".")) parts.push_back(inner.substr(table.size() + 1) + " = " + inline_table(inner));
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
      if (table.starts_with("model.") && table.find('.', 6) == std::string::npos)
        out += table.substr(6) + " = " + inline_table(table) + "\n";
    const std::string names =
        request_.architecture.empty() ? architecture.name : seen_from_manifest(request_.architecture);
    out += fmt::format(
        "\n[weights]\nfile = {}\nnames = {}\nseed = 1  # of what another mechanism has of its own and the file lacks\n",
        toml_of(seen_from_manifest(file)), toml_of(names));
    for (const auto& [table, lines] : tables_) {
      if (table == "model" || table.starts_with("model.")) continue;
      const size_t several = table.find('[');
      if (several != std::string::npos) {
        // One of no layers is none; what it holds follows in its lines.
        if (table.back() != ']' || !is_said(table, "layers")) continue;
        out += fmt::format("\n[[{}]]\n", table.substr(0, several));
      } else {
        out += fmt::format("\n[{}]\n", table);
      }
      for (const auto& [key, value] : lines)
        out += (key.find('.') == std::string::npos ? key : quote(key)) + " = " + value + "\n";
      for (const auto& [inner, more] : tables_)
        if (several != std::string::npos && inner.starts_with(table + "."))
          out += inner.substr(table.size() + 1) + " = " + inline_table(inner) + "\n";
    }
    return out;
  }

  const ImportRequest& request_;
  fs::path folder_, transformer_;
  std::optional<Pooling> pooling_;  // what modules.json says
  bool lowercases_ = false;
  static constexpr int64_t max_numbers = 1024;         // of a tensor in a manifest
  std::set<std::string> tensors_;                      // of a GGUF file
  std::map<std::string, std::vector<float>> numbers_;  // of its small ones
  std::map<int64_t, std::string> tokens_;              // of a decoder, by id
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

}  // namespace attnkit::core
