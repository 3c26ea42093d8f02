// Attention weights as a picture.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hosts/cli/inspect/attention.hpp"
#include "hosts/cli/io/gnuplot.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

constexpr size_t max_cells = 250'000;

struct Layout {
  int columns, rows;
  int cell;          // pixels
  int left, bottom;  // room for labels, in pixels
  int panel_width, panel_height;
  size_t every;  // which labels are shown
};

int label_width(const std::vector<std::string>& labels) {
  size_t widest = 4;
  for (const std::string& label : labels) widest = std::max(widest, width_of(label));
  return 14 + 7 * static_cast<int>(std::min<size_t>(widest, 40));
}

Layout layout_of(const AttentionMap& map) {
  const int n = static_cast<int>(map.queries.size()), m = static_cast<int>(map.keys.size()),
            heads = static_cast<int>(map.heads.size());
  Layout l{};
  l.columns = heads <= 3 ? heads : static_cast<int>(std::ceil(std::sqrt(heads)));
  l.rows = (heads + l.columns - 1) / l.columns;
  l.cell = std::clamp(900 / std::max(n, m), 4, 26);
  l.left = label_width(map.queries) + 30;
  l.bottom = label_width(map.keys) + 30;
  l.panel_width = l.left + m * l.cell + 90;
  l.panel_height = 34 + n * l.cell + l.bottom;
  l.every = static_cast<size_t>(std::ceil(13.0 / l.cell));
  return l;
}

// gnuplot reads the label of a tic as a format.
std::string tic_text(const std::string& label) {
  std::string out;
  for (const char c : label) out += c == '%' ? "%%" : std::string(1, c);
  return gnuplot_text(out);
}

std::string tics(const char* axis, const std::vector<std::string>& labels, size_t every, const char* options) {
  std::string out = fmt::format("set {}tics {} (", axis, options);
  for (size_t i = 0; i < labels.size(); i += every) out += fmt::format("{}{} {}", i ? "," : "", tic_text(labels[i]), i);
  return out + ")\n";
}

std::string data_of(const AttentionMap& map, size_t head) {
  std::string out = fmt::format("$head{} << EOD\n", head);
  for (size_t q = 0; q < map.queries.size(); ++q)
    for (size_t k = 0; k < map.keys.size(); ++k) out += fmt::format("{} {} {:.6g}\n", k, q, map.at(head, q, k));
  return out + "EOD\n";
}

// The scale begins at 0; weights that can be negative get two colours.
std::string colours_of(const AttentionMap& map) {
  const auto [min, max] = std::minmax_element(map.weights.begin(), map.weights.end());
  const double top = std::max({1e-6, static_cast<double>(*max), -static_cast<double>(*min)});
  if (*min < -1e-6f)
    return fmt::format(
        "set palette defined (-1 '#8c2d04', -0.5 '#fd8d3c', 0 '#ffffff', 0.5 '#6baed6', 1 '#08306b')\n"
        "set cbrange [{}:{}]\n",
        -top, top);
  return fmt::format(
      "set palette defined (0 '#ffffff', 0.2 '#deebf7', 0.4 '#9ecae1', 0.7 '#3182bd', 1 '#08306b')\n"
      "set cbrange [0:{}]\n",
      top);
}

std::string panel_of(const AttentionMap& map, const Layout& l, size_t index) {
  const double width = l.columns * l.panel_width, height = l.rows * l.panel_height + 30.0;
  const int column = static_cast<int>(index) % l.columns, row = static_cast<int>(index) / l.columns;
  const double left = column * l.panel_width + l.left, right = left + static_cast<double>(map.keys.size()) * l.cell;
  const double top = height - 30 - row * l.panel_height - 30,
               bottom = top - static_cast<double>(map.queries.size()) * l.cell;
  std::string out = fmt::format("set lmargin at screen {}\nset rmargin at screen {}\n", left / width, right / width);
  out += fmt::format("set tmargin at screen {}\nset bmargin at screen {}\n", top / height, bottom / height);
  out += fmt::format("set title 'head {}' offset 0,-0.5\n", map.heads[index]);
  out += fmt::format("set ylabel {}\nset xlabel {}\n", column == 0 ? gnuplot_text(map.query_title) : "''",
                     gnuplot_text(map.key_title));
  return out +
         fmt::format("plot $head{} using 1:2:(0.5):(0.5):3 with boxxyerror lc palette fs solid noborder\n", index);
}

}  // namespace

std::string heatmap_svg(const AttentionMap& map) {
  if (map.weights.size() > max_cells)
    throw Failure(Exit::data,
                  fmt::format("{} weights are too many for a picture (up to {})", map.weights.size(), max_cells),
                  "choose one head with --head, a shorter input, or --csv");
  const Layout l = layout_of(map);
  std::string script =
      fmt::format("set terminal svg size {},{} noenhanced font 'DejaVu Sans,11' background '#ffffff'\n",
                  l.columns * l.panel_width, l.rows * l.panel_height + 30);
  script += "set encoding utf8\nset key off\nset border lw 0.5\nset tics scale 0 nomirror\n";
  script += fmt::format("set xrange [-0.5:{}]\nset yrange [{}:-0.5]\n", static_cast<double>(map.keys.size()) - 0.5,
                        static_cast<double>(map.queries.size()) - 0.5);
  script += colours_of(map) + tics("x", map.keys, l.every, "rotate by 90 right") + tics("y", map.queries, l.every, "");
  for (size_t h = 0; h < map.heads.size(); ++h) script += data_of(map, h);
  script += fmt::format("set multiplot title {} font ',14'\n", gnuplot_text(map.block + "  " + map.mechanism));
  for (size_t h = 0; h < map.heads.size(); ++h) script += panel_of(map, l, h);
  script += "unset multiplot\n";
  std::string svg = run_gnuplot(script);
  if (svg.find("</svg>") == std::string::npos) fail(Exit::data, "gnuplot drew no picture");
  return svg;
}

}  // namespace attnkit::cli
