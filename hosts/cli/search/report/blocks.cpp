// Quality when one block alone differs from the baseline.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hosts/cli/search/report/html.hpp"
#include "hosts/cli/search/report/tables.hpp"

namespace attnkit::cli {
namespace {

enum class Kind { empty, baseline, measured, refused, failed };

struct Cell {
  Kind kind = Kind::empty;
  const Trial* trial = nullptr;  // when measured
  Estimate difference{};         // from the baseline's quality
};

struct Row {
  std::string block, role;
  std::vector<Cell> cells;
};

using BlockChoices = std::vector<std::pair<std::string, std::string>>;  // row name, choice

BlockChoices choices_of(const SearchView& view, const Trial& trial) {
  BlockChoices choices;
  for (const auto& [role, layers] : trial.blocks) {
    if (!view.per_layer) choices.emplace_back(role, layers_text(layers));
    for (size_t l = 0; view.per_layer && l < layers.size(); ++l)
      choices.emplace_back(fmt::format("{}.{}", role, l + 1), layers[l]);
  }
  return choices;
}

std::vector<Row> rows_of(const SearchView& view) {
  const Trial* model = view.baseline() ? view.baseline() : &view.trials.front();
  std::vector<Row> rows;
  for (const auto& [role, layers] : model->blocks)
    for (size_t l = 0; l < (view.per_layer ? layers.size() : 1); ++l)
      rows.push_back(
          {view.per_layer ? fmt::format("{}.{}", role, l + 1) : role, role, std::vector<Cell>(view.choices.size())});
  return rows;
}

Cell* cell_at(const SearchView& view, std::vector<Row>& rows, const std::string& block, const std::string& choice) {
  const auto column = std::find(view.choices.begin(), view.choices.end(), choice) - view.choices.begin();
  for (Row& row : rows)
    if (row.block == block && static_cast<size_t>(column) < view.choices.size())
      return &row.cells[static_cast<size_t>(column)];
  return nullptr;
}

// Fills the cell of a block that alone differs from the baseline; the baseline itself fills one cell of each row.
void fill(const SearchView& view, const Trial& trial, const Trial& baseline, std::vector<Row>& rows) {
  const BlockChoices own = choices_of(view, trial), base = choices_of(view, baseline);
  if (own.size() != base.size()) return;
  std::vector<size_t> differing;
  for (size_t s = 0; s < own.size(); ++s)
    if (own[s] != base[s]) differing.push_back(s);
  if (differing.size() != 1) return;
  const auto& [block, choice] = own[differing.front()];
  Cell* cell = cell_at(view, rows, block, choice);
  if (!cell) return;
  if (trial.quality.own.value && baseline.quality.own.value) {
    *cell = {Kind::measured, &trial, trial.quality.difference};
    if (!cell->difference.value) cell->difference = {*trial.quality.own.value - *baseline.quality.own.value, {}, {}};
  } else if (trial.status == "refused" || trial.status == "failed") {
    cell->kind = trial.status == "refused" ? Kind::refused : Kind::failed;
  }
}

std::vector<Row> filled_rows(const SearchView& view) {
  std::vector<Row> rows = rows_of(view);
  for (const Refusal& refusal : view.refusals)
    for (Row& row : rows)
      if (refusal.block == row.role || refusal.block == row.block)
        if (Cell* cell = cell_at(view, rows, row.block, refusal.choice)) cell->kind = Kind::refused;
  if (const Trial* baseline = view.baseline()) {
    for (const auto& [block, choice] : choices_of(view, *baseline))
      if (Cell* cell = cell_at(view, rows, block, choice)) cell->kind = Kind::baseline;
    for (const Trial& trial : view.trials) fill(view, trial, *baseline, rows);
  }
  return rows;
}

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

std::string cell_html(const SearchView& view, const Cell& cell, double most) {
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
  if (view.trials.empty() || !view.baseline() || view.choices.empty() || view.choices.size() > 64) return "";
  const std::vector<Row> rows = filled_rows(view);
  double most = 0;
  bool any = false;
  for (const Row& row : rows)
    for (const Cell& cell : row.cells) {
      any |= cell.kind == Kind::measured;
      if (is_clear(cell.difference)) most = std::max(most, std::abs(*cell.difference.value));
    }
  if (!any) return "";
  std::string head = head_cell(view.per_layer ? "layer" : "block"), body;
  for (const std::string& choice : view.choices) head += head_cell(choice);
  for (const Row& row : rows) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", escaped(row.block));
    for (const Cell& cell : row.cells) body += cell_html(view, cell, most);
    body += "</tr>\n";
  }
  return scrolled("Quality by block", table_html(head, body, "", " class=\"blocks\""));
}

}  // namespace attnkit::cli
