// A model that Marian trained brings its settings along; decoder.yml says which vocabularies are its.
#include "core/base/file.hpp"
#include "core/base/formats/npz.hpp"
#include "core/base/formats/yaml.hpp"
#include "core/import/entries.hpp"
#include "core/import/formats.hpp"

namespace attnkit::core {
namespace {

constexpr const char* model_settings = "special:model.yml";
constexpr int64_t default_beams = 12;  // where a decoder.yml says none

[[noreturn]] void refuse_binary(const fs::path& path) {
  refuse(fmt::format("{}: is Marian's binary format, which is not supported; .npz is", path.string()),
         "give the folder of the .npz that marian-conv made it of");
}

// Files of a decoder.yml, which lie beside it.
std::vector<fs::path> listed(const fs::path& folder, const JsonValue& files) {
  std::vector<fs::path> all;
  for (const JsonValue& file : files.items()) all.push_back(folder / fs::path(file.text()).filename());
  return all;
}

// Takes the settings of the search from decoder.yml, unless they were given.
void add_search(Draft& draft, const JsonValue& decoder) {
  const JsonValue beams = decoder["beam-size"];
  const int64_t rows = beams ? beams.integer() : default_beams;
  if (rows < 1 || rows > 64) beams.wrong("must be 1 to 64");
  draft.add("decode", "beams", std::to_string(rows));
  // By itself it means 1, without it there is none.
  const JsonValue power = decoder["normalize"];
  if (power && !power.json().is_number() && !power.json().is_boolean()) power.wrong("must be a number");
  const double penalty = !power ? 0 : power.json().is_boolean() ? power.truth() : power.json().get<double>();
  if (!(penalty >= 0 && penalty <= 10)) power.wrong("must be 0 to 10");
  draft.add("decode", "length_penalty", nlohmann::json(penalty).dump());
  for (const char* key : {"word-penalty", "allow-unk", "allow-special", "max-length-factor", "output-sampling"})
    if (const JsonValue said = decoder[key]; said && said.json() != 0 && said.json() != false)
      draft.note_unsaid(said, key);
}

// Files that a folder has, or that its decoder.yml names.
struct Files {
  std::vector<fs::path> models, vocabularies;
};

Files files_of(Draft& draft, const fs::path& folder) {
  const std::vector<fs::path> settings = files_named(folder, "", "decoder.yml");
  if (settings.size() > 1)
    refuse(fmt::format("{}: there are {} and {}; one is needed", folder.string(), settings[0].filename().string(),
                       settings[1].filename().string()),
           "give a folder with one model");
  if (settings.empty()) {
    std::vector<fs::path> lists = files_named(folder, "vocab", ".yml");
    return {files_named(folder, "", ".npz"), lists.empty() ? files_named(folder, "vocab", ".spm") : std::move(lists)};
  }
  const std::string path = draft.find(settings.front())->string();
  const nlohmann::json document = read_yaml(path, max_json);
  const JsonValue decoder(document, path);
  Files files{listed(folder, decoder["models"]), listed(folder, decoder["vocabs"])};
  add_search(draft, decoder);
  return files;
}

// Returns the settings of the model in the file, and the sizes of its tensors.
nlohmann::json metadata_of(const std::vector<NpzTensor>& tensors, const std::string& path) {
  nlohmann::json made, sizes = nlohmann::json::object();
  for (const NpzTensor& tensor : tensors) {
    if (tensor.name == model_settings) {
      std::string text(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
      made = parse_yaml(text.substr(0, text.find('\0')), path + " " + model_settings);
    }
    for (size_t i = 0; i < tensor.shape.size(); ++i) sizes[fmt::format("{}[{}]", tensor.name, i)] = tensor.shape[i];
  }
  if (!made.is_object())
    refuse(fmt::format("{}: has no {}, in which Marian keeps a model's settings", path, model_settings));
  made.update(sizes);
  // Behind "rnn" stands the cell.
  if (auto& decoder = made["transformer-decoder-autoreg"]; decoder == "rnn") decoder = made["dec-cell"];
  return made;
}

// SentencePiece's files as they are, or lists of its pieces beside source.spm and target.spm.
void add_vocabularies(Draft& draft, const fs::path& folder, std::vector<fs::path> files) {
  if (files.size() == 1) files.push_back(files.front());
  if (files.size() != 2)
    refuse(fmt::format("{}: there are {} vocabularies; one, or one for each side, is needed", folder.string(),
                       files.size()),
           "give a decoder.yml that names them");
  const char* const sides[] = {"model.encoder", "model.decoder"};
  for (size_t i = 0; i < 2; ++i) {
    const fs::path path = draft.take(files[i], "decoder.yml names it");
    const bool is_list = path.extension() == ".yml" || path.extension() == ".yaml";
    if (!is_list && path.extension() != ".spm")
      refuse(fmt::format("{}: is no vocabulary that is supported; .spm and .yml are", path.string()));
    const fs::path pieces =
        is_list ? draft.take(folder / (i == 0 ? "source.spm" : "target.spm"), "it makes the tokens of the .yml") : path;
    draft.add_file(sides[i], "vocab", pieces);
    draft.add_text(sides[i], "tokenizer", "huggingface");
    if (is_list) draft.add_file(sides[i], "ids", path);
  }
}

}  // namespace

void refuse_marian_binary(const std::string& folder) {
  const bool marian = !files_named(folder, "", "decoder.yml").empty() ||
                      !files_named(folder, "vocab", ".spm").empty() || !files_named(folder, "vocab", ".yml").empty();
  if (!marian || !files_named(folder, "", ".npz").empty()) return;
  if (const auto models = files_named(folder, "", ".bin"); !models.empty()) refuse_binary(models.front());
}

Imported import_marian(const ImportRequest& request) {
  Draft draft(request);
  const fs::path folder = request.folder;
  const auto [models, vocabularies] = files_of(draft, folder);
  if (models.size() != 1)
    refuse(fmt::format("{}: there are {} models; one is supported", folder.string(), models.size()),
           "give a folder with one .npz, or a decoder.yml that names one");
  const fs::path path = draft.take(models.front(), "decoder.yml names it");
  if (path.extension() == ".bin") refuse_binary(path);
  const auto file = MappedFile::open(path.string());
  const std::vector<NpzTensor> tensors = read_npz(file->bytes(), path.string());
  const nlohmann::json settings = metadata_of(tensors, path.string());
  FileTensors own;
  for (const NpzTensor& tensor : tensors) own.names.insert(tensor.name);
  const JsonValue metadata(settings, path.string());
  const Architecture architecture = architecture_of(draft, metadata, "type", &Architecture::marian);
  add_entries(draft, architecture, metadata, own);
  add_vocabularies(draft, folder, vocabularies);
  return draft.finish(architecture.name, path);
}

}  // namespace attnkit::core
