// Which entry of [attention] decides which block: override before block before default, the last override first.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/manifest_codes.hpp"
#include "core/manifest_options.hpp"
#include "core/manifest_parts.hpp"
#include "core/manifest_reader.hpp"
#include "core/text.hpp"

namespace attnkit {
namespace {

constexpr uint32_t roles[] = {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS};

// One entry that may decide blocks.
struct Site {
  Place place;                                 // of the entry: an override's header, another's key
  uint32_t role = 0;                           // 0: all
  std::optional<std::vector<int64_t>> layers;  // nothing: all
  bool matchable = true;                       // false: what it should match is wrong, and reported
  Place decided;                               // of the mechanism's name
  std::string mechanism;
  const Plugin* plugin = nullptr;  // NULL: none that could sit there, and reported
  std::vector<const Entry*> options;
  bool sound = true;  // its options
  int hits = 0;       // blocks it decided
};

class Grid {
 public:
  explicit Grid(ManifestCheck& check) : check_(check), diagnostics_(check.diagnostics) {}

  void read(const Node& attention);
  std::vector<Cell> cells(const Node& attention);

 private:
  void read_use(const Entry& entry, Site& site);
  void read_override(const Node& table);
  void read_params(const Node& params);
  void read_layers(const Node& value, Site& site);
  void check_role(Place place, const std::string& name, Site& site);
  void check_options(Site& site);
  Site* decide(uint32_t role, int layer);
  Cell cell(uint32_t role, int layer, const Site& site) const;
  void report_hidden();
  void report_unused_params();
  bool known(uint32_t role) const {
    return check_.kind_known && has_role(check_.manifest.kind, role) && layers_of(check_.manifest, role) > 0;
  }

  ManifestCheck& check_;
  Diagnostics& diagnostics_;
  std::optional<Site> default_;
  std::map<uint32_t, Site> blocks_;
  std::vector<Site> overrides_;
  std::map<std::string, std::pair<const Entry*, std::vector<const Entry*>>> params_;  // sound ones
  std::set<std::string> used_;
};

uint32_t role_of(std::string_view name) {
  const auto* at = std::find_if(std::begin(roles), std::end(roles), [&](uint32_t r) { return name == role_name(r); });
  return at == std::end(roles) ? 0 : *at;
}

std::vector<const Entry*> entries_of(const Node& table) {
  std::vector<const Entry*> entries;
  for (const Entry& e : table.entries) entries.push_back(&e);
  return entries;
}

// "2" or "2..3".
std::optional<std::vector<int64_t>> parse_range(std::string_view text) {
  const auto number = [](std::string_view s) -> std::optional<int64_t> {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
    return error == std::errc() && end == s.data() + s.size() ? std::optional(n) : std::nullopt;
  };
  const size_t dots = text.find("..");
  const auto first = number(text.substr(0, dots));
  const auto last = dots == std::string_view::npos ? first : number(text.substr(dots + 2));
  if (!first || !last || *last < *first || *last - *first > 4096) return {};
  std::vector<int64_t> layers;
  for (int64_t l = *first; l <= *last; ++l) layers.push_back(l);
  return layers;
}

void Grid::read(const Node& attention) {
  const TableReader reader(attention, "attention", diagnostics_);
  if (const Entry* params = reader.given("params")) read_params(params->value);
  if (const Entry* entry = reader.given("default")) {
    default_.emplace();
    read_use(*entry, *default_);
  }
  for (const uint32_t role : roles) {
    const Entry* entry = reader.given(role_name(role));
    if (!entry) continue;
    Site& site = blocks_[role];
    check_role(entry->place, role_name(role), site);
    read_use(*entry, site);
  }
  if (const Entry* list = reader.given("override"))
    for (const Node& table : list->value.items) read_override(table);
}

void Grid::check_role(Place place, const std::string& name, Site& site) {
  site.role = role_of(name);
  if (!check_.kind_known || has_role(check_.manifest.kind, site.role)) return;
  site.matchable = false;
  diagnostics_.error(ak::no_such_block, place,
                     fmt::format("a model of kind \"{}\" has no {}", kind_text(check_.manifest.kind), name),
                     "remove it, or choose another kind");
}

void Grid::read_use(const Entry& entry, Site& site) {
  const Node& value = entry.value;
  site.place = entry.place;
  const Entry* name = value.find("use");
  const Node* text = value.kind == Node::Kind::text ? &value : name ? &name->value : nullptr;
  if (!text) {
    diagnostics_.error(ak::missing_key, value.place, fmt::format("\"{}\" needs \"use\", a mechanism's name", entry.key),
                       fmt::format("\"{}\" = {{ use = \"name\", option = value }}", entry.key));
    return;
  }
  site.decided = text->place;
  if (text->kind != Node::Kind::text) {
    diagnostics_.error(ak::wrong_type, text->place,
                       fmt::format("\"use\" must be a mechanism's name, not {}", kind_name(text->kind)));
    return;
  }
  site.mechanism = text->text;
  for (const Entry& e : value.entries)
    if (&e != name) site.options.push_back(&e);
  site.plugin = find_mechanism(site.mechanism, site.decided, check_.registry, check_.device_type, diagnostics_);
  check_options(site);
}

void Grid::check_options(Site& site) {
  if (!site.plugin) return;
  OptionSet scratch = default_options(*site.plugin);
  site.sound = apply_options(*site.plugin, site.options, scratch, diagnostics_) && site.sound;
}

void Grid::read_override(const Node& table) {
  const TableReader reader(table, "attention.override", diagnostics_);
  Site site;
  if (const auto block = reader.text("block"))
    check_role(reader.place("block"), *block, site);
  else
    site.matchable = false;
  if (const Entry* layers = reader.given("layers"))
    read_layers(layers->value, site);
  else if (reader.mentioned("layers"))
    site.matchable = false;
  const Entry* use = reader.given("use");
  if (use) read_use(*use, site);
  site.place = table.place;
  if (const Entry* params = reader.given("params"); params && use) {
    for (const Entry& e : params->value.entries) {
      const bool twice = std::any_of(site.options.begin(), site.options.end(),
                                     [&](const Entry* other) { return other->key == e.key; });
      if (!twice) continue;
      diagnostics_.error(ak::option_given_twice, e.place,
                         fmt::format("option {} is given by \"use\" already", quote(e.key)), "keep one of them");
    }
    Site own = site;
    own.options = entries_of(params->value);
    check_options(own);
    site.sound = own.sound;
    site.options.insert(site.options.end(), own.options.begin(), own.options.end());
  }
  overrides_.push_back(std::move(site));
}

void Grid::read_layers(const Node& value, Site& site) {
  const std::string name = role_name(site.role);
  const int count = known(site.role) ? layers_of(check_.manifest, site.role) : 0;
  const auto wrong = [&](Place place, const std::string& message) {
    site.matchable = false;
    diagnostics_.error(ak::wrong_layers, place, message,
                       "layers count from 1: 2, \"2\", \"2..3\" or [1, 3]; without \"layers\" all are meant");
  };
  site.layers.emplace();
  const auto add = [&](int64_t layer, Place place) {
    if (layer < 1 || (count > 0 && layer > count))
      wrong(place, count > 0 ? fmt::format("{} has the layers 1 to {}, not {}", name, count, layer)
                             : fmt::format("layers count from 1, so {} is none", layer));
    site.layers->push_back(layer);
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
  if (site.matchable && range->size() > 1) add(range->back(), value.place);
  site.layers = range;
}

void Grid::read_params(const Node& params) {
  for (const Entry& entry : params.entries) {
    const Plugin* plugin = find_mechanism(entry.key, entry.place, check_.registry, check_.device_type, diagnostics_);
    if (entry.value.kind != Node::Kind::table) {
      diagnostics_.error(
          ak::wrong_type, entry.value.place,
          fmt::format("options of {} must be a table, not {}", quote(entry.key), kind_name(entry.value.kind)),
          "params.name = { option = value }");
      continue;
    }
    if (!plugin) continue;
    const std::vector<const Entry*> options = entries_of(entry.value);
    OptionSet scratch = default_options(*plugin);
    apply_options(*plugin, options, scratch, diagnostics_);
    params_[entry.key] = {&entry, options};
  }
}

Site* Grid::decide(uint32_t role, int layer) {
  for (auto site = overrides_.rbegin(); site != overrides_.rend(); ++site)
    if (site->matchable && site->role == role &&
        (!site->layers || std::find(site->layers->begin(), site->layers->end(), layer) != site->layers->end()))
      return &*site;
  const auto block = blocks_.find(role);
  if (block != blocks_.end()) return &block->second;
  return default_ ? &*default_ : nullptr;
}

Cell Grid::cell(uint32_t role, int layer, const Site& site) const {
  Cell cell;
  cell.plugin = site.plugin;
  OptionSet options = default_options(*site.plugin);
  Diagnostics reported;  // each wrong option was reported once, where it was read
  const auto params = params_.find(site.mechanism);
  if (params != params_.end() && !apply_options(*site.plugin, params->second.second, options, reported))
    cell.plugin = nullptr;
  if (!site.sound || !apply_options(*site.plugin, site.options, options, reported)) cell.plugin = nullptr;
  cell.choice = {role, layer, site.mechanism, std::move(options.values), site.decided};
  cell.places = std::move(options.places);
  return cell;
}

std::vector<Cell> Grid::cells(const Node& attention) {
  std::vector<Cell> cells;
  bool complete = check_.kind_known &&
                  std::all_of(overrides_.begin(), overrides_.end(), [](const Site& site) { return site.matchable; });
  std::set<uint32_t> undecided;
  const auto add = [&](uint32_t role, int layer) {
    Site* site = decide(role, layer);
    if (!site && undecided.insert(role).second)
      diagnostics_.error(ak::no_mechanism, attention.place,
                         fmt::format("nothing in [attention] decides {}", role_name(role)),
                         fmt::format("add \"{}\" = \"...\" or default = \"...\"", role_name(role)));
    if (!site) return;
    ++site->hits;
    used_.insert(site->mechanism);
    complete = complete && site->plugin;
    if (site->plugin) cells.push_back(cell(role, layer, *site));
  };
  if (known(ATTN_ENCODER_SELF))
    for (int layer = 1; layer <= check_.manifest.encoder.layers; ++layer) add(ATTN_ENCODER_SELF, layer);
  if (known(ATTN_DECODER_SELF))
    for (int layer = 1; layer <= check_.manifest.decoder.layers; ++layer) {
      add(ATTN_DECODER_SELF, layer);
      if (known(ATTN_DECODER_CROSS)) add(ATTN_DECODER_CROSS, layer);
    }
  for (const uint32_t role : roles) complete = complete && (!has_role(check_.manifest.kind, role) || known(role));
  report_hidden();
  if (complete && undecided.empty()) report_unused_params();
  return cells;
}

void Grid::report_hidden() {
  for (const Site& site : overrides_)
    if (site.matchable && site.hits == 0 && known(site.role))
      diagnostics_.error(ak::never_matches, site.place,
                         fmt::format("this override of {} can never match: later ones hide it", role_name(site.role)),
                         "the last override that matches wins: remove this one or move it down");
  for (const auto& [role, site] : blocks_)
    if (site.matchable && site.hits == 0 && known(role))
      diagnostics_.warn(ak::unused_entry, site.place,
                        fmt::format("overrides hide this {} in every layer", role_name(role)), "remove it");
}

void Grid::report_unused_params() {
  for (const auto& [name, params] : params_)
    if (!used_.contains(name))
      diagnostics_.warn(ak::unused_params, params.first->place,
                        fmt::format("options of {}, which no block uses", quote(name)), "remove them");
}

}  // namespace

void check_attention(const Node& attention, ManifestCheck& check) {
  Grid grid(check);
  grid.read(attention);
  const std::vector<Cell> cells = grid.cells(attention);
  for (const Cell& cell : cells) check.manifest.blocks.push_back(cell.choice);
  probe_cells(cells, check);
}

}  // namespace attnkit
