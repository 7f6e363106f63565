#include "demo/demo_exam.h"

#include <fmt/format.h>

#include "data/datasets/demo_stories.h"

namespace octet {
namespace {

constexpr int64_t kCases = 48;
constexpr size_t kShown = 4;
constexpr uint64_t kSeed = 20240607;

std::vector<std::string> answers_to(Generator& generator, const std::vector<DemoCase>& cases) {
  std::vector<std::string> prompts;
  for (const DemoCase& c : cases) prompts.push_back(c.prompt);
  return generator.continue_prompts(prompts, {.max_tokens = 24, .temperature = 0, .stop = "."});
}

}  // namespace

void DemoExam::before(Generator& generator) {
  std::vector<DemoCase> cases = demo_cases(kSeed, kCases);
  cases.resize(kShown);
  answers_before_ = answers_to(generator, cases);
}

std::string DemoExam::after(Generator& generator) {
  const std::vector<DemoCase> cases = demo_cases(kSeed, kCases);
  const std::vector<std::string> answers = answers_to(generator, cases);
  int64_t right = 0;
  for (size_t i = 0; i < cases.size(); ++i) right += answers[i] == cases[i].answer;
  score_ = static_cast<double>(right) / static_cast<double>(cases.size());

  std::string text = "\nunseen stories, finished by the model:\n";
  for (size_t i = 0; i < kShown; ++i) {
    text += fmt::format("  {}\n", cases[i].prompt);
    if (!answers_before_.empty()) text += fmt::format("    before [{}]\n", answers_before_[i]);
    text += fmt::format(
        "    after  [{}] {}\n", answers[i],
        answers[i] == cases[i].answer ? "right" : fmt::format("wrong, expected [{}]", cases[i].answer));
  }
  return text;
}

}  // namespace octet
