// The figure of speed against length.
#include <algorithm>
#include <cmath>

#include "hosts/cli/search/report/figure.hpp"
#include "hosts/cli/search/report/plots.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

constexpr double letter = 6.7, line_height = 16;  // pixels
constexpr size_t longest_label = 34;

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
  for (const Line& line : lines) widest = std::max(widest, std::min(width_of(named_label(*line.trial)), longest_label));
  return {760, 340, 86, 22 + static_cast<int>(letter * static_cast<double>(widest)), 18, 52};
}

Axes axes_of(const std::vector<Line>& lines, const Canvas& canvas) {
  double first = INFINITY, last = 0, least = INFINITY, most = 0;
  for (const Line& line : lines)
    for (const auto& [length, speed] : line.points) {
      first = std::min(first, length), last = std::max(last, length);
      least = std::min(least, speed), most = std::max(most, speed);
    }
  const bool steep = most > 8 * least;
  return {
      canvas, {first / 1.12, last * 1.12}, {steep ? least / 1.3 : 0, steep ? most * 1.3 : most * 1.08}, true, steep};
}

// At the height of each line's end, moved apart where they would touch.
void place(std::vector<Line>& lines, const Axes& axes, const Canvas& canvas) {
  for (Line& line : lines) line.label_y = axes.y(line.points.back().second);
  std::vector<Line*> order;
  for (Line& line : lines) order.push_back(&line);
  std::sort(order.begin(), order.end(), [](const Line* a, const Line* b) { return a->label_y < b->label_y; });
  for (size_t i = 1; i < order.size(); ++i)
    order[i]->label_y = std::max(order[i]->label_y, order[i - 1]->label_y + line_height);
  double floor = canvas.height - canvas.bottom;
  for (size_t i = order.size(); i-- > 0; floor = order[i]->label_y - line_height)
    order[i]->label_y = std::min(order[i]->label_y, floor);
}

std::string tics_of(const std::vector<Line>& lines) {
  std::vector<int64_t> lengths;
  for (const Line& line : lines)
    for (const auto& point : line.points) lengths.push_back(static_cast<int64_t>(point.first));
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  std::string out = "set xtics (";
  for (size_t i = 0; i < lengths.size(); ++i) out += fmt::format("{}'{}' {}", i ? "," : "", lengths[i], lengths[i]);
  return out + ")\n";
}

// 1, 2 and 5 of every power of ten on a logarithmic axis, where gnuplot names the powers alone.
std::string speed_tics(const Axes& axes) {
  const auto [least, most] = axes.y_range();
  if (least <= 0) return "";
  std::string out;
  for (double power = std::pow(10, std::floor(std::log10(least))); power <= most; power *= 10)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double speed = factor * power;
      if (speed < least || speed > most) continue;
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
                    fmt::format("left tc rgb {}", colour(named_colour(view, *line.trial))), longest_label);
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

std::string length_figure(const SearchView& view) {
  std::vector<Line> lines = lines_of(view);
  if (lines.empty()) return "";
  const Canvas canvas = canvas_of(lines);
  const Axes axes = axes_of(lines, canvas);
  place(lines, axes, canvas);
  std::string script = figure_head(canvas) + axes.ranges() + tics_of(lines) + speed_tics(axes);
  script += fmt::format("set grid lt 1 lw 0.6 lc rgb {}\n", colour("rule"));
  script += fmt::format("set xlabel 'length, tokens' tc rgb {}\n", colour("ink"));
  script += fmt::format("set ylabel '{}, tokens/s' tc rgb {}\n", view.decodes ? "decode throughput" : "throughput",
                        colour("ink"));
  std::vector<std::string> hints;
  script += data_of(lines) + labels_of(view, lines, axes, canvas) + plot_of(view, lines, hints);
  return figure_svg(canvas, script, "f3", "Speed against length", hints);
}

}  // namespace attnkit::cli
