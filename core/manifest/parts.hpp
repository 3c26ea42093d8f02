// The parts of a manifest's check; each reports what is wrong and fills what is sound.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/manifest/manifest.hpp"
#include "core/manifest/toml.hpp"

namespace attnkit {

// What the parts share.  Fields of manifest that were wrong are left 0.
struct ManifestCheck {
  const std::string& dir;
  const Registry& registry;
  int32_t device_type;
  Diagnostics& diagnostics;
  Manifest& manifest;
  bool kind_known = false;
  bool length_meant = false;                                     // there is a [length], be it sound or not
  std::map<std::string, std::vector<const Entry*>> params = {};  // of [attention], by mechanism
};

void check_model(const Node& model, ManifestCheck& check);
void check_weights(const Node& weights, ManifestCheck& check);
void check_length(const Node& length, ManifestCheck& check);
void check_decode(const Node& decode, ManifestCheck& check);

// features and frontend of the encoder's table, if it has them.
void check_speech(const Node& encoder, ManifestCheck& check);

class TableReader;

// "file" and "sha256" of a table that names a safetensors file: the path, which must be that of a file, and lower-case
// digits; empty: not given, or reported.
std::string check_weights_file(const TableReader& reader, ManifestCheck& check);
std::string check_sha256(const TableReader& reader, ManifestCheck& check);

// Also whether the model can take a source that grows; its mechanisms are asked by probe_cells.
void check_stream(const Node& stream, ManifestCheck& check);

// Reads [search] without asking any mechanism: that a search does, choice by choice.
void check_search(const Node& search, ManifestCheck& check);

class Mechanism;

// Sequences between blocks (ATTN_AUX_IN, ATTN_AUX_OUT) that are made anew whenever the source grows; given the blocks
// in execution order.
class GrowingSequences {
 public:
  // Why the block cannot follow them, or nothing.  replay: of [stream]; choice says after it whether it replays.
  std::string follow(const Mechanism& mechanism, BlockChoice& choice, bool replay);

 private:
  std::set<std::string> names_;
};

// Decides every block's mechanism and options, then asks the mechanisms themselves.
void check_attention(const Node& attention, ManifestCheck& check);

// One block with the places that its options were given at (line 0: not given).
struct Cell {
  BlockChoice choice;
  const Plugin* plugin = nullptr;
  std::vector<Place> places;
};
// Lets the mechanism of every cell judge its block; refusals are reported where the cell was decided.  Says in
// choice.replays what [stream] means for it.
void probe_cells(std::vector<Cell>& cells, ManifestCheck& check);

// The model has such blocks, as far as is known; if not, place is reported.
bool check_role(Place place, uint32_t role, ManifestCheck& check);
bool has_role(ModelKind kind, uint32_t role);
int layers_of(const Manifest& manifest, uint32_t role);
const char* kind_text(ModelKind kind);  // "encoder-decoder"

}  // namespace attnkit
