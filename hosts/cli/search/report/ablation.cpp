// The figure of what each mechanism does to quality in each block alone.
#include <algorithm>
#include <cmath>

#include "hosts/cli/search/report/figure.hpp"
#include "hosts/cli/search/report/plots.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

constexpr size_t longest_choice = 24;
constexpr int row_height = 40;  // pixels

enum class Kind { empty, baseline, measured, refused, failed };

struct Cell {
  Kind kind = Kind::empty;
  double delta = 0;  // quality less that of the baseline
};

struct Row {
  std::string block, role;
  std::vector<Cell> cells;
};

using Sites = std::vector<std::pair<std::string, std::string>>;  // row name, choice

Sites sites_of(const SearchView& view, const Trial& trial) {
  Sites sites;
  for (const auto& [role, layers] : trial.blocks) {
    if (!view.per_layer) sites.emplace_back(role, layers_text(layers));
    for (size_t l = 0; view.per_layer && l < layers.size(); ++l)
      sites.emplace_back(fmt::format("{}.{}", role, l + 1), layers[l]);
  }
  return sites;
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

// Where one block alone differs from the baseline, that block's cell; the baseline itself fills one cell of each row.
void fill(const SearchView& view, const Trial& trial, const Trial& baseline, std::vector<Row>& rows) {
  const Sites own = sites_of(view, trial), base = sites_of(view, baseline);
  if (own.size() != base.size()) return;
  std::vector<size_t> differing;
  for (size_t s = 0; s < own.size(); ++s)
    if (own[s] != base[s]) differing.push_back(s);
  if (differing.size() != 1) return;
  const auto& [block, choice] = own[differing.front()];
  Cell* cell = cell_at(view, rows, block, choice);
  if (!cell) return;
  if (trial.quality.value && baseline.quality.value)
    *cell = {Kind::measured, trial.quality.difference.value_or(*trial.quality.value - *baseline.quality.value)};
  else if (trial.status == "refused" || trial.status == "failed")
    cell->kind = trial.status == "refused" ? Kind::refused : Kind::failed;
}

std::vector<Row> filled_rows(const SearchView& view) {
  std::vector<Row> rows = rows_of(view);
  for (const Refusal& refusal : view.refusals)
    for (Row& row : rows)
      if (refusal.block == row.role || refusal.block == row.block)
        if (Cell* cell = cell_at(view, rows, row.block, refusal.choice)) cell->kind = Kind::refused;
  if (const Trial* baseline = view.baseline()) {
    for (const auto& [block, choice] : sites_of(view, *baseline))
      if (Cell* cell = cell_at(view, rows, block, choice)) cell->kind = Kind::baseline;
    for (const Trial& trial : view.trials) fill(view, trial, *baseline, rows);
  }
  return rows;
}

// Four steps to each side, by square roots so that one large difference does not bleach the others.
std::string hue_of(const SearchView& view, const Cell& cell, double most) {
  const double better = view.lower_is_better ? -cell.delta : cell.delta;
  const long step = most > 0 ? std::lround(4 * std::sqrt(std::abs(better) / most)) : 0;
  if (cell.kind != Kind::measured || step == 0) return "even";
  return fmt::format("{}{}", better > 0 ? "good" : "bad", step);
}

std::string text_of(const SearchView& view, const Cell& cell) {
  switch (cell.kind) {
    case Kind::measured: {
      return signed_text(cell.delta, view.lower_is_better ? 4 : 2);
    }
    case Kind::baseline:
      return "baseline";
    case Kind::refused:
      return "refused";
    default:
      return cell.kind == Kind::failed ? "failed" : "";
  }
}

Canvas canvas_of(const SearchView& view, const std::vector<Row>& rows) {
  size_t block = 8, choice = 8;
  for (const Row& row : rows) block = std::max(block, width_of(row.block));
  for (const std::string& c : view.choices) choice = std::max(choice, std::min(width_of(c), longest_choice));
  const int column = static_cast<int>(choice) * 7 + 22, left = static_cast<int>(block) * 7 + 20;
  return {left + column * static_cast<int>(view.choices.size()) + 2,
          32 + row_height * static_cast<int>(rows.size()) + 4,
          left,
          2,
          32,
          4};
}

std::string axes_of(const SearchView& view, const std::vector<Row>& rows) {
  std::string out = fmt::format("set xrange [-0.5:{}.5]\nset yrange [{}.5:-0.5]\nset link x2\n",
                                static_cast<int>(view.choices.size()) - 1, static_cast<int>(rows.size()) - 1);
  out += "unset xtics\nunset border\nset tics scale 0\nset x2tics nomirror offset 0,-0.3 (";
  for (size_t c = 0; c < view.choices.size(); ++c)
    out += fmt::format("{}{} {}", c ? "," : "", tic_text(view.choices[c], longest_choice), c);
  out += ")\nset ytics (";
  for (size_t r = 0; r < rows.size(); ++r) out += fmt::format("{}{} {}", r ? "," : "", tic_text(rows[r].block), r);
  return out + fmt::format(")\nset tics tc rgb {}\n", colour("ink"));
}

std::string cells_of(const SearchView& view, const std::vector<Row>& rows) {
  double most = 0;
  for (const Row& row : rows)
    for (const Cell& cell : row.cells) most = std::max(most, std::abs(cell.delta));
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t c = 0; c < rows[r].cells.size(); ++c) {
      const Cell& cell = rows[r].cells[c];
      const bool hatched = cell.kind == Kind::refused || cell.kind == Kind::failed, quiet = cell.kind != Kind::measured;
      const std::string place =
          fmt::format("set object rect center first {},{} size first 0.97,0.94 behind noclip ", c, r);
      if (cell.kind == Kind::empty) continue;
      out += place + fmt::format("fs solid noborder fc rgb {}\n", colour(hue_of(view, cell, most)));
      if (hatched) out += place + fmt::format("fs pattern 4 noborder fc rgb {}\n", colour("hatch"));
      out += fmt::format("set label {} at first {},{} center front tc rgb {}\n", script_text(text_of(view, cell)), c, r,
                         colour(quiet ? "muted" : "ink"));
    }
  return out;
}

}  // namespace

std::string ablation_figure(const SearchView& view) {
  if (view.trials.empty() || !view.baseline() || view.choices.empty() || view.choices.size() > 64) return "";
  const std::vector<Row> rows = filled_rows(view);
  const bool any = std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return std::any_of(row.cells.begin(), row.cells.end(), [](const Cell& c) { return c.kind == Kind::measured; });
  });
  if (!any) return "";
  const Canvas canvas = canvas_of(view, rows);
  const std::string script = figure_head(canvas) + axes_of(view, rows) + cells_of(view, rows) + "plot NaN notitle\n";
  return figure_svg(canvas, script, "f2", "Quality by block and mechanism");
}

}  // namespace attnkit::cli
