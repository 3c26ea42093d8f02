// What a saved session holds of speech.
#pragma once

#include "core/session/blob.hpp"
#include "core/session/session.hpp"

namespace attnkit {

void save_speech(const Session::Source& source, BlobWriter& to);

// length and complete of `to` are known.  Throws Error (ATTN_INVALID) where the rest contradicts them or the model.
void load_speech(const Model& model, BlobReader& from, Session::Source& to);

}  // namespace attnkit
