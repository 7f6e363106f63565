#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "report/plot.h"

namespace octet {

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
};

// A range of values and the round numbers in it that the axis names.
struct PlotAxis {
  double low = 0, high = 1;
  std::vector<double> ticks;
  std::string label(double tick) const;
  double share(double value) const { return (value - low) / (high - low); }

 private:
  friend PlotAxis make_axis(double low, double high, int wanted, bool exact);
  int decimals = 0;
  bool scientific = false;
};

// About `wanted` ticks; the range is widened to whole ticks unless `exact`.
PlotAxis make_axis(double low, double high, int wanted, bool exact);
// The axes of a panel: steps, and the values of all its series. A lone spike does not squeeze everything else.
PlotAxis step_axis(const PlotPanel& panel, int wanted);
PlotAxis value_axis(const PlotPanel& panel, int wanted);

Rgb run_colour(int run);

enum class Anchor { Start, Middle, End };

// What an output format must be able to draw. Coordinates in points from the upper left corner.
class PlotCanvas {
 public:
  virtual ~PlotCanvas() = default;
  virtual void line(const std::vector<PlotPoint>& points, Rgb colour, double width, double opacity) = 0;
  virtual void dot(PlotPoint centre, double radius, Rgb colour) = 0;
  virtual void text(PlotPoint baseline, std::string_view text, double size, Anchor anchor, Rgb colour) = 0;
  // Lines and dots are cut at this rectangle until the next call; width 0 ends it.
  virtual void clip(double x, double y, double width, double height) = 0;
};

struct PlotSize {
  double width = 0, height = 0;
};
PlotSize plot_size(const Plot& plot);
void draw_plot(const Plot& plot, PlotCanvas& canvas);

}  // namespace octet
