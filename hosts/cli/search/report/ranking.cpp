// The full ranked table of a search's report.
#include <algorithm>
#include <functional>

#include "hosts/cli/search/report/markup.hpp"
#include "hosts/cli/search/report/sections.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

struct Column {
  std::string title;
  std::function<std::optional<double>(const Trial&)>
      value;                                      // what is sorted by, and whether the column is shown at all
  std::function<std::string(const Trial&)> text;  // HTML
};

std::string ratio_text(const Cost& cost) {
  if (!cost.ratio) return "n/a";
  if (!cost.ratio_low || !cost.ratio_high) return fmt::format("{:.2f}", *cost.ratio);
  return fmt::format("<span title=\"quartiles {:.3f} to {:.3f}\">{:.2f}</span>", *cost.ratio_low, *cost.ratio_high,
                     *cost.ratio);
}

// Greedy decoding is done for finalists alone; the others' cells stay empty.
std::string greedy_text(const Measure& exact, std::optional<double> bleu) {
  if (!exact.value) return "";
  const std::string out = fmt::format("{:.2f}", *exact.value);
  return bleu ? fmt::format("<span title=\"BLEU {:.2f}\">{}</span>", *bleu, out) : out;
}

std::vector<Column> columns_of(const SearchView& view) {
  const auto cost = [](std::optional<double> Cost::*member) { return [=](const Trial& t) { return t.cost.*member; }; };
  const auto memory = [](auto member) { return [=](const Trial& t) { return memory_text(t.cost.*member); }; };
  return {
      {metric_title(view), [](const Trial& t) { return t.quality.value; },
       [&view](const Trial& t) { return measure_html(view, t.quality); }},
      {view.decodes ? "\u00d7 decode" : "\u00d7 speed", cost(&Cost::ratio),
       [](const Trial& t) { return ratio_text(t.cost); }},
      {"latency", cost(&Cost::latency), [](const Trial& t) { return latency_text(t.cost.latency); }},
      {"peak", cost(&Cost::peak_bytes), memory(&Cost::peak_bytes)},
      {"state", cost(&Cost::state_bytes), memory(&Cost::state_bytes)},
      {"RCP", [](const Trial& t) { return t.rcp; }, [](const Trial& t) { return fixed_text(t.rcp, 3); }},
      {"RCP_mem", [](const Trial& t) { return t.rcp_mem; }, [](const Trial& t) { return fixed_text(t.rcp_mem, 3); }},
      {"greedy dev", [](const Trial& t) { return t.greedy_data.value; },
       [](const Trial& t) { return greedy_text(t.greedy_data, t.bleu_data); }},
      {"greedy test", [](const Trial& t) { return t.greedy_test.value; },
       [](const Trial& t) { return greedy_text(t.greedy_test, t.bleu_test); }},
  };
}

std::string tags_of(const Trial& t) {
  std::vector<std::string> tags;
  if (t.winner) tags.emplace_back("winner");
  if (t.baseline) tags.emplace_back("baseline");
  if (t.status == "limited") tags.emplace_back("limited");
  return (t.pareto ? "<span title=\"on the Pareto front\">\u25cf</span>" : "") +
         (tags.empty() ? "" : fmt::format("<span class=\"tag\">{}</span>", joined(tags, ", ")));
}

std::string row_of(const SearchView& view, const Trial& t, const std::vector<Column>& columns) {
  std::string out = fmt::format("<tr{}><td class=\"n\" data-v=\"{}\">{}</td><td data-v=\"{}\">{}</td>",
                                t.winner     ? " class=\"winner\""
                                : t.baseline ? " class=\"baseline\""
                                             : "",
                                t.rank > 0 ? std::to_string(t.rank) : "",
                                t.rank > 0 ? std::to_string(t.rank) : "\u2013", t.pareto ? 0 : 1, tags_of(t));
  const Trial* base = view.baseline();
  for (const std::string& role : view.roles) {
    const auto in = [&](const Trial& from) {
      for (const auto& [name, layers] : from.blocks)
        if (name == role) return layers_text(layers);
      return std::string();
    };
    const std::string own = in(t);
    out += fmt::format("<td{}>{}</td>", base && in(*base) == own ? " class=\"same\"" : "", escaped(own));
  }
  for (const Column& c : columns) {
    const std::optional<double> value = c.value(t);
    out += fmt::format("<td class=\"n\" data-v=\"{}\">{}</td>", value ? fmt::format("{}", *value) : "", c.text(t));
  }
  return out + "</tr>\n";
}

std::string title_html(const std::string& title) {
  if (title == "RCP_mem") return "RCP<sub>mem</sub>";
  return title.starts_with("greedy ") ? "greedy<br>" + title.substr(7) : escaped(title);
}

}  // namespace

std::string ranking_table(const SearchView& view) {
  const auto is_listed = [](const Trial& t) { return t.status != "refused" && t.status != "failed"; };
  std::vector<Column> columns = columns_of(view);
  std::erase_if(columns, [&](const Column& c) {
    return std::none_of(view.trials.begin(), view.trials.end(), [&](const Trial& t) { return c.value(t).has_value(); });
  });
  std::string head = "<th scope=\"col\" class=\"n\">rank</th><th scope=\"col\" title=\"Pareto front\">front</th>", body;
  for (const std::string& role : view.roles) head += fmt::format("<th scope=\"col\">{}</th>", escaped(role));
  for (const Column& c : columns) head += fmt::format("<th scope=\"col\" class=\"n\">{}</th>", title_html(c.title));
  for (const Trial& t : view.trials)
    if (is_listed(t)) body += row_of(view, t, columns);
  if (body.empty()) return "";
  return fmt::format(
      "<div class=\"scroll\"><table class=\"ranks\"><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table>"
      "</div>\n",
      head, body);
}

}  // namespace attnkit::cli
