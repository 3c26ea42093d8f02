// Which entry of [attention] decides which block: override before block before default, the last override first.
#include <algorithm>
#include <set>

#include "core/base/error.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/options.hpp"
#include "core/manifest/parts.hpp"
#include "core/manifest/sites.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

class Grid {
 public:
  Grid(const Node& attention, ManifestCheck& check)
      : check_(check), diagnostics_(check.diagnostics), place_(attention.place), sites_(read_sites(attention, check)) {}

  // Every block that has a mechanism, in the order of Manifest::blocks.
  std::vector<Cell> cells();

 private:
  Site* decide(uint32_t role, int layer);
  void decide_cell(uint32_t role, int layer);
  Cell cell(uint32_t role, int layer, const Site& site) const;
  void report_hidden();

  ManifestCheck& check_;
  Diagnostics& diagnostics_;
  Place place_;
  Sites sites_;
  std::vector<Cell> cells_;
  std::set<uint32_t> undecided_;
};

Site* Grid::decide(uint32_t role, int layer) {
  for (auto site = sites_.overrides.rbegin(); site != sites_.overrides.rend(); ++site)
    if (site->matchable && site->role == role &&
        (!site->layers || std::find(site->layers->begin(), site->layers->end(), layer) != site->layers->end()))
      return &*site;
  const auto block = sites_.blocks.find(role);
  if (block != sites_.blocks.end()) return &block->second;
  return sites_.fallback ? &*sites_.fallback : nullptr;
}

Cell Grid::cell(uint32_t role, int layer, const Site& site) const {
  Cell cell;
  cell.plugin = site.plugin;
  OptionSet options = default_options(*site.plugin);
  Diagnostics reported;  // each wrong option was reported once, where it was read
  const auto params = check_.params.find(site.mechanism);
  if (params != check_.params.end() && !apply_options(*site.plugin, params->second, options, reported))
    cell.plugin = nullptr;
  if (!site.sound || !apply_options(*site.plugin, site.options, options, reported)) cell.plugin = nullptr;
  cell.choice = {role, layer, site.mechanism, std::move(options.values), site.decided, choice_of(site)};
  cell.places = std::move(options.places);
  return cell;
}

void Grid::decide_cell(uint32_t role, int layer) {
  Site* site = decide(role, layer);
  if (!site && undecided_.insert(role).second)
    diagnostics_.error(ak::no_mechanism, place_, fmt::format("nothing in [attention] decides {}", role_name(role)),
                       fmt::format("add \"{}\" = \"...\" or default = \"...\"", role_name(role)));
  if (!site) return;
  ++site->hits;
  if (site->plugin) cells_.push_back(cell(role, layer, *site));
}

std::vector<Cell> Grid::cells() {
  if (is_known(check_, ATTN_ENCODER_SELF))
    for (int layer = 1; layer <= check_.manifest.encoder.layers; ++layer) decide_cell(ATTN_ENCODER_SELF, layer);
  if (is_known(check_, ATTN_DECODER_SELF))
    for (int layer = 1; layer <= check_.manifest.decoder.layers; ++layer) {
      decide_cell(ATTN_DECODER_SELF, layer);
      if (is_known(check_, ATTN_DECODER_CROSS)) decide_cell(ATTN_DECODER_CROSS, layer);
    }
  report_hidden();
  return std::move(cells_);
}

void Grid::report_hidden() {
  for (const Site& site : sites_.overrides)
    if (site.matchable && site.hits == 0 && is_known(check_, site.role))
      diagnostics_.error(ak::never_matches, site.place,
                         fmt::format("this override of {} can never match: later ones hide it", role_name(site.role)),
                         "the last override that matches wins: remove this one or move it down");
  for (const auto& [role, site] : sites_.blocks)
    if (site.matchable && site.hits == 0 && is_known(check_, role))
      diagnostics_.warn(ak::unused_entry, site.place,
                        fmt::format("overrides hide this {} in every layer", role_name(role)), "remove it");
}

}  // namespace

void check_attention(const Node& attention, ManifestCheck& check) {
  std::vector<Cell> cells = Grid(attention, check).cells();
  probe_cells(cells, check);
  for (const Cell& cell : cells) check.manifest.blocks.push_back(cell.choice);
}

}  // namespace attnkit
