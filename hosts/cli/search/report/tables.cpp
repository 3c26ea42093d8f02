#include "hosts/cli/search/report/tables.hpp"

#include <algorithm>
#include <functional>

#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/report/figures.hpp"
#include "hosts/cli/search/report/html.hpp"

namespace attnkit::cli {
namespace {

std::string row_of(const std::string& title, const std::string& winner, const std::string& baseline,
                   const std::string& change) {
  return fmt::format("<tr><th scope=\"row\">{}</th>{}{}{}</tr>\n", escaped(title), number_cell(winner),
                     number_cell(baseline), number_cell(change));
}

std::string rate_text(std::optional<double> speed) {
  return speed ? grouped_text(static_cast<uint64_t>(std::min(*speed, 1e15) + 0.5)) : "n/a";
}

// The baseline's own is 0, without an interval.
std::string difference_of(const SearchView& view, const Trial& t, const Measure& m) {
  return difference_html(view, t.baseline ? Estimate{m.difference.value, {}, {}} : m.difference);
}

std::string times_html(const Estimate& e) {
  return fixed_html({e.value, {}, {}}, 2) + "\u00d7" +
         (e.has_interval() ? fmt::format(" <small>{:.2f}\u2013{:.2f}</small>", *e.low, *e.high) : "");
}

struct Column {
  std::string title;  // HTML
  std::function<std::optional<double>(const Trial&)>
      value;                                      // what is sorted by, and whether the column is shown at all
  std::function<std::string(const Trial&)> text;  // HTML
};

std::optional<double> lists_of(const Trial& t) {
  return t.quality.lists > 0 ? std::optional(static_cast<double>(t.quality.lists)) : std::nullopt;
}

// The number of times a quantity is the baseline's.
std::string times(const char* what) { return fmt::format("\u00d7 {}", what); }

std::vector<Column> columns_of(const SearchView& view) {
  const auto cost = [](std::optional<double> Cost::*member) { return [=](const Trial& t) { return t.cost.*member; }; };
  const auto estimate = [](Estimate Trial::*member) { return [=](const Trial& t) { return (t.*member).value; }; };
  const auto fixed = [](Estimate Trial::*member) { return [=](const Trial& t) { return fixed_html(t.*member, 3); }; };
  return {
      {"n", lists_of, [](const Trial& t) { return lists_text(t.quality.lists); }},
      {escaped(metric_title(view)) + " (dev)", [](const Trial& t) { return t.quality.own.value; },
       [&view](const Trial& t) { return quality_html(view, t.quality.own); }},
      {"difference from the baseline", [](const Trial& t) { return t.quality.difference.value; },
       [&view](const Trial& t) { return difference_of(view, t, t.quality); }},
      {times(view.decodes ? "decode" : "speed"), estimate(&Trial::throughput), fixed(&Trial::throughput)},
      {"peak", [](const Trial& t) { return t.peak_bytes; }, [](const Trial& t) { return memory_text(t.peak_bytes); }},
      {times("peak"), [](const Trial& t) { return t.memory; }, [](const Trial& t) { return fixed_text(t.memory, 4); }},
      {"RCP", estimate(&Trial::rcp), fixed(&Trial::rcp)},
      {"RCP<sub>mem</sub>", estimate(&Trial::rcp_mem), fixed(&Trial::rcp_mem)},
      {"latency", cost(&Cost::latency), [](const Trial& t) { return latency_text(t.cost.latency); }},
      {"state", cost(&Cost::state_bytes), [](const Trial& t) { return memory_text(t.cost.state_bytes); }},
  };
}

std::string rank_text(const Trial& t) {
  if (t.rank == 0) return "\u2013";
  if (t.rank_low == 0 || t.rank_high == 0) return std::to_string(t.rank);
  return fmt::format("{} <small>({}\u2013{})</small>", t.rank, t.rank_low, t.rank_high);
}

std::string marks_html(const Trial& t) {
  std::vector<std::string> marks;
  if (t.winner) marks.emplace_back("winner");
  if (t.tied()) marks.emplace_back("tied");
  if (t.baseline) marks.emplace_back("baseline");
  if (t.status == "limited") marks.emplace_back("limited");
  if (t.screened) marks.emplace_back("screened");
  const char* sign = t.pareto && t.comparable ? "<span role=\"img\" aria-label=\"on the Pareto front\">\u25cf</span> "
                     : t.screened             ? "<span aria-hidden=\"true\">\u25cb</span> "
                                              : "";
  return sign + joined(marks, ", ");
}

// The order of rows: the front, then the others, then what was screened.
int mark_order(const Trial& t) { return t.screened ? 2 : t.pareto ? 0 : 1; }

const char* row_class(const Trial& t) {
  return t.winner ? " class=\"winner\"" : t.baseline ? " class=\"baseline\"" : t.top ? " class=\"tied\"" : "";
}

std::string ranked_row(const SearchView& view, const Trial& t, const std::vector<Column>& columns) {
  std::string out =
      fmt::format("<tr{}><th scope=\"row\" class=\"n\" data-v=\"{}\">{}</th><td data-v=\"{}\">{}</td>", row_class(t),
                  t.rank > 0 ? std::to_string(t.rank) : "", rank_text(t), mark_order(t), marks_html(t));
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
  std::string body;
  const auto add_quality = [&](const Measure& own, const Measure& other, const char* split) {
    if (!own.own.value && !other.own.value) return;
    const std::string title =
        fmt::format("{} ({}{})", metric_title(view), split, own.lists > 0 ? ", n = " + lists_text(own.lists) : "");
    Estimate change = own.difference;
    if (!change.value && own.own.value && other.own.value) change.value = *own.own.value - *other.own.value;
    body += row_of(title, quality_html(view, own.own), quality_html(view, other.own),
                   change.value ? difference_html(view, change) : "");
  };
  add_quality(winner->quality, baseline->quality, "dev");
  add_quality(winner->test, baseline->test, "test");
  const auto add = [&](const char* title, std::optional<double> own, std::optional<double> other, auto text,
                       const Estimate& ratio) {
    if (own || other) body += row_of(title, text(own), text(other), ratio.value ? times_html(ratio) : "");
  };
  const auto quotient = [](std::optional<double> own, std::optional<double> other) {
    return Estimate{own && other && *other > 0 ? std::optional(*own / *other) : std::nullopt, {}, {}};
  };
  const Cost &w = winner->cost, &b = baseline->cost;
  // Of speeds the ratio is the median of pairs, which the quotient of two medians need not equal.
  add(view.decodes ? "decode throughput, tokens/s" : "throughput, tokens/s", w.speed, b.speed, rate_text,
      winner->throughput);
  add("latency of a token", w.latency, b.latency, latency_text, quotient(w.latency, b.latency));
  add("peak memory", winner->peak_bytes, baseline->peak_bytes, memory_text, Estimate{winner->memory, {}, {}});
  add("state of a session", w.state_bytes, b.state_bytes, memory_text, quotient(w.state_bytes, b.state_bytes));
  if (body.empty()) return "";
  const std::string length = view.length ? fmt::format("At {} tokens", view.length) : "Measured";
  return table_html("<td></td>" + head_cell("winner", true) + head_cell("baseline", true) + head_cell("change", true),
                    body, length + "; small: 95 % intervals") +
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
      body += fmt::format("<td class=\"n\">{}</td>", quality_html(view, m.own));
    }
    body += "</tr>\n";
  }
  if (body.empty() || view.buckets.empty()) return "";
  for (size_t b = 0; b < view.buckets.size(); ++b)
    head += fmt::format("<th scope=\"col\" class=\"n\">{}<br><small>{} examples</small></th>", escaped(view.buckets[b]),
                        grouped_text(static_cast<uint64_t>(std::max<int64_t>(0, lists[b]))));
  return scrolled("Quality against length", table_html(head, body));
}

std::string untimed_table(const SearchView& view) {
  std::string body;
  for (const Trial& t : view.trials)
    for (const auto& [length, reason] : t.untimed)
      body += fmt::format("<tr>{}<td class=\"wide\">{}</td><td class=\"wide\">{}</td></tr>\n",
                          number_cell(std::to_string(length)), escaped(t.id),
                          escaped(reason.empty() ? "no reason was recorded" : reason));
  if (body.empty()) return "";
  return scrolled("Not timed", table_html(head_cell("tokens", true) + head_cell("placement") + head_cell("reason"),
                                          body, "Not timed"));
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
  return scrolled("Not ranked", table_html(head_cell("status") + head_cell("what") + head_cell("reason"), body));
}

std::string ranking_table(const SearchView& view) {
  const auto is_listed = [](const Trial& t) { return t.status != "refused" && t.status != "failed"; };
  std::vector<Column> columns = columns_of(view);
  std::erase_if(columns, [&](const Column& c) {
    return std::none_of(view.trials.begin(), view.trials.end(), [&](const Trial& t) { return c.value(t).has_value(); });
  });
  std::string head = "<th scope=\"col\" class=\"n\" aria-sort=\"ascending\">rank</th><th scope=\"col\">mark</th>", body;
  for (const std::string& role : view.roles) head += head_cell(role);
  for (const Column& c : columns) head += fmt::format("<th scope=\"col\" class=\"n\">{}</th>", c.title);
  for (const Trial& t : view.trials)
    if (is_listed(t)) body += ranked_row(view, t, columns);
  if (body.empty()) return "";
  return scrolled("All placements", table_html(head, body, "", " class=\"ranks\""));
}

std::string test_table(const SearchView& view) {
  std::vector<const Trial*> rows;
  for (const Trial& t : view.trials)
    if (t.test.own.value) rows.push_back(&t);
  if (rows.empty()) return "";
  const bool ratios = std::ranges::any_of(rows, [](const Trial* t) { return t->rank_ratio.has_interval(); });
  const bool differences =
      std::ranges::any_of(rows, [](const Trial* t) { return t->test.difference.value.has_value(); });
  std::string head = head_cell("rank", true) + head_cell("mark") + head_cell("placement"), body;
  const std::string title = metric_title(view);
  head += head_cell("n (test)", true) + head_cell(title + " (test)", true);
  if (differences) head += head_cell("difference from the baseline (test)", true);
  head += head_cell(title + " (dev)", true);
  if (ratios)
    head += fmt::format("<th scope=\"col\" class=\"n\">{} (dev), times the winner\u2019s</th>", rank_html(view));
  for (const Trial* t : rows) {
    body += fmt::format("<tr{}>{}<td>{}</td><th scope=\"row\">{}</th>", row_class(*t), number_cell(rank_text(*t)),
                        marks_html(*t), escaped(short_name(*t)));
    body += number_cell(lists_text(t->test.lists)) + number_cell(quality_html(view, t->test.own));
    if (differences) body += number_cell(difference_of(view, *t, t->test));
    body += number_cell(quality_html(view, t->quality.own));
    if (ratios) body += number_cell(t->winner ? "1" : fixed_html(t->rank_ratio, 3));
    body += "</tr>\n";
  }
  return scrolled("The test set", table_html(head, body, "", " class=\"tested\""));
}

std::string race_table(const SearchView& view) {
  std::string body;
  for (const Stage& s : view.stages)
    body += fmt::format("<tr>{}{}{}{}{}</tr>\n", number_cell(lists_text(s.examples)),
                        number_cell(std::to_string(s.blocks)), number_cell(std::to_string(s.raced)),
                        number_cell(std::to_string(s.kept)), number_cell(std::to_string(s.raced - s.kept)));
  if (body.empty()) return "";
  std::string head;
  for (const char* title : {"examples", "timing blocks", "raced", "kept", "dropped"}) head += head_cell(title, true);
  return scrolled("The race", table_html(head, body, "", " class=\"race\""));
}

}  // namespace attnkit::cli
