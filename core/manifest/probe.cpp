// Asks the chosen mechanisms whether they can sit where the manifest puts them, as the model will run them.
#include <algorithm>
#include <optional>
#include <set>

#include "core/base/error.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/options.hpp"
#include "core/manifest/parts.hpp"
#include "core/plugin/mechanism.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

struct Verdict {
  std::string message;  // the mechanism's, without its name
  int where = -1;
  bool faulty = false;   // the plugin broke its contract
  bool growing = false;  // it is [stream] that it does not fit
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
    const bool encoder_streams = check.manifest.stream && check.manifest.encoder.causal;
    if (choice.role != ATTN_ENCODER_SELF || encoder_streams) ask(*mechanism, check, totals | ATTN_STREAM);
    return {};
  } catch (const Error& e) {
    if (e.code() == ATTN_NO_MEMORY) throw;
    const bool refusal = e.code() == ATTN_INVALID || e.code() == ATTN_UNSUPPORTED;
    return Verdict{own_words(e, plugin.name), e.where(), !refusal};
  }
}

std::optional<Verdict> judge(const Plugin& plugin, const BlockChoice& choice, const ManifestCheck& check) {
  return judge(plugin, choice, check, known_totals(check, choice));
}

bool fits_whole_sources(const Plugin& plugin, const BlockChoice& choice, const ManifestCheck& check) {
  Manifest whole = check.manifest;
  whole.stream.reset();
  ManifestCheck as{check.dir, check.registry, check.device_type, check.diagnostics, whole};
  as.length_meant = check.length_meant;
  return !judge(plugin, choice, as);
}

// As the model will run it.  choice says after it whether only replays make it fit.
std::optional<Verdict> judge_in_model(const Plugin& plugin, BlockChoice& choice, const ManifestCheck& check) {
  std::optional<Verdict> verdict = judge(plugin, choice, check);
  if (!verdict || verdict->faulty || !check.manifest.stream) return verdict;
  if (choice.role == ATTN_DECODER_CROSS && check.manifest.stream->replay) {
    BlockChoice anew = choice;
    anew.replays = true;
    if (!judge(plugin, anew, check)) {
      choice.replays = true;
      return {};
    }
  }
  verdict->growing = fits_whole_sources(plugin, choice, check);
  return verdict;
}

// What a model with [stream] cannot do for this block, although the mechanism itself fits.
std::optional<Verdict> judge_sequences(Cell& cell, const ManifestCheck& check, GrowingSequences& sequences) {
  if (!check.manifest.stream) return {};
  const auto mechanism = Mechanism::create(*cell.plugin, block_of(check.manifest, cell.choice), cell.choice.options);
  const std::string refusal = sequences.follow(*mechanism, cell.choice, check.manifest.stream->replay);
  return refusal.empty() ? std::nullopt : std::optional(Verdict{refusal, -1, false, true});
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

// What would help beside another mechanism, found by asking; ends in "or " unless it is empty.
std::string first_aid(const Cell& cell, const Verdict& verdict, const ManifestCheck& check) {
  const BlockChoice& choice = cell.choice;
  if (verdict.growing && choice.role == ATTN_DECODER_CROSS && !check.manifest.stream->replay)
    return "set replay = true in [stream], or ";
  if (verdict.growing && choice.role == ATTN_ENCODER_SELF)
    return "set causal = false of the encoder, which then runs anew at each read, or ";
  const uint32_t totals = known_totals(check, choice);
  if (totals == all_totals || choice.role == ATTN_ENCODER_SELF || judge(*cell.plugin, choice, check, all_totals))
    return "";
  return verdict.growing ? "set predict = \"fixed\" or \"reference\" in [length], or "
                         : "say in [length] who tells the target's length, or ";
}

// Only mechanisms that the manifest uses are asked, as they have answered already: one that it does not name may crash,
// which is nobody's business here.
std::string help_text(const Cell& cell, const Verdict& verdict, const std::vector<Cell>& cells,
                      const ManifestCheck& check) {
  const std::string help = first_aid(cell, verdict, check);
  std::set<std::string> names;
  for (const Cell& used : cells) {
    if (!used.plugin || used.plugin == cell.plugin || names.contains(quote(used.plugin->name))) continue;
    BlockChoice other = cell.choice;
    other.replays = false;
    other.options = default_options(*used.plugin).values;
    if (!judge_in_model(*used.plugin, other, check)) names.insert(quote(used.plugin->name));
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
                            fmt::format("{} cannot be \"{}\"{}: {}", places, first.choice.mechanism,
                                        refusal.verdict.growing ? " under [stream]" : "", message),
                            help_text(first, refusal.verdict, cells, check));
}

}  // namespace

void probe_cells(std::vector<Cell>& cells, ManifestCheck& check) {
  const Manifest& m = check.manifest;
  if (m.heads < 1 || m.d_model < 1 || m.d_model % m.heads != 0 || m.max_length < 1) return;
  std::vector<Refusal> refusals;
  GrowingSequences sequences;
  for (Cell& cell : cells) {
    if (!cell.plugin) continue;
    auto verdict = judge_in_model(*cell.plugin, cell.choice, check);
    if (!verdict) verdict = judge_sequences(cell, check, sequences);
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
