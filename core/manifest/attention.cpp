// [attention]: its entries, and which of them decides which block: override before block before default, the last
// override first.
#include <algorithm>
#include <set>
#include <utility>

#include "core/base/text.hpp"
#include "core/manifest/options.hpp"
#include "core/manifest/read.hpp"
#include "core/manifest/reader.hpp"

namespace attnkit::core {
namespace {

std::vector<const Entry*> entries_of(const Node& table) {
  std::vector<const Entry*> entries;
  for (const Entry& e : table.entries) entries.push_back(&e);
  return entries;
}

// Returns the mechanism of that name for the device; NULL when there is none, which is then reported at place.
const Plugin* find_mechanism(const std::string& name, Place place, const Reading& to, Naming by) {
  if (const Plugin* plugin = to.registry.find(name, to.device_type)) return plugin;
  const std::vector<std::string> names = to.registry.names(to.device_type);
  const std::string found =
      names.empty() ? "no mechanism was found" : fmt::format("mechanisms found: {}", fmt::join(names, ", "));
  const auto report = [&](int code, const std::string& message, const std::string& help) {
    to.error(by == Naming::block || name.empty() ? code
             : by == Naming::nobody              ? ak::unused_mechanism
                                                 : ak::not_searched,
             place, message, by == Naming::nobody ? "no block uses it; " + help : help);
    return nullptr;
  };
  // Files of variants end so, and names of mechanisms do not.
  constexpr std::string_view ending = "-cuda";
  const std::string stem = name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : "";
  if (to.registry.find(stem, 1) || to.registry.find(stem, 2))
    return report(ak::unknown_mechanism, fmt::format("no mechanism {}; did you mean {}?", quote(name), quote(stem)),
                  "a mechanism has one name on all devices: device = \"cuda\" at the top, or --device cuda, takes its "
                  "variant for CUDA; " +
                      found);
  if (const SkippedFile* file = to.registry.skipped(name))
    return report(ak::unusable_mechanism,
                  fmt::format("mechanism {} cannot be used: {}: {}", quote(name), file->path, file->reason), found);
  const bool on_cuda = to.device_type == 2;
  if (const Plugin* other = to.registry.find(name, on_cuda ? 1 : 2))
    return report(ak::unusable_mechanism,
                  fmt::format("mechanism {} has no variant for this device, {}; it is here for {}: {}", quote(name),
                              on_cuda ? "CUDA" : "the CPU", on_cuda ? "the CPU" : "CUDA", other->path),
                  fmt::format("device = \"{0}\" at the top, or --device {0}, runs the model there; {1}",
                              on_cuda ? "cpu" : "cuda", found));
  return report(ak::unknown_mechanism, fmt::format("no mechanism {}{}", quote(name), did_you_mean(name, names)),
                fmt::format("{}; folders searched: {}", found, fmt::join(to.registry.folders(), ", ")));
}

// One entry that may decide blocks.
struct Assignment : Use {
  Place place;                                 // of the entry: an override's header, another's key
  uint32_t role = 0;                           // 0: all
  std::optional<std::vector<int64_t>> layers;  // nothing: all
  bool matchable = true;                       // false: what it should match is wrong, and reported
  int hits = 0;                                // blocks it decided

  bool covers(int layer) const { return !layers || std::find(layers->begin(), layers->end(), layer) != layers->end(); }
};

struct Assignments {
  std::optional<Assignment> fallback;
  std::map<uint32_t, Assignment> blocks;  // by role
  std::vector<Assignment> overrides;      // in order

  Assignment* decide(uint32_t role, int layer) {
    for (auto a = overrides.rbegin(); a != overrides.rend(); ++a)
      if (a->matchable && a->role == role && a->covers(layer)) return &*a;
    const auto block = blocks.find(role);
    if (block != blocks.end()) return &block->second;
    return fallback ? &*fallback : nullptr;
  }
};

// A mechanism that is not there is reported by the entry that names it, and here only if none does.
void read_params(const Node& params, const std::set<std::string>& used, Reading& to) {
  for (const Entry& entry : params.entries) {
    const Plugin* plugin = to.registry.find(entry.key, to.device_type);
    if (!plugin && !used.contains(entry.key)) find_mechanism(entry.key, entry.place, to, Naming::nobody);
    if (entry.value.kind != Node::Kind::table) {
      to.error(ak::wrong_type, entry.value.place,
               fmt::format("options of {} must be a table, not {}", quote(entry.key), kind_name(entry.value.kind)),
               "params.name = { option = value }");
    } else if (plugin) {
      OptionSet(*plugin).apply(to.params[entry.key] = entries_of(entry.value), to.diagnostics);
    }
  }
}

Assignment read_assignment(const Entry& entry, const Reading& to) {
  return {read_use(entry.value, entry.key, to), entry.place, 0, {}, true, 0};
}

// "2" or "2..3".
std::optional<std::vector<int64_t>> parse_range(std::string_view text) {
  const size_t dots = text.find("..");
  const auto first = parse_number<int64_t>(text.substr(0, dots));
  const auto last = dots == std::string_view::npos ? first : parse_number<int64_t>(text.substr(dots + 2));
  if (!first || !last || *first < 1 || *last < *first || *last - *first > 4096) return {};
  std::vector<int64_t> layers;
  for (int64_t l = *first; l <= *last; ++l) layers.push_back(l);
  return layers;
}

void read_layers(const Node& value, Assignment& a, const Reading& to) {
  const std::string name = role_name(a.role);
  const int count = to.has_layers(a.role) ? layers_of(to.manifest, a.role) : 0;
  const auto wrong = [&](Place place, const std::string& message) {
    a.matchable = false;
    to.error(ak::wrong_layers, place, message,
             "layers count from 1: 2, \"2\", \"2..3\" or [1, 3]; without \"layers\" all are meant");
  };
  a.layers.emplace();
  const auto add = [&](int64_t layer, Place place) {
    if (layer < 1 || (count > 0 && layer > count))
      wrong(place, count > 0 ? fmt::format("{} has the layers 1 to {}, not {}", name, count, layer)
                             : fmt::format("layers count from 1, so {} is none", layer));
    a.layers->push_back(layer);
  };
  if (value.kind == Node::Kind::integer) return add(value.integer, value.place);
  if (value.kind == Node::Kind::array) {
    if (value.items.empty()) wrong(value.place, "\"layers\" is empty");
    for (const Node& item : value.items)
      if (item.kind == Node::Kind::integer)
        add(item.integer, item.place);
      else
        wrong(item.place, fmt::format("a layer must be an integer, not {}", kind_name(item.kind)));
    return;
  }
  const auto range = parse_range(value.text);
  if (!range) return wrong(value.place, fmt::format("layers {} is no range of layers", quote(value.text)));
  add(range->front(), value.place);
  if (a.matchable && range->size() > 1) add(range->back(), value.place);
  a.layers = range;
}

void read_override_params(const Node& params, Assignment& a, const Reading& to) {
  for (const Entry& e : params.entries)
    if (std::any_of(a.options.begin(), a.options.end(), [&](const Entry* other) { return other->key == e.key; }))
      to.error(ak::option_given_twice, e.place, fmt::format("option {} is given by \"use\" already", quote(e.key)),
               "keep one of them");
  const std::vector<const Entry*> options = entries_of(params);
  if (a.plugin) a.sound = OptionSet(*a.plugin).apply(options, to.diagnostics) && a.sound;
  a.options.insert(a.options.end(), options.begin(), options.end());
}

Assignment read_override(const Node& table, const Reading& to) {
  const TableReader reader(table, "attention.override", to.diagnostics);
  const Entry *use = reader.given("use"), *params = reader.given("params");
  Assignment a = use ? read_assignment(*use, to) : Assignment();
  a.place = table.place;
  if (const auto block = reader.text("block")) a.role = role_of(*block);
  a.matchable = a.role && check_role(reader.place("block"), a.role, to);
  if (const Entry* layers = reader.given("layers"))
    read_layers(layers->value, a, to);
  else if (reader.mentioned("layers"))
    a.matchable = false;
  if (params && use) read_override_params(params->value, a, to);
  return a;
}

Assignments read_assignments(const Node& attention, Reading& to) {
  const TableReader reader(attention, "attention", to.diagnostics);
  Assignments all;
  if (const Entry* entry = reader.given("default")) all.fallback = read_assignment(*entry, to);
  for (const uint32_t role : all_roles) {
    const Entry* entry = reader.given(role_name(role));
    if (!entry) continue;
    Assignment& a = all.blocks[role] = read_assignment(*entry, to);
    a.role = role;
    a.matchable = check_role(entry->place, role, to);
  }
  if (const Entry* list = reader.given("override"))
    for (const Node& table : list->value.items) all.overrides.push_back(read_override(table, to));
  std::set<std::string> used;
  if (all.fallback) used.insert(all.fallback->mechanism);
  for (const auto& [role, a] : all.blocks) used.insert(a.mechanism);
  for (const Assignment& a : all.overrides) used.insert(a.mechanism);
  if (const Entry* params = reader.given("params")) read_params(params->value, used, to);
  return all;
}

Cell cell_of(uint32_t role, int layer, const Assignment& a, const Reading& to) {
  Cell cell;
  cell.plugin = a.plugin;
  OptionSet options(*a.plugin);
  Diagnostics reported;  // each wrong option was reported once, where it was read
  const auto params = to.params.find(a.mechanism);
  if (params != to.params.end() && !options.apply(params->second, reported)) cell.plugin = nullptr;
  if (!a.sound || !options.apply(a.options, reported)) cell.plugin = nullptr;
  cell.choice = {role, layer, a.mechanism, std::move(options.values), a.decided, a.choice()};
  cell.places = std::move(options.places);
  return cell;
}

void report_hidden(const Assignments& all, const Reading& to) {
  for (const Assignment& a : all.overrides)
    if (a.matchable && a.hits == 0 && to.has_layers(a.role))
      to.error(ak::never_matches, a.place,
               fmt::format("this override of {} can never match: later ones hide it", role_name(a.role)),
               "the last override that matches wins: remove this one or move it down");
  for (const auto& [role, a] : all.blocks)
    if (a.matchable && a.hits == 0 && to.has_layers(role))
      to.diagnostics.add(ak::unused_entry, a.place,
                         fmt::format("overrides hide this {} in every layer", role_name(role)), "remove it");
}

}  // namespace

// A mechanism that is not there is an error once a block uses it, or might, were other mistakes put right.
void report_missing(const Assignments& all, const Reading& to) {
  const bool complete = to.kind_known && std::all_of(std::begin(all_roles), std::end(all_roles), [&](uint32_t role) {
                          return !has_role(to.manifest.kind, role) || to.has_layers(role);
                        });
  const auto report = [&](const Assignment& a) {
    if (a.plugin || a.mechanism.empty()) return;
    const bool unused = complete && a.matchable && a.hits == 0;
    find_mechanism(a.mechanism, a.decided, to, unused ? Naming::nobody : Naming::block);
  };
  if (all.fallback) report(*all.fallback);
  for (const auto& [role, a] : all.blocks) report(a);
  for (const Assignment& a : all.overrides) report(a);
}

SearchChoice Use::choice() const {
  if (!plugin) return choice_as_written(mechanism, options);
  OptionSet given(*plugin);
  Diagnostics reported;
  given.apply(options, reported);
  return given.choice();
}

Use read_use(const Node& value, const std::string& key, const Reading& to, Naming by) {
  Use use;
  const Entry* name = value.find("use");
  const Node* text = value.kind == Node::Kind::text ? &value : name ? &name->value : nullptr;
  if (!text) {
    to.error(ak::missing_key, value.place, fmt::format("\"{}\" needs \"use\", a mechanism's name", key),
             "{ use = \"name\", option = value }");
    return use;
  }
  use.decided = text->place;
  if (text->kind != Node::Kind::text) {
    to.error(ak::wrong_type, text->place,
             fmt::format("\"use\" must be a mechanism's name, not {}", kind_name(text->kind)));
    return use;
  }
  use.mechanism = text->text;
  for (const Entry& e : value.entries)
    if (&e != name) use.options.push_back(&e);
  use.plugin = by == Naming::block && !use.mechanism.empty() ? to.registry.find(use.mechanism, to.device_type)
                                                             : find_mechanism(use.mechanism, use.decided, to, by);
  if (use.plugin) use.sound = OptionSet(*use.plugin).apply(use.options, to.diagnostics);
  if (!use.plugin && by == Naming::search) use.sound = check_values(use.options, to.diagnostics);
  return use;
}

bool check_role(Place place, uint32_t role, const Reading& to) {
  if (!to.kind_known || has_role(to.manifest.kind, role)) return true;
  to.error(ak::no_such_block, place,
           fmt::format("a model of kind \"{}\" has no {}", kind_name(to.manifest.kind), role_name(role)),
           "remove it, or choose another kind");
  return false;
}

void read_attention(const Node& attention, Reading& to) {
  Assignments all = read_assignments(attention, to);
  std::vector<Cell> cells;
  std::set<uint32_t> undecided;
  const auto decide = [&](uint32_t role, int layer) {
    Assignment* a = all.decide(role, layer);
    if (a) ++a->hits;
    if (a && a->plugin) cells.push_back(cell_of(role, layer, *a, to));
    if (!a && undecided.insert(role).second)
      to.error(ak::no_mechanism, attention.place, fmt::format("nothing in [attention] decides {}", role_name(role)),
               fmt::format("add \"{}\" = \"...\" or default = \"...\"", role_name(role)));
  };
  if (to.has_layers(ATTN_ENCODER_SELF))
    for (int layer = 1; layer <= to.manifest.encoder.layers; ++layer) decide(ATTN_ENCODER_SELF, layer);
  if (to.has_layers(ATTN_DECODER_SELF))
    for (int layer = 1; layer <= to.manifest.decoder.layers; ++layer) {
      decide(ATTN_DECODER_SELF, layer);
      if (to.has_layers(ATTN_DECODER_CROSS)) decide(ATTN_DECODER_CROSS, layer);
    }
  report_hidden(all, to);
  report_missing(all, to);
  check_fit(cells, to);
  for (const Cell& cell : cells) to.manifest.blocks.push_back(cell.choice);
}

}  // namespace attnkit::core
