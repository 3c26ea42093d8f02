// attnkit inspect: the mechanism of every block, the line that decided it, its costs and its attention weights.
#include <algorithm>
#include <map>

#include "core/base/roles.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/inspect/attention.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options inspect_options = {
    {"lengths", "N,N,...", "lengths of the cost tables (default 64,512,4096)"},
    {"attention", "BLOCK", "the weights of one block, such as decoder.cross.2, for an input"},
    {"text", "TEXT", "with --attention: the input"},
    {"target", "TEXT", "with --attention: the output; by default the model's own"},
    {"head", "H", "with --attention: one head, from 1, in place of all"},
    {"output,o", "FILE", "with --attention: a heat map as SVG, drawn by gnuplot; - is standard output"},
    {"csv", nullptr, "with --attention: head,query,key,weight lines in place of the heat map"},
};

namespace {

constexpr int64_t max_length = int64_t{1} << 24;

std::string grid_text(const Json& model) {
  std::map<int, std::map<std::string, std::string>> layers;
  std::map<std::string, size_t> widest;
  for (const Json& b : model["blocks"])
    widest[b["role"]] = std::max(widest[b["role"]], b["mechanism"].get<std::string>().size());
  for (const Json& b : model["blocks"])
    layers[b["layer"]][b["role"]] = fmt::format("{:<{}} {}:{}", b["mechanism"].get<std::string>(), widest[b["role"]],
                                                b["decided"]["line"].get<int>(), b["decided"]["column"].get<int>());
  std::vector<std::string> titles = {">layer"};
  for (const char* role : role_names)
    if (widest.count(role)) titles.push_back(role);
  Table table(titles);
  for (auto& [layer, cells] : layers) {
    std::vector<std::string> row = {std::to_string(layer)};
    for (const char* role : role_names)
      if (widest.count(role)) row.push_back(cells[role]);
    table.add(row);
  }
  return table.text() + "(mechanism and the line:column of the manifest that decided it)\n";
}

// Layers of one role that cost the same, in one row.
struct Group {
  std::string role, mechanism;
  std::vector<int> layers;
  const Json* block;
  std::string name() const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < layers.size();) {
      size_t last = i;
      while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
      parts.push_back(last == i ? std::to_string(layers[i]) : fmt::format("{}..{}", layers[i], layers[last]));
      i = last + 1;
    }
    return role + "." + joined(parts, ",");
  }
};

std::vector<Group> groups_of(const Json& model) {
  std::vector<Group> groups;
  for (const char* role : role_names)
    for (const Json& b : model["blocks"]) {
      if (b["role"] != role) continue;
      const auto same = [&](const Group& g) {
        return g.role == role && g.mechanism == b["mechanism"] && (*g.block)["costs"] == b["costs"] &&
               (*g.block)["parameters"] == b["parameters"] && (*g.block)["options"] == b["options"];
      };
      const auto at = std::find_if(groups.begin(), groups.end(), same);
      if (at == groups.end())
        groups.push_back({role, b["mechanism"], {b["layer"]}, &b});
      else
        at->layers.push_back(b["layer"]);
    }
  return groups;
}

std::string chosen_text(const Json& block) {
  std::vector<std::string> parts;
  for (const auto& [name, option] : block["options"].items())
    parts.push_back(name + " = " + (option.is_string() ? option.get<std::string>() : option.dump()));
  return joined(parts, ", ");
}

std::string parameters_table(const std::vector<Group>& groups) {
  Table table({"block", "mechanism", ">parameters", "options"});
  for (const Group& g : groups)
    table.add({g.name(), g.mechanism, grouped_text((*g.block)["parameters"]), chosen_text(*g.block)});
  return "\n" + table.text();
}

std::string cost_cell(const Json& cost, const char* key, bool bytes) {
  if (cost.contains("refused")) return "refused";
  if (!cost.contains(key) || cost[key] == 0) return "-";
  return bytes ? bytes_text(cost[key]) : count_text(cost[key].get<double>());
}

std::string cost_table(const std::vector<Group>& groups, const std::vector<int64_t>& lengths, const char* title,
                       const char* key, bool bytes) {
  std::vector<std::string> titles = {title, "mechanism"}, sum_row = {"all layers", ""};
  for (const int64_t n : lengths) titles.push_back(fmt::format(">{}", n));
  Table table(titles);
  for (const Group& g : groups) {
    std::vector<std::string> row = {g.name(), g.mechanism};
    for (size_t i = 0; i < lengths.size(); ++i) row.push_back(cost_cell((*g.block)["costs"][i], key, bytes));
    table.add(row);
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    double sum = 0;
    for (const Group& g : groups) sum += (*g.block)["costs"][i].value(key, 0.0) * static_cast<double>(g.layers.size());
    sum_row.push_back(bytes ? bytes_text(static_cast<uint64_t>(sum)) : count_text(sum));
  }
  // Blocks run one after another, so they share their scratch.
  if (std::string_view(key) != "scratch_bytes") table.add(sum_row);
  return "\n" + table.text();
}

std::string refusals_text(const std::vector<Group>& groups) {
  std::string out;
  for (const Group& g : groups)
    for (const Json& cost : (*g.block)["costs"])
      if (cost.contains("refused"))
        out +=
            fmt::format("{} at {}: {}\n", g.name(), cost["length"].get<int64_t>(), cost["refused"].get<std::string>());
  return out.empty() ? out : "\n" + out;
}

// The predictor of the target's length, and the blocks that need it.
std::string length_text(const Json& length) {
  if (length.is_null()) return "";
  std::vector<std::string> facts;
  for (const auto& [key, fact] : length.items())
    if (key != "predict" && key != "needed_by")
      facts.push_back(fmt::format("{} {}", key, fact.is_string() ? fact.get<std::string>() : fact.dump()));
  const std::string shown = facts.empty() ? "" : fmt::format(" ({})", joined(facts, ", "));
  const auto needed = length["needed_by"].get<std::vector<std::string>>();
  return fmt::format("\ntarget length: {}{}, needed by {}\n", length["predict"].get<std::string>(), shown,
                     needed.empty() ? "no block" : joined(needed, ", "));
}

// Features and frontend of a model that takes speech; empty for others.
std::string speech_text(const Json& m) {
  const Json speech = m.value("speech", Json());
  if (speech.is_null()) return "";
  const Json &f = speech["features"], &c = speech["frontend"];
  const double rate = f["sample_rate"], first = speech["first_row_samples"];
  const std::string when = f["frames"].is_null()
                               ? fmt::format("the first after {} ms", first * 1000 / rate)
                               : fmt::format("of whole recordings, up to {:g} s, which silence fills",
                                             f["frames"].get<double>() * f["shift_ms"].get<double>() / 1000);
  return fmt::format(
      "speech: {} Hz, {} {} bins of {} ms every {} ms; {} layers of {}, kernel {}, stride {}, {} channels; a row of "
      "the encoder every {} ms, {}\n",
      f["sample_rate"].get<int>(), f["bins"].get<int>(), f["type"].get<std::string>(), f["window_ms"].get<double>(),
      f["shift_ms"].get<double>(), c["layers"].get<int>(), c["type"].get<std::string>(), c["kernel"].get<int>(),
      c["stride"].get<int>(), c["channels"].get<int>(), speech["row_ms"].get<double>(), when);
}

std::string model_text(const Json& m, const std::vector<int64_t>& lengths) {
  const std::vector<Group> groups = groups_of(m);
  std::string out =
      fmt::format("{}: {}, d_model {}, {} heads, ffn {}, {} + {} layers, {} parameters, up to {} tokens\n",
                  m["name"].get<std::string>(), m["kind"].get<std::string>(), m["d_model"].get<int>(),
                  m["heads"].get<int>(), m["ffn"].get<int>(), m["encoder_layers"].get<int>(),
                  m["decoder_layers"].get<int>(), grouped_text(m["parameters"]), m["max_length"].get<int>());
  out += speech_text(m) + "\n" + grid_text(m) + length_text(m["length"]) + parameters_table(groups);
  out += cost_table(groups, lengths, "state of a session's row", "state_bytes", true);
  out += cost_table(groups, lengths, "scratch, whole sequence", "scratch_bytes", true);
  out += cost_table(groups, lengths, "flops, whole sequence", "flops", false);
  out += cost_table(groups, lengths, "flops, one more token", "step_flops", false);
  return out + refusals_text(groups);
}

}  // namespace

Exit inspect_command(const Arguments& arguments) {
  const std::vector<int64_t> lengths = arguments.integers("lengths", {64, 512, 4096}, 1, max_length);
  if (lengths.size() > 16)
    fail(Exit::usage, "--lengths: {} lengths are too many, up to 16 fit a table", lengths.size());
  if (arguments.has("attention")) return inspect_attention(arguments);
  for (const char* option : {"text", "target", "head", "output", "csv"})
    if (arguments.has(option)) fail(Exit::usage, "--{} goes with --attention BLOCK", option);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_model(runtime, arguments);
  const Json description = Json::parse(model.describe(lengths));
  print_result(arguments.json(), description, model_text(description, lengths));
  return Exit::success;
}

}  // namespace attnkit::cli
