#include <algorithm>
#include <cmath>

#include "report/plot_draw.h"
#include "report/png_writer.h"
#include "report/stroke_font.h"
#include "report/text.h"

namespace octet {
namespace {

constexpr double kScale = 2;  // pixels to a point

double distance_to_segment(double x, double y, PlotPoint a, PlotPoint b) {
  const double dx = b.x - a.x, dy = b.y - a.y, square = dx * dx + dy * dy;
  double t = square > 0 ? ((x - a.x) * dx + (y - a.y) * dy) / square : 0;
  t = std::clamp(t, 0.0, 1.0);
  return std::hypot(x - a.x - t * dx, y - a.y - t * dy);
}

// The characters of UTF-8 text; what is not UTF-8 has become U+FFFD before.
std::u32string characters(std::string_view text) {
  std::u32string result;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    result.push_back(size == 1 ? lead : U'\uFFFD');  // the font has ASCII alone
    i += size;
  }
  return result;
}

class PngCanvas final : public PlotCanvas {
 public:
  explicit PngCanvas(PlotSize size)
      : width_(static_cast<int>(std::lround(size.width * kScale))),
        height_(static_cast<int>(std::lround(size.height * kScale))),
        pixels_(static_cast<size_t>(width_) * static_cast<size_t>(height_) * 3, 255),
        coverage_(static_cast<size_t>(width_) * static_cast<size_t>(height_), 0.0f) {
    clip(0, 0, 0, 0);
  }

  void line(const std::vector<PlotPoint>& points, Rgb colour, double width, double opacity) override {
    std::vector<PlotPoint> scaled;
    for (const PlotPoint& p : points) scaled.push_back({p.x * kScale, p.y * kScale});
    // Lines of whole pixels along the grid are moved onto it, so that they are not blurred.
    const bool straight = scaled.size() == 2 && (scaled[0].x == scaled[1].x || scaled[0].y == scaled[1].y);
    if (straight) {
      for (PlotPoint& p : scaled) p = {std::round(p.x), std::round(p.y)};
    }
    stroke(scaled, width * kScale);
    paint(colour, opacity);
  }

  void dot(PlotPoint centre, double radius, Rgb colour) override {
    const PlotPoint p{centre.x * kScale, centre.y * kScale};
    stroke({p, p}, 2 * (radius + 1) * kScale);
    paint({255, 255, 255}, 1);
    stroke({p, p}, 2 * radius * kScale);
    paint(colour, 1);
  }

  void text(PlotPoint baseline, std::string_view text, double size, Anchor anchor, Rgb colour) override {
    const std::u32string letters = characters(terminal_safe(text));
    const double unit = size * 0.72 / kStrokeHeight * kScale;  // capitals are about 0.72 of the size
    double length = -kStrokeGap * unit;
    for (const char32_t letter : letters) length += (stroke_extent(letter).width() + kStrokeGap) * unit;
    double x = baseline.x * kScale;
    if (anchor == Anchor::Middle) x -= length / 2;
    if (anchor == Anchor::End) x -= length;
    for (const char32_t letter : letters) {
      const StrokeExtent extent = stroke_extent(letter);
      glyph(stroke_glyph(letter), x - extent.left * unit, baseline.y * kScale, unit);
      x += (extent.width() + kStrokeGap) * unit;
    }
    paint(colour, 1);
  }

  void clip(double x, double y, double width, double height) override {
    const bool all = width == 0;
    clip_left_ = all ? 0 : static_cast<int>(x * kScale);
    clip_top_ = all ? 0 : static_cast<int>(y * kScale);
    clip_right_ = all ? width_ : std::min(width_, static_cast<int>((x + width) * kScale));
    clip_bottom_ = all ? height_ : std::min(height_, static_cast<int>((y + height) * kScale));
  }

  std::string png() const { return encode_png(width_, height_, pixels_); }

 private:
  void glyph(std::string_view strokes, double x, double y, double unit) {
    std::vector<PlotPoint> points;
    const auto draw = [&] {
      if (!points.empty()) stroke(points, 1.15 * kScale);
      points.clear();
    };
    for (size_t i = 0; i < strokes.size();) {
      if (strokes[i] == ' ') {
        draw();
        ++i;
        continue;
      }
      points.push_back({x + (strokes[i] - '0') * unit, y - (strokes[i + 1] - 'c') * unit});
      i += 2;
    }
    draw();
  }

  // Adds a line with round ends to what the next paint() covers. Where its pieces meet, a pixel counts once.
  void stroke(const std::vector<PlotPoint>& points, double width) {
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      const PlotPoint a = points[i], b = points[i + 1];
      const double reach = width / 2 + 1;
      const int left = std::max(clip_left_, static_cast<int>(std::floor(std::min(a.x, b.x) - reach)));
      const int right = std::min(clip_right_ - 1, static_cast<int>(std::ceil(std::max(a.x, b.x) + reach)));
      const int top = std::max(clip_top_, static_cast<int>(std::floor(std::min(a.y, b.y) - reach)));
      const int bottom = std::min(clip_bottom_ - 1, static_cast<int>(std::ceil(std::max(a.y, b.y) + reach)));
      for (int y = top; y <= bottom; ++y) {
        for (int x = left; x <= right; ++x) {
          const double distance = distance_to_segment(x + 0.5, y + 0.5, a, b);
          const auto covered = static_cast<float>(std::clamp(width / 2 + 0.5 - distance, 0.0, 1.0));
          float& pixel = coverage_[index(x, y)];
          pixel = std::max(pixel, covered);
        }
      }
      if (left <= right && top <= bottom) {
        dirty_top_ = std::min(dirty_top_, top);
        dirty_bottom_ = std::max(dirty_bottom_, bottom);
      }
    }
  }

  void paint(Rgb colour, double opacity) {
    for (int y = dirty_top_; y <= dirty_bottom_; ++y) {
      for (int x = 0; x < width_; ++x) {
        float& covered = coverage_[index(x, y)];
        if (covered == 0.0f) continue;
        const double share = static_cast<double>(covered) * opacity;
        uint8_t* pixel = pixels_.data() + 3 * index(x, y);
        const uint8_t ink[3] = {colour.r, colour.g, colour.b};
        for (int c = 0; c < 3; ++c)
          pixel[c] = static_cast<uint8_t>(std::lround(pixel[c] * (1 - share) + ink[c] * share));
        covered = 0.0f;
      }
    }
    dirty_top_ = height_;
    dirty_bottom_ = -1;
  }

  size_t index(int x, int y) const {
    return static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x);
  }

  int width_, height_;
  std::vector<uint8_t> pixels_;
  std::vector<float> coverage_;
  int clip_left_ = 0, clip_top_ = 0, clip_right_ = 0, clip_bottom_ = 0;
  int dirty_top_ = 0, dirty_bottom_ = -1;
};

}  // namespace

std::string plot_png(const Plot& plot) {
  PngCanvas canvas(plot_size(plot));
  draw_plot(plot, canvas);
  return canvas.png();
}

}  // namespace octet
