#include "report/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "report/plot_axis.h"
#include "report/text.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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

RunFolder falling_run(std::string name, int64_t steps) {
  RunFolder run{.name = std::move(name)};
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
  RunFolder run = falling_run("long", 50000);
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
  RunFolder run = falling_run("short", 5);
  for (StepRecord& record : run.records) record.lr = record.tokens_per_second = NAN;
  const Plot plot = plot_of_runs({run});
  ASSERT_EQ(plot.panels.size(), 1u);
  EXPECT_EQ(plot.panels[0].title, "loss");
}

// What Python's XML parser finds in the text: the root's name and the number of elements below it, or its error.
std::string parsed_xml(const std::string& text) {
  const test::TemporaryFolder folder;
  const std::string script =
      "import sys, xml.etree.ElementTree as tree\n"
      "root = tree.parse(sys.argv[1]).getroot()\n"
      "names = [e.tag.removeprefix('{http://www.w3.org/2000/svg}') for e in root.iter()]\n"
      "print(*(f'{name}:{names.count(name)}' for name in sorted(set(names))))\n"
      "print('|'.join(e.text for e in root.iter('{http://www.w3.org/2000/svg}text')))\n";
  const test::ProcessResult result =
      test::run_process("python3", {"-c", script, folder.write("plot.svg", text)});
  return result.exit_code == 0 ? result.out : result.err;
}

TEST(PlotSvg, IsXmlWhateverTheName) {
  // Markup, control characters, bytes that are no UTF-8 and a code point that XML does not allow.
  const std::string name = "a<b>&\"c]]>\x01\xff\xef\xbf\xbf \xc3\xa9";
  const std::string svg = plot_svg(plot_of_runs({falling_run(name, 120), falling_run("other", 80)}));
  const std::string parsed = parsed_xml(svg);
  EXPECT_THAT(parsed, ContainsRegex("circle:1 clipPath:3 g:3 polyline:[0-9]+ rect:4 svg:1 text:[0-9]+\n"));
  EXPECT_THAT(parsed, HasSubstr("a<b>&\"c]]>\\x01\uFFFD\uFFFD \u00e9|other|loss (dots: evaluation)|"));
}

TEST(PlotSvg, DrawsLossesThatAreNotFiniteAsGaps) {
  RunFolder run = falling_run("a", 30);
  run.records[10].loss = NAN;
  run.records[20].loss = INFINITY;
  const std::string svg = plot_svg(plot_of_runs({run}));
  EXPECT_THAT(parsed_xml(svg), HasSubstr("svg:1"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
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

// As far apart as two lines of a plot must be.
TEST(PlotColours, TwelveRunsAreToldApart) {
  ASSERT_GE(kRunColours.size(), 9u);
  for (size_t i = 0; i < kRunColours.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Rgb a = kRunColours[i].rgb, b = kRunColours[j].rgb;
      const double distance = std::hypot(a.r - b.r, a.g - b.g, a.b - b.b);
      EXPECT_GT(distance, 45) << i << " and " << j;
      EXPECT_NE(kRunColours[i].terminal, kRunColours[j].terminal) << i << " and " << j;
    }
  }
  std::vector<RunFolder> runs;
  for (int i = 0; i < 13; ++i) runs.push_back(falling_run("run" + std::to_string(i), 10));
  const std::string svg = plot_svg(plot_of_runs(runs));
  for (int i = 0; i < 12; ++i) {
    const Rgb c = run_colour(i).rgb;
    char colour[16];
    snprintf(colour, sizeof colour, "#%02x%02x%02x", c.r, c.g, c.b);
    EXPECT_THAT(svg, HasSubstr(colour));
  }
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray")) << "the thirteenth";
  runs.resize(9);
  const Plot plot = plot_of_runs(runs);
  EXPECT_THAT(plot_svg(plot), Not(HasSubstr("stroke-dasharray")));
  const std::string text = plot_terminal(plot, plot.panels.front(), 80, 10, true);
  for (int i = 0; i < 9; ++i)
    EXPECT_THAT(text, HasSubstr("\x1b[38;5;" + std::to_string(run_colour(i).terminal) + "m"));
}

TEST(PlotTerminal, WithoutColourEveryRunHasItsChart) {
  const Plot plot = plot_of_runs({falling_run("a", 30), falling_run("b\x1b[2J", 30)});
  const std::string text = plot_terminal(plot, plot.panels[0], 60, 6, false);
  EXPECT_THAT(text, HasSubstr("loss: a\n"));
  EXPECT_THAT(text, HasSubstr("loss: b\\x1b[2J\n"));
  EXPECT_THAT(plot_terminal(plot, plot.panels[0], 60, 6, true),
              HasSubstr("\x1b[38;5;33m━ a\x1b[0m  \x1b[38;5;208m━ b\\x1b[2J\x1b[0m\n"));
}

}  // namespace
}  // namespace octet
