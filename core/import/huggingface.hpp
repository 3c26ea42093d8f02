// Parts of a folder as Hugging Face's libraries save it, a file each: tokenizer.cpp, generation.cpp.
#pragma once

#include <map>
#include <string>

#include "core/import/architecture.hpp"
#include "core/import/draft.hpp"

namespace attnkit::core {

using TokensById = std::map<int64_t, std::string>;

struct FolderTokenizer {
  bool lowercases = false;
  TokensById tokens;  // of a decoder; of fairseq's numbering those before the pieces alone
};

// Of whichever kind there is.  config: config.json; NULL: of another format.
FolderTokenizer add_tokenizer(Draft& draft, const fs::path& folder, const Architecture& architecture,
                              const JsonValue* config);

// Settings of how texts are written, by generation_config.json, or where there is none by config.json; what begins and
// ends them.
void add_generation(Draft& draft, const fs::path& folder, const JsonValue& config, const TokensById& tokens);

}  // namespace attnkit::core
