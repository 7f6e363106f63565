#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "report/console.h"
#include "report/plot.h"
#include "report/plot_axis.h"
#include "report/text.h"

namespace octet {
namespace {

constexpr int kLabelWidth = 9;

std::string coloured(int run, std::string_view text) {
  return fmt::format("\x1b[38;5;{}m{}\x1b[0m", run_colour(run).terminal, text);
}

// Dots of a chart, two across and four down to a character.
class BrailleGrid {
 public:
  BrailleGrid(int columns, int rows)
      : columns_(columns),
        rows_(rows),
        bits_(static_cast<size_t>(columns * rows), 0),
        runs_(static_cast<size_t>(columns * rows), -1) {}

  int across() const { return 2 * columns_; }
  int down() const { return 4 * rows_; }

  void set(int x, int y, int run) {
    if (x < 0 || y < 0 || x >= across() || y >= down()) return;
    // The pattern's bits: three rows of two, and the fourth row behind them.
    static constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    const auto cell = static_cast<size_t>(y / 4 * columns_ + x / 2);
    bits_[cell] = static_cast<uint8_t>(bits_[cell] | kBits[y % 4][x % 2]);
    runs_[cell] = run;
  }

  void line(double x0, double y0, double x1, double y1, int run) {
    const int steps =
        std::max(1, static_cast<int>(std::ceil(std::max(std::abs(x1 - x0), std::abs(y1 - y0)))));
    for (int i = 0; i <= steps; ++i) {
      const double t = static_cast<double>(i) / steps;
      set(static_cast<int>(std::lround(x0 + t * (x1 - x0))),
          static_cast<int>(std::lround(y0 + t * (y1 - y0))), run);
    }
  }

  std::string row(int r, bool colour) const {
    std::string text;
    size_t blanks = 0;
    for (int c = 0; c < columns_; ++c) {
      const auto cell = static_cast<size_t>(r * columns_ + c);
      if (bits_[cell] == 0) {
        ++blanks;
        continue;
      }
      text.append(blanks, ' ');
      blanks = 0;
      const int point = 0x2800 + bits_[cell];
      const char bytes[] = {static_cast<char>(0xE0 | point >> 12),
                            static_cast<char>(0x80 | (point >> 6 & 0x3F)),
                            static_cast<char>(0x80 | (point & 0x3F)), '\0'};
      if (colour) {
        text += coloured(runs_[cell], bytes);
      } else {
        text += bytes;
      }
    }
    return text;
  }

 private:
  int columns_, rows_;
  std::vector<uint8_t> bits_;
  std::vector<int> runs_;
};

std::string chart(const PlotPanel& panel, const PlotAxis& across, const PlotAxis& up, int only_run,
                  int columns, int rows, bool colour) {
  BrailleGrid grid(columns, rows);
  for (const PlotSeries& series : panel.series) {
    if (only_run >= 0 && series.run != only_run) continue;
    const auto x_of = [&](const PlotPoint& p) { return across.share(p.x) * (grid.across() - 1); };
    const auto y_of = [&](const PlotPoint& p) { return (1 - up.share(p.y)) * (grid.down() - 1); };
    const PlotPoint* before = nullptr;
    for (const PlotPoint& p : series.points) {
      if (!std::isfinite(p.y)) {
        before = nullptr;
        continue;
      }
      if (series.dots || !before) {
        grid.set(static_cast<int>(std::lround(x_of(p))), static_cast<int>(std::lround(y_of(p))), series.run);
      }
      if (!series.dots && before) grid.line(x_of(*before), y_of(*before), x_of(p), y_of(p), series.run);
      before = &p;
    }
  }
  std::string text;
  for (int r = 0; r < rows; ++r) {
    // The label of a tick stands on the row that it falls on.
    std::string label;
    for (const double tick : up.ticks) {
      const double at = (1 - up.share(tick)) * (rows - 1);
      if (static_cast<int>(std::lround(at)) == r) label = up.label(tick);
    }
    std::string line =
        fmt::format("{:>{}} {}{}", label, kLabelWidth - 1, label.empty() ? "│" : "┤", grid.row(r, colour));
    text += line + "\n";
  }
  std::string axis(kLabelWidth, ' '), names;
  axis += "└";
  for (int c = 0; c < columns; ++c) axis += "─";
  for (const double tick : across.ticks) {
    const std::string label = across.label(tick);
    const int at = kLabelWidth + 1 + static_cast<int>(std::lround(across.share(tick) * (columns - 1)));
    const int begin = std::max(0, at - static_cast<int>(label.size()) / 2);
    if (begin < static_cast<int>(names.size()) + (names.empty() ? 0 : 2)) continue;
    names.resize(static_cast<size_t>(begin), ' ');
    names += label;
  }
  return text + axis + "\n" + names + "\n";
}

}  // namespace

std::string plot_terminal(const Plot& plot, const PlotPanel& panel, int columns, int rows, bool colour) {
  const int inner = std::max(10, columns - kLabelWidth - 1);
  rows = std::max(rows, 3);
  const PlotAxis across = step_axis(panel, 6), up = value_axis(panel, std::max(2, rows / 2));
  if (colour || plot.runs.size() == 1) {
    const bool several = plot.runs.size() > 1;
    std::string text = panel.title;
    for (size_t run = 0; several && run < plot.runs.size(); ++run)
      text += fmt::format(
          "  {}", coloured(static_cast<int>(run), fmt::format("━ {}", terminal_safe(plot.runs[run]))));
    return fmt::format("{}\n{}", text, chart(panel, across, up, -1, inner, rows, several));
  }
  std::string text;
  for (size_t run = 0; run < plot.runs.size(); ++run) {
    text += fmt::format("{}: {}\n", panel.title, terminal_safe(plot.runs[run]));
    text += chart(panel, across, up, static_cast<int>(run), inner, rows, false);
  }
  return text;
}

int chart_columns() {
  const int width = terminal_width(STDOUT_FILENO);
  return width < 40 ? 80 : std::min(width, 110);
}

}  // namespace octet
