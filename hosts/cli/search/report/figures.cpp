#include "hosts/cli/search/report/figures.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/report/figure.hpp"

namespace attnkit::cli {
namespace {

// Quality against speed.
constexpr Canvas disc_canvas{760, 440, 82, 22, 18, 52};
constexpr double max_disc = 13, letter = 6.7;  // pixels
constexpr size_t max_disc_label = 40;

struct Disc {
  const Trial* trial;
  double x, y, radius;  // in the axes' units; pixels
};

std::optional<double> memory_of(const SearchView& view, const Trial& trial) {
  return std::string_view(area_name(view)) == "state" ? trial.cost.state_bytes : trial.cost.peak_bytes;
}

// The largest first, those with names last, so that none hides another.
std::vector<Disc> discs_of(const SearchView& view) {
  std::vector<Disc> discs;
  double high = 0;
  for (const Trial& t : view.trials)
    if (is_drawn(t)) high = std::max(high, memory_of(view, t).value_or(0));
  for (const Trial& t : view.trials) {
    if (!is_drawn(t)) continue;
    const double share = high > 0 ? memory_of(view, t).value_or(0) / high : 0.25;
    discs.push_back({&t, *t.cost.ratio, *t.quality.value, std::max(2.0, max_disc * std::sqrt(share))});
  }
  std::ranges::stable_sort(discs, {}, [](const Disc& d) { return std::pair(d.trial->named(), -d.radius); });
  return discs;
}

// A round step that divides a span into about five.
double step_of(double span) {
  const double rough = span / 5, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power) return factor * power;
  return 10 * power;
}

std::pair<double, double> padded(double low, double high, double share) {
  const double pad = std::max((high - low) * share, std::max(std::abs(high) * 1e-3, 1e-6));
  return {low - pad, high + pad};
}

Axes axes_of(const SearchView& view, const std::vector<Disc>& discs) {
  double left = 1, right = 1, low = INFINITY, high = -INFINITY;
  for (const Disc& d : discs) {
    left = std::min(left, d.x), right = std::max(right, d.x);
    const bool bars = d.trial->named();
    low = std::min({low, d.y, bars ? d.trial->quality.low.value_or(d.y) : d.y});
    high = std::max({high, d.y, bars ? d.trial->quality.high.value_or(d.y) : d.y});
  }
  std::pair<double, double> y = padded(low, high, 0.06), x = padded(left, right, 0.06);
  const bool wide = right > 8 * left;
  if (wide) x = {left / 1.25, right * 1.25};
  if (view.lower_is_better) std::swap(y.first, y.second);
  return {disc_canvas, x, y, wide, false};
}

std::string tics_of(const SearchView& view, const Axes& axes) {
  const auto [low, high] = axes.y_range;
  const double step = step_of(std::abs(high - low)), first = std::ceil(std::min(low, high) / step) * step;
  // No tic above what the metric can reach.
  const double last = *quality_unit(view) ? std::min(100.0, std::max(low, high)) : std::max(low, high);
  return fmt::format("set ytics {},{},{}\n", first, step, last + step * 1e-6);
}

std::string hint_of(const SearchView& view, const Trial& t) {
  std::string hint = t.rank > 0 ? fmt::format("rank {}: ", t.rank) : "";
  hint += fmt::format("{}; {}{}, {}x", short_name(t), quality_text(view, t.quality.value), quality_unit(view),
                      fixed_text(t.cost.ratio, 2));
  const std::optional<double> memory = memory_of(view, t);
  return memory ? fmt::format("{}, {} {}", hint, area_name(view), memory_text(memory)) : hint;
}

std::string data_of(const std::vector<Disc>& discs) {
  std::string out = "$discs << EOD\n";
  for (const Disc& d : discs)
    out += fmt::format("{} {} {} {} {}\n", d.x, d.y, d.radius / 4.5, d.trial->quality.low.value_or(d.y),
                       d.trial->quality.high.value_or(d.y));
  return out + "EOD\n";
}

using Points = std::vector<std::pair<double, double>>;

// Those of the front that nothing beats in this figure's two dimensions, from right to left.
Points front_of(const SearchView& view, const std::vector<Disc>& discs) {
  const double sign = view.lower_is_better ? -1 : 1;
  Points all, front;
  for (const Disc& d : discs)
    if (d.trial->pareto) all.emplace_back(d.x, sign * d.y);
  std::sort(all.rbegin(), all.rend());
  double best = -INFINITY;
  for (const auto& [x, y] : all)
    if (y > best) best = y, front.emplace_back(x, sign * y);
  return front;
}

std::string front_data(const Points& front) {
  std::string out = "$front << EOD\n";
  for (const auto& [x, y] : front) out += fmt::format("{} {}\n", x, y);
  return out + "EOD\n";
}

// Boxes that labels should not cover: discs, bars, and the front's line as a row of small boxes.
std::vector<Box> obstacles_of(const std::vector<Disc>& discs, const Points& front, const Axes& axes) {
  std::vector<Box> boxes;
  for (const Disc& d : discs) {
    const double x = axes.x(d.x), y = axes.y(d.y);
    boxes.push_back({x - d.radius, y - d.radius, x + d.radius, y + d.radius});
    if (!d.trial->named()) continue;
    const double low = axes.y(d.trial->quality.low.value_or(d.y)), high = axes.y(d.trial->quality.high.value_or(d.y));
    boxes.push_back({x - 3, std::min(low, high), x + 3, std::max(low, high)});
  }
  for (size_t i = 1; i < front.size(); ++i) {
    const double x = axes.x(front[i - 1].first), y = axes.y(front[i - 1].second);
    const double dx = axes.x(front[i].first) - x, dy = axes.y(front[i].second) - y;
    const int steps = 1 + static_cast<int>(std::hypot(dx, dy) / 5);
    for (int s = 0; s <= steps; ++s) {
      const double px = x + dx * s / steps, py = y + dy * s / steps;
      boxes.push_back({px - 3, py - 3, px + 3, py + 3});
    }
  }
  return boxes;
}

std::string labels_of(const SearchView& view, const std::vector<Disc>& discs, const Points& front, const Axes& axes) {
  std::vector<LabelWish> wishes;
  std::vector<std::string> texts;
  for (const Trial* t : view.named())
    for (const Disc& d : discs)
      if (d.trial == t) {
        texts.push_back(named_label(*t));
        const double width = letter * static_cast<double>(std::min(width_of(texts.back()), max_disc_label));
        wishes.push_back({axes.x(d.x), axes.y(d.y), d.radius, width});
      }
  const Box area{disc_canvas.left + 6.0, disc_canvas.top * 1.0, disc_canvas.width - 4.0,
                 disc_canvas.height - disc_canvas.bottom - 6.0};
  const std::vector<LabelPlace> places = place_labels(wishes, obstacles_of(discs, front, axes), area);
  std::string out;
  for (size_t i = 0; i < places.size(); ++i) {
    const LabelPlace& p = places[i];
    out += label_at(disc_canvas, (p.box.left + p.box.right) / 2, (p.box.top + p.box.bottom) / 2, texts[i],
                    fmt::format("center tc rgb {}", colour("ink")));
    if (p.leader) out += line_at(disc_canvas, p.from_x, p.from_y, p.to_x, p.to_y, "muted");
  }
  return out;
}

// One plot for each mark, with a hint over it.
std::string plot_of(const SearchView& view, const std::vector<Disc>& discs, std::vector<std::string>& hints) {
  std::string out = fmt::format("plot $front using 1:2 with lines lc rgb {} lw 1.5", colour("front"));
  hints = {"Pareto front"};
  for (size_t i = 0; i < discs.size(); ++i) {
    const Trial& t = *discs[i].trial;
    const auto add = [&](const std::string& columns, const std::string& style, const std::string& hue) {
      out += fmt::format(", $discs every ::{}::{} using {} with {} lc rgb {}", i, i, columns, style, hue);
      hints.push_back(hint_of(view, t));
    };
    const std::string disc = "points pt 7 ps variable";
    if (!t.named()) {
      add("1:2:3", disc, colour(t.pareto ? "front" : "other", 0.5));
      continue;
    }
    add("1:2:($3+0.35)", disc, colour("paper"));
    add("1:2:3", disc, colour(named_colour(view, t), 0.9));
    if (t.quality.low && t.quality.high) add("1:4:(0):($5-$4)", "vectors nohead lw 1.2", colour(named_colour(view, t)));
  }
  return out + "\n";
}

// The effect of each mechanism on quality in a block when nothing else changes.
constexpr size_t max_choice = 24;
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
    for (const auto& [block, choice] : choices_of(view, *baseline))
      if (Cell* cell = cell_at(view, rows, block, choice)) cell->kind = Kind::baseline;
    for (const Trial& trial : view.trials) fill(view, trial, *baseline, rows);
  }
  return rows;
}

// Four steps to each side, by square roots so that one large difference does not bleach the others.
std::string hue_of(const SearchView& view, const Cell& cell, double high) {
  const double better = view.lower_is_better ? -cell.delta : cell.delta;
  const long step = high > 0 ? std::lround(4 * std::sqrt(std::abs(better) / high)) : 0;
  if (cell.kind != Kind::measured || step == 0) return "even";
  return fmt::format("{}{}", better > 0 ? "good" : "bad", step);
}

std::string text_of(const SearchView& view, const Cell& cell) {
  constexpr const char* names[] = {"", "baseline", "", "refused", "failed"};  // by kind
  return cell.kind == Kind::measured ? signed_text(cell.delta, view.lower_is_better ? 4 : 2)
                                     : names[static_cast<size_t>(cell.kind)];
}

Canvas canvas_of(const SearchView& view, const std::vector<Row>& rows) {
  size_t block = 8, choice = 8;
  for (const Row& row : rows) block = std::max(block, width_of(row.block));
  for (const std::string& c : view.choices) choice = std::max(choice, std::min(width_of(c), max_choice));
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
    out += fmt::format("{}{} {}", c ? "," : "", tic_text(view.choices[c], max_choice), c);
  out += ")\nset ytics (";
  for (size_t r = 0; r < rows.size(); ++r) out += fmt::format("{}{} {}", r ? "," : "", tic_text(rows[r].block), r);
  return out + fmt::format(")\nset tics tc rgb {}\n", colour("ink"));
}

std::string cells_of(const SearchView& view, const std::vector<Row>& rows) {
  double high = 0;
  for (const Row& row : rows)
    for (const Cell& cell : row.cells) high = std::max(high, std::abs(cell.delta));
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t c = 0; c < rows[r].cells.size(); ++c) {
      const Cell& cell = rows[r].cells[c];
      const bool hatched = cell.kind == Kind::refused || cell.kind == Kind::failed, quiet = cell.kind != Kind::measured;
      const std::string place =
          fmt::format("set object rect center first {},{} size first 0.97,0.94 behind noclip ", c, r);
      if (cell.kind == Kind::empty) continue;
      out += place + fmt::format("fs solid noborder fc rgb {}\n", colour(hue_of(view, cell, high)));
      if (hatched) out += place + fmt::format("fs pattern 4 noborder fc rgb {}\n", colour("hatch"));
      out += fmt::format("set label {} at first {},{} center front tc rgb {}\n", script_text(text_of(view, cell)), c, r,
                         colour(quiet ? "muted" : "ink"));
    }
  return out;
}

// Speed against length.
constexpr double line_height = 16;  // pixels
constexpr size_t max_line_label = 34;

struct Line {
  const Trial* trial;
  std::vector<std::pair<double, double>> points;  // length, tokens per second
  double label_y = 0;                             // pixels
};

std::vector<Line> lines_of(const SearchView& view) {
  std::vector<Line> lines;
  for (const Trial* t : view.named()) {
    Line line{t, {}};
    for (const Cost& cost : t->costs)
      if (cost.speed && cost.length > 0) line.points.emplace_back(cost.length, *cost.speed);
    if (line.points.size() > 1) lines.push_back(line);
  }
  return lines;
}

Canvas canvas_of(const std::vector<Line>& lines) {
  size_t widest = 0;
  for (const Line& line : lines)
    widest = std::max(widest, std::min(width_of(named_label(*line.trial)), max_line_label));
  return {760, 340, 86, 22 + static_cast<int>(letter * static_cast<double>(widest)), 18, 52};
}

Axes axes_of(const std::vector<Line>& lines, const Canvas& canvas) {
  double first = INFINITY, last = 0, low = INFINITY, high = 0;
  for (const Line& line : lines)
    for (const auto& [length, speed] : line.points) {
      first = std::min(first, length), last = std::max(last, length);
      low = std::min(low, speed), high = std::max(high, speed);
    }
  const bool steep = high > 8 * low;
  return {canvas, {first / 1.12, last * 1.12}, {steep ? low / 1.3 : 0, steep ? high * 1.3 : high * 1.08}, true, steep};
}

// At the height of each line's end, moved apart where they would touch.
void place(std::vector<Line>& lines, const Axes& axes, const Canvas& canvas) {
  for (Line& line : lines) line.label_y = axes.y(line.points.back().second);
  std::vector<Line*> order;
  for (Line& line : lines) order.push_back(&line);
  std::ranges::sort(order, {}, &Line::label_y);
  for (size_t i = 1; i < order.size(); ++i)
    order[i]->label_y = std::max(order[i]->label_y, order[i - 1]->label_y + line_height);
  double floor = canvas.height - canvas.bottom;
  for (size_t i = order.size(); i-- > 0; floor = order[i]->label_y - line_height)
    order[i]->label_y = std::min(order[i]->label_y, floor);
}

std::string length_tics(const std::vector<Line>& lines) {
  std::set<int64_t> lengths;
  for (const Line& line : lines)
    for (const auto& point : line.points) lengths.insert(static_cast<int64_t>(point.first));
  std::string out;
  for (const int64_t length : lengths) out += fmt::format("{}'{}' {}", out.empty() ? "" : ",", length, length);
  return fmt::format("set xtics ({})\n", out);
}

// 1, 2 and 5 of every power of ten on a logarithmic axis, where gnuplot names the powers alone.
std::string speed_tics(const Axes& axes) {
  const auto [low, high] = axes.y_range;
  if (low <= 0) return "";
  std::string out;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double speed = factor * power;
      if (speed < low || speed > high) continue;
      const std::string text =
          speed < 1 ? fmt::format("{:g}", speed) : grouped_text(static_cast<uint64_t>(speed + 0.5));
      out += fmt::format("{}'{}' {}", out.empty() ? "" : ",", text, speed);
    }
  return fmt::format("set ytics ({})\n", out);
}

std::string data_of(const std::vector<Line>& lines) {
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    out += fmt::format("$line{} << EOD\n", i);
    for (const auto& [length, speed] : lines[i].points) out += fmt::format("{} {}\n", length, speed);
    out += "EOD\n";
  }
  return out;
}

std::string labels_of(const SearchView& view, const std::vector<Line>& lines, const Axes& axes, const Canvas& canvas) {
  std::string out;
  for (const Line& line : lines) {
    const double x = axes.x(line.points.back().first), y = axes.y(line.points.back().second);
    const double text_x = canvas.width - canvas.right + 12;
    if (std::abs(y - line.label_y) > 3) out += line_at(canvas, x + 6, y, text_x - 3, line.label_y, "muted");
    out += label_at(canvas, text_x, line.label_y, named_label(*line.trial),
                    fmt::format("left tc rgb {}", colour(named_colour(view, *line.trial))), max_line_label);
  }
  return out;
}

std::string plot_of(const SearchView& view, const std::vector<Line>& lines, std::vector<std::string>& hints) {
  constexpr int shapes[] = {7, 5, 9, 11, 13, 15};
  std::string out;
  // The winner is drawn last, above the others.
  for (const bool winner : {false, true})
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].trial->winner != winner) continue;
      out += fmt::format("{}$line{} using 1:2 with linespoints lw {} pt {} ps 0.9 lc rgb {}",
                         out.empty() ? "plot " : ", ", i, winner ? 2.4 : 1.6, shapes[i % std::size(shapes)],
                         colour(named_colour(view, *lines[i].trial)));
      hints.push_back(named_label(*lines[i].trial));
    }
  return out + "\n";
}

}  // namespace

bool is_drawn(const Trial& trial) {
  return trial.quality.value && trial.cost.ratio && (trial.named() || trial.status != "limited");
}

const char* area_name(const SearchView& view) {
  const auto any = [&](std::optional<double> Cost::*member) {
    return std::ranges::any_of(view.trials, [=](const Trial& t) { return (t.cost.*member).has_value(); });
  };
  return any(&Cost::peak_bytes) ? "peak memory" : any(&Cost::state_bytes) ? "state" : "";
}

std::string named_label(const Trial& trial) {
  const std::string kind = trial.winner && trial.baseline ? "winner, the baseline"
                           : trial.winner                 ? "winner"
                                                          : "baseline";
  // Layer by layer a name would be longer than the figure is wide.
  const bool mixed = std::ranges::any_of(trial.blocks, [](const auto& block) {
    return std::ranges::adjacent_find(block.second, std::ranges::not_equal_to()) != block.second.end();
  });
  if (!trial.winner && !trial.baseline) return short_name(trial);
  return mixed ? kind : kind + ": " + short_name(trial);
}

std::string named_colour(const SearchView& view, const Trial& trial) {
  if (trial.winner) return "winner";
  if (trial.baseline) return "baseline";
  int index = 0;
  for (const Trial* t : view.named()) {
    if (t == &trial) break;
    index += !t->winner && !t->baseline;
  }
  return fmt::format("line{}", index % 6 + 1);
}

std::string quality_figure(const SearchView& view) {
  const std::vector<Disc> discs = discs_of(view);
  if (discs.empty()) return "";
  const Axes axes = axes_of(view, discs);
  std::string script = figure_head(disc_canvas) + axes.ranges() + tics_of(view, axes);
  script += fmt::format("set grid lt 1 lw 0.6 lc rgb {}\n", colour("rule"));
  script += fmt::format("set xlabel {} tc rgb {}\n",
                        script_text(fmt::format("{}, times that of the baseline{}",
                                                view.decodes ? "decode throughput" : "throughput of whole sequences",
                                                view.length ? fmt::format(", at {} tokens", view.length) : ""),
                                    120),
                        colour("ink"));
  const std::string unit = *quality_unit(view) ? ", %" : view.lower_is_better ? " (lower is better)" : "";
  script += fmt::format("set ylabel {} tc rgb {}\n", script_text(metric_name(view) + unit), colour("ink"));
  script += line_at(disc_canvas, axes.x(1), disc_canvas.height - disc_canvas.bottom, axes.x(1), disc_canvas.top,
                    "other", "back");
  const Points front = front_of(view, discs);
  std::vector<std::string> hints;
  script += data_of(discs) + front_data(front) + labels_of(view, discs, front, axes) + plot_of(view, discs, hints);
  return figure_svg(disc_canvas, script, "f1", "Quality against speed", hints);
}

std::string ablation_figure(const SearchView& view) {
  if (view.trials.empty() || !view.baseline() || view.choices.empty() || view.choices.size() > 64) return "";
  const std::vector<Row> rows = filled_rows(view);
  if (std::ranges::none_of(rows, [](const Row& r) { return std::ranges::count(r.cells, Kind::measured, &Cell::kind); }))
    return "";
  const Canvas canvas = canvas_of(view, rows);
  const std::string script = figure_head(canvas) + axes_of(view, rows) + cells_of(view, rows) + "plot NaN notitle\n";
  return figure_svg(canvas, script, "f2", "Quality by block and mechanism");
}

std::string length_figure(const SearchView& view) {
  std::vector<Line> lines = lines_of(view);
  if (lines.empty()) return "";
  const Canvas canvas = canvas_of(lines);
  const Axes axes = axes_of(lines, canvas);
  place(lines, axes, canvas);
  std::string script = figure_head(canvas) + axes.ranges() + length_tics(lines) + speed_tics(axes);
  script += fmt::format("set grid lt 1 lw 0.6 lc rgb {}\n", colour("rule"));
  script += fmt::format("set xlabel 'length, tokens' tc rgb {}\n", colour("ink"));
  script += fmt::format("set ylabel '{}, tokens/s' tc rgb {}\n", view.decodes ? "decode throughput" : "throughput",
                        colour("ink"));
  std::vector<std::string> hints;
  script += data_of(lines) + labels_of(view, lines, axes, canvas) + plot_of(view, lines, hints);
  return figure_svg(canvas, script, "f3", "Speed against length", hints);
}

}  // namespace attnkit::cli
