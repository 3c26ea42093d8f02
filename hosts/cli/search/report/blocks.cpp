// The page's table of quality by block.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hosts/cli/search/by_block.hpp"
#include "hosts/cli/search/report/html.hpp"
#include "hosts/cli/search/report/tables.hpp"

namespace attnkit::cli {
namespace {

using Kind = BlockCell::Kind;

// Does the interval leave out 0?
bool is_clear(const Estimate& difference) {
  return difference.has_interval() && (*difference.low > 0 || *difference.high < 0);
}

// Four steps to each side, by square roots so that one large difference does not bleach the others.
std::string hue_of(const SearchView& view, const Estimate& difference, double most) {
  if (!is_clear(difference)) return "";
  const bool better = (*difference.value > 0) != view.lower_is_better;
  const long step = std::clamp(std::lround(4 * std::sqrt(std::abs(*difference.value) / most)), 1L, 4L);
  return fmt::format("{}{}", better ? "good" : "bad", step);
}

std::string cell_html(const SearchView& view, const BlockCell& cell, double most) {
  constexpr const char* names[] = {"", "baseline", "", "refused", "failed"};  // by kind
  if (cell.kind != Kind::measured)
    return fmt::format("<td class=\"quiet\">{}</td>", names[static_cast<size_t>(cell.kind)]);
  const std::string hue = hue_of(view, cell.difference, most);
  const std::string colour = hue.empty() ? "" : fmt::format(" style=\"background:var(--{})\"", hue);
  const std::string n =
      cell.trial->screened ? fmt::format("<small>\u25cb n = {}</small>", lists_text(cell.trial->quality.lists)) : "";
  return fmt::format("<td{}>{}{}</td>", colour, difference_html(view, cell.difference), n);
}

}  // namespace

std::string block_table(const SearchView& view) {
  if (view.choices.size() > 64) return "";
  const std::vector<BlockRow> rows = rows_by_block(view);
  if (rows.empty()) return "";
  double most = 0;
  for (const BlockRow& row : rows)
    for (const BlockCell& cell : row.cells)
      if (is_clear(cell.difference)) most = std::max(most, std::abs(*cell.difference.value));
  std::string head = head_cell(view.per_layer ? "layer" : "block"), body;
  for (const std::string& choice : view.choices) head += head_cell(choice);
  for (const BlockRow& row : rows) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", escaped(row.block));
    for (const BlockCell& cell : row.cells) body += cell_html(view, cell, most);
    body += "</tr>\n";
  }
  return scrolled("Quality by block", table_html(head, body, "", " class=\"blocks\""));
}

}  // namespace attnkit::cli
