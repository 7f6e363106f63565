#pragma once

#include <string>
#include <vector>

#include "report/plot.h"

namespace octet {

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
// The axes of a panel: steps, and the values of all its series. A single spike does not squeeze everything else.
PlotAxis step_axis(const PlotPanel& panel, int wanted);
PlotAxis value_axis(const PlotPanel& panel, int wanted);

}  // namespace octet
