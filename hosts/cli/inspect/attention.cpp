#include "hosts/cli/inspect/attention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/roles.hpp"
#include "hosts/cli/decode/decode.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

constexpr size_t shown_weights = 3;  // of each query

struct Place {
  uint32_t role, layer;
  std::string mechanism;
};

Place find_block(const Json& description, const std::string& name) {
  std::vector<std::string> names;
  for (const Json& b : description["blocks"]) {
    names.push_back(b["block"]);
    if (b["block"] == name) return {role_of(b["role"].get<std::string>()), b["layer"], b["mechanism"]};
  }
  throw Failure(Exit::usage,
                fmt::format("--attention {}: the model has no such block{}", quote(name), did_you_mean(name, names)),
                "its blocks are " + joined(names, ", "));
}

// Each token as it appears in the text; tokens without text have their usual names.
std::vector<std::string> labels_of(const Model& model, const attnkit_model_info& info, Side side, const Ids& ids) {
  std::vector<std::string> labels;
  std::string before;
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string text = model.detokenize(side, std::span(ids).first(i + 1));
    std::string piece = text.starts_with(before) ? text.substr(before.size()) : text;
    piece.erase(0, piece.find_first_not_of(' '));
    if (piece.empty()) piece = ids[i] == info.begin_id ? "<s>" : ids[i] == info.end_id ? "</s>" : "\u2581";
    labels.push_back(std::move(piece));
    before = std::move(text);
  }
  return labels;
}

// The ids of both sides, as forward takes them.
struct Sides {
  Ids source, target;  // target: what the decoder reads, <s> first
  Ids predicted;       // the same shifted by one, </s> last
};

// writes: the target matters to what is shown.
Sides sides_of(const Model& model, const Facts& facts, const Arguments& arguments, bool writes) {
  if (!arguments.has("text")) fail(Exit::usage, "--attention needs --text, the input whose weights are shown");
  Sides sides;
  if (facts.encoder()) {
    sides.source = tokens_of(model, Side::source, arguments.text("text"), "--text");
    frame(facts, sides.source);
  }
  if (!facts.decoder()) {
    if (arguments.has("target")) fail(Exit::usage, "--target: this model has no decoder");
    return sides;
  }
  Ids ids = facts.encoder() ? facts.forced : tokens_of(model, Side::target, arguments.text("text"), "--text");
  if (arguments.has("target")) {
    const Ids more = tokens_of(model, Side::target, arguments.text("target"), "--target");
    ids.insert(ids.end(), more.begin(), more.end());
  } else if (facts.encoder() && writes) {
    try {
      Session session(model, 0);  // as many beams as [decode] says
      session.read(sides.source);
      ids = session.generate();
    } catch (const Error& e) {
      fail_decoding({arguments.text("text"), "--text", {}, {}, {}}, e);
    }
    if (!ids.empty() && ids.back() == facts.info.end_id) ids.pop_back();
  }
  sides.predicted = ids;
  sides.predicted.push_back(facts.info.end_id);
  sides.target = std::move(ids);
  if (facts.info.begin_id >= 0)
    sides.target.insert(sides.target.begin(), facts.info.begin_id);
  else if (sides.target.empty())
    fail(Exit::data, "nothing to look at: no token begins this model's texts, and none was given");
  else
    sides.predicted.erase(sides.predicted.begin());
  return sides;
}

// From --attention, --text, --target and --head.
AttentionMap attention_map(const Model& model, const Arguments& arguments) {
  const Json description = Json::parse(model.describe());
  const Place place = find_block(description, arguments.text("attention"));
  const int heads = description["heads"];
  const auto head = static_cast<int>(arguments.integer("head", 0, 1, heads));
  const Facts facts = facts_of(model);
  if (facts.speech)
    fail(Exit::usage, "--attention {}: this model takes speech; weights are shown for texts alone",
         arguments.text("attention"));
  const Sides sides = sides_of(model, facts, arguments, place.role != ATTN_ENCODER_SELF);
  AttentionMap map{arguments.text("attention"), place.mechanism, {}, {}, {}, {}, {}, {}};
  const auto labels = [&](Side side, const Ids& ids) { return labels_of(model, facts.info, side, ids); };
  if (place.role == ATTN_DECODER_CROSS) {
    map.query_title = "token being predicted";
    map.queries = labels(Side::target, sides.predicted);
    map.key_title = "key (source)";
    map.keys = labels(Side::source, sides.source);
  } else {
    const bool source = place.role == ATTN_ENCODER_SELF;
    map.query_title = source ? "query (source)" : "query (target)";
    map.key_title = source ? "key (source)" : "key (target)";
    map.queries = map.keys = source ? labels(Side::source, sides.source) : labels(Side::target, sides.target);
  }
  for (int h = 1; h <= heads; ++h) map.heads.push_back(h);
  map.weights.resize(static_cast<size_t>(heads) * map.queries.size() * map.keys.size());
  const auto length = [](const Ids& ids) { return static_cast<int64_t>(ids.size()); };
  const attn_tensor source = tensor(sides.source.data(), {1, length(sides.source)});
  const attn_tensor target = tensor(sides.target.data(), {1, length(sides.target)});
  const attn_tensor out = tensor(
      map.weights.data(), {heads, static_cast<int64_t>(map.queries.size()), static_cast<int64_t>(map.keys.size())});
  detail::call(attnkit_model_attention, model.get(), place.role, place.layer, facts.encoder() ? &source : nullptr,
               facts.decoder() ? &target : nullptr, &out);
  for (const float w : map.weights)
    if (!std::isfinite(w))
      fail(Exit::numerical, "{}: the weights are not finite: the model or the mechanism is broken", map.block);
  if (head > 0) {
    const auto one = static_cast<std::ptrdiff_t>(map.queries.size() * map.keys.size());
    map.weights = {map.weights.begin() + (head - 1) * one, map.weights.begin() + head * one};
    map.heads = {head};
  }
  return map;
}

std::string csv_field(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + '"';
}

std::string csv_of(const AttentionMap& map) {
  std::string out = "head,query,key,query_token,key_token,weight\n";
  for (size_t h = 0; h < map.heads.size(); ++h)
    for (size_t q = 0; q < map.queries.size(); ++q)
      for (size_t k = 0; k < map.keys.size(); ++k)
        out += fmt::format("{},{},{},{},{},{}\n", map.heads[h], q + 1, k + 1, csv_field(map.queries[q]),
                           csv_field(map.keys[k]), map.at(h, q, k));
  return out;
}

Json json_of(const AttentionMap& map) {
  Json json = {{"schema", "attnkit.attention/1"}, {"block", map.block}, {"mechanism", map.mechanism}};
  json["queries"] = map.queries;
  json["keys"] = map.keys;
  json["heads"] = Json::array();
  for (size_t h = 0; h < map.heads.size(); ++h) {
    Json rows = Json::array();
    for (size_t q = 0; q < map.queries.size(); ++q) {
      const auto row =
          map.weights.begin() + static_cast<std::ptrdiff_t>((h * map.queries.size() + q) * map.keys.size());
      rows.push_back(std::vector<float>(row, row + static_cast<std::ptrdiff_t>(map.keys.size())));
    }
    json["heads"].push_back({{"head", map.heads[h]}, {"weights", rows}});
  }
  return json;
}

std::string strongest_text(const AttentionMap& map, size_t head, size_t query) {
  std::vector<size_t> order(map.keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return map.at(head, query, a) > map.at(head, query, b); });
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(shown_weights, order.size()); ++i)
    if (map.at(head, query, order[i]) >= 0.005f)
      parts.push_back(fmt::format("{} {:.2f}", map.keys[order[i]], map.at(head, query, order[i])));
  return joined(parts, ", ");
}

std::string text_of(const AttentionMap& map) {
  std::vector<std::string> titles = {map.query_title};
  for (const int head : map.heads) titles.push_back(fmt::format("head {}", head));
  Table table(titles);
  for (size_t q = 0; q < map.queries.size(); ++q) {
    std::vector<std::string> row = {map.queries[q]};
    for (size_t h = 0; h < map.heads.size(); ++h) row.push_back(strongest_text(map, h, q));
    table.add(row);
  }
  return fmt::format("{} {}: for each {} the strongest weights, {}\n", map.block, map.mechanism, map.query_title,
                     map.key_title) +
         table.text();
}

}  // namespace

Exit inspect_attention(const Arguments& arguments) {
  const std::string output = arguments.text("output");
  check_output(arguments);
  if (arguments.json() && arguments.has("csv") && !arguments.has("output"))
    fail(Exit::usage, "--json and --csv exclude each other without --output");
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_model(runtime, arguments);
  const AttentionMap map = attention_map(model, arguments);
  if (arguments.has("output"))
    write_file(output, arguments.has("csv") ? csv_of(map) : heatmap_svg(map));
  else if (arguments.has("csv"))
    print(csv_of(map));
  else if (!arguments.json())
    print(text_of(map));
  if (arguments.json()) print_json(json_of(map));
  return Exit::success;
}

}  // namespace attnkit::cli
