#include "data/demo_stories.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <set>
#include <sstream>

namespace octet {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(DemoStories, NoHeldOutStoryIsInAnyTrainingText) {
  std::set<std::string> held_out;
  for (uint64_t seed : {0, 1, 2}) {
    for (const std::string& line : lines_of(demo_text(seed, 3000, DemoSplit::HeldOut))) held_out.insert(line);
    for (const DemoCase& one : demo_cases(seed, 500)) held_out.insert(one.prompt + one.answer);
  }
  EXPECT_GT(held_out.size(), 3000u);
  for (uint64_t seed : {0, 1, 5}) {
    for (const std::string& line : lines_of(demo_text(seed, 20000, DemoSplit::Train))) {
      ASSERT_FALSE(held_out.contains(line)) << line;
    }
  }
}

TEST(DemoStories, WholeLinesOfShortAscii) {
  const std::string text = demo_text(3, 2000, DemoSplit::Train);
  EXPECT_EQ(text.back(), '\n');
  const std::vector<std::string> lines = lines_of(text);
  ASSERT_EQ(lines.size(), 2000u);
  for (const std::string& line : lines) {
    EXPECT_TRUE(line.size() >= 55 && line.size() <= 120) << line;
    EXPECT_EQ(line.back(), '.');
    for (char c : line) ASSERT_TRUE(c >= ' ' && c < 127) << line;
  }
}

TEST(DemoStories, FollowTheSeed) {
  EXPECT_EQ(demo_text(1, 100, DemoSplit::Train), demo_text(1, 100, DemoSplit::Train));
  EXPECT_NE(demo_text(1, 100, DemoSplit::Train), demo_text(2, 100, DemoSplit::Train));
  // A longer text begins with the shorter one.
  EXPECT_TRUE(demo_text(1, 200, DemoSplit::Train).starts_with(demo_text(1, 100, DemoSplit::Train)));
}

TEST(DemoStories, CasesDifferAndEndAtTheFirstFullStop) {
  const std::vector<DemoCase> cases = demo_cases(7, 1000);
  ASSERT_EQ(cases.size(), 1000u);
  std::set<std::string> prompts;
  for (const DemoCase& one : cases) {
    EXPECT_TRUE(prompts.insert(one.prompt).second) << one.prompt;
    EXPECT_EQ(one.answer.front(), ' ');
    EXPECT_NE(one.prompt.back(), ' ');
    EXPECT_EQ(one.answer.find('.'), one.answer.size() - 1);
    EXPECT_LE(one.answer.size(), 20u);
  }
}

// The answers, worked out again from the text alone.
std::string solve(const std::string& prompt) {
  char a[16], b[16], c[16], d[16];
  int x = 0, y = 0;
  if (std::sscanf(prompt.c_str(), "%15s has %d %15s %15[a-z]. %*s gives %*s %d more. Now", a, &x, b, c, &y) ==
      5) {
    return fmt::format(" {} {} {}.", x + y, b, c);
  }
  if (std::sscanf(prompt.c_str(), "%15s has %d %15[a-z]. %15s has %d", a, &x, b, c, &y) == 5) {
    return fmt::format(" {}.", x > y ? a : c);
  }
  if (std::sscanf(prompt.c_str(),
                  "%*s finds a %*s %*s at the %*[a-z]. %*s gives it to %*[A-Za-z]. %*s gives it to "
                  "%15[A-Za-z].",
                  a) == 1) {
    return fmt::format(" {}.", a);
  }
  if (std::sscanf(prompt.c_str(), "%15s %15s %15s to the", a, b, d) == 3) {
    const std::map<std::string, std::string> opposite = {
        {"north", "south"}, {"south", "north"}, {"east", "west"}, {"west", "east"}};
    return fmt::format(" {}.", opposite.at(d));
  }
  return "not understood";
}

TEST(DemoStories, AnswersAreRight) {
  std::map<std::string, int> last_words;
  for (const DemoCase& one : demo_cases(11, 800)) {
    EXPECT_EQ(solve(one.prompt), one.answer) << one.prompt;
    ++last_words[one.answer];
  }
  // No answer is so common that always giving it would score.
  for (const auto& [answer, count] : last_words) EXPECT_LT(count, 80) << answer;
}

}  // namespace
}  // namespace octet
