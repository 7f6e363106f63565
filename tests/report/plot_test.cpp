#include "report/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "report/plot_draw.h"
#include "report/png_writer.h"
#include "report/stroke_font.h"
#include "report/text.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A plain reader of what zlib_compress writes: one block of fixed codes.
std::vector<uint8_t> inflate_fixed(const std::string& zlib) {
  size_t at = 16;  // in bits, behind the two bytes of the zlib header
  const auto bit = [&] {
    const uint32_t value = static_cast<uint8_t>(zlib.at(at / 8)) >> (at % 8) & 1u;
    ++at;
    return value;
  };
  const auto bits = [&](int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) value |= bit() << i;
    return value;
  };
  EXPECT_EQ(bits(3), 3u);
  constexpr int kLength[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                             31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  constexpr int kLengthBits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  constexpr int kDistance[] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                               33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                               1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  std::vector<uint8_t> out;
  for (;;) {
    uint32_t code = 0;
    for (int i = 0; i < 7; ++i) code = code << 1 | bit();
    uint32_t symbol;
    if (code < 0x18) {
      symbol = 256 + code;
    } else {
      code = code << 1 | bit();
      if (code >= 0x30 && code < 0xC0) {
        symbol = code - 0x30;
      } else if (code >= 0xC0 && code < 0xC8) {
        symbol = 280 + code - 0xC0;
      } else {
        symbol = 144 + (code << 1 | bit()) - 0x190;
      }
    }
    if (symbol == 256) break;
    if (symbol < 256) {
      out.push_back(static_cast<uint8_t>(symbol));
      continue;
    }
    const uint32_t length = static_cast<uint32_t>(kLength[symbol - 257]) + bits(kLengthBits[symbol - 257]);
    uint32_t index = 0;
    for (int i = 0; i < 5; ++i) index = index << 1 | bit();
    const uint32_t distance =
        static_cast<uint32_t>(kDistance[index]) + bits(index < 4 ? 0 : static_cast<int>(index) / 2 - 1);
    if (distance > out.size()) {
      ADD_FAILURE() << "distance " << distance << " at " << out.size();
      break;
    }
    for (uint32_t i = 0; i < length; ++i) out.push_back(out[out.size() - distance]);
  }
  return out;
}

TEST(Zlib, GivesEveryByteBack) {
  std::vector<std::vector<uint8_t>> cases = {{}, {7}, {1, 2, 3}, std::vector<uint8_t>(100000, 0)};
  std::vector<uint8_t> random, repeated;
  for (size_t i = 0; i < 70000; ++i) random.push_back(static_cast<uint8_t>(Philox(3).bits(i)));
  // Matches of every length at near and far distances.
  for (size_t length = 1; length < 400; ++length) {
    const size_t from = Philox(4).below(length, 30000);
    repeated.insert(repeated.end(), random.begin() + static_cast<std::ptrdiff_t>(from),
                    random.begin() + static_cast<std::ptrdiff_t>(from + length));
  }
  cases.push_back(random);
  cases.push_back(repeated);
  for (const std::vector<uint8_t>& bytes : cases)
    EXPECT_EQ(inflate_fixed(zlib_compress(bytes)), bytes) << bytes.size();
  EXPECT_LT(zlib_compress(cases[3]).size(), 1000u);
}

TEST(Png, HoldsThePixels) {
  const std::vector<uint8_t> rgb = {255, 0, 0, 0, 255, 0, 1, 2, 3, 4, 5, 6};
  const std::string png = encode_png(2, 2, rgb);
  EXPECT_THAT(png, StartsWith("\x89PNG\r\n\x1a\n"));
  EXPECT_EQ(png.substr(12, 12), std::string("IHDR\0\0\0\2\0\0\0\2", 12));
  // Checksum of the last chunk, which never changes.
  EXPECT_EQ(png.substr(png.size() - 8), "IEND\xae\x42\x60\x82");
  const size_t data = png.find("IDAT") + 4;
  const std::vector<uint8_t> rows = inflate_fixed(png.substr(data));
  ASSERT_EQ(rows.size(), 2u * 7);
  for (size_t x = 0; x < 6; ++x) {
    EXPECT_EQ(rows[1 + x], rgb[x]);
    EXPECT_EQ(static_cast<uint8_t>(rows[1 + x] + rows[8 + x]), rgb[6 + x]);
  }
}

TEST(StrokeFont, EveryGlyphIsChainsOfPointsOnTheGrid) {
  for (char32_t c = U' '; c <= U'~'; ++c) {
    const std::string_view strokes = stroke_glyph(c);
    for (size_t i = 0; i < strokes.size(); ++i) {
      if (strokes[i] == ' ') continue;
      ASSERT_LT(i + 1, strokes.size());
      EXPECT_TRUE(strokes[i] >= '0' && strokes[i] <= '4' && strokes[i + 1] >= 'a' && strokes[i + 1] <= 'i')
          << static_cast<char>(c);
      ++i;
    }
  }
}

TEST(PlotAxis, TicksAreRoundNumbers) {
  const PlotAxis loss = make_axis(1.93, 9.2, 5, false);
  EXPECT_THAT(loss.ticks, ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_EQ(loss.label(4), "4");
  const PlotAxis fine = make_axis(3.11, 3.38, 3, false);
  EXPECT_EQ(fine.label(fine.ticks[1]), "3.2");
  const PlotAxis rate = make_axis(0, 6e-4, 3, false);
  EXPECT_EQ(rate.label(rate.ticks[1]), "2e-4");
  EXPECT_EQ(rate.label(rate.ticks[0]), "0");
  const PlotAxis speed = make_axis(0, 41000, 4, false);
  EXPECT_EQ(speed.label(20000), "20K");
  const PlotAxis steps = make_axis(1, 8, 8, true);
  EXPECT_EQ(steps.ticks.front(), 1);
  EXPECT_EQ(steps.high, 8);
  const PlotAxis flat = make_axis(2, 2, 4, false);
  EXPECT_LT(flat.low, 2);
  EXPECT_GT(flat.high, 2);
}

PlotRun falling_run(std::string name, int64_t steps) {
  PlotRun run{.name = std::move(name), .records = {}};
  for (int64_t s = 1; s <= steps; ++s) {
    StepRecord record;
    record.step = s;
    record.loss = 2 + 5 * std::exp(-static_cast<double>(s) / 50);
    record.lr = 1e-3;
    record.tokens_per_second = 1000;
    if (s % 100 == 0) record.eval_loss = record.loss;
    run.records.push_back(record);
  }
  return run;
}

TEST(PlotOfRuns, ThinsLongRunsAndKeepsSpikesAndGaps) {
  PlotRun run = falling_run("long", 50000);
  run.records[25000].loss = 99;
  run.records[30000].loss = NAN;
  const Plot plot = plot_of_runs({run});
  ASSERT_EQ(plot.panels.size(), 3u);
  const std::vector<PlotPoint>& points = plot.panels[0].series[0].points;
  EXPECT_LT(points.size(), 2000u);
  EXPECT_TRUE(std::any_of(points.begin(), points.end(), [](const PlotPoint& p) { return p.y == 99; }));
  EXPECT_TRUE(std::any_of(points.begin(), points.end(), [](const PlotPoint& p) { return std::isnan(p.y); }));
}

TEST(PlotOfRuns, LeavesOutWhatHasNoData) {
  PlotRun run = falling_run("short", 5);
  for (StepRecord& record : run.records) record.lr = record.tokens_per_second = NAN;
  const Plot plot = plot_of_runs({run});
  ASSERT_EQ(plot.panels.size(), 1u);
  EXPECT_EQ(plot.panels[0].title, "loss");
}

TEST(PlotSvg, IsWellFormedWhateverTheName) {
  const std::string svg =
      plot_svg(plot_of_runs({falling_run("a<b>&\"c\x01", 120), falling_run("other", 80)}));
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;&quot;c\\x01"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, HasSubstr("<circle"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(PlotPng, DrawsInTheColoursOfTheRuns) {
  const std::string png = plot_png(plot_of_runs({falling_run("a", 60), falling_run("b", 60)}));
  const std::vector<uint8_t> rows = inflate_fixed(png.substr(png.find("IDAT") + 4));
  const auto size = plot_size(plot_of_runs({falling_run("a", 60), falling_run("b", 60)}));
  const auto width = static_cast<size_t>(2 * size.width);
  ASSERT_EQ(rows.size(), static_cast<size_t>(2 * size.height) * (3 * width + 1));
  std::vector<uint8_t> above(3 * width, 0);
  int64_t white = 0, first = 0, second = 0;
  for (size_t at = 0; at < rows.size(); at += 3 * width + 1) {
    for (size_t x = 0; x < 3 * width; ++x) above[x] = static_cast<uint8_t>(above[x] + rows[at + 1 + x]);
    for (size_t x = 0; x < 3 * width; x += 3) {
      const auto is = [&](Rgb c) { return above[x] == c.r && above[x + 1] == c.g && above[x + 2] == c.b; };
      white += is({255, 255, 255});
      first += is(run_colour(0));
      second += is(run_colour(1));
    }
  }
  EXPECT_GT(white, static_cast<int64_t>(width * 1000));
  EXPECT_GT(first, 100);
  EXPECT_GT(second, 1000);
}

TEST(PlotTerminal, FitsItsColumnsAndFalls) {
  const Plot plot = plot_of_runs({falling_run("a", 300)});
  const std::string text = plot_terminal(plot, plot.panels[0], 60, 8, false);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    EXPECT_LE(display_width(lines.back()), 64) << lines.back();
    at = end + 1;
  }
  ASSERT_EQ(lines.size(), 1u + 8 + 2);
  // High at the left, low at the right.
  EXPECT_LT(display_width(lines[2]), 25);
  EXPECT_GT(display_width(lines[7]) + display_width(lines[8]), 60);
  EXPECT_THAT(lines[9], HasSubstr("└─"));
}

TEST(PlotTerminal, WithoutColourEveryRunHasItsChart) {
  const Plot plot = plot_of_runs({falling_run("a", 30), falling_run("b\x1b[2J", 30)});
  const std::string text = plot_terminal(plot, plot.panels[0], 60, 6, false);
  EXPECT_THAT(text, HasSubstr("loss: a\n"));
  EXPECT_THAT(text, HasSubstr("loss: b\\x1b[2J\n"));
  EXPECT_THAT(plot_terminal(plot, plot.panels[0], 60, 6, true),
              HasSubstr("\x1b[34m━ a\x1b[0m  \x1b[33m━ b\\x1b[2J\x1b[0m\n"));
}

}  // namespace
}  // namespace octet
