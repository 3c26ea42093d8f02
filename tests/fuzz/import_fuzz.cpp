// Any texts as the files of a folder to import, and as the manifest that is made of it.  A line "==> NAME <==" begins a
// file, as head writes them one after another.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "core/base/error.hpp"
#include "core/import/import.hpp"
#include "core/manifest/manifest.hpp"
#include "core/weights/weights.hpp"

namespace {

namespace fs = std::filesystem;

constexpr const char* index_file = "model.safetensors.index.json";
constexpr const char* names[] = {"config.json",
                                 "generation_config.json",
                                 "preprocessor_config.json",
                                 "modules.json",
                                 "1_Pooling/config.json",
                                 "sentence_bert_config.json",
                                 "config_sentence_transformers.json",
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "special_tokens_map.json",
                                 "vocab.json",
                                 "target_vocab.json",
                                 "vocab.txt",
                                 "source.spm",
                                 "target.spm",
                                 "sentencepiece.bpe.model",
                                 "spiece.model",
                                 index_file};

// In memory, where the machine has such a folder.
fs::path make_folder() {
  std::string path = fs::is_directory("/dev/shm") ? "/dev/shm/import_fuzz-XXXXXX" : "/tmp/import_fuzz-XXXXXX";
  if (!mkdtemp(path.data())) std::abort();
  return path;
}

struct Folder {
  fs::path path = make_folder();
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

void write(const fs::path& folder, std::string_view name, std::string_view bytes) {
  for (const char* known : names) {
    if (name != known) continue;
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << bytes;
  }
}

void write_files(const fs::path& folder, std::string_view all) {
  constexpr std::string_view mark = "==> ", end = " <==\n";
  for (size_t at = all.find(mark); at != all.npos;) {
    const size_t name = at + mark.size(), begin = all.find(end, name);
    if (begin == all.npos) return;
    at = all.find("\n==> ", begin);
    const size_t bytes = begin + end.size();
    write(folder, all.substr(name, begin - name), all.substr(bytes, at == all.npos ? at : at - bytes));
    if (at != all.npos) ++at;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit::core;
  static const Folder made_folder;
  const fs::path& folder = made_folder.path;
  static const Registry registry({ATTNKIT_FAKE_PLUGINS});
  for (const auto& entry : fs::directory_iterator(folder)) fs::remove_all(entry.path());
  write_files(folder, {reinterpret_cast<const char*>(data), size});
  try {
    if (fs::exists(folder / index_file)) Weights::open((folder / index_file).string(), "");
  } catch (const Error&) {
  }
  try {
    if (!fs::exists(folder / index_file)) std::ofstream(folder / "model.safetensors");
    const Imported made = import_folder({folder.string(), (folder / "model.toml").string(), "", ""});
    Diagnostics diagnostics;
    read_manifest(made.toml, folder.string(), registry, 1, diagnostics);
  } catch (const ImportFailure& failure) {
    if (std::string_view(failure.what()).empty()) std::abort();
  }
  return 0;
}
