#include "data/datasets/demo_stories.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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
  EXPECT_GT(held_out.size(), 2000u);
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
  const std::vector<DemoCase> cases = demo_cases(7, kDemoMostCases);
  ASSERT_EQ(cases.size(), 800u);
  std::set<std::string> prompts;
  for (const DemoCase& one : cases) {
    EXPECT_TRUE(prompts.insert(one.prompt).second) << one.prompt;
    EXPECT_EQ(one.answer.front(), ' ');
    EXPECT_NE(one.prompt.back(), ' ');
    EXPECT_EQ(one.answer.find('.'), one.answer.size() - 1);
    EXPECT_LE(one.answer.size(), 20u);
  }
}

// The answers, worked out again from the words alone.
std::string solve(std::string prompt) {
  std::erase_if(prompt, [](char c) { return c == '.' || c == ':'; });
  std::vector<std::string> words;
  std::istringstream in(prompt);
  for (std::string word; in >> word;) words.push_back(word);
  const auto after_last = [&](const std::string& word) {
    return *(std::find(words.rbegin(), words.rend(), word).base());
  };

  if (words.back() == "has") {  // Mia has 4 red apples Leo gives her 3 more Now Mia has
    if (words[0] != words[words.size() - 2]) return "another owner";
    return fmt::format(" {} {} {}.", std::stoi(words[2]) + std::stoi(words[8]), words[3], words[4]);
  }
  if (words.back() == "with") return fmt::format(" {}.", after_last("to"));  // ... gives it to Mia Now ...
  if (words.back() == "counts") {  // Mia hits the red drum at the lake bom bom bom Mia counts
    return fmt::format(" {}.", std::count(words.begin() + 8, words.end(), words[8]));
  }
  const std::map<std::string, std::string> opposite = {
      {"north", "south"}, {"south", "north"}, {"east", "west"}, {"west", "east"}};
  return fmt::format(" {}.", opposite.at(words[4]));  // Mia and Leo walk north to the lake ...
}

TEST(DemoStories, AnswersAreRight) {
  const std::string training = demo_text(11, 20000, DemoSplit::Train);
  std::map<std::string, int> answers;
  for (const DemoCase& one : demo_cases(11, 400)) {
    EXPECT_EQ(solve(one.prompt), one.answer) << one.prompt;
    ++answers[one.answer];
  }
  for (const auto& [answer, count] : answers) {
    EXPECT_LT(count, 40) << answer;  // always giving the same answer does not score
    EXPECT_NE(training.find(answer + "\n"), std::string::npos) << answer;  // each was seen in other stories
  }
}

}  // namespace
}  // namespace octet
