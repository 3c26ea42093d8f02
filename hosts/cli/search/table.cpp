#include "hosts/cli/search/table.hpp"

#include <algorithm>
#include <sstream>

#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {
namespace {

constexpr size_t line_width = 100;

// Control characters would reach the terminal.
std::string plain(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

std::string wrapped(const std::string& text) {
  std::istringstream words(plain(text));
  std::string out, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && width_of(line) + 1 + width_of(word) > line_width) out += line + "\n", line.clear();
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? out : out + line + "\n";
}

std::string quality_cell(const SearchView& view, const Measure& m) {
  if (!m.value || !m.low || !m.high) return quality_text(view, m.value);
  return fmt::format("{} \u00b1 {}", quality_text(view, m.value), quality_text(view, (*m.high - *m.low) / 2));
}

std::string mark_of(const Trial& t) { return t.winner ? "winner" : t.baseline ? "baseline" : ""; }

std::string ranking_text(const SearchView& view, size_t rows) {
  const bool peak = std::ranges::any_of(view.trials, [](const Trial& t) { return t.cost.peak_bytes.has_value(); });
  std::vector<std::string> titles = {
      ">rank", "", ">" + metric_title(view), ">x speed", peak ? ">peak" : ">state", ">RCP", ">RCP_mem", ""};
  titles.insert(titles.begin() + 2, view.roles.begin(), view.roles.end());
  Table table(titles);
  size_t shown = 0;
  for (const Trial& t : view.trials) {
    const bool in_rows = t.rank > 0 && shown < rows;
    if (!in_rows && !t.named()) continue;
    shown += in_rows;
    std::vector<std::string> row = {t.rank > 0 ? std::to_string(t.rank) : "-", t.pareto ? "*" : ""};
    for (const std::string& role : view.roles) {
      const std::vector<std::string>* layers = t.layers(role);
      row.push_back(layers ? plain(layers_text(*layers)) : "-");
    }
    for (const std::string& cell : {quality_cell(view, t.quality), fixed_text(t.cost.ratio, 2),
                                    memory_text(peak ? t.cost.peak_bytes : t.cost.state_bytes), fixed_text(t.rcp, 3),
                                    fixed_text(t.rcp_mem, 3), mark_of(t)})
      row.push_back(cell);
    table.add(row);
  }
  return table.text();
}

std::string reasons_text(const SearchView& view) {
  std::vector<std::string> reasons;
  const auto add = [&](const std::string& status, const std::string& reason) {
    const std::string line =
        fmt::format("  {}: {}\n", status, reason.empty() ? "no reason was recorded" : plain(reason));
    if (std::find(reasons.begin(), reasons.end(), line) == reasons.end()) reasons.push_back(line);
  };
  for (const Trial& t : view.trials)
    if (t.status == "refused" || t.status == "failed") add(t.status, t.reason);
  for (const Trial& t : view.trials)
    for (const auto& [length, reason] : t.untimed)
      add("not timed", fmt::format("{} at {} tokens: {}", t.id, length, reason));
  for (const Refusal& r : view.refusals) add("refused", fmt::format("{} in {}: {}", r.choice, r.block, r.reason));
  return joined(reasons, "");
}

}  // namespace

std::string search_table(const Json& result, size_t rows) {
  const SearchView view = view_of(result);
  std::string out = wrapped(view.answer);
  if (!out.empty()) out += "\n";
  if (!view.trials.empty()) out += ranking_text(view, rows) + "\n";
  out +=
      fmt::format("{}: {} ranked, {} limited, {} refused, {} failed\n", counted_text(view.trials.size(), "placement"),
                  view.count("ranked"), view.count("limited"), view.count("refused"), view.count("failed"));
  return out + reasons_text(view);
}

}  // namespace attnkit::cli
