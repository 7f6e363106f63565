#pragma once

#include <string_view>

namespace octet {

// A font of strokes for pictures that are drawn without a font file. Glyphs stand on a grid: x from 0 to 4, y from 0
// (baseline) up to 6 (capitals), 4 (small letters) and down to -2.
constexpr double kStrokeHeight = 6;
constexpr double kStrokeGap = 1.7;  // between two glyphs

// Strokes with spaces between them, each a chain of points: a digit for x, a letter from 'a' (-2) to 'i' (6) for y.
// A chain of two equal points is a dot. What the font does not have is a box.
std::string_view stroke_glyph(char32_t character);

// The columns that a glyph takes. All digits are equally wide, so that numbers stand under each other.
struct StrokeExtent {
  double left = 0, right = 0;
  double width() const { return right - left; }
};
StrokeExtent stroke_extent(char32_t character);

}  // namespace octet
