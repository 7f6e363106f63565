#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "report/run_folder.h"

namespace octet {

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
Plot plot_of_runs(const std::vector<RunFolder>& runs);
Plot plot_of_runs(const std::vector<const RunFolder*>& runs);

std::string plot_svg(const Plot& plot);  // the text of the file
// Adds an error if the file does not end in .svg or cannot be written. An empty name is none.
void check_picture(const std::string& path, std::vector<std::string>& errors);

// The panel in braille characters, `columns` wide and `rows` high with axes. Runs are told apart by colour where
// `colour`; otherwise each has a chart of its own, on the same axes.
std::string plot_terminal(const Plot& plot, const PlotPanel& panel, int columns, int rows, bool colour);
int chart_columns();  // for the terminal on the standard output

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
};
struct RunColour {
  Rgb rgb;           // on white
  uint8_t terminal;  // of the 256 colours of terminals, on a dark or a light background
};
inline constexpr std::array<RunColour, 12> kRunColours = {{{{31, 94, 188}, 33},
                                                           {{214, 90, 18}, 208},
                                                           {{22, 140, 96}, 35},
                                                           {{172, 66, 150}, 170},
                                                           {{190, 140, 10}, 178},
                                                           {{60, 160, 200}, 45},
                                                           {{150, 50, 50}, 160},
                                                           {{90, 90, 90}, 245},
                                                           {{122, 74, 210}, 99},
                                                           {{120, 150, 20}, 148},
                                                           {{230, 115, 165}, 211},
                                                           {{110, 70, 30}, 94}}};
inline const RunColour& run_colour(int run) {
  return kRunColours[static_cast<size_t>(run) % kRunColours.size()];
}

}  // namespace octet
