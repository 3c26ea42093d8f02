#include "hosts/cli/search/report/figure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/replace.hpp>
#include <cmath>
#include <numbers>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/gnuplot.hpp"
#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/report/html.hpp"

namespace attnkit::cli {
namespace {

struct Hue {
  const char *name, *light, *dark;
};

// Okabe and Ito's colours for what must look different; tints of blue and orange for better and worse.
constexpr std::array hues = {
    Hue{"ink", "#1b1f24", "#e6e9ec"},    Hue{"muted", "#59636e", "#9aa4ae"},    Hue{"rule", "#dde1e6", "#333a42"},
    Hue{"paper", "#ffffff", "#15181c"},  Hue{"other", "#9aa5b1", "#7a8590"},    Hue{"front", "#56626f", "#b4bec8"},
    Hue{"winner", "#d55e00", "#ff8a3d"}, Hue{"baseline", "#1b1f24", "#e6e9ec"}, Hue{"line1", "#0072b2", "#56b4e9"},
    Hue{"line2", "#009e73", "#2fc79b"},  Hue{"line3", "#b0578d", "#e29bc4"},    Hue{"line4", "#a87400", "#e6b422"},
    Hue{"line5", "#3c8dbc", "#8ccbf0"},  Hue{"line6", "#6b6ecf", "#a5a7ee"},    Hue{"bad1", "#fdeee0", "#382a1f"},
    Hue{"bad2", "#fbd9b9", "#553820"},   Hue{"bad3", "#f6bb87", "#774a22"},     Hue{"bad4", "#ee9a52", "#8f5420"},
    Hue{"good1", "#e4f0f9", "#1d2f3d"},  Hue{"good2", "#c4def1", "#20465f"},    Hue{"good3", "#98c6e5", "#245d82"},
    Hue{"good4", "#68aad7", "#2a75a5"},  Hue{"even", "#f2f4f6", "#23282e"},     Hue{"hatch", "#c3cad1", "#4a535c"}};

// gnuplot opens a group for every change of pen, drawn with or not.
void drop_empty_groups(std::string& svg) {
  for (size_t at = svg.find("<g fill="); at != std::string::npos; at = svg.find("<g fill=", at)) {
    const size_t end = svg.find('>', at);
    if (end != std::string::npos && svg.compare(end + 1, 6, "\n</g>\n") == 0)
      svg.erase(at, end + 7 - at);
    else
      at = end;
  }
}

// Every colour stands in the script as one of 1,1,i, which no other is.
void use_page_colours(std::string& svg) {
  for (size_t i = 0; i < hues.size(); ++i) {
    const std::string value = fmt::format("var(--{})", hues[i].name);
    boost::replace_all(svg, fmt::format("rgb(  1,   1, {:3})", i + 1), value);
    boost::replace_all(svg, fmt::format("rgb(1,1,{})", i + 1), value);
  }
}

// gnuplot titles its plots, in the order of drawing, with what means nothing to a reader.
void put_hints(std::string& svg, const std::vector<std::string>& hints) {
  std::string out;
  constexpr const char* mark = "id=\"gnuplot_plot_";
  size_t done = 0, next = 0;
  for (size_t at = svg.find(mark); at != std::string::npos; at = svg.find(mark, done)) {
    at = svg.find("<title>", at);
    const size_t end = svg.find("</title>", at);
    if (end == std::string::npos) break;
    out.append(svg, done, at - done);
    if (next < hints.size() && !hints[next].empty()) out += "<title>" + escaped(hints[next]) + "</title>";
    ++next;
    done = end + 8;
  }
  svg = out + svg.substr(done);
}

double share(double value, std::pair<double, double> range, bool logarithmic) {
  if (logarithmic) return std::log(value / range.first) / std::log(range.second / range.first);
  return (value - range.first) / (range.second - range.first);
}

constexpr double label_height = 15, label_gap = 3;  // pixels

double overlap(const Box& a, const Box& b) {
  const double w = std::min(a.right, b.right) - std::max(a.left, b.left);
  const double h = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  return w > 0 && h > 0 ? w * h : 0;
}

// The label at `distance` from the point's edge in a direction, touching the ray with its nearest side.
LabelPlace placed(const LabelWish& wish, double angle, double distance) {
  const double c = std::cos(angle), s = std::sin(angle), reach = wish.radius + label_gap + distance;
  const double x = wish.x + c * reach, y = wish.y + s * reach;
  const double left = x - wish.width * (1 - c) / 2, top = y - label_height * (1 - s) / 2;
  const Box box{left, top, left + wish.width, top + label_height};
  const double to_x = std::clamp(wish.x, box.left, box.right), to_y = std::clamp(wish.y, box.top, box.bottom);
  const double dx = to_x - wish.x, dy = to_y - wish.y, length = std::max(1e-9, std::hypot(dx, dy));
  return {box,
          wish.x + dx / length * wish.radius,
          wish.y + dy / length * wish.radius,
          to_x,
          to_y,
          length - wish.radius > 9};
}

// In square pixels of what would be covered; distance decides between places that are equally free.
double cost_of(const LabelPlace& place, const std::vector<LabelPlace>& taken, const std::vector<Box>& obstacles,
               const Box& area, double distance) {
  double cost = distance * 3;
  const Box& b = place.box;
  if (b.left < area.left || b.right > area.right || b.top < area.top || b.bottom > area.bottom) cost += 1e6;
  for (const LabelPlace& other : taken)
    cost += 1e3 * overlap({b.left - 2, b.top - 2, b.right + 2, b.bottom + 2}, other.box);
  for (const Box& obstacle : obstacles) cost += overlap(b, obstacle);
  return cost;
}

}  // namespace

std::string shortened(const std::string& text, size_t longest) {
  if (width_of(text) <= longest) return text;
  std::string out;
  size_t kept = 0;
  for (const char c : text) {
    kept += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (kept >= longest) break;
    out += c;
  }
  return out + "\u2026";
}

double Axes::x(double value) const {
  return canvas.left + share(value, x_range, log_x) * (canvas.width - canvas.left - canvas.right);
}

double Axes::y(double value) const {
  return canvas.height - canvas.bottom - share(value, y_range, log_y) * (canvas.height - canvas.top - canvas.bottom);
}

std::string Axes::ranges() const {
  return fmt::format("{}{}set xrange [{}:{}]\nset yrange [{}:{}]\n", log_x ? "set logscale x 2\n" : "",
                     log_y ? "set logscale y\n" : "", x_range.first, x_range.second, y_range.first, y_range.second);
}

std::string colour(const std::string& name, double opacity) {
  const auto at = std::find_if(hues.begin(), hues.end(), [&](const Hue& h) { return name == h.name; });
  const auto clear = static_cast<unsigned>(std::lround(255 * (1 - opacity)));
  return fmt::format("'#{:02x}0101{:02x}'", clear, at - hues.begin() + 1);
}

std::string colour_style() {
  std::string light, dark;
  for (const Hue& hue : hues) {
    light += fmt::format("--{}:{};", hue.name, hue.light);
    dark += fmt::format("--{}:{};", hue.name, hue.dark);
  }
  // Paper is white, whatever the screen was.
  return fmt::format(
      ":root{{color-scheme:light dark;{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n", light,
      dark);
}

std::string script_text(const std::string& text, size_t longest) { return gnuplot_text(shortened(text, longest)); }

std::string figure_head(const Canvas& c) {
  const double w = c.width, h = c.height;
  std::string out = fmt::format("set terminal svg size {},{} noenhanced font 'sans-serif,12'\n", c.width, c.height);
  out += "set encoding utf8\nset key off\nset tics nomirror scale 0.5\nset format '%g'\n";
  out += fmt::format("set border 3 lc rgb {} lw 1\n", colour("muted"));
  out += fmt::format("set tics tc rgb {}\n", colour("muted"));
  out += fmt::format("set lmargin at screen {}\nset rmargin at screen {}\n", c.left / w, 1 - c.right / w);
  return out + fmt::format("set bmargin at screen {}\nset tmargin at screen {}\n", c.bottom / h, 1 - c.top / h);
}

std::string label_at(const Canvas& c, double x, double y, const std::string& text, const std::string& options,
                     size_t longest) {
  return fmt::format("set label {} at screen {:.5f},{:.5f} {} front\n", script_text(text, longest), x / c.width,
                     1 - y / c.height, options);
}

std::string line_at(const Canvas& c, double x1, double y1, double x2, double y2, const std::string& hue,
                    const std::string& layer, const std::string& dashes) {
  return fmt::format("set arrow from screen {:.5f},{:.5f} to screen {:.5f},{:.5f} nohead {} lw 0.8 lc rgb {}{}\n",
                     x1 / c.width, 1 - y1 / c.height, x2 / c.width, 1 - y2 / c.height, layer, colour(hue), dashes);
}

std::string leader_at(const Canvas& canvas, double x1, double y1, double x2, double y2) {
  return line_at(canvas, x1, y1, x2, y2, "muted", "front", " dt (2,5)");
}

std::string figure_svg(const Canvas& canvas, const std::string& script, const std::string& id, const std::string& title,
                       const std::string& alternative, const std::vector<std::string>& hints) {
  std::string svg = run_gnuplot(script);
  const size_t begin = svg.find("<svg"), end = svg.rfind("</svg>");
  if (begin == std::string::npos || end == std::string::npos) fail(Exit::data, "gnuplot drew no picture");
  svg = svg.substr(begin, end + 6 - begin);
  use_page_colours(svg);
  drop_empty_groups(svg);
  put_hints(svg, hints);
  for (const std::string kind : {"gpDot", "gpPt", "gpPat", "gnuplot_canvas", "gnuplot_plot", "textbox", "greybox"}) {
    boost::replace_all(svg, "id='" + kind, "id='" + id + kind);
    boost::replace_all(svg, "id=\"" + kind, "id=\"" + id + kind);
    boost::replace_all(svg, "'#" + kind, "'#" + id + kind);
    boost::replace_all(svg, "(#" + kind, "(#" + id + kind);
  }
  const std::string heads = fmt::format("<title id=\"{0}title\">{1}</title>\n<desc id=\"{0}desc\">{2}</desc>", id,
                                        escaped(title), escaped(alternative));
  const size_t first = svg.find("<title>Gnuplot</title>"), last = svg.find("</desc>", first);
  if (first == std::string::npos || last == std::string::npos) fail(Exit::data, "gnuplot drew no picture");
  svg.replace(first, last + 7 - first, heads);
  svg.replace(
      0, 4,
      fmt::format(
          "<svg role=\"img\" aria-labelledby=\"{0}title\" aria-describedby=\"{0}desc\" style=\"max-width:{1}px\"", id,
          canvas.width));
  return svg;
}

std::vector<LabelPlace> place_labels(const std::vector<LabelWish>& wishes, const std::vector<Box>& obstacles,
                                     const Box& area) {
  constexpr int directions = 16;
  std::vector<LabelPlace> taken;
  for (const LabelWish& wish : wishes) {
    LabelPlace best{};
    double min_cost = INFINITY;
    for (const double distance : {0.0, 8.0, 18.0, 30.0, 45.0, 65.0, 90.0, 120.0})
      for (int d = 0; d < directions; ++d) {
        const LabelPlace place = placed(wish, 2 * std::numbers::pi * d / directions, distance);
        const double cost = cost_of(place, taken, obstacles, area, distance);
        if (cost < min_cost) min_cost = cost, best = place;
      }
    taken.push_back(best);
  }
  return taken;
}

}  // namespace attnkit::cli
