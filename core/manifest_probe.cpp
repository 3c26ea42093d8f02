// Asks the chosen mechanisms whether they can sit where the manifest puts them, as the model will run them.
#include <algorithm>
#include <optional>
#include <set>

#include "core/error.hpp"
#include "core/manifest_codes.hpp"
#include "core/manifest_options.hpp"
#include "core/manifest_parts.hpp"
#include "core/mechanism.hpp"
#include "core/text.hpp"

namespace attnkit {
namespace {

struct Verdict {
  std::string message;  // the mechanism's, without its name
  int where = -1;
  bool faulty = false;  // the plugin broke its contract
};

struct Refusal {
  Place place;
  Verdict verdict;
  std::vector<const Cell*> cells;
};

std::string own_words(const Error& e, const std::string& name) {
  std::string_view text = e.what();
  if (text.starts_with(name + ": ")) text.remove_prefix(name.size() + 2);
  return std::string(text.substr(0, valid_utf8(text)));
}

constexpr uint32_t all_totals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;

// What the model will know; what a [length] with a mistake in it would have said counts as said.
uint32_t known_totals(const ManifestCheck& check, const BlockChoice& choice) {
  const bool mistaken = check.length_meant && check.manifest.predict == Predict::none;
  return mistaken ? all_totals : total_flags(check.manifest, choice);
}

// Throws Error when the mechanism cannot run so.  Length 0 asks about all but sizes, which the longest length then
// adds.
void ask(const Mechanism& mechanism, const ManifestCheck& check, uint32_t flags) {
  for (const int64_t length : {int64_t{0}, static_cast<int64_t>(check.manifest.max_length)}) {
    attn_request request = cpu_request(flags, 1, length > 0 ? 1 : 0, length, length, 0);
    request.device_type = check.device_type;
    mechanism.ask(request);
  }
}

std::optional<Verdict> judge(const Plugin& plugin, const BlockChoice& choice, const ManifestCheck& check,
                             uint32_t totals) {
  try {
    const auto mechanism = Mechanism::create(plugin, block_of(check.manifest, choice), choice.options);
    ask(*mechanism, check, totals);
    if (choice.role != ATTN_ENCODER_SELF) ask(*mechanism, check, totals | ATTN_STREAM);
    return {};
  } catch (const Error& e) {
    if (e.code() == ATTN_NO_MEMORY) throw;
    const bool refusal = e.code() == ATTN_INVALID || e.code() == ATTN_UNSUPPORTED;
    return Verdict{own_words(e, plugin.name), e.where(), !refusal};
  }
}

// "decoder.self, decoder.cross (layers 2, 3)".
std::string places_text(const std::vector<const Cell*>& cells, const Manifest& manifest) {
  std::vector<std::string> parts;
  for (const uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS}) {
    std::vector<int> layers;
    for (const Cell* cell : cells)
      if (cell->choice.role == role) layers.push_back(cell->choice.layer);
    if (layers.empty()) continue;
    const bool all = static_cast<int>(layers.size()) == layers_of(manifest, role);
    parts.push_back(
        all ? role_name(role)
            : fmt::format("{} (layer{} {})", role_name(role), layers.size() > 1 ? "s" : "", fmt::join(layers, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// What would help, found by asking: a known target length, or another mechanism.  Only those that the manifest uses are
// asked, as they have answered already: one that it does not name may crash, which is nobody's business here.
std::string help_text(const Cell& cell, const std::vector<Cell>& cells, const ManifestCheck& check) {
  const uint32_t totals = known_totals(check, cell.choice);
  std::string help;
  if (totals != all_totals && !judge(*cell.plugin, cell.choice, check, all_totals))
    help = "say in [length] who tells the target's length, or ";
  std::set<std::string> names;
  for (const Cell& used : cells) {
    if (!used.plugin || used.plugin == cell.plugin || names.contains(quote(used.plugin->name))) continue;
    BlockChoice other = cell.choice;
    other.options = default_options(*used.plugin).values;
    if (!judge(*used.plugin, other, check, totals)) names.insert(quote(used.plugin->name));
  }
  return help + (names.empty() ? "use another mechanism" : fmt::format("use {}", fmt::join(names, " or ")));
}

void report(const Refusal& refusal, const std::vector<Cell>& cells, ManifestCheck& check) {
  const Cell& first = *refusal.cells.front();
  const std::string places = places_text(refusal.cells, check.manifest);
  const std::string& message = refusal.verdict.message;
  if (refusal.verdict.faulty)
    check.diagnostics.error(ak::faulty_plugin, refusal.place,
                            fmt::format("{}: plugin \"{}\" failed: {}", places, first.choice.mechanism, message),
                            fmt::format("the plugin is {}", first.plugin->path), ATTNKIT_AREA_PLUGIN);
  else
    check.diagnostics.error(ak::refused, refusal.place,
                            fmt::format("{} cannot be \"{}\": {}", places, first.choice.mechanism, message),
                            help_text(first, cells, check));
}

}  // namespace

void probe_cells(const std::vector<Cell>& cells, ManifestCheck& check) {
  const Manifest& m = check.manifest;
  if (m.heads < 1 || m.d_model < 1 || m.d_model % m.heads != 0 || m.max_length < 1) return;
  std::vector<Refusal> refusals;
  for (const Cell& cell : cells) {
    if (!cell.plugin) continue;
    const auto verdict = judge(*cell.plugin, cell.choice, check, known_totals(check, cell.choice));
    if (!verdict) continue;
    const auto option = static_cast<size_t>(verdict->where);
    const bool at_option = option < cell.places.size() && cell.places[option].line > 0;
    const Place place = at_option ? cell.places[option] : cell.choice.decided;
    const auto same = std::find_if(refusals.begin(), refusals.end(), [&](const Refusal& r) {
      return r.place.line == place.line && r.place.column == place.column && r.verdict.message == verdict->message &&
             r.cells.front()->choice.mechanism == cell.choice.mechanism;
    });
    if (same == refusals.end())
      refusals.push_back({place, *verdict, {&cell}});
    else
      same->cells.push_back(&cell);
  }
  for (const Refusal& refusal : refusals) report(refusal, cells, check);
}

}  // namespace attnkit
