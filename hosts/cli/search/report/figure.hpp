// Shared by the figures of a search's report: gnuplot scripts in the page's colours, which follow light and dark, and
// places for labels.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace attnkit::cli {

// The picture and its margins, in pixels.
struct Canvas {
  int width, height, left, right, top, bottom;
};

// Pixels from the upper left corner for values within the two ranges.
struct Axes {
  Canvas canvas;
  std::pair<double, double> x_range, y_range;
  bool log_x, log_y;

  double x(double value) const;
  double y(double value) const;
  // "set xrange ..." and "set yrange ..."; the latter upside down when its first end is above the second.
  std::string ranges() const;
};

// A colour of the page as gnuplot writes it: ink, muted, rule, paper, other, front, winner, baseline, line1 to line6,
// bad1 to bad4, good1 to good4, even.  opacity in [0, 1].
std::string colour(const std::string& name, double opacity = 1);
// The style sheet's part that gives these names their values, light and dark.
std::string colour_style();

// Text for a script: in quotes, without control characters, cut after `longest` characters.
std::string script_text(const std::string& text, size_t longest = 60);

// Terminal, margins, borders and fonts.
std::string figure_head(const Canvas& canvas);
// `set label` at a pixel; align is left, center or right.
std::string label_at(const Canvas& canvas, double x, double y, const std::string& text, const std::string& options,
                     size_t longest = 60);
// A line of dots from a point to its label, which looks like no data.
std::string leader_at(const Canvas& canvas, double x1, double y1, double x2, double y2);
// A thin line between two pixels, in front of the plots or "back".
std::string line_at(const Canvas& canvas, double x1, double y1, double x2, double y2, const std::string& hue,
                    const std::string& layer, const std::string& dashes = "");

// At most `longest` characters, the last one three dots where some were cut.
std::string shortened(const std::string& text, size_t longest);

// Runs the script and returns <svg> for a page: its ids begin with `id`, `alternative` says in words what it shows,
// hints[i] is what is shown over plot i.  Throws like run_gnuplot.
std::string figure_svg(const Canvas& canvas, const std::string& script, const std::string& id, const std::string& title,
                       const std::string& alternative, const std::vector<std::string>& hints);

// Pixels, y downward.
struct Box {
  double left, top, right, bottom;
};

struct LabelWish {
  double x, y, radius;  // the point
  double width;         // of its label
};

struct LabelPlace {
  Box box;
  double from_x, from_y, to_x, to_y;  // a leader from the point's edge to the label
  bool leader;                        // worth drawing
};

// Places labels so that they cover neither each other nor, where avoidable, the points: by wish, the first ones with
// the best places; labels stay inside `area`.  `obstacles` are the points of the plot.
std::vector<LabelPlace> place_labels(const std::vector<LabelWish>& wishes, const std::vector<Box>& obstacles,
                                     const Box& area);

}  // namespace attnkit::cli
