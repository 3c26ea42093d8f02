// An architecture of other libraries in attnkit's terms: which config.json it is, what its keys mean in a manifest,
// what its tensors are called.  One TOML file each; those of architectures/ are compiled in.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.hpp"
#include "core/import/names.hpp"

namespace attnkit::core {

// The source of a value of a manifest.  Texts are those of TOML.
struct ManifestValue {
  std::string constant;              // empty: config.json says it
  std::vector<std::string> tensors;  // of a file: whether one of these is there, or with `lacks` none
  bool lacks = false;
  std::string numbers;                          // of this tensor of a file; nothing where it is not there
  std::vector<std::string> config;              // its key there, "a.b" for b in a; of several the first that is there
  std::vector<ManifestValue> fallback;          // where no key is there; empty: one must be
  std::string absent;                           // or the one of `values` that is then meant
  bool optional = false;                        // where no key is there, the manifest has none either
  std::string where;                            // of an array: which of its items are this, counted from 1
  std::vector<ManifestValue> range;             // first and last of a range, "1..4"; nothing where that is empty
  std::vector<std::string> same;                // keys that, where they are there, must say the same
  std::map<std::string, ManifestValue> values;  // by what config.json says, "*" all else, "null" where null
                                                // is no absent key; empty: that itself
  int64_t plus = 0, times = 1;                  // added to it, after it is multiplied
};

struct ManifestEntry {
  std::string table, key;  // "model.encoder", "layers"; of the first of an array of tables "attention.override[0]"
  ManifestValue value;
};

// The tokens that a SentencePiece file lacks whose ids are fairseq's, or stand in a vocab.json.
struct MoreTokens {
  std::vector<std::string> tokens;  // with ids behind its own
  std::string source;               // the one before a text; empty: none
};

struct Architecture {
  std::string name;                                      // "bert"
  std::vector<std::string> model_types;                  // of config.json
  std::map<std::string, std::vector<std::string>> only;  // by key: the values, as JSON, that mean nothing special
  std::vector<ManifestEntry> manifest;                   // as the file has them
  MoreTokens more;                                       // where a vocab.json lies beside SentencePiece's file
  std::optional<MoreTokens> fairseq;                     // where that file lies alone; nothing: it may not
  NameMap tensors;
  std::shared_ptr<const Architecture> gguf;  // of GGUF files: model_types are their architectures, config is metadata
  std::shared_ptr<const Architecture> ctranslate2;  // of CTranslate2's: model_types are their specs, config is metadata
  std::shared_ptr<const Architecture> marian;  // of Marian's: model_types are their types, config is special:model.yml

  // Throws Error (ATTN_INVALID) naming file, line and what is wrong.
  static Architecture read(const std::string& toml, const std::string& source);
};

// One that ships with attnkit: "bert".  Throws Error naming the nearest.
std::string shipped_architecture(const std::string& name);
std::vector<std::string> shipped_architectures();

// A shipped one, or where the name ends in .toml that file.  Throws Error.
Architecture open_architecture(const std::string& name, const std::string& folder);

}  // namespace attnkit::core
