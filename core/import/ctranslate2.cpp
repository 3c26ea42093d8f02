// CTranslate2's folders: a model.bin says what the model is, config.json which tokens it writes.
#include "core/base/formats/ctranslate2.hpp"

#include <cmath>

#include "core/base/file.hpp"
#include "core/import/entries.hpp"
#include "core/import/formats.hpp"
#include "core/import/huggingface.hpp"

namespace attnkit::core {
namespace {

// Whether embeddings are multiplied by the root of their width, which a file says as a truth or as the factor.
void name_scales(nlohmann::json& metadata) {
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

// Translators of transformers leave the end of a source to its tokenizer, which puts one; all others say whether
// there is one.  Those begin targets with <s>, and these never.
void add_source_end(Draft& draft, const fs::path& folder, const JsonValue& config) {
  if (!config["add_source_eos"] || config["add_source_eos"].truth() || fs::exists(folder / "tokenizer.json")) return;
  if (const JsonValue start = config["decoder_start_token"]; start && start.text() == "<s>")
    draft.add("model.encoder", "end", "false");
}

}  // namespace

Imported import_ctranslate2(const ImportRequest& request) {
  Draft draft(request);
  const fs::path folder = request.folder, path = *draft.find(folder / "model.bin");
  const auto file = MappedFile::open(path.string());
  if (!is_ctranslate2(file->bytes()))
    refuse(fmt::format("{}: is no model of CTranslate2, and there is no model.safetensors", path.string()),
           "save the model with transformers, which writes safetensors");
  Ctranslate2 model = Ctranslate2::read(file->bytes(), path.string());
  FileTensors tensors;
  for (const auto& tensor : model.tensors)
    if (!tensor.alias) tensors.names.insert(tensor.name);
  const fs::path config = draft.take(folder / "config.json", "every model of CTranslate2 has one");
  model.metadata["config"] = read_json(config.string(), max_json);
  name_scales(model.metadata);
  const JsonValue metadata(model.metadata, path.string());
  const Architecture architecture = architecture_of(draft, metadata, "spec", &Architecture::ctranslate2);
  add_entries(draft, architecture, metadata, tensors);
  add_tokenizer(draft, folder, architecture, nullptr);
  add_source_end(draft, folder, metadata["config"]);
  return draft.finish(architecture.name, path);
}

}  // namespace attnkit::core
