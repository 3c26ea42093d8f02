#include "hosts/cli/search/table.hpp"

#include <algorithm>
#include <sstream>

#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/by_block.hpp"
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

std::string wrapped(const std::string& text, const std::string& indent = "") {
  std::istringstream words(plain(text));
  std::string out, line = indent;
  bool begun = false;  // the line holds a word
  for (std::string word; words >> word; begun = true) {
    if (begun && width_of(line) + 1 + width_of(word) > line_width)
      out += line + "\n", line = indent + indent, begun = false;
    line += (begun ? " " : "") + word;
  }
  return begun ? out + line + "\n" : out;
}

// "99.20+-0.40", half the width of the interval.
std::string with_half(const Estimate& e, const std::string& value, int digits) {
  return e.has_interval() ? fmt::format("{}\u00b1{:.{}f}", value, (*e.high - *e.low) / 2, digits) : value;
}

std::string rank_cell(const Trial& t) {
  if (t.rank == 0) return "-";
  const std::string range = t.rank_low > 0 && t.rank_high > 0 ? fmt::format(" ({}-{})", t.rank_low, t.rank_high) : "";
  return (t.pareto && t.comparable ? "*" : "") + std::to_string(t.rank) + range;
}

std::string mark_of(const Trial& t) {
  return t.winner ? "winner" : t.baseline ? "baseline" : t.top ? "tied" : t.screened ? "screened" : "";
}

// The value that placements are ranked by, with its interval; that of the quality has a column of its own.
const Estimate* ranked_by(const SearchView& view, const Trial& t) {
  return view.rank == "throughput" || view.rank == "quality" ? nullptr : &rank_value(view, t);
}

std::vector<std::string> row_of(const SearchView& view, const Trial& t) {
  constexpr double mebi = 1 << 20;
  const int digits = quality_digits(view);
  const Estimate &difference = t.quality.difference, *value = ranked_by(view, t);
  std::vector<std::string> row = {rank_cell(t),
                                  plain(short_name(t)),
                                  t.quality.lists > 0 ? std::to_string(t.quality.lists) : "n/a",
                                  quality_text(view, t.quality.own.value),
                                  with_half(difference, difference_text(view, difference.value), digits),
                                  t.throughput.value ? fmt::format("{:.2f}x", *t.throughput.value) : "n/a",
                                  t.peak_bytes ? fmt::format("{:.2f}", *t.peak_bytes / mebi) : "n/a"};
  if (value) row.push_back(with_half(*value, fixed_text(value->value, 2), 2));
  row.push_back(mark_of(t));
  return row;
}

std::string ranking_text(const SearchView& view, size_t rows) {
  std::vector<std::string> titles = {">rank", "placement", ">n", ">dev", ">difference", ">speed", ">MiB"};
  if (!view.trials.empty() && ranked_by(view, view.trials.front())) titles.push_back(">" + rank_name(view));
  titles.emplace_back("");
  Table table(titles);
  size_t shown = 0;
  for (const Trial& t : view.trials) {
    const bool in_rows = t.rank > 0 && shown < rows;
    shown += in_rows;
    if (in_rows || t.named()) table.add(row_of(view, t));
  }
  const std::string roles =
      view.roles.empty() ? "" : fmt::format("placement: the mechanism of {}; ", plain(joined(view.roles, ", ")));
  return wrapped(
             fmt::format("{}dev: {} on the first n examples; difference from and speed over the baseline's; MiB: peak "
                         "memory; *: on the Pareto front; \u00b1: half of a 95 % interval",
                         roles, metric_title(view))) +
         table.text();
}

// As many columns side by side as a line has room for, the rest below.
std::string tables_text(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  const auto width = [&](size_t c) {
    size_t most = width_of(titles[c]);
    for (const auto& row : rows) most = std::max(most, width_of(row[c]));
    return most;
  };
  std::string text;
  for (size_t c = 1; c < titles.size();) {
    std::vector<size_t> columns = {0};
    for (size_t all = width(0); c < titles.size() && (columns.size() == 1 || all + 2 + width(c) <= line_width); ++c)
      all += 2 + width(c), columns.push_back(c);
    std::vector<std::string> cells;
    for (const size_t column : columns) cells.push_back((column > 0 ? ">" : "") + titles[column]);
    Table table(cells);
    for (const auto& row : rows) {
      cells.clear();
      for (const size_t column : columns) cells.push_back(row[column]);
      table.add(cells);
    }
    text += (text.empty() ? "" : "\n") + table.text();
  }
  return text;
}

// On fewer examples than the baseline's it says how many.
std::string block_cell(const SearchView& view, const BlockCell& cell) {
  constexpr const char* names[] = {"", "baseline", "", "refused", "failed"};  // by kind
  if (cell.kind != BlockCell::Kind::measured) return names[static_cast<size_t>(cell.kind)];
  const Measure& quality = cell.trial->quality;
  const std::string value = with_half(quality.own, quality_text(view, quality.own.value), quality_digits(view));
  return quality.lists < view.baseline()->quality.lists ? fmt::format("{} ({})", value, quality.lists) : value;
}

// The answer of an ablation: quality by the block that was changed, without blocks that nothing was tried in.
std::string ablation_text(const SearchView& view) {
  std::vector<BlockRow> rows = rows_by_block(view);
  if (view.strategy != "ablation" || rows.empty()) return "";
  const auto says = [](const BlockCell& cell) { return cell.kind > BlockCell::Kind::baseline; };
  std::erase_if(rows, [&](const BlockRow& row) { return std::ranges::none_of(row.cells, says); });
  std::vector<std::string> titles = {view.per_layer ? "layer" : "block"};
  std::vector<std::vector<std::string>> cells;
  for (const BlockRow& row : rows) cells.push_back({plain(row.block)});
  for (size_t c = 0; c < view.choices.size(); ++c) {
    if (std::ranges::none_of(rows, [&](const BlockRow& row) { return says(row.cells[c]); })) continue;
    titles.push_back(plain(view.choices[c]));
    for (size_t r = 0; r < rows.size(); ++r) cells[r].push_back(block_cell(view, rows[r].cells[c]));
  }
  if (titles.size() > cells.size() + 1) {  // more mechanisms than blocks: they go down
    std::vector<std::string> across = {"mechanism"};
    for (const auto& row : cells) across.push_back(row[0]);
    std::vector<std::vector<std::string>> down(titles.size() - 1);
    for (size_t c = 1; c < titles.size(); ++c) {
      down[c - 1].push_back(titles[c]);
      for (const auto& row : cells) down[c - 1].push_back(row[c]);
    }
    titles = std::move(across), cells = std::move(down);
  }
  const Measure& own = view.baseline()->quality;
  return wrapped(fmt::format(
             "by block: {} where that block alone has another mechanism than the baseline, which has {} on {} "
             "examples; (n): on fewer",
             metric_title(view), with_half(own.own, quality_text(view, own.own.value), quality_digits(view)),
             own.lists)) +
         tables_text(titles, cells) + "\n";
}

// The first words for whoever asked for a quick answer.
std::string screening_text(const SearchView& view) {
  if (!view.is_screening()) return "";
  return wrapped("This is a screening: without --quick the search goes on until the winner is decided.") + "\n";
}

std::string top_text(const SearchView& view) {
  const std::vector<const Trial*> tied = view.tied();
  if (tied.empty()) return view.winner() && view.winner()->top ? "nothing is tied with the winner\n" : "";
  std::vector<std::string> names;
  for (const Trial* t : tied) names.push_back(short_name(*t));
  return wrapped(fmt::format("tied with the winner, not worse with {} confidence: {}", percent_text(view.confidence),
                             joined(names, "; ")));
}

std::string reasons_text(const SearchView& view) {
  std::vector<std::string> reasons;
  const auto add = [&](const std::string& status, const std::string& reason) {
    const std::string line =
        wrapped(fmt::format("{}: {}", status, reason.empty() ? "no reason was recorded" : reason), "  ");
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
  std::string out = screening_text(view) + wrapped(view.answer);
  if (!out.empty()) out += "\n";
  if (!view.trials.empty()) out += ranking_text(view, rows) + "\n" + ablation_text(view) + top_text(view);
  out +=
      fmt::format("{}: {} ranked, {} limited, {} refused, {} failed\n", counted_text(view.trials.size(), "placement"),
                  view.count("ranked"), view.count("limited"), view.count("refused"), view.count("failed"));
  return out + reasons_text(view);
}

}  // namespace attnkit::cli
