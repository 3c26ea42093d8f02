// The formats of checkpoints that are imported, a file each.
#pragma once

#include "core/import/import.hpp"

namespace attnkit::core {

// All throw ImportFailure or Error.
Imported import_gguf(const ImportRequest& request);
Imported import_ctranslate2(const ImportRequest& request);
Imported import_marian(const ImportRequest& request);
Imported import_huggingface(const ImportRequest& request);

// Refuses a folder of Marian's with a binary model alone, which may be called as CTranslate2's are.
void refuse_marian_binary(const std::string& folder);

}  // namespace attnkit::core
