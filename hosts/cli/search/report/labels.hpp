// Places the labels of a scatter plot so that they cover neither each other nor, where avoidable, the points.
#pragma once

#include <vector>

namespace attnkit::cli {

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

// By wish, the first ones with the best places; labels stay inside `area`.  `obstacles` are the points of the plot.
std::vector<LabelPlace> place_labels(const std::vector<LabelWish>& wishes, const std::vector<Box>& obstacles,
                                     const Box& area);

}  // namespace attnkit::cli
