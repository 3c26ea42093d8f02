#include "hosts/cli/search/report/plots.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "hosts/cli/search/report/figure.hpp"
#include "hosts/cli/search/report/labels.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

constexpr Canvas canvas{760, 440, 82, 22, 18, 52};
constexpr double largest_disc = 13, letter = 6.7;  // pixels
constexpr size_t longest_label = 40;

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
  double most = 0;
  for (const Trial& t : view.trials)
    if (is_drawn(t)) most = std::max(most, memory_of(view, t).value_or(0));
  for (const Trial& t : view.trials) {
    if (!is_drawn(t)) continue;
    const double share = most > 0 ? memory_of(view, t).value_or(0) / most : 0.25;
    discs.push_back({&t, *t.cost.ratio, *t.quality.value, std::max(2.0, largest_disc * std::sqrt(share))});
  }
  std::stable_sort(discs.begin(), discs.end(), [](const Disc& a, const Disc& b) {
    return a.trial->named() != b.trial->named() ? b.trial->named() : a.radius > b.radius;
  });
  return discs;
}

// A round step that divides a span into about five.
double step_of(double span) {
  const double rough = span / 5, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power) return factor * power;
  return 10 * power;
}

std::pair<double, double> padded(double least, double most, double share) {
  const double pad = std::max((most - least) * share, std::max(std::abs(most) * 1e-3, 1e-6));
  return {least - pad, most + pad};
}

Axes axes_of(const SearchView& view, const std::vector<Disc>& discs) {
  double left = 1, right = 1, least = INFINITY, most = -INFINITY;
  for (const Disc& d : discs) {
    left = std::min(left, d.x), right = std::max(right, d.x);
    const bool bars = d.trial->named();
    least = std::min({least, d.y, bars ? d.trial->quality.low.value_or(d.y) : d.y});
    most = std::max({most, d.y, bars ? d.trial->quality.high.value_or(d.y) : d.y});
  }
  std::pair<double, double> y = padded(least, most, 0.06), x = padded(left, right, 0.06);
  const bool wide = right > 8 * left;
  if (wide) x = {left / 1.25, right * 1.25};
  if (view.lower_is_better) std::swap(y.first, y.second);
  return {canvas, x, y, wide, false};
}

std::string tics_of(const SearchView& view, const Axes& axes) {
  const auto [least, most] = axes.y_range();
  const double step = step_of(std::abs(most - least)), first = std::ceil(std::min(least, most) / step) * step;
  // No tic above what the metric can reach.
  const double last = *quality_unit(view) ? std::min(100.0, std::max(least, most)) : std::max(least, most);
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

// What labels should not cover: discs, bars, and the front's line as a row of small boxes.
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
        const double width = letter * static_cast<double>(std::min(width_of(texts.back()), longest_label));
        wishes.push_back({axes.x(d.x), axes.y(d.y), d.radius, width});
      }
  const Box area{canvas.left + 6.0, canvas.top * 1.0, canvas.width - 4.0, canvas.height - canvas.bottom - 6.0};
  const std::vector<LabelPlace> places = place_labels(wishes, obstacles_of(discs, front, axes), area);
  std::string out;
  for (size_t i = 0; i < places.size(); ++i) {
    const LabelPlace& p = places[i];
    out += label_at(canvas, (p.box.left + p.box.right) / 2, (p.box.top + p.box.bottom) / 2, texts[i],
                    fmt::format("center tc rgb {}", colour("ink")));
    if (p.leader) out += line_at(canvas, p.from_x, p.from_y, p.to_x, p.to_y, "muted");
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

}  // namespace

bool is_drawn(const Trial& trial) {
  return trial.quality.value && trial.cost.ratio && (trial.named() || trial.status != "limited");
}

const char* area_name(const SearchView& view) {
  const auto any = [&](auto has) { return std::any_of(view.trials.begin(), view.trials.end(), has); };
  if (any([](const Trial& t) { return t.cost.peak_bytes.has_value(); })) return "peak memory";
  return any([](const Trial& t) { return t.cost.state_bytes.has_value(); }) ? "state" : "";
}

std::string named_label(const Trial& trial) {
  const std::string kind = trial.winner && trial.baseline ? "winner, the baseline"
                           : trial.winner                 ? "winner"
                                                          : "baseline";
  // Layer by layer a name would be longer than the figure is wide.
  const bool mixed = std::any_of(trial.blocks.begin(), trial.blocks.end(), [](const auto& block) {
    return std::adjacent_find(block.second.begin(), block.second.end(), std::not_equal_to<>()) != block.second.end();
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
  std::string script = figure_head(canvas) + axes.ranges() + tics_of(view, axes);
  script += fmt::format("set grid lt 1 lw 0.6 lc rgb {}\n", colour("rule"));
  script += fmt::format("set xlabel {} tc rgb {}\n",
                        script_text(fmt::format("{}, times that of the baseline{}",
                                                view.decodes ? "decode throughput" : "throughput of whole sequences",
                                                view.length ? fmt::format(", at {} tokens", view.length) : ""),
                                    120),
                        colour("ink"));
  const std::string unit = *quality_unit(view) ? ", %" : view.lower_is_better ? " (lower is better)" : "";
  script += fmt::format("set ylabel {} tc rgb {}\n", script_text(metric_name(view) + unit), colour("ink"));
  script += line_at(canvas, axes.x(1), canvas.height - canvas.bottom, axes.x(1), canvas.top, "other", "back");
  const Points front = front_of(view, discs);
  std::vector<std::string> hints;
  script += data_of(discs) + front_data(front) + labels_of(view, discs, front, axes) + plot_of(view, discs, hints);
  return figure_svg(canvas, script, "f1", "Quality against speed", hints);
}

}  // namespace attnkit::cli
