#include "report/stroke_font.h"

#include <algorithm>
#include <iterator>

namespace octet {
namespace {

// From ' ' to '~'.
constexpr std::string_view kGlyphs[] = {
    "",
    "2i2e 2c2c",
    "1i1g 3i3g",
    "1c1i 3c3i 0e4e 0g4g",
    "4h3i1i0h0g1f3f4e4d3c1c0d 2b2i",
    "0i1i1h0h0i 3d4d4c3c3d 0c4i",
    "4c1g1h2i3h3g0e0d1c2c4e",
    "2i2g",
    "3i2h2c3b",
    "1i2h2c1b",
    "2d2h 0e4g 0g4e",
    "0f4f 2d2h",
    "2d2c1b",
    "1f3f",
    "2c2c",
    "0b4i",
    "1c0d0h1i3i4h4d3c1c",
    "1h2i2c 1c3c",
    "0h1i3i4h4g0c4c",
    "0h1i3i4h4g3f2f 3f4e4d3c1c0d",
    "3c3i0e4e",
    "4i0i0f3f4e4d3c1c0d",
    "4h3i1i0h0d1c3c4d4e3f0f",
    "0i4i1c",
    "1f0g0h1i3i4h4g3f1f0e0d1c3c4d4e3f",
    "0d1c3c4d4h3i1i0h0g1f4f",
    "2c2c 2g2g",
    "2g2g 2d2c1b",
    "3h1f3d",
    "0g4g 0e4e",
    "1h3f1d",
    "0h1i3i4h4g2f2e 2c2c",
    "3e3f2g1f1e3e4f4h3i1i0h0d1c4c",
    "0c2i4c 1e3e",
    "0c0i3i4h4g3f0f 3f4e4d3c0c",
    "4h3i1i0h0d1c3c4d",
    "0c0i2i4g4e2c0c",
    "4i0i0c4c 0f3f",
    "4i0i0c 0f3f",
    "4h3i1i0h0d1c3c4d4f2f",
    "0c0i 4c4i 0f4f",
    "1i3i 2i2c 1c3c",
    "4i4d3c1c0d",
    "0c0i 4i0f4c",
    "0i0c4c",
    "0c0i2f4i4c",
    "0c0i4c4i",
    "1c0d0h1i3i4h4d3c1c",
    "0c0i3i4h4g3f0f",
    "1c0d0h1i3i4h4d3c1c 2e4c",
    "0c0i3i4h4g3f0f 2f4c",
    "4h3i1i0h0g1f3f4e4d3c1c0d",
    "0i4i 2i2c",
    "0i0d1c3c4d4i",
    "0i2c4i",
    "0i1c2f3c4i",
    "0c4i 0i4c",
    "0i2f4i 2f2c",
    "0i4i0c4c",
    "3i2i2b3b",
    "0i4b",
    "1i2i2b1b",
    "0g2i4g",
    "0b4b",
    "1i2h",
    "0g3g4f4c1c0d1e4e",
    "0i0c3c4d4f3g0g",
    "4g1g0f0d1c4c",
    "4i4c1c0d0f1g4g",
    "0e4e4f3g1g0f0d1c4c",
    "4i3i2h2c 1g4g",
    "4g1g0f0d1c4c 4g4b3a0a",
    "0i0c 0g3g4f4c",
    "2g2c 2i2i",
    "3g3b2a0a 3i3i",
    "0i0c 4g0e4c",
    "1i2i2d3c",
    "0c0g1g2f2c 2f3g4f4c",
    "0c0g3g4f4c",
    "1c0d0f1g3g4f4d3c1c",
    "0a0g3g4f4d3c0c",
    "4a4g1g0f0d1c4c",
    "0c0g 0e2g4g",
    "4g1g0f1e3e4d3c0c",
    "1i1d2c4c 0g3g",
    "0g0d1c4c 4g4c",
    "0g2c4g",
    "0g1c2f3c4g",
    "0c4g 0g4c",
    "0g2c 4g2c1a0a",
    "0g4g0c4c",
    "3i2h2g1f2e2c3b",
    "2i2b",
    "1i2h2g3f2e2c1b",
    "0f1g3e4f",
};
static_assert(std::size(kGlyphs) == '~' - ' ' + 1);

}  // namespace

std::string_view stroke_glyph(char32_t character) {
  if (character < U' ' || character > U'~') return "0c0i4i4c0c";
  return kGlyphs[character - U' '];
}

StrokeExtent stroke_extent(char32_t character) {
  if (character >= U'0' && character <= U'9') return {0, 4};
  if (character == U' ') return {0, 2};
  const std::string_view strokes = stroke_glyph(character);
  StrokeExtent extent{4, 0};
  for (size_t i = 0; i < strokes.size(); i += strokes[i] == ' ' ? 1 : 2) {
    if (strokes[i] == ' ') continue;
    extent.left = std::min<double>(extent.left, strokes[i] - '0');
    extent.right = std::max<double>(extent.right, strokes[i] - '0');
  }
  return extent;
}

}  // namespace octet
