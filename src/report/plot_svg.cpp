#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <string_view>

#include "base/text.h"
#include "io/output_file.h"
#include "report/html_page.h"
#include "report/plot.h"
#include "report/plot_axis.h"
#include "report/text.h"

namespace octet {
namespace {

enum class Anchor { Start, Middle, End };

constexpr double kWidth = 900, kPanelHeight = 270;
constexpr double kLeft = 78, kRight = 24, kAbove = 34, kBelow = 34;  // around a panel's axes
constexpr double kLegendLine = 22, kTop = 16, kBottom = 26;
constexpr double kTextSize = 12, kTitleSize = 13.5;
constexpr Rgb kInk = {40, 44, 52}, kSoft = {110, 116, 126}, kGrid = {226, 229, 234},
              kAxisLine = {150, 156, 166};
constexpr size_t kLegendNames = 3;  // to a line

// More runs than colours: their lines are dashed.
std::string_view dashes(int run) {
  constexpr std::string_view kDashes[] = {"", "7 4", "2 3"};
  return kDashes[static_cast<size_t>(run) / kRunColours.size() % std::size(kDashes)];
}

// Text for XML, which allows neither control characters nor the code points U+FFFE and U+FFFF.
std::string escaped(std::string_view text) {
  std::string safe = terminal_safe(text);
  for (const std::string_view bad : {"\xEF\xBF\xBE", "\xEF\xBF\xBF"}) {
    for (size_t at = 0; (at = safe.find(bad, at)) != safe.npos;) safe.replace(at, bad.size(), "\xEF\xBF\xBD");
  }
  return html_escaped(safe);
}

std::string hex(Rgb c) {
  return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b);
}

// Coordinates are in points from the upper left corner.
class SvgCanvas {
 public:
  void line(const std::vector<PlotPoint>& points, Rgb colour, double width, double opacity,
            std::string_view dash = {}) {
    std::string path;
    for (const PlotPoint& p : points)
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", p.x, p.y);
    body += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"", path,
                        hex(colour), width);
    if (opacity < 1) body += fmt::format(" stroke-opacity=\"{}\"", opacity);
    if (!dash.empty()) body += fmt::format(" stroke-dasharray=\"{}\"", dash);
    body += " stroke-linejoin=\"round\"/>\n";
  }
  void dot(PlotPoint centre, double radius, Rgb colour) {
    body += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"1\"/>\n",
        centre.x, centre.y, radius, hex(colour));
  }
  void text(PlotPoint p, std::string_view text, double size, Anchor anchor, Rgb colour) {
    const char* name = anchor == Anchor::Start ? "start" : anchor == Anchor::Middle ? "middle" : "end";
    body += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", p.x,
        p.y, size, name, hex(colour), escaped(text));
  }
  // Lines and dots are cut at this rectangle until end_clip().
  void clip(double x, double y, double width, double height) {
    body += fmt::format(
        "<clipPath id=\"clip{0}\"><rect x=\"{1:.1f}\" y=\"{2:.1f}\" width=\"{3:.1f}\" "
        "height=\"{4:.1f}\"/></clipPath>\n"
        "<g clip-path=\"url(#clip{0})\">\n",
        clips_++, x, y, width, height);
  }
  void end_clip() { body += "</g>\n"; }

  std::string body;

 private:
  int clips_ = 0;
};

size_t legend_lines(const Plot& plot) {
  return (plot.runs.size() + kLegendNames - 1) / kLegendNames;
}

struct Frame {
  double x, y, width, height;
  PlotAxis across, up;
  PlotPoint place(PlotPoint p) const {
    return {x + across.share(p.x) * width, y + height - up.share(p.y) * height};
  }
};

// Cuts a series into runs of finite points.
template <class Function>
void for_each_stretch(const PlotSeries& series, const Function& fn) {
  std::vector<PlotPoint> stretch;
  for (const PlotPoint& p : series.points) {
    if (std::isfinite(p.y)) {
      stretch.push_back(p);
      continue;
    }
    if (!stretch.empty()) fn(stretch);
    stretch.clear();
  }
  if (!stretch.empty()) fn(stretch);
}

void draw_axes(const PlotPanel& panel, const Frame& f, SvgCanvas& canvas, bool last) {
  canvas.text({f.x, f.y - 12}, panel.title, kTitleSize, Anchor::Start, kInk);
  for (const double tick : f.up.ticks) {
    const double y = f.place({f.across.low, tick}).y;
    canvas.line({{f.x, y}, {f.x + f.width, y}}, kGrid, 1, 1);
    canvas.text({f.x - 8, y + kTextSize * 0.36}, f.up.label(tick), kTextSize, Anchor::End, kSoft);
  }
  for (const double tick : f.across.ticks) {
    const double x = f.place({tick, f.up.low}).x;
    canvas.line({{x, f.y + f.height}, {x, f.y + f.height + 4}}, kAxisLine, 1, 1);
    canvas.text({x, f.y + f.height + 18}, f.across.label(tick), kTextSize, Anchor::Middle, kSoft);
  }
  canvas.line({{f.x, f.y}, {f.x, f.y + f.height}, {f.x + f.width, f.y + f.height}}, kAxisLine, 1, 1);
  if (last) {
    canvas.text({f.x + f.width / 2, f.y + f.height + 38}, "step", kTextSize, Anchor::Middle, kSoft);
  }
}

void draw_panel(const PlotPanel& panel, double top, SvgCanvas& canvas, bool last) {
  const Frame f{kLeft,
                top + kAbove,
                kWidth - kLeft - kRight,
                kPanelHeight - kAbove - kBelow,
                step_axis(panel, 8),
                value_axis(panel, 5)};
  draw_axes(panel, f, canvas, last);
  canvas.clip(f.x, f.y - 4, f.width + 5, f.height + 8);
  for (const PlotSeries& series : panel.series) {
    const Rgb colour = run_colour(series.run).rgb;
    for_each_stretch(series, [&](const std::vector<PlotPoint>& stretch) {
      std::vector<PlotPoint> places;
      for (const PlotPoint& p : stretch) places.push_back(f.place(p));
      if (series.dots || places.size() == 1) {
        for (const PlotPoint& p : places) canvas.dot(p, series.dots ? 3.4 : 2, colour);
      } else {
        canvas.line(places, colour, series.width, series.opacity, dashes(series.run));
      }
    });
  }
  canvas.end_clip();
}

void draw_legend(const Plot& plot, SvgCanvas& canvas) {
  const double column = (kWidth - kLeft - kRight) / static_cast<double>(kLegendNames);
  for (size_t i = 0; i < plot.runs.size(); ++i) {
    const double x = kLeft + column * static_cast<double>(i % kLegendNames);
    const double y = kTop + kLegendLine * (static_cast<double>(i / kLegendNames) + 0.5);
    const int run = static_cast<int>(i);
    canvas.line({{x, y - 4}, {x + 22, y - 4}}, run_colour(run).rgb, 3, 1, dashes(run));
    std::string name = plot.runs[i];
    constexpr int kLongest = 30;
    if (display_width(name) > kLongest) name = fmt::format("{}...", truncate_to_width(name, kLongest - 3));
    canvas.text({x + 30, y}, name, kTextSize, Anchor::Start, kInk);
  }
}

}  // namespace

void check_picture(const std::string& path, std::vector<std::string>& errors) {
  if (path.empty() || path.ends_with(".svg")) return check_output_file("--output", path);
  const std::string svg = std::filesystem::path(path).replace_extension(".svg").string();
  errors.push_back(fmt::format(
      "--output is '{0}', expected a name that ends in .svg: octet draws SVG only. Any browser shows an SVG file. To "
      "convert it: write {1}, then run 'rsvg-convert {1} -o {0}'",
      printable(path), printable(svg)));
}

std::string plot_svg(const Plot& plot) {
  const double legend = kTop + kLegendLine * static_cast<double>(legend_lines(plot));
  const double height = legend + kPanelHeight * static_cast<double>(plot.panels.size()) + kBottom;
  SvgCanvas canvas;
  draw_legend(plot, canvas);
  for (size_t i = 0; i < plot.panels.size(); ++i) {
    const double top = legend + kPanelHeight * static_cast<double>(i);
    draw_panel(plot.panels[i], top, canvas, i + 1 == plot.panels.size());
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
      kWidth, height, canvas.body);
}

}  // namespace octet
