// Folders of Hugging Face's libraries: transformers' own, and those of sentence-transformers around them.
#include "core/import/huggingface.hpp"

#include <algorithm>

#include "core/base/text.hpp"
#include "core/import/entries.hpp"
#include "core/import/formats.hpp"

namespace attnkit::core {
namespace {

struct Pooling {
  std::string pool = "mean";
  bool normalise = false;
};

// Settings of sentence-transformers beside a transformer.
struct Modules {
  fs::path transformer;            // its folder
  std::optional<Pooling> pooling;  // none: no modules.json says it
};

// A folder below this one.
fs::path plain_path(const JsonValue& value) {
  const fs::path path = value ? value.text() : "";
  if (path.is_absolute() || std::ranges::find(path, fs::path("..")) != path.end())
    value.wrong(fmt::format("is {}, which leads out of the folder", quote(path.string())));
  return path;
}

std::string pool_of(Draft& draft, const fs::path& path) {
  const JsonValue config = draft.read(draft.take(path, "modules.json names it"));
  std::vector<std::string> modes;
  for (const auto& [key, value] : config.members())
    if (key.starts_with("pooling_mode_") && value.truth()) modes.push_back(key);
  if (config["pooling_mode"]) modes.push_back("pooling_mode_" + config["pooling_mode"].text());
  const auto is = [&](const char* mode) { return modes == std::vector<std::string>{mode}; };
  if (is("pooling_mode_mean_tokens") || is("pooling_mode_mean")) return "mean";
  if (is("pooling_mode_cls_token") || is("pooling_mode_cls")) return "first";
  refuse(fmt::format("{}: pools by {}, which is not supported; the mean of the tokens, or the first token, is",
                     path.string(), modes.empty() ? "nothing" : quote(fmt::format("{}", fmt::join(modes, ", ")))));
}

// Takes sentence-transformers' limit of texts; else as many tokens as the model takes.
void add_text_limit(Draft& draft, const fs::path& folder, bool lowercases) {
  const std::string* most = draft.said("model", "max_length");
  int64_t longest = most ? parse_number<int64_t>(*most).value_or(0) : 0;
  if (const auto limits = draft.find_json(folder / "sentence_bert_config.json")) {
    const JsonValue said = (*limits)["max_seq_length"], lower = (*limits)["do_lower_case"];
    if (said && said.integer() < 2) said.wrong("must be 2 or more");
    if (said) longest = longest > 0 ? std::min(longest, said.integer()) : said.integer();
    if (lower.truth(false) && !lowercases) lower.wrong("is true, and the tokenizer does not lower-case");
  }
  if (longest > 0) draft.add("model.encoder", "truncate", std::to_string(longest));
}

Modules read_modules(Draft& draft, const fs::path& folder) {
  Modules made{folder, {}};
  const auto modules = draft.find_json(folder / "modules.json");
  if (!modules) return made;
  made.pooling.emplace();
  bool pooled = false;
  for (const JsonValue& module : modules->items()) {
    const std::string type = module["type"].text(), kind = type.substr(type.rfind('.') + 1);
    const fs::path place = folder / plain_path(module["path"]);
    if (kind == "Transformer") {
      made.transformer = place;
    } else if (kind == "Pooling") {
      made.pooling->pool = pool_of(draft, place / "config.json");
      pooled = true;
    } else if (kind == "Normalize") {
      made.pooling->normalise = true;
    } else {
      refuse(fmt::format("{}: the module {} is not supported; Transformer, Pooling and Normalize are", modules->path(),
                         quote(type)));
    }
  }
  if (const auto own = draft.find_json(folder / "config_sentence_transformers.json"))
    if (const JsonValue prompt = (*own)["default_prompt_name"])
      draft.note(fmt::format(
          "config_sentence_transformers.json puts the prompt {} before every text: here texts must bring it along",
          quote(prompt.text())));
  if (!pooled) refuse(fmt::format("{}: names no module Pooling, which makes one vector of a text", modules->path()));
  return made;
}

void add_sentence_vectors(Draft& draft, const Modules& modules, bool lowercases) {
  add_text_limit(draft, modules.transformer, lowercases);
  if (!modules.pooling) draft.note("no modules.json says how rows become a vector: their mean, not normalised");
  const auto [pool, normalise] = modules.pooling.value_or(Pooling());
  draft.add_text("model.head", "type", "embedding");
  draft.add_text("model.head", "pool", pool);
  draft.add("model.head", "normalise", normalise ? "true" : "false");
}

fs::path weights_of(Draft& draft, const fs::path& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    if (const auto path = draft.find(folder / name)) return *path;
  refuse(fmt::format("{}: holds neither model.safetensors nor model.safetensors.index.json", folder.string()),
         "other formats are not read: save the model with transformers, which writes safetensors");
}

}  // namespace

Imported import_huggingface(const ImportRequest& request) {
  Draft draft(request);
  const Modules modules = read_modules(draft, request.folder);
  const fs::path& folder = modules.transformer;
  const std::string path = draft.take(folder / "config.json", "every checkpoint of Hugging Face has one").string();
  nlohmann::json document = read_json(path, max_json);
  for (const char* beside : {"generation_config", "preprocessor_config"})
    if (const auto own = draft.find(folder / fmt::format("{}.json", beside)); own && document.is_object())
      document[beside] = read_json(own->string(), max_json);
  const JsonValue config(document, path);
  if (const JsonValue quantised = config["quantization_config"])
    quantised.wrong(
        "says that the weights are quantised, which is not supported; the checkpoint before that, or a "
        "GGUF file, is");
  const Architecture architecture = architecture_of(draft, config, "model_type");
  add_entries(draft, architecture, config);
  const FolderTokenizer tokenizer = add_tokenizer(draft, folder, architecture, &config);
  if (draft.has("model.decoder")) {
    if (modules.pooling) draft.note("modules.json makes one vector of a text: this model writes texts and makes none");
    add_generation(draft, folder, config, tokenizer.tokens);
  } else {
    add_sentence_vectors(draft, modules, tokenizer.lowercases);
  }
  return draft.finish(architecture.name, weights_of(draft, folder));
}

}  // namespace attnkit::core
