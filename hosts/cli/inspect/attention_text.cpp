// attnkit inspect --attention: the weights as a heat map, CSV, JSON, or the strongest of them as text.
#include <algorithm>
#include <numeric>

#include "hosts/cli/inspect/attention.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/inspect/heatmap.hpp"
#include "hosts/cli/commands/inspect.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/output_check.hpp"
#include "hosts/cli/io/table.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

constexpr size_t strongest = 3;

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
  for (size_t i = 0; i < std::min(strongest, order.size()); ++i)
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
  if (arguments.json() && output == "-") fail(Exit::usage, "--json writes to standard output, so --output cannot");
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
