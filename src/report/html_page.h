#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "report/table.h"

namespace octet {

// A report as one HTML file that needs nothing else: no request leaves it, and it works from a mail or a USB stick.
// Names and texts may hold any bytes; they are escaped here and nowhere else. Charts are drawn by src/report/page/*.js,
// which is embedded into the program when it is built.

enum class Tone { Plain, Good, Warning, Bad, Muted };

struct HtmlText {
  std::string text;  // an empty line begins a new paragraph
  Tone tone = Tone::Plain;
};

// One sentence that the reader should see first.
struct HtmlVerdict {
  std::string text;
  Tone tone = Tone::Plain;
};

// Large figures in a row of tiles.
struct HtmlFigure {
  std::string label, value, note;  // the note may be empty
  Tone tone = Tone::Plain;
};
struct HtmlFigures {
  std::vector<HtmlFigure> figures;
};

// A click on a title sorts the rows: by `sort` where all cells of the column have one, else by text.
struct HtmlCell {
  std::string text;
  Tone tone = Tone::Plain;
  std::optional<double> sort = std::nullopt;
};
struct HtmlTable {
  std::string title;  // may be empty
  std::vector<Table::Column> columns;
  std::vector<std::vector<HtmlCell>> rows;  // as many cells as columns
  std::string note;
};

// Horizontal bars that begin at 0. `colour` counts from 0 and means the same in all parts of a page.
struct HtmlBar {
  std::string name;
  double value = 0;
  std::string text;  // how the value is shown
  int colour = 0;
};
struct HtmlBars {
  std::string title;
  std::vector<HtmlBar> bars;
  std::string note;
};

// x rises. A y that is not finite is a gap. low and high, both or neither, draw a band around the line.
struct HtmlPoint {
  double x = 0, y = 0;
  std::optional<double> low = std::nullopt, high = std::nullopt;
};
struct HtmlSeries {
  std::string name;
  int colour = 0;
  std::vector<HtmlPoint> points;  // many are thinned; the least and the greatest of a stretch stay
  bool dots = false;              // also a dot per point, for few points
  bool smooth = true;             // follows the smoothing slider
  bool dashed = false;
};
// Lines with zoom, values under the pointer, smoothing, and a logarithmic scale.
struct HtmlChart {
  std::string title, x_label, y_label;
  std::vector<HtmlSeries> series;
  double smoothing = 0;  // of the slider at first, 0 to 0.99
  bool log_scale = false;
  bool from_zero = false;  // the axis begins at 0 until the reader zooms
  std::string note;
};

// One axis per setting or result, one line per run. A value is a number or a word; an axis that holds a word is a list of
// words. Empty: the run has no such value, and its line passes at the foot of the axis.
using HtmlValue = std::variant<std::monostate, double, std::string>;
struct HtmlParallelAxis {
  std::string name;
  bool log_scale = false;
};
struct HtmlParallelLine {
  std::string name;
  std::vector<HtmlValue> values;  // one per axis
};
struct HtmlParallel {
  std::string title;
  std::vector<HtmlParallelAxis> axes;
  std::vector<HtmlParallelLine> lines;
  int colour_axis = -1;         // the axis whose value colours the lines; -1: the last one
  bool lower_is_better = true;  // which end of that axis is drawn strongest
  std::string note;
};

// Texts as they are, in a fixed-width font: samples, settings, messages.
struct HtmlQuote {
  std::string label, text;
  int colour = -1;  // -1: none
};
struct HtmlQuotes {
  std::vector<HtmlQuote> quotes;
};

using HtmlPart = std::variant<HtmlText, HtmlVerdict, HtmlFigures, HtmlTable, HtmlBars, HtmlChart,
                              HtmlParallel, HtmlQuotes>;

struct HtmlSection {
  std::string heading;  // may be empty
  std::vector<HtmlPart> parts;
};

struct HtmlPage {
  std::string title;
  std::string subtitle;  // may be empty
  std::vector<HtmlSection> sections;
  std::string footer;
};

// The text of the file.
std::string html_page(const HtmlPage& page);

// Text for the inside of an element or an attribute in double quotes.
std::string html_escaped(std::string_view text);

}  // namespace octet
