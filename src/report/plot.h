#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/step_record.h"

namespace octet {

// The metrics of one run, as octet plot reads them.
struct PlotRun {
  std::string name;
  std::vector<StepRecord> records;  // by step
};

struct PlotPoint {
  double x = 0, y = 0;
};

// A line, or single points where `dots`. A point that is not finite is a gap.
struct PlotSeries {
  int run = 0;  // the colour
  std::vector<PlotPoint> points;
  double opacity = 1;
  double width = 1.6;
  bool dots = false;
};

struct PlotPanel {
  std::string title;
  std::vector<PlotSeries> series;
  bool from_zero = false;  // the axis begins at 0
};

struct Plot {
  std::vector<std::string> runs;  // names, in the order of the colours
  std::vector<PlotPanel> panels;
};

// Loss (each step thin, its running mean bold, evaluations as dots), learning rate and throughput against the step.
// A panel without data is skipped.
Plot plot_of_runs(const std::vector<PlotRun>& runs);

std::string plot_svg(const Plot& plot);  // the text of the file

// The panel in braille characters, `columns` wide and `rows` high with axes. Runs are told apart by colour where
// `colour`; otherwise each has a chart of its own, on the same axes.
std::string plot_terminal(const Plot& plot, const PlotPanel& panel, int columns, int rows, bool colour);

}  // namespace octet
