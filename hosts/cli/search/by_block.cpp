#include "hosts/cli/search/by_block.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attnkit::cli {
namespace {

using Kind = BlockCell::Kind;
using BlockChoices = std::vector<std::pair<std::string, std::string>>;  // row name, choice

std::string layer_name(const std::string& role, size_t layer) { return fmt::format("{}.{}", role, layer + 1); }
std::string whole_name(const std::string& role) { return role + ", all layers"; }

bool has_layers(const SearchView& view, const std::vector<std::string>& layers) {
  return view.per_layer && layers.size() > 1;
}

bool is_uniform(const std::vector<std::string>& layers) {
  return !layers.empty() && std::ranges::count(layers, layers.front()) == static_cast<std::ptrdiff_t>(layers.size());
}

BlockChoices choices_of(const SearchView& view, const Trial& trial) {
  BlockChoices choices;
  for (const auto& [role, layers] : trial.blocks) {
    if (!view.per_layer) choices.emplace_back(role, layers_text(layers));
    for (size_t l = 0; view.per_layer && l < layers.size(); ++l) choices.emplace_back(layer_name(role, l), layers[l]);
  }
  return choices;
}

std::vector<BlockRow> empty_rows(const SearchView& view) {
  std::vector<BlockRow> rows;
  const auto add = [&](const std::string& block, const std::string& role) {
    rows.push_back({block, role, std::vector<BlockCell>(view.choices.size())});
  };
  for (const auto& [role, layers] : view.baseline()->blocks) {
    for (size_t l = 0; l < (view.per_layer ? layers.size() : 1); ++l)
      add(view.per_layer ? layer_name(role, l) : role, role);
    if (has_layers(view, layers)) add(whole_name(role), role);
  }
  return rows;
}

BlockCell* cell_at(const SearchView& view, std::vector<BlockRow>& rows, const std::string& block,
                   const std::string& choice) {
  const auto column = static_cast<size_t>(std::ranges::find(view.choices, choice) - view.choices.begin());
  const auto row = std::ranges::find(rows, block, &BlockRow::block);
  return row == rows.end() || column == view.choices.size() ? nullptr : &row->cells[column];
}

// The one block in which they differ, or the role whose layers all have another choice; {} where there is no such.
std::pair<std::string, std::string> change(const SearchView& view, const Trial& trial, const Trial& baseline) {
  const BlockChoices own = choices_of(view, trial), base = choices_of(view, baseline);
  if (own.size() != base.size()) return {};
  std::vector<size_t> differing;
  for (size_t s = 0; s < own.size(); ++s)
    if (own[s] != base[s]) differing.push_back(s);
  if (differing.size() == 1) return own[differing.front()];
  std::vector<std::pair<std::string, std::string>> roles;
  for (const auto& [role, layers] : trial.blocks) {
    const auto* theirs = baseline.layers(role);
    if (!theirs || *theirs == layers) continue;
    roles.emplace_back(whole_name(role), is_uniform(layers) ? layers.front() : "");
  }
  return roles.size() == 1 && view.per_layer ? roles.front() : std::pair<std::string, std::string>();
}

void fill(const SearchView& view, const Trial& trial, const Trial& baseline, std::vector<BlockRow>& rows) {
  const auto [block, choice] = change(view, trial, baseline);
  BlockCell* cell = cell_at(view, rows, block, choice);
  if (!cell) return;
  if (trial.quality.own.value && baseline.quality.own.value) {
    *cell = {Kind::measured, &trial, trial.quality.difference};
    if (!cell->difference.value) cell->difference = {*trial.quality.own.value - *baseline.quality.own.value, {}, {}};
  } else if (trial.status == "refused" || trial.status == "failed") {
    cell->kind = trial.status == "refused" ? Kind::refused : Kind::failed;
  }
}

void fill_baseline(const SearchView& view, const Trial& baseline, std::vector<BlockRow>& rows) {
  for (const auto& [block, choice] : choices_of(view, baseline))
    if (BlockCell* cell = cell_at(view, rows, block, choice)) cell->kind = Kind::baseline;
  for (const auto& [role, layers] : baseline.blocks)
    if (has_layers(view, layers) && is_uniform(layers))
      if (BlockCell* cell = cell_at(view, rows, whole_name(role), layers.front())) cell->kind = Kind::baseline;
}

}  // namespace

std::vector<BlockRow> rows_by_block(const SearchView& view) {
  const Trial* baseline = view.baseline();
  if (!baseline) return {};
  std::vector<BlockRow> rows = empty_rows(view);
  for (const Refusal& refusal : view.refusals)
    for (BlockRow& row : rows)
      if (refusal.block == row.role || refusal.block == row.block)
        if (BlockCell* cell = cell_at(view, rows, row.block, refusal.choice)) cell->kind = Kind::refused;
  fill_baseline(view, *baseline, rows);
  for (const Trial& trial : view.trials) fill(view, trial, *baseline, rows);
  const auto is_measured = [](const BlockRow& row) {
    return std::ranges::count(row.cells, Kind::measured, &BlockCell::kind) > 0;
  };
  return std::ranges::any_of(rows, is_measured) ? rows : std::vector<BlockRow>();
}

}  // namespace attnkit::cli
