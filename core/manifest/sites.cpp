#include "core/manifest/sites.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/error.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/options.hpp"
#include "core/manifest/reader.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

class SiteReader {
 public:
  explicit SiteReader(ManifestCheck& check) : check_(check), diagnostics_(check.diagnostics) {}
  Sites read(const Node& attention);

 private:
  void read_site(const Entry& entry, Site& site);
  void read_override(const Node& table);
  void read_override_params(const Node& params, Site& site);
  void read_params(const Node& params);
  void read_layers(const Node& value, Site& site);

  ManifestCheck& check_;
  Diagnostics& diagnostics_;
  Sites sites_;
};

uint32_t role_of(std::string_view name) {
  const auto* at =
      std::find_if(std::begin(all_roles), std::end(all_roles), [&](uint32_t r) { return name == role_name(r); });
  return at == std::end(all_roles) ? 0 : *at;
}

std::vector<const Entry*> entries_of(const Node& table) {
  std::vector<const Entry*> entries;
  for (const Entry& e : table.entries) entries.push_back(&e);
  return entries;
}

void check_options(Use& use, Diagnostics& diagnostics) {
  if (!use.plugin) return;
  OptionSet scratch = default_options(*use.plugin);
  use.sound = apply_options(*use.plugin, use.options, scratch, diagnostics) && use.sound;
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

Sites SiteReader::read(const Node& attention) {
  const TableReader reader(attention, "attention", diagnostics_);
  if (const Entry* params = reader.given("params")) read_params(params->value);
  if (const Entry* entry = reader.given("default")) {
    sites_.fallback.emplace();
    read_site(*entry, *sites_.fallback);
  }
  for (const uint32_t role : all_roles) {
    const Entry* entry = reader.given(role_name(role));
    if (!entry) continue;
    Site& site = sites_.blocks[role];
    site.role = role;
    site.matchable = check_role(entry->place, role, check_);
    read_site(*entry, site);
  }
  if (const Entry* list = reader.given("override"))
    for (const Node& table : list->value.items) read_override(table);
  return std::move(sites_);
}

void SiteReader::read_site(const Entry& entry, Site& site) {
  site.place = entry.place;
  static_cast<Use&>(site) = read_use(entry.value, entry.key, check_);
}

void SiteReader::read_override(const Node& table) {
  const TableReader reader(table, "attention.override", diagnostics_);
  Site site;
  if (const auto block = reader.text("block")) site.role = role_of(*block);
  site.matchable = site.role && check_role(reader.place("block"), site.role, check_);
  if (const Entry* layers = reader.given("layers"))
    read_layers(layers->value, site);
  else if (reader.mentioned("layers"))
    site.matchable = false;
  const Entry* use = reader.given("use");
  if (use) read_site(*use, site);
  site.place = table.place;
  if (const Entry* params = reader.given("params"); params && use) read_override_params(params->value, site);
  sites_.overrides.push_back(std::move(site));
}

void SiteReader::read_override_params(const Node& params, Site& site) {
  for (const Entry& e : params.entries)
    if (std::any_of(site.options.begin(), site.options.end(), [&](const Entry* other) { return other->key == e.key; }))
      diagnostics_.error(ak::option_given_twice, e.place,
                         fmt::format("option {} is given by \"use\" already", quote(e.key)), "keep one of them");
  const std::vector<const Entry*> before = std::exchange(site.options, entries_of(params));
  check_options(site, diagnostics_);
  site.options.insert(site.options.begin(), before.begin(), before.end());
}

void SiteReader::read_layers(const Node& value, Site& site) {
  const std::string name = role_name(site.role);
  const int count = is_known(check_, site.role) ? layers_of(check_.manifest, site.role) : 0;
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

void SiteReader::read_params(const Node& params) {
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
    check_.params[entry.key] = options;
  }
}

}  // namespace

Use read_use(const Node& value, const std::string& key, ManifestCheck& check) {
  Use use;
  const Entry* name = value.find("use");
  const Node* text = value.kind == Node::Kind::text ? &value : name ? &name->value : nullptr;
  if (!text) {
    check.diagnostics.error(ak::missing_key, value.place, fmt::format("\"{}\" needs \"use\", a mechanism's name", key),
                            "{ use = \"name\", option = value }");
    return use;
  }
  use.decided = text->place;
  if (text->kind != Node::Kind::text) {
    check.diagnostics.error(ak::wrong_type, text->place,
                            fmt::format("\"use\" must be a mechanism's name, not {}", kind_name(text->kind)));
    return use;
  }
  use.mechanism = text->text;
  for (const Entry& e : value.entries)
    if (&e != name) use.options.push_back(&e);
  use.plugin = find_mechanism(use.mechanism, use.decided, check.registry, check.device_type, check.diagnostics);
  check_options(use, check.diagnostics);
  return use;
}

bool check_role(Place place, uint32_t role, ManifestCheck& check) {
  if (!check.kind_known || has_role(check.manifest.kind, role)) return true;
  check.diagnostics.error(
      ak::no_such_block, place,
      fmt::format("a model of kind \"{}\" has no {}", kind_text(check.manifest.kind), role_name(role)),
      "remove it, or choose another kind");
  return false;
}

bool is_known(const ManifestCheck& check, uint32_t role) {
  return check.kind_known && has_role(check.manifest.kind, role) && layers_of(check.manifest, role) > 0;
}

Sites read_sites(const Node& attention, ManifestCheck& check) { return SiteReader(check).read(attention); }

SearchChoice choice_of(const Use& use) {
  OptionSet given = default_options(*use.plugin);
  Diagnostics reported;
  apply_options(*use.plugin, use.options, given, reported);
  const std::string options = options_text(*use.plugin, given.values, &given.places);
  return {options.empty() ? use.mechanism : fmt::format("{}{{{}}}", use.mechanism, options),
          use_text(use.mechanism, options), use.mechanism};
}

}  // namespace attnkit
