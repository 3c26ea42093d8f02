// All that a folder says in several files, a GGUF file says in its metadata.
#include "core/base/formats/gguf.hpp"

#include <cstring>

#include "core/base/file.hpp"
#include "core/import/entries.hpp"
#include "core/import/formats.hpp"

namespace attnkit::core {
namespace {

FileTensors tensors_of(const Gguf& gguf) {
  FileTensors made;
  for (const auto& tensor : gguf.tensors) {
    made.names.insert(tensor.name);
    if (tensor.type != "F32" || tensor.shape.size() != 1 || tensor.shape[0] > FileTensors::max_numbers) continue;
    std::vector<float>& numbers = made.numbers[tensor.name];
    numbers.resize(static_cast<size_t>(tensor.shape[0]));
    std::memcpy(numbers.data(), tensor.data.data(), tensor.data.size());
  }
  return made;
}

// Beside the end of texts all that llama.cpp ends at: the ids that the file has for it, and what is called so.
void add_ends(Draft& draft, const JsonValue& metadata) {
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
  for (const int64_t id : ends) all.push_back(tokens[static_cast<size_t>(id)].text());
  draft.add_texts("model.decoder", "more_ends", all);
}

}  // namespace

Imported import_gguf(const ImportRequest& request) {
  Draft draft(request);
  const fs::path path = *draft.find(request.folder);
  const auto file = MappedFile::open(path.string());
  if (!is_gguf(file->bytes()))
    refuse(fmt::format("{}: is a file, and no GGUF file", path.string()),
           "give the folder that config.json is in, or a GGUF file");
  const Gguf gguf = Gguf::read(file->bytes(), path.string());
  const JsonValue metadata(gguf.metadata, path.string());
  const Architecture architecture = architecture_of(draft, metadata, "general.architecture", &Architecture::gguf);
  add_entries(draft, architecture, metadata, tensors_of(gguf));
  draft.add_file("model.decoder", "vocab", path);
  draft.add_text("model.decoder", "tokenizer", "gguf");
  add_ends(draft, metadata);
  return draft.finish(architecture.name, path);
}

}  // namespace attnkit::core
