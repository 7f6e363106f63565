#include "report/html_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/page_files.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::HasSubstr;
using testing::Not;

HtmlPage with_part(HtmlPart part) {
  HtmlPage page{.title = "Example"};
  page.sections.push_back({"", {std::move(part)}});
  return page;
}

// What the script of the page reads.
nlohmann::json data_of(const std::string& html) {
  const std::string head = "<script type=\"application/json\" id=\"page-data\">";
  const size_t begin = html.find(head) + head.size();
  return nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(HtmlPage, EscapesEveryTextFromARun) {
  const std::string evil = "<script>alert(1)</script>\"'&";
  HtmlPage page{.title = evil, .subtitle = evil, .footer = evil};
  page.sections.push_back(
      {evil,
       {HtmlText{evil, Tone::Bad}, HtmlVerdict{evil}, HtmlFigures{{{evil, evil, evil}}},
        HtmlTable{evil, {{evil}}, {{{evil}}}, evil}, HtmlBars{evil, {{evil, 1, evil}}, evil},
        HtmlChart{evil, evil, evil, {{evil, 0, {{1, 2}}}}}, HtmlParallel{evil, {{evil}}, {{evil, {evil}}}},
        HtmlQuotes{{{evil, evil}}}}});
  const std::string html = html_page(page);
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  // The data and the page's own script, and no other.
  EXPECT_EQ(count(html, "<script"), 2U);
  EXPECT_EQ(count(html, "</script"), 2U);
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"));
  EXPECT_EQ(data_of(html)["drawn-1"]["title"], evil);
  EXPECT_EQ(data_of(html)["drawn-2"]["lines"][0]["values"][0], evil);
}

TEST(HtmlPage, TakesAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  bytes += "<!--<script>]]>\xE2\x80\xA8";
  HtmlPage page = with_part(HtmlChart{bytes, "x", "y", {{bytes, 0, {{1, 2}}}}});
  page.sections[0].parts.push_back(HtmlQuotes{{{bytes, bytes}}});
  const std::string html = html_page(page);
  EXPECT_EQ(count(html, "<script"), 2U);
  EXPECT_EQ(count(html, "<!--"), 0U);
  EXPECT_EQ(html.find('\0'), std::string::npos);
  EXPECT_THAT(html, HasSubstr("\\x1b"));  // an escape is shown, not obeyed
  EXPECT_NO_THROW(data_of(html));
}

TEST(HtmlPage, AllowsItsOwnScriptAndNothingElse) {
  const std::string html = html_page({.title = "t"});
  EXPECT_THAT(html, HasSubstr("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(html, Not(HasSubstr("unsafe-inline")));
  // Nothing is loaded from elsewhere. The name of the SVG format is not an address.
  std::string rest = html;
  const std::string svg = "http://www.w3.org/2000/svg";
  while (rest.find(svg) != std::string::npos) rest.erase(rest.find(svg), svg.size());
  EXPECT_THAT(rest, Not(HasSubstr("http:")));
  EXPECT_THAT(rest, Not(HasSubstr("https:")));
  EXPECT_THAT(rest, Not(HasSubstr("src=")));
  EXPECT_THAT(std::string(kPageStyle), Not(HasSubstr("url(")));
}

TEST(HtmlPage, AGapIsNullAndBandsAreKept) {
  const HtmlSeries series{
      .name = "s",
      .points = {{1, 2, 1.5, 2.5}, {2, std::nan("")}, {3, std::numeric_limits<double>::infinity()}}};
  const nlohmann::json data =
      data_of(html_page(with_part(HtmlChart{"c", "step", "loss", {series}})))["drawn-0"];
  EXPECT_EQ(data["series"][0]["y"], nlohmann::json::parse("[2, null, null]"));
  EXPECT_EQ(data["series"][0]["low"], nlohmann::json::parse("[1.5, null, null]"));
  EXPECT_EQ(data["series"][0]["high"], nlohmann::json::parse("[2.5, null, null]"));
  EXPECT_EQ(data["kind"], "chart");
}

TEST(HtmlPage, ManyPointsAreThinnedAndSpikesStay) {
  HtmlSeries series{.name = "s"};
  for (int i = 0; i < 1'000'000; ++i)
    series.points.push_back({static_cast<double>(i), i == 567'891 ? 99.0 : 1.0 + 1e-6 * i});
  const std::string html = html_page(with_part(HtmlChart{"c", "step", "loss", {series}}));
  const nlohmann::json data = data_of(html)["drawn-0"]["series"][0];
  EXPECT_LE(data["x"].size(), 4000U);
  EXPECT_GT(data["x"].size(), 3000U);
  bool has_spike = false;
  for (size_t i = 0; i < data["x"].size(); ++i) {
    if (data["x"][i] == 567'891) has_spike = data["y"][i] == 99.0;
    if (i > 0) {
      EXPECT_LT(data["x"][i - 1].get<double>(), data["x"][i].get<double>());
    }
  }
  EXPECT_TRUE(has_spike);
  EXPECT_LT(html.size(), 300'000U);
}

TEST(HtmlPage, ThinningKeepsWhatStandsNextToAGap) {
  HtmlSeries series{.name = "s"};
  // Every second value is missing, so that every stretch has gaps.
  for (int i = 0; i < 100'000; ++i)
    series.points.push_back({static_cast<double>(i), i % 2 == 0 ? std::nan("") : i == 50'001 ? 99.0 : 1.0});
  const std::string html = html_page(with_part(HtmlChart{"c", "step", "loss", {series}}));
  const nlohmann::json data = data_of(html)["drawn-0"]["series"][0];
  EXPECT_LE(data["x"].size(), 4000U);
  size_t finite = 0;
  for (const nlohmann::json& y : data["y"]) finite += y.is_number();
  EXPECT_GT(finite, 1000U);
  EXPECT_THAT(data["y"], testing::Contains(99));
}

TEST(HtmlPage, WhatIsNotANumberCanBeSorted) {
  HtmlTable table{"t", {{"a"}}, {{{"nan", Tone::Plain, std::nan("")}}}};
  const std::string html = html_page(with_part(table));
  EXPECT_THAT(html, HasSubstr("data-sort=\"1.797"));
  EXPECT_THAT(html, Not(HasSubstr("data-sort=\"nan")));
}

TEST(HtmlPage, RowsMustHaveOneCellPerColumn) {
  EXPECT_THROW(html_page(with_part(HtmlTable{"t", {{"a"}, {"b"}}, {{{"1"}}}})), Error);
  EXPECT_THROW(html_page(with_part(HtmlParallel{"t", {{"a"}, {"b"}}, {{"run", {1.0}}}})), Error);
}

// Writes the page that check_page.py opens in a browser, to the file that it names (else a temporary one).
TEST(HtmlPage, WritesTheExampleForTheBrowser) {
  test::TemporaryFolder temporary;
  const char* named = std::getenv("OCTET_PAGE_EXAMPLE");
  const std::string evil = "<script>alert(1)</script>";
  HtmlSeries bf16{.name = evil, .colour = 0}, fp8{.name = "fp8 </script>", .colour = 1};
  HtmlSeries evaluation{.name = "evaluation", .colour = 2, .dots = true, .smooth = false};
  HtmlSeries mean{.name = "mean of 3 seeds", .colour = 3, .smooth = false, .dashed = true};
  for (int step = 1; step <= 200; ++step) {
    const double x = step;
    const double noise = 0.2 * std::sin(37.0 * x * x);
    bf16.points.push_back({x, 1.0 + 9.0 / x + noise});
    fp8.points.push_back({x, step == 120 ? std::nan("") : 1.0 + 8.0 / x + 0.2 * std::sin(11.0 * x * x)});
    if (step % 50 == 0) evaluation.points.push_back({x, 1.0 + 10.0 / x});
    if (step % 10 == 0) mean.points.push_back({x, 2.0 + 9.0 / x, 1.8 + 9.0 / x, 2.2 + 9.0 / x});
  }
  HtmlParallel parallel{.title = "Runs",
                        .axes = {{"learning_rate", true}, {"precision"}, {"warmup"}, {"eval_loss"}}};
  for (int i = 0; i < 24; ++i) {
    const double rate = 1e-4 * std::pow(2.0, i % 6);
    parallel.lines.push_back({i == 3 ? evil : "run-" + std::to_string(i),
                              {rate,
                               std::string(i % 3 == 0   ? "bf16"
                                           : i % 3 == 1 ? "fp8"
                                                        : "fp8 block"),
                               i % 5 == 0 ? HtmlValue() : HtmlValue(10.0 * (i % 4)),
                               2.0 + std::abs(std::log(rate / 4e-4)) + 0.01 * i}});
  }
  HtmlPage page{.title = "Example " + evil, .subtitle = "A page with every part", .footer = "octet"};
  page.sections.push_back(
      {"",
       {HtmlVerdict{"FP8 is 1.46x faster; evaluation loss differs by -0.13 %, within noise", Tone::Good},
        HtmlFigures{{{"Speed", "1.46x", "107,000 tokens/s", Tone::Good}, {"Memory", "12.1 GiB", evil}}}}});
  page.sections.push_back(
      {"Charts",
       {HtmlChart{
            .title = "Loss", .x_label = "step", .y_label = "loss", .series = {bf16, fp8, evaluation, mean}},
        HtmlBars{"Throughput", {{evil, 73'000, "73,000"}, {"fp8", 107'000, "107,000", 1}}}}});
  page.sections.push_back({"Sweep",
                           {parallel, HtmlTable{"Runs",
                                                {{"run"}, {"loss", Align::Right}},
                                                {{{"b"}, {"10.5", Tone::Bad, 10.5}},
                                                 {{evil}, {"9.25", Tone::Good, 9.25}},
                                                 {{"c"}, {"100.0", Tone::Plain, 100}}}}}});
  page.sections.push_back(
      {"Samples", {HtmlQuotes{{{"bf16", "Once upon a time\n" + evil + "\n\x1b[31m \xff\xfe", 0}}}}});
  std::ofstream file(named == nullptr ? temporary.path() + "/page.html" : std::string(named),
                     std::ios::binary);
  file << html_page(page);
  file.close();
  EXPECT_TRUE(file.good());
}

}  // namespace
}  // namespace octet
