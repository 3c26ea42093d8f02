// The state that the sections of a manifest share while they are read.  Each section reports its mistakes and fills the
// sound fields.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/manifest/manifest.hpp"
#include "core/manifest/toml.hpp"

namespace attnkit::core {

struct Reading {
  const std::string& dir;
  const Registry& registry;
  int32_t device_type;
  Diagnostics& diagnostics;
  Manifest& manifest;  // wrong fields are left 0
  bool kind_known = false;
  bool length_meant = false;                                     // there is a [length], be it sound or not
  std::map<std::string, std::vector<const Entry*>> params = {};  // of [attention], by mechanism

  void error(int code, Place place, std::string message, std::string help = {}) const {
    diagnostics.add(code, place, std::move(message), std::move(help));
  }
  // A key that means nothing beside what the others say.
  void not_applicable(Place place, std::string message, std::string help = "remove it") const {
    error(ak::not_applicable, place, std::move(message), std::move(help));
  }
  bool is(ModelKind kind) const { return kind_known && manifest.kind == kind; }
  // The model has such blocks, and how many layers of them is known.
  bool has_layers(uint32_t role) const {
    return kind_known && has_role(manifest.kind, role) && layers_of(manifest, role) > 0;
  }
};

// Decides every block's mechanism and options, then asks the mechanisms themselves.
void read_attention(const Node& attention, Reading& to);

// Reads [search] without asking any mechanism: a search does that, choice by choice.
void read_search(const Node& search, Reading& to);

// A mechanism's name or { use = name, option = value, ... }.
struct Use {
  Place decided;  // of the mechanism's name
  std::string mechanism;
  const Plugin* plugin = nullptr;  // NULL: none that could sit there
  std::vector<const Entry*> options;
  bool sound = true;  // its options

  SearchChoice choice() const;
};

// The place that names a mechanism decides whether there must be one: blocks cannot do without.
enum class Naming { block, nobody, search };

// Reports every mistake in it, for a block all but that there is no such mechanism: no block may come to use it.  key:
// the key of value, which must live as long as the result.
Use read_use(const Node& value, const std::string& key, const Reading& to, Naming by = Naming::block);

// Reports place unless the model has such blocks, as far as is known.
bool check_role(Place place, uint32_t role, const Reading& to);

// One block with the places that its options were given at (line 0: not given).
struct Cell {
  BlockChoice choice;
  const Plugin* plugin = nullptr;
  std::vector<Place> places;
};

// Asks the mechanism of every cell whether it fits its block; refusals are reported where the cell was decided.  Sets
// choice.replays as [stream] needs it.
void check_fit(std::vector<Cell>& cells, const Reading& to);

}  // namespace attnkit::core
