#include "eval/task_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_of.h"

namespace octet {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TaskQuestion read(const char* task, const char* record) {
  return find_task_format(task).read(json::parse(record), "file.jsonl] line 7");
}

std::string error_in(const char* task, const char* record) {
  return error_of([&] { read(task, record); });
}

TEST(TaskFormats, HellaSwagJoinsAndCleansTheTexts) {
  const TaskQuestion q =
      read("hellaswag", R"({"activity_label": "Baking", "ctx_a": "[header] A baker. [title] He  works.",
      "ctx_b": "THEN he", "endings": ["  stops [step] now. ", "sings"], "label": "1"})");
  EXPECT_EQ(q.question, "Baking: A baker.. He works. Then he");
  EXPECT_THAT(q.choices, ElementsAre("stops now.", "sings"));
  EXPECT_EQ(q.label, 1);
}

TEST(TaskFormats, ArcFindsTheAnswerByItsLabel) {
  const TaskQuestion q = read("arc_challenge", R"({"question": "Why?", "choices": {"text": ["x", "y", "z"],
      "label": ["1", "2", "3"]}, "answerKey": "3"})");
  EXPECT_EQ(q.question, "Question: Why?\nAnswer:");
  EXPECT_THAT(q.choices, ElementsAre("x", "y", "z"));
  EXPECT_EQ(q.label, 2);
  const TaskQuestion published = read("arc_easy", R"({"question": {"stem": "Why?", "choices": [
      {"text": "x", "label": "A"}, {"text": "y", "label": "B"}]}, "answerKey": "B"})");
  EXPECT_EQ(published.question, "Question: Why?\nAnswer:");
  EXPECT_EQ(published.label, 1);
}

TEST(TaskFormats, PiqaHasTwoSolutions) {
  const TaskQuestion q = read("piqa", R"({"goal": "Sit.", "sol1": "a", "sol2": "b", "label": 1})");
  EXPECT_EQ(q.question, "Question: Sit.\nAnswer:");
  EXPECT_THAT(q.choices, ElementsAre("a", "b"));
  EXPECT_EQ(q.label, 1);
}

TEST(TaskFormats, WinoGrandeScoresWhatFollowsTheBlank) {
  const TaskQuestion q = read(
      "winogrande", R"({"sentence": "I like _ a lot. ", "option1": "tea", "option2": "mud", "answer": "2"})");
  EXPECT_TRUE(q.choices_first);
  EXPECT_THAT(q.choices, ElementsAre("I like tea", "I like mud"));
  EXPECT_EQ(q.continuation, "a lot.");
  EXPECT_EQ(q.label, 1);
}

TEST(TaskFormats, MmluListsTheChoicesAndScoresLetters) {
  const TaskQuestion q =
      read("mmlu", R"({"question": " One? ", "choices": ["w", "x", "y", "z"], "answer": "C",
      "subject": "us_foreign_policy"})");
  EXPECT_EQ(q.question, "One?\nA. w\nB. x\nC. y\nD. z\nAnswer:");
  EXPECT_THAT(q.choices, ElementsAre("A", "B", "C", "D"));
  EXPECT_EQ(q.label, 2);
  EXPECT_EQ(q.description,
            "The following are multiple choice questions (with answers) about us foreign policy.\n\n");
  EXPECT_EQ(read("mmlu", R"({"question": "q", "choices": ["a", "b"], "answer": 1})").label, 1);
}

TEST(TaskFormats, OwnFilesNeedContextEndingsAndLabel) {
  const TaskQuestion q = read("multiple_choice", R"({"context": "c", "endings": ["a", "b"], "label": "B"})");
  EXPECT_EQ(q.question, "c");
  EXPECT_EQ(q.label, 1);
  EXPECT_EQ(read("multiple_choice", R"({"question": "c", "choices": ["a", "b"], "answer": 0})").label, 0);
}

TEST(TaskFormats, ABrokenRowIsNamed) {
  EXPECT_THAT(
      error_in("hellaswag", R"({"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "label": 0})"),
      HasSubstr("[file.jsonl] line 7: no column 'endings'; a row of hellaswag has activity_label, ctx_a, "
                "ctx_b, endings and label (this one has "));
  EXPECT_THAT(
      error_in("multiple_choice", R"({"context": "c", "endings": ["a", "b"], "label": 2})"),
      HasSubstr("[file.jsonl] line 7: 'label' is 2, expected a number from 0 to 1 or a letter from A to B"));
  EXPECT_THAT(error_in("multiple_choice", R"({"context": "c", "endings": ["a", 3], "label": 0})"),
              HasSubstr("'endings' is 3, expected a text"));
  EXPECT_THAT(error_in("multiple_choice", R"({"context": "c", "endings": "ab", "label": 0})"),
              HasSubstr("'endings' is \"ab\", expected a list of texts"));
  EXPECT_THAT(error_in("multiple_choice", R"({"context": "c", "endings": ["a"], "label": 0})"),
              HasSubstr("'endings' has 1 choice, expected at least 2"));
  EXPECT_THAT(error_in("multiple_choice", R"({"context": null, "endings": ["a", "b"], "label": 0})"),
              HasSubstr("no column 'context'"));
  EXPECT_THAT(
      error_in("hellaswag", R"({"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["a", "b"],
      "label": ""})"),
      HasSubstr("'label' is \"\", expected a number from 0 to 1"));
  EXPECT_THAT(error_in("piqa", R"({"goal": "g", "sol1": "a", "sol2": "b", "label": -1})"),
              HasSubstr("'label' is -1, expected a number from 0 to 1"));
  EXPECT_THAT(error_in("winogrande", R"({"sentence": "no", "option1": "a", "option2": "b", "answer": "1"})"),
              HasSubstr("'sentence' has no blank '_'"));
  EXPECT_THAT(error_in("winogrande", R"({"sentence": "a _", "option1": "a", "option2": "b", "answer": "3"})"),
              HasSubstr("'answer' is \"3\", expected a number from 1 to 2"));
  EXPECT_THAT(error_in("arc_easy", R"({"question": "q", "choices": {"text": ["x", "y"], "label": ["A", "B"]},
      "answerKey": "C"})"),
              HasSubstr("'answerKey' is 'C', expected one of A, B"));
  EXPECT_THAT(error_in("arc_easy", R"({"question": "q", "choices": ["x", "y"], "answerKey": "A"})"),
              HasSubstr("'choices' is not an object with the lists 'text' and 'label'"));
}

TEST(TaskFormats, AnUnknownTaskGetsTheListOfTasks) {
  const std::string error = error_of([] { find_task_format("hellaswig"); });
  EXPECT_THAT(error, HasSubstr("unknown task 'hellaswig'; did you mean 'hellaswag'?"));
  EXPECT_THAT(error, HasSubstr("arc_easy, arc_challenge, piqa, winogrande, mmlu"));
  EXPECT_EQ(find_task_format("ARC-Easy").name, "arc_easy");
}

TEST(TaskFormats, AFileIsRecognisedByItsColumns) {
  const auto guess = [](const char* record) {
    return std::string(guess_task_format(json::parse(record), "f] line 1").name);
  };
  EXPECT_EQ(guess(R"({"activity_label": 0, "ctx_a": 0, "ctx_b": 0, "endings": 0})"), "hellaswag");
  EXPECT_EQ(guess(R"({"question": 0, "choices": 0, "answerKey": 0})"), "arc_easy");
  EXPECT_EQ(guess(R"({"goal": 0, "sol1": 0, "sol2": 0})"), "piqa");
  EXPECT_EQ(guess(R"({"sentence": 0, "option1": 0, "option2": 0})"), "winogrande");
  EXPECT_EQ(guess(R"({"question": 0, "choices": 0, "answer": 0, "subject": 0})"), "mmlu");
  EXPECT_EQ(guess(R"({"context": 0, "endings": 0})"), "multiple_choice");
  EXPECT_THAT(error_of([&] { guess(R"({"text": "a"})"); }),
              HasSubstr("[f] line 1: no task has the columns text"));
}

TEST(TaskFormats, LabelsThatAreNoLabelsAreRefused) {
  for (const char* label : {"-9223372036854775808", "18446744073709551615", "-1", "2", "1.0"}) {
    EXPECT_THAT(
        error_in("piqa",
                 fmt::format(R"({{"goal": "g", "sol1": "a", "sol2": "b", "label": {}}})", label).c_str()),
        HasSubstr("'label' is"))
        << label;
    EXPECT_THAT(
        error_in("winogrande",
                 fmt::format(R"({{"sentence": "_", "option1": "a", "option2": "b", "answer": {}}})", label)
                     .c_str()),
        label == std::string("2") ? HasSubstr("nothing was thrown") : HasSubstr("'answer' is"))
        << label;
  }
}

}  // namespace
}  // namespace octet
