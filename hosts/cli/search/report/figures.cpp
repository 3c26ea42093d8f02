#include "hosts/cli/search/report/figures.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/report/figure.hpp"

namespace attnkit::cli {
namespace {

// Quality against speed.
constexpr double max_disc = 13, letter = 6.7;  // pixels
constexpr size_t max_ranks = 12;               // more numbers would cover the points

Canvas disc_canvas(Width width) {
  return width == Width::wide ? Canvas{760, 440, 82, 22, 18, 52} : Canvas{372, 388, 64, 10, 12, 58};
}

// If there is no room for the mechanisms, the kind alone.
std::string figure_label(const Trial& trial, const Canvas& canvas) {
  const std::string label = named_label(trial);
  const size_t room = canvas.width < 500 ? 14 : 40;
  if (width_of(label) <= room || !(trial.winner || trial.baseline)) return shortened(label, room);
  return label.substr(0, label.find(':'));
}

struct Disc {
  const Trial* trial;
  double x, y, radius;  // in the axes' units; pixels
};

std::optional<double> memory_of(const SearchView& view, const Trial& trial) {
  return std::string_view(area_name(view)) == "state" ? trial.cost.state_bytes : trial.peak_bytes;
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
    discs.push_back({&t, *t.throughput.value, *t.quality.own.value, std::max(2.0, max_disc * std::sqrt(share))});
  }
  std::ranges::stable_sort(discs, {},
                           [](const Disc& d) { return std::tuple(d.trial->named(), d.trial->top, -d.radius); });
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

// Its intervals are drawn.
bool has_bars(const Trial& trial) { return trial.named() || trial.top; }

Axes axes_of(const SearchView& view, const std::vector<Disc>& discs, const Canvas& canvas) {
  double left = 1, right = 1, low = INFINITY, high = -INFINITY;
  const auto reach = [](const Disc& d, const Estimate& e, double at, double& from, double& to) {
    const bool bars = has_bars(*d.trial);
    from = std::min({from, at, bars ? e.low.value_or(at) : at});
    to = std::max({to, at, bars ? e.high.value_or(at) : at});
  };
  for (const Disc& d : discs) {
    reach(d, d.trial->throughput, d.x, left, right);
    reach(d, d.trial->quality.own, d.y, low, high);
  }
  std::pair<double, double> y = padded(low, high, 0.06), x = padded(left, right, 0.06);
  const bool is_wide = right > 8 * left;
  if (is_wide) x = {left / 1.25, right * 1.25};
  if (view.lower_is_better) std::swap(y.first, y.second);
  return {canvas, x, y, is_wide, false};
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
  hint += fmt::format("{}; {}{}, {}x", short_name(t), quality_text(view, t.quality.own.value), quality_unit(view),
                      fixed_text(t.throughput.value, 2));
  if (const std::optional<double> memory = memory_of(view, t))
    hint += fmt::format(", {} {}", area_name(view), memory_text(memory));
  return t.screened ? fmt::format("{}; screened, n = {}", hint, t.quality.lists) : hint;
}

std::string data_of(const std::vector<Disc>& discs) {
  std::string out = "$discs << EOD\n";
  for (const Disc& d : discs) {
    const Estimate &q = d.trial->quality.own, &t = d.trial->throughput;
    out += fmt::format("{} {} {} {} {} {} {}\n", d.x, d.y, d.radius / 4.5, q.low.value_or(d.y), q.high.value_or(d.y),
                       t.low.value_or(d.x), t.high.value_or(d.x));
  }
  return out + "EOD\n";
}

using Points = std::vector<std::pair<double, double>>;

// Those of the front that nothing beats in this figure's two dimensions, from right to left.  Measured on fewer
// examples a placement may stand above the line by luck.
Points front_of(const SearchView& view, const std::vector<Disc>& discs) {
  const double sign = view.lower_is_better ? -1 : 1;
  Points all, front;
  for (const Disc& d : discs)
    if (d.trial->pareto && d.trial->comparable) all.emplace_back(d.x, sign * d.y);
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
    if (!has_bars(*d.trial)) continue;
    const Estimate &q = d.trial->quality.own, &t = d.trial->throughput;
    const double low = axes.y(q.low.value_or(d.y)), high = axes.y(q.high.value_or(d.y));
    boxes.push_back({x - 3, std::min(low, high), x + 3, std::max(low, high)});
    boxes.push_back({axes.x(t.low.value_or(d.x)), y - 3, axes.x(t.high.value_or(d.x)), y + 3});
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

// Names, and for what is tied with the winner its rank.
std::string labels_of(const SearchView& view, const std::vector<Disc>& discs, const Points& front, const Axes& axes) {
  const Canvas& canvas = axes.canvas;
  std::vector<LabelWish> wishes;
  std::vector<std::string> texts;
  const auto wish = [&](const Trial* t, const std::string& text) {
    for (const Disc& d : discs)
      if (d.trial == t) {
        texts.push_back(text);
        wishes.push_back({axes.x(d.x), axes.y(d.y), d.radius, letter * static_cast<double>(width_of(text))});
      }
  };
  for (const Trial* t : view.named()) wish(t, figure_label(*t, canvas));
  const std::vector<const Trial*> tied = view.tied();
  for (const Trial* t : tied)
    if (!t->named() && t->rank > 0 && tied.size() <= max_ranks) wish(t, std::to_string(t->rank));
  const Box area{canvas.left + 6.0, canvas.top * 1.0, canvas.width - 4.0, canvas.height - canvas.bottom - 6.0};
  const std::vector<LabelPlace> places = place_labels(wishes, obstacles_of(discs, front, axes), area);
  std::string out;
  for (size_t i = 0; i < places.size(); ++i) {
    const LabelPlace& p = places[i];
    out += label_at(canvas, (p.box.left + p.box.right) / 2, (p.box.top + p.box.bottom) / 2, texts[i],
                    fmt::format("center tc rgb {}", colour("ink")));
    if (p.leader) out += leader_at(canvas, p.from_x, p.from_y, p.to_x, p.to_y);
  }
  return out;
}

std::string disc_hue(const SearchView& view, const Trial& t) {
  if (t.named()) return named_colour(view, t);
  return t.top ? "winner" : t.pareto && t.comparable ? "front" : "other";
}

// One plot for each mark, with a hint over it.
std::string plot_of(const SearchView& view, const std::vector<Disc>& discs, std::vector<std::string>& hints) {
  std::string out = fmt::format("plot $front using 1:2 with lines lc rgb {} lw 1.5", colour("front"));
  hints = {"Pareto front"};
  for (size_t i = 0; i < discs.size(); ++i) {
    const Trial& t = *discs[i].trial;
    const std::string hue = disc_hue(view, t);
    const auto add = [&](const std::string& columns, const std::string& style, const std::string& pen) {
      out += fmt::format(", $discs every ::{}::{} using {} with {} lc rgb {}", i, i, columns, style, pen);
      hints.push_back(hint_of(view, t));
    };
    if (t.named()) add("1:2:($3+0.35)", "points pt 7 ps variable", colour("paper"));
    if (t.screened)
      add("1:2:3", "points pt 6 ps variable lw 1.2", colour(hue));
    else
      add("1:2:3", "points pt 7 ps variable", colour(hue, t.named() ? 0.9 : 0.5));
    if (!has_bars(t)) continue;
    const std::string bar = fmt::format("vectors nohead lw {}", t.named() ? 1.2 : 0.7);
    if (t.quality.own.has_interval()) add("1:4:(0):($5-$4)", bar, colour(hue));
    if (t.throughput.has_interval()) add("6:2:($7-$6):(0)", bar, colour(hue));
  }
  return out + "\n";
}

// The picture in words, for those who cannot see it.
std::string quality_alternative(const SearchView& view, const std::vector<Disc>& discs, const Points& front) {
  std::string out =
      fmt::format("{} by {} against throughput.", counted_text(discs.size(), "placement"), metric_name(view));
  for (const Trial* t : view.named()) out += fmt::format(" {}: {}.", named_label(*t), hint_of(view, *t));
  if (!front.empty())
    out += fmt::format(
        " The Pareto front goes from {}{} at {:.2f} times the baseline's throughput to {}{} at {:.2f} times.",
        quality_text(view, front.back().second), quality_unit(view), front.back().first,
        quality_text(view, front.front().second), quality_unit(view), front.front().first);
  return out + " All numbers are in the table of all placements.";
}

// Speed against length.
constexpr double line_height = 16;  // pixels

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

Canvas canvas_of(const std::vector<Line>& lines, Width width) {
  Canvas canvas = width == Width::wide ? Canvas{760, 340, 86, 22, 18, 52} : Canvas{372, 328, 66, 16, 12, 58};
  size_t widest = 0;
  for (const Line& line : lines) widest = std::max(widest, width_of(figure_label(*line.trial, canvas)));
  canvas.right += static_cast<int>(letter * static_cast<double>(widest));
  return canvas;
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

std::string labels_of(const std::vector<Line>& lines, const Axes& axes, const Canvas& canvas) {
  std::string out;
  for (const Line& line : lines) {
    const double x = axes.x(line.points.back().first), y = axes.y(line.points.back().second);
    const double text_x = canvas.width - canvas.right + 12;
    if (std::abs(y - line.label_y) > 3) out += leader_at(canvas, x + 6, y, text_x - 3, line.label_y);
    out += label_at(canvas, text_x, line.label_y, figure_label(*line.trial, canvas),
                    fmt::format("left tc rgb {}", colour("ink")));
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

std::string length_alternative(const SearchView& view, const std::vector<Line>& lines) {
  std::string out = fmt::format("{} in tokens per second by length in tokens.",
                                view.decodes ? "Decode throughput" : "Throughput of whole sequences");
  for (const Line& line : lines) {
    out += fmt::format(" {}:", named_label(*line.trial));
    for (const auto& [length, speed] : line.points)
      out += fmt::format("{} {} at {}", &length == &line.points.front().first ? "" : ",",
                         grouped_text(static_cast<uint64_t>(std::clamp(speed, 0.0, 1e15) + 0.5)), length);
    out += ".";
  }
  return out;
}

}  // namespace

bool is_drawn(const Trial& trial) {
  return trial.quality.own.value && trial.throughput.value && (trial.named() || trial.status != "limited");
}

const char* area_name(const SearchView& view) {
  if (std::ranges::any_of(view.trials, [](const Trial& t) { return t.peak_bytes.has_value(); })) return "peak memory";
  const auto has_state = [](const Trial& t) { return t.cost.state_bytes.has_value(); };
  return std::ranges::any_of(view.trials, has_state) ? "state" : "";
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

std::string quality_figure(const SearchView& view, Width width) {
  const std::vector<Disc> discs = discs_of(view);
  if (discs.empty()) return "";
  const Canvas canvas = disc_canvas(width);
  const Axes axes = axes_of(view, discs, canvas);
  std::string script = figure_head(canvas) + axes.ranges() + tics_of(view, axes);
  script += fmt::format("set grid lt 1 lw 0.6 lc rgb {}\n", colour("rule"));
  script += fmt::format("set xlabel {} tc rgb {}\n",
                        script_text(fmt::format("{}, times the baseline\u2019s{}",
                                                view.decodes ? "decode throughput" : "throughput of whole sequences",
                                                view.length ? fmt::format(", {} tokens", view.length) : ""),
                                    120),
                        colour("ink"));
  const std::string unit = *quality_unit(view) ? ", %" : view.lower_is_better ? " (lower is better)" : "";
  script += fmt::format("set ylabel {} tc rgb {}\n", script_text(metric_name(view) + unit + " (dev)"), colour("ink"));
  script += line_at(canvas, axes.x(1), canvas.height - canvas.bottom, axes.x(1), canvas.top, "other", "back");
  const Points front = front_of(view, discs);
  std::vector<std::string> hints;
  script += data_of(discs) + front_data(front) + labels_of(view, discs, front, axes) + plot_of(view, discs, hints);
  return figure_svg(canvas, script, width == Width::wide ? "f1" : "f1n", "Quality against speed",
                    quality_alternative(view, discs, front), hints);
}

std::string length_figure(const SearchView& view, Width width) {
  std::vector<Line> lines = lines_of(view);
  if (lines.empty()) return "";
  const Canvas canvas = canvas_of(lines, width);
  const Axes axes = axes_of(lines, canvas);
  place(lines, axes, canvas);
  std::string script = figure_head(canvas) + axes.ranges() + length_tics(lines) + speed_tics(axes);
  script += fmt::format("set grid lt 1 lw 0.6 lc rgb {}\n", colour("rule"));
  script += fmt::format("set xlabel 'length, tokens' tc rgb {}\n", colour("ink"));
  script += fmt::format("set ylabel '{}, tokens/s' tc rgb {}\n", view.decodes ? "decode throughput" : "throughput",
                        colour("ink"));
  std::vector<std::string> hints;
  script += data_of(lines) + labels_of(lines, axes, canvas) + plot_of(view, lines, hints);
  return figure_svg(canvas, script, width == Width::wide ? "f2" : "f2n", "Speed against length",
                    length_alternative(view, lines), hints);
}

}  // namespace attnkit::cli
