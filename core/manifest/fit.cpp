// Asks the chosen mechanisms whether they fit the blocks that the manifest gives them, as the model will run them.
#include <algorithm>
#include <optional>
#include <set>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/manifest/read.hpp"

namespace attnkit::core {
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

constexpr uint32_t all_totals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;

// Returns the totals that the model will know; of a [length] with a mistake in it, all.
uint32_t known_totals(const Reading& to, const BlockChoice& choice) {
  const bool mistaken = to.length_meant && to.manifest.predict == Predict::none;
  return mistaken ? all_totals : total_flags(to.manifest, choice);
}

// Throws Error when the mechanism cannot run so.  Length 0 asks about all but sizes, which max_length then adds.
void ask(const Mechanism& mechanism, const Reading& to, uint32_t flags) {
  for (const int64_t length : {int64_t{0}, static_cast<int64_t>(to.manifest.max_length)}) {
    attn_request request = cpu_request(flags, 1, length > 0 ? 1 : 0, length, length, 0);
    request.device_type = to.device_type;
    mechanism.ask(request);
  }
}

std::shared_ptr<const Mechanism> mechanism_of(const Plugin& plugin, const BlockChoice& choice, const Reading& to) {
  return Mechanism::create(plugin, block_of(to.manifest, choice), choice.options);
}

std::optional<Verdict> judge(const Plugin& plugin, const BlockChoice& choice, const Reading& to,
                             std::optional<uint32_t> given = {}) {
  const uint32_t totals = given.value_or(known_totals(to, choice));
  try {
    const auto mechanism = mechanism_of(plugin, choice, to);
    ask(*mechanism, to, totals);
    const bool encoder_streams = to.manifest.stream && to.manifest.encoder.causal;
    if (choice.role != ATTN_ENCODER_SELF || encoder_streams) ask(*mechanism, to, totals | ATTN_STREAM);
    return {};
  } catch (const Error& e) {
    if (e.code() == ATTN_NO_MEMORY) throw;
    std::string_view message = e.what();
    if (message.starts_with(plugin.name + ": ")) message.remove_prefix(plugin.name.size() + 2);
    const bool refusal = e.code() == ATTN_INVALID || e.code() == ATTN_UNSUPPORTED;
    return Verdict{std::string(message.substr(0, valid_utf8(message))), e.where(), !refusal};
  }
}

// Judges the mechanism as the model will run it.  Sets choice.replays if only replays make it fit.
std::optional<Verdict> judge_in_model(const Plugin& plugin, BlockChoice& choice, const Reading& to) {
  std::optional<Verdict> verdict = judge(plugin, choice, to);
  if (!verdict || verdict->faulty || !to.manifest.stream) return verdict;
  if (choice.role == ATTN_DECODER_CROSS && to.manifest.stream->replay) {
    BlockChoice anew = choice;
    anew.replays = true;
    if (!judge(plugin, anew, to)) {
      choice.replays = true;
      return {};
    }
  }
  Manifest whole_sources = to.manifest;
  whole_sources.stream.reset();
  Reading without{to.dir, to.registry, to.device_type, to.diagnostics, whole_sources};
  without.length_meant = to.length_meant;
  verdict->growing = !judge(plugin, choice, without);
  return verdict;
}

// Sequences between blocks (ATTN_AUX_IN, ATTN_AUX_OUT) that are made anew whenever the source grows; given the cells in
// execution order.
class GrowingSequences {
 public:
  // Refuses a block that cannot follow the sequences under [stream], although its mechanism fits.  Sets choice.replays
  // if the block must be filled anew to follow one.
  std::optional<Verdict> judge(Cell& cell, const Reading& to) {
    if (!to.manifest.stream) return {};
    const auto mechanism = mechanism_of(*cell.plugin, cell.choice, to);
    std::optional<Verdict> verdict;
    const bool cross = cell.choice.role == ATTN_DECODER_CROSS;
    for (const attn_port* port : mechanism->ports()) {
      if (port->kind != ATTN_AUX_IN || !names_.contains(port->name)) continue;
      const std::string made = fmt::format(
          "what it made of the sequence \"{}\", which another block makes anew whenever the source grows", port->name);
      if (mechanism->block().causal)
        verdict = Verdict{"it keeps " + made, -1, false, true};
      else if (cross && !to.manifest.stream->replay)
        verdict = Verdict{
            "its state holds " + made + ", so it would have to be filled anew, and [stream] does not say replay = true",
            -1, false, true};
      else if (cross)
        cell.choice.replays = true;
    }
    for (const attn_port* port : mechanism->ports()) {
      if (port->kind != ATTN_AUX_OUT) continue;
      if (cell.choice.role == ATTN_DECODER_SELF)
        names_.erase(port->name);
      else
        names_.insert(port->name);
    }
    return verdict;
  }

 private:
  std::set<std::string> names_;
};

// "decoder.self, decoder.cross (layers 2, 3)".
std::string places_text(const std::vector<const Cell*>& cells, const Manifest& manifest) {
  std::vector<std::string> parts;
  for (const uint32_t role : all_roles) {
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

// Returns help other than another mechanism, found by asking; ends in "or " unless it is empty.
std::string first_aid(const Cell& cell, const Verdict& verdict, const Reading& to) {
  const BlockChoice& choice = cell.choice;
  if (verdict.growing && choice.role == ATTN_DECODER_CROSS && !to.manifest.stream->replay)
    return "set replay = true in [stream] (where the manifest has none: attnkit stream --replay), or ";
  if (verdict.growing && choice.role == ATTN_ENCODER_SELF)
    return "set causal = false of the encoder, which then runs anew at each read, or ";
  const uint32_t totals = known_totals(to, choice);
  if (totals == all_totals || choice.role == ATTN_ENCODER_SELF || judge(*cell.plugin, choice, to, all_totals))
    return "";
  return verdict.growing ? "set predict = \"fixed\" or \"reference\" in [length], or "
                         : "say in [length] who tells the target's length, or ";
}

// Only mechanisms that the manifest uses are asked, as they have answered already: one that it does not name may crash.
std::string help_text(const Cell& cell, const Verdict& verdict, const std::vector<Cell>& cells, const Reading& to) {
  const std::string help = first_aid(cell, verdict, to);
  std::set<std::string> names;
  for (const Cell& used : cells) {
    if (!used.plugin || used.plugin == cell.plugin || names.contains(quote(used.plugin->name))) continue;
    BlockChoice other = cell.choice;
    other.replays = false;
    other.options = default_options(*used.plugin);
    if (!judge_in_model(*used.plugin, other, to)) names.insert(quote(used.plugin->name));
  }
  return help + (names.empty() ? "use another mechanism" : fmt::format("use {}", fmt::join(names, " or ")));
}

void report(const Refusal& refusal, const std::vector<Cell>& cells, const Reading& to) {
  const Cell& first = *refusal.cells.front();
  const std::string places = places_text(refusal.cells, to.manifest);
  const std::string &message = refusal.verdict.message, &mechanism = first.choice.mechanism;
  if (refusal.verdict.faulty)
    to.error(ak::faulty_plugin, refusal.place, fmt::format("{}: plugin \"{}\" failed: {}", places, mechanism, message),
             fmt::format("the plugin is {}", first.plugin->path));
  else
    to.error(ak::refused, refusal.place,
             fmt::format("{} cannot be \"{}\"{}: {}", places, mechanism,
                         refusal.verdict.growing ? " under [stream]" : "", message),
             help_text(first, refusal.verdict, cells, to));
}

}  // namespace

void check_fit(std::vector<Cell>& cells, const Reading& to) {
  const Manifest& m = to.manifest;
  if (m.heads < 1 || m.d_model < 1 || m.head_width < 1 || m.max_length < 1) return;
  std::vector<Refusal> refusals;
  GrowingSequences sequences;
  for (Cell& cell : cells) {
    if (!cell.plugin) continue;
    auto verdict = judge_in_model(*cell.plugin, cell.choice, to);
    if (!verdict) verdict = sequences.judge(cell, to);
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
  for (const Refusal& refusal : refusals) report(refusal, cells, to);
}

}  // namespace attnkit::core
