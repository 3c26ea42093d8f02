#include "core/import/import.hpp"

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/import/draft.hpp"
#include "core/import/formats.hpp"

namespace attnkit::core {
namespace {

Imported import_any(const ImportRequest& request) {
  const fs::path folder = request.folder;
  if (fs::is_regular_file(folder)) return import_gguf(request);
  if (!fs::is_directory(folder))
    refuse(fmt::format("{}: is no folder and no file", request.folder),
           "give the folder that config.json is in, or a GGUF file");
  const bool huggingface = fs::exists(folder / "config.json") || fs::exists(folder / "modules.json");
  if (!huggingface) refuse_marian_binary(request.folder);
  if (fs::exists(folder / "model.bin") && !fs::exists(folder / "model.safetensors")) return import_ctranslate2(request);
  if (huggingface) return import_huggingface(request);
  if (!files_named(folder, "", ".npz").empty()) return import_marian(request);
  if (const auto models = files_named(folder, "", ".gguf"); !models.empty())
    refuse(fmt::format("{}: has no config.json", request.folder),
           fmt::format("name the GGUF file: attnkit import {}", models.front().string()));
  return import_huggingface(request);  // says what is missing
}

}  // namespace

Imported import_folder(const ImportRequest& request) {
  try {
    return import_any(request);
  } catch (const Error& e) {
    refuse(e.what());
  } catch (const nlohmann::json::type_error&) {  // of a text that a manifest cannot hold
    refuse(fmt::format("{}: a name there is not UTF-8, and a manifest must be", quote(request.folder)), "rename it");
  } catch (const fs::filesystem_error& e) {
    refuse(fmt::format("{}: {}", e.path1().string(), e.code().message()), "");
  }
}

}  // namespace attnkit::core
