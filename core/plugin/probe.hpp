// The abilities of a mechanism, found by asking it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/plugin/registry.hpp"

namespace attnkit::core {

// The verdict of every place, each role in the form that models use and the causal encoder, with default options,
// d_model 128, 4 heads, f32, one row:
//   role, causal, fits; refusal (if it does not fit); faulty, true, where that is a breach of the contract
//   lengths: which whole lengths it must be told, of "query", "key"
//   flops, bytes_read, bytes_written, scratch_bytes: a run of 512 queries on 512 keys
//   stream: fits, refusal, faulty, lengths, growing_source (fits while the keys' whole length is unknown), rewinds,
//           state_bytes {"512", "4096"}: of one row with room for so many keys; flops: of one query and key after 511
//   tensors: those stored with the model: name, kind, dtype, shape, per_model, doc
// A plugin's failure never makes it throw.
nlohmann::ordered_json probe(const Plugin& plugin);

}  // namespace attnkit::core
