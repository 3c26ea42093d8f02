#include "hosts/cli/search/report/tables.hpp"

#include <algorithm>
#include <functional>

#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/report/figures.hpp"
#include "hosts/cli/search/report/report.hpp"

namespace attnkit::cli {
namespace {

std::string head_cell(const std::string& text, bool number = false) {
  return fmt::format("<th scope=\"col\"{}>{}</th>", number ? " class=\"n\"" : "", escaped(text));
}

std::string number_cell(const std::string& text) { return fmt::format("<td class=\"n\">{}</td>", escaped(text)); }

std::string table_html(const std::string& head, const std::string& body, const std::string& caption = "",
                       const char* attributes = "") {
  return fmt::format("<table{}>{}<thead><tr>{}</tr></thead><tbody>\n{}</tbody></table>", attributes,
                     caption.empty() ? "" : "<caption>" + caption + "</caption>", head, body);
}

std::string scrolled(const std::string& table) { return "<div class=\"scroll\">" + table + "</div>\n"; }

std::string row_of(const std::string& title, const std::string& winner, const std::string& baseline,
                   const std::string& change) {
  return fmt::format("<tr><th scope=\"row\">{}</th>{}{}{}</tr>\n", escaped(title), number_cell(winner),
                     number_cell(baseline), number_cell(change));
}

std::string rate_text(std::optional<double> speed) {
  return speed ? grouped_text(static_cast<uint64_t>(std::min(*speed, 1e15) + 0.5)) : "n/a";
}

std::string measure_html(const SearchView& view, const Measure& m) {
  if (!m.low || !m.high) return quality_text(view, m.value);
  return fmt::format("{} <small>{}\u2013{}</small>", quality_text(view, m.value), quality_text(view, m.low),
                     quality_text(view, m.high));
}

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

std::string ranked_row(const SearchView& view, const Trial& t, const std::vector<Column>& columns) {
  std::string out = fmt::format("<tr{}><td class=\"n\" data-v=\"{}\">{}</td><td data-v=\"{}\">{}</td>",
                                t.winner     ? " class=\"winner\""
                                : t.baseline ? " class=\"baseline\""
                                             : "",
                                t.rank > 0 ? std::to_string(t.rank) : "",
                                t.rank > 0 ? std::to_string(t.rank) : "\u2013", t.pareto ? 0 : 1, tags_of(t));
  for (const std::string& role : view.roles) {
    const auto in = [&](const Trial* from) {
      const std::vector<std::string>* layers = from ? from->layers(role) : nullptr;
      return layers ? layers_text(*layers) : "";
    };
    const bool same = view.baseline() && in(view.baseline()) == in(&t);
    out += fmt::format("<td{}>{}</td>", same ? " class=\"same\"" : "", escaped(in(&t)));
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

std::string placement_table(const SearchView& view) {
  const Trial* winner = view.winner();
  if (!winner || winner->blocks.empty()) return "";
  size_t depth = 0;
  std::string head = "<th scope=\"col\" class=\"n\">layer</th>", body;
  for (const auto& [role, layers] : winner->blocks) {
    depth = std::max(depth, layers.size());
    head += head_cell(role);
  }
  for (size_t l = 0; l < depth; ++l) {
    body += fmt::format("<tr><td class=\"n same\">{}</td>", l + 1);
    for (const auto& [role, layers] : winner->blocks) {
      const std::vector<std::string>* base = view.baseline() ? view.baseline()->layers(role) : nullptr;
      const std::string name = l < layers.size() ? layers[l] : "";
      const bool same = base && l < base->size() && (*base)[l] == name;
      body += fmt::format("<td class=\"{}\">{}</td>", same ? "same" : "new", escaped(name));
    }
    body += "</tr>\n";
  }
  const char* hint = view.baseline() ? "; bold where it differs from the baseline" : "";
  return table_html(head, body, fmt::format("The winner{}", hint)) + "\n";
}

std::string comparison_table(const SearchView& view) {
  const Trial *winner = view.winner(), *baseline = view.baseline();
  if (!winner || !baseline) return "";
  const Cost &w = winner->cost, &b = baseline->cost;
  std::string body;
  const auto& [q, base] = std::pair(winner->quality.value, baseline->quality.value);
  if (q || base)
    body += row_of(metric_title(view), quality_text(view, q), quality_text(view, base),
                   q && base ? signed_text(*q - *base, view.lower_is_better ? 4 : 2) : "");
  const auto add = [&](const char* title, std::optional<double> Cost::*member, auto text, bool paired = false) {
    const std::optional<double> own = w.*member, other = b.*member;
    // Of speeds the ratio is the median of pairs, which the quotient of two medians need not equal.
    std::string change;
    if (paired && w.ratio) change = fmt::format("{:.2f}\u00d7", *w.ratio);
    if (!paired && own && other && *other > 0) change = fmt::format("{:.2f}\u00d7", *own / *other);
    if (own || other) body += row_of(title, text(own), text(other), change);
  };
  add(view.decodes ? "decode throughput, tokens/s" : "throughput, tokens/s", &Cost::speed, rate_text, true);
  add("latency of a token", &Cost::latency, latency_text);
  add("peak memory", &Cost::peak_bytes, memory_text);
  add("state of a session", &Cost::state_bytes, memory_text);
  if (body.empty()) return "";
  return table_html("<th></th>" + head_cell("winner", true) + head_cell("baseline", true) + head_cell("change", true),
                    body, view.length ? fmt::format("At {} tokens", view.length) : "Measured") +
         "\n";
}

std::string bucket_table(const SearchView& view) {
  std::string head = head_cell("tokens of input"), body;
  std::vector<int64_t> lists(view.buckets.size());
  for (const Trial* t : view.named()) {
    if (t->buckets.empty()) continue;
    body += fmt::format("<tr><th scope=\"row\"><span class=\"key\" style=\"background:var(--{})\"></span>{}</th>",
                        named_colour(view, *t), escaped(named_label(*t)));
    for (size_t b = 0; b < view.buckets.size(); ++b) {
      const Measure m = b < t->buckets.size() ? t->buckets[b] : Measure{};
      lists[b] = std::max(lists[b], m.lists);
      body += fmt::format("<td class=\"n\">{}</td>", measure_html(view, m));
    }
    body += "</tr>\n";
  }
  if (body.empty() || view.buckets.empty()) return "";
  for (size_t b = 0; b < view.buckets.size(); ++b)
    head += fmt::format("<th scope=\"col\" class=\"n\">{}<br><small>{} lists</small></th>", escaped(view.buckets[b]),
                        grouped_text(static_cast<uint64_t>(std::max<int64_t>(0, lists[b]))));
  return scrolled(table_html(head, body));
}

std::string untimed_table(const SearchView& view) {
  std::string body;
  for (const Trial& t : view.trials)
    for (const auto& [length, reason] : t.untimed)
      body += fmt::format("<tr>{}<td class=\"wide\">{}</td><td class=\"wide\">{}</td></tr>\n",
                          number_cell(std::to_string(length)), escaped(t.id),
                          escaped(reason.empty() ? "no reason was recorded" : reason));
  if (body.empty()) return "";
  return scrolled(
      table_html(head_cell("tokens", true) + head_cell("placement") + head_cell("reason"), body, "Not timed"));
}

std::string reasons_table(const SearchView& view) {
  // One row for each reason, with everything it applies to.
  std::vector<std::pair<std::string, std::string>> rows;
  std::vector<std::vector<std::string>> what;
  const auto add = [&](const std::string& status, const std::string& reason, const std::string& name) {
    const auto row = std::pair(status, reason.empty() ? "no reason was recorded" : reason);
    const auto at = std::find(rows.begin(), rows.end(), row) - rows.begin();
    if (static_cast<size_t>(at) == rows.size()) rows.push_back(row), what.emplace_back();
    what[static_cast<size_t>(at)].push_back(escaped(name));
  };
  for (const char* status : {"limited", "refused", "failed"}) {
    for (const Trial& t : view.trials)
      if (t.status == status) add(status, t.reason, t.id);
    for (const Refusal& r : view.refusals)
      if (std::string_view(status) == "refused") add(status, r.reason, r.choice + " in " + r.block);
  }
  if (rows.empty()) return "";
  std::string body;
  for (size_t r = 0; r < rows.size(); ++r)
    body += fmt::format("<tr><td>{}</td><td class=\"wide\">{}</td><td class=\"wide\">{}</td></tr>\n", rows[r].first,
                        joined(what[r], "<br>"), escaped(rows[r].second));
  return scrolled(table_html(head_cell("status") + head_cell("what") + head_cell("reason"), body));
}

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
    if (is_listed(t)) body += ranked_row(view, t, columns);
  if (body.empty()) return "";
  return scrolled(table_html(head, body, "", " class=\"ranks\""));
}

}  // namespace attnkit::cli
