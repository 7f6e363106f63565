#include <fmt/format.h>

#include <cmath>

#include "report/plot_draw.h"
#include "report/text.h"

namespace octet {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : terminal_safe(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string hex(Rgb c) {
  return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b);
}

class SvgCanvas final : public PlotCanvas {
 public:
  void line(const std::vector<PlotPoint>& points, Rgb colour, double width, double opacity) override {
    std::string path;
    for (const PlotPoint& p : points)
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", p.x, p.y);
    body += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"", path,
                        hex(colour), width);
    if (opacity < 1) body += fmt::format(" stroke-opacity=\"{}\"", opacity);
    body += " stroke-linejoin=\"round\"/>\n";
  }
  void dot(PlotPoint centre, double radius, Rgb colour) override {
    body += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"1\"/>\n",
        centre.x, centre.y, radius, hex(colour));
  }
  void text(PlotPoint p, std::string_view text, double size, Anchor anchor, Rgb colour) override {
    const char* name = anchor == Anchor::Start ? "start" : anchor == Anchor::Middle ? "middle" : "end";
    body += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", p.x,
        p.y, size, name, hex(colour), escaped(text));
  }
  void clip(double x, double y, double width, double height) override {
    if (width == 0) {
      body += "</g>\n";
      return;
    }
    body += fmt::format(
        "<clipPath id=\"clip{0}\"><rect x=\"{1:.1f}\" y=\"{2:.1f}\" width=\"{3:.1f}\" "
        "height=\"{4:.1f}\"/></clipPath>\n"
        "<g clip-path=\"url(#clip{0})\">\n",
        clips_++, x, y, width, height);
  }

  std::string body;

 private:
  int clips_ = 0;
};

}  // namespace

std::string plot_svg(const Plot& plot) {
  SvgCanvas canvas;
  draw_plot(plot, canvas);
  const PlotSize size = plot_size(plot);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" "
      "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
      size.width, size.height, canvas.body);
}

}  // namespace octet
