#include "eval/scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace octet {
namespace {

using testing::HasSubstr;

Task task_of(std::vector<TaskQuestion> questions, const char* format = "multiple_choice") {
  Task task{.name = "t",
            .format = &find_task_format(format),
            .dataset = "t.jsonl",
            .questions = std::move(questions)};
  task.prompts.resize(task.questions.size());
  return task;
}

TaskQuestion question(std::vector<std::string> choices, int64_t label, const char* group = "") {
  return {.place = "t.jsonl] line 1", .group = group, .choices = std::move(choices), .label = label};
}

TEST(Scores, TheNormalisedChoiceDividesByCharacters) {
  const Task task = task_of({question({"ab", "abcd"}, 1), question({"üü", "abc"}, 0)});
  const std::vector<Answer> answers = choose_answers(task, {-3, -4, -4, -5});
  EXPECT_EQ(answers[0].choice, 0);
  EXPECT_EQ(answers[0].choice_norm, 1);
  EXPECT_EQ(answers[1].choice, 0);
  EXPECT_EQ(answers[1].choice_norm, 1);  // 4 / 2 characters, not 4 / 4 bytes
  const TaskScore score = score_answers(task, answers);
  EXPECT_EQ(score.acc.mean, 0.5);
  EXPECT_EQ(score.acc_norm->mean, 0.5);
  EXPECT_STREQ(score.main_metric(), "acc_norm");
}

TEST(Scores, OfEqualChoicesTheFirstIsTaken) {
  const Task task = task_of({question({"a", "b", "c"}, 1)});
  EXPECT_EQ(choose_answers(task, {-2, -1, -1})[0].choice, 1);
}

TEST(Scores, TheStandardErrorIsThatOfTheMean) {
  const Task task = task_of(
      {question({"a", "b"}, 0), question({"a", "b"}, 0), question({"a", "b"}, 0), question({"a", "b"}, 1)});
  const TaskScore score = score_answers(task, choose_answers(task, {-1, -2, -1, -2, -2, -1, -2, -1}));
  EXPECT_EQ(score.acc.mean, 0.75);
  // Deviations 1/4, 1/4, 1/4 and 3/4: a variance of 0.75 / 3, over 4 questions.
  EXPECT_DOUBLE_EQ(*score.acc.standard_error, std::sqrt(0.75 / 3 / 4));
  const Task one = task_of({question({"a", "b"}, 0)});
  EXPECT_FALSE(score_answers(one, choose_answers(one, {-1, -2})).acc.standard_error.has_value());
}

TEST(Scores, SubjectsHaveTheirOwnScores) {
  const Task task = task_of({question({"A", "B"}, 0, "x"), question({"A", "B"}, 0, "x"),
                             question({"A", "B"}, 0, "y"), question({"A", "B"}, 1, "y")},
                            "mmlu");
  const TaskScore score = score_answers(task, choose_answers(task, {-1, -2, -2, -1, -1, -2, -2, -1}));
  ASSERT_EQ(score.groups.size(), 2);
  EXPECT_EQ(score.groups[0].second.acc.mean, 0.5);
  EXPECT_EQ(score.groups[1].second.acc.mean, 1);
  EXPECT_EQ(score.acc.mean, 0.75);
  EXPECT_FALSE(score.acc_norm.has_value());
  // Only the variance inside the subjects: 0.5 over 2 + 2 - 2, over 4 questions.
  EXPECT_DOUBLE_EQ(*score.acc.standard_error, std::sqrt(0.5 / 2 / 4));
}

TEST(Scores, ALinePerQuestionTellsTheChoice) {
  const Task task = task_of({question({"ab", "c"}, 1)});
  const std::string lines =
      answers_jsonl(task, {{{1, 2, 3}, 2}, {{1, 2}, 1}}, choose_answers(task, {-3, -2}));
  EXPECT_THAT(lines, HasSubstr(R"({"task":"t","index":0,"label":1,"choice":1,"choice_norm":0,"correct":true,)"
                               R"("correct_norm":false,"log_likelihoods":[-3.0,-2.0],"characters":[2,1],)"
                               R"("tokens":[2,1],"text":"c"})"));
}

}  // namespace
}  // namespace octet
