// Tasks from files to log-likelihoods, compared with what lm-evaluation-harness computed (scripts/make_eval_goldens.py).

#include "eval/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/model_weights.h"
#include "eval/scores.h"
#include "support/error_of.h"
#include "support/places.h"
#include "support/process.h"
#include "train/evaluate_tasks.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

const std::string kFolder = test::source_path("/tests/golden/eval_tasks/");

struct GoldenTask : testing::Test {
  GoldenTask() : model(find_model(kFolder + "model")), tokenizer(make_tokenizer(model.tokenizer)) {}

  std::vector<double> score(const std::vector<ScoredText>& texts, RunShape shape,
                            Precision precision = Precision::Fp32) {
    const std::unique_ptr<Device> device = make_cpu_device(1);
    Numerics numerics;
    numerics.precision = precision;
    Transformer transformer(model.config, shape, numerics, *device);
    transformer.allocate();
    load_weights(*device, transformer.parameters(), model);
    transformer.weights_changed();
    return log_likelihoods(transformer, texts, false);
  }
  static nlohmann::json golden(int examples) {
    std::ifstream file(kFolder + "golden_" + std::to_string(examples) + ".json");
    return nlohmann::json::parse(file);
  }

  ModelFolder model;
  std::unique_ptr<Tokenizer> tokenizer;
};

// Packed into rows of 96 tokens, several texts per row, and only the rows of the head that are needed.
TEST_F(GoldenTask, EveryLogLikelihoodIsThatOfTheHarness) {
  for (const int examples : {0, 2}) {
    const nlohmann::json expected = golden(examples);
    for (const char* name : {"hellaswag", "arc_easy", "piqa", "winogrande", "mmlu", "multiple_choice"}) {
      SCOPED_TRACE(fmt::format("{} with {} examples", name, examples));
      const std::string file = kFolder + name + ".jsonl";
      const Task task = load_task(parse_task_source(std::string(name) + "=" + file),
                                  {.examples = examples, .example_dataset = examples > 0 ? file : ""});
      const std::vector<ScoredText> texts = encode_task(task, *tokenizer, model.config.max_positions, 1);
      const std::vector<Answer> answers =
          choose_answers(task, score(texts, {.rows = 4, .length = 96, .training = false, .scoring = true}));
      ASSERT_EQ(answers.size(), expected[name].size());
      for (size_t i = 0; i < answers.size(); ++i) {
        const auto wanted = expected[name][i]["log_likelihoods"].get<std::vector<double>>();
        ASSERT_EQ(answers[i].log_likelihoods.size(), wanted.size());
        for (size_t k = 0; k < wanted.size(); ++k)
          EXPECT_NEAR(answers[i].log_likelihoods[k], wanted[k], 1e-4) << "question " << i << ", choice " << k;
        EXPECT_EQ(answers[i].choice == task.questions[i].label, expected[name][i]["acc"].get<bool>());
        if (expected[name][i].contains("acc_norm")) {
          EXPECT_EQ(answers[i].choice_norm == task.questions[i].label,
                    expected[name][i]["acc_norm"].get<bool>());
        }
      }
    }
  }
}

// A model in training computes all rows of the head, and ranks or batches of other sizes must not matter.
TEST_F(GoldenTask, TheResultDoesNotDependOnThePacking) {
  const Task task = load_task(parse_task_source("hellaswag=" + kFolder + "hellaswag.jsonl"), {});
  const std::vector<ScoredText> texts = encode_task(task, *tokenizer, 96, 2);
  const std::vector<double> packed =
      score(texts, {.rows = 8, .length = 96, .training = false, .scoring = true});
  const std::vector<double> alone =
      score(texts, {.rows = 1, .length = 96, .training = false, .scoring = true});
  const std::vector<double> trained = score(texts, {.rows = 3, .length = 96});
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_NEAR(packed[i], alone[i], 1e-4);
    EXPECT_NEAR(packed[i], trained[i], 1e-4);
  }
}

TEST_F(GoldenTask, LongTextsLoseTheirFront) {
  const Task task = load_task(parse_task_source("hellaswag=" + kFolder + "hellaswag.jsonl"), {});
  const std::vector<ScoredText> whole = encode_task(task, *tokenizer, 1000, 1);
  const std::vector<ScoredText> cut = encode_task(task, *tokenizer, 60, 1);
  size_t shorter = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_LE(cut[i].ids.size(), 61);
    EXPECT_EQ(cut[i].scored, whole[i].scored);
    EXPECT_TRUE(std::equal(cut[i].ids.rbegin(), cut[i].ids.rend(), whole[i].ids.rbegin()));
    shorter += cut[i].ids.size() < whole[i].ids.size();
  }
  EXPECT_GT(shorter, 0);
  EXPECT_THAT(error_of([&] { encode_task(task, *tokenizer, 5, 1); }),
              HasSubstr("hellaswag.jsonl] line 1: choice 1 has "));
}

struct TaskFiles : testing::Test {
  Task load(const std::string& text, const TaskOptions& options = {}) {
    return load_task(parse_task_source("multiple_choice=" + folder.write("own.jsonl", text)), options);
  }
  TemporaryFolder folder;
};

constexpr const char* kRow = R"({"context": "c", "endings": ["a", "b"], "label": 0})";

TEST_F(TaskFiles, ABrokenRowIsNamedByFileAndLine) {
  EXPECT_THAT(error_of([&] { load(fmt::format("{}\n{{\"context\": \n{}\n", kRow, kRow)); }),
              HasSubstr("own.jsonl] line 2"));
  EXPECT_THAT(error_of([&] { load(fmt::format("{}\n{}\n{{\"context\": \"c\"}}\n", kRow, kRow)); }),
              HasSubstr("own.jsonl] line 3: no column 'endings'"));
  EXPECT_THAT(error_of([&] { load(""); }), HasSubstr("own.jsonl] there is no question in it"));
}

TEST_F(TaskFiles, OnlyTheFirstQuestionsAreRead) {
  // The broken row comes after them.
  const Task task = load(fmt::format("{}\n{}\nbroken\n", kRow, kRow), {.max_samples = 2});
  EXPECT_EQ(task.questions.size(), 2);
}

TEST_F(TaskFiles, ExamplesAreOtherQuestions) {
  std::string text;
  for (int i = 0; i < 4; ++i)
    text += fmt::format("{{\"context\": \"c{}\", \"endings\": [\"a{}\", \"b\"], \"label\": 0}}\n", i, i);
  const Task task = load(text, {.examples = 3});
  for (size_t i = 0; i < 4; ++i) {
    for (size_t k = 0; k < 4; ++k) {
      const bool has = task.prompts[i].find(fmt::format("c{} a{}\n\n", k, k)) != std::string::npos;
      EXPECT_EQ(has, i != k);
    }
  }
  EXPECT_THAT(error_of([&] { load(text, {.examples = 4}); }), HasSubstr("num_fewshot is 4, but "));
}

TEST_F(TaskFiles, ExamplesOfAFolderComeFromItsTrainingPart) {
  const auto row = [](const std::string& goal) {
    return fmt::format("{{\"goal\": \"{}\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 0}}\n", goal);
  };
  std::filesystem::create_directory(folder.path() + "/both");
  std::string train, validation;
  for (int i = 0; i < 6; ++i) {
    train += row(fmt::format("learn {}", i));
    validation += row(fmt::format("ask {}", i));
  }
  folder.write("both/train.jsonl", train);
  folder.write("both/validation.jsonl", validation);
  std::filesystem::create_directory(folder.path() + "/alone");
  folder.write("alone/validation.jsonl", validation);
  const auto prompts = [&](const std::string& name) {
    std::string all;
    for (const std::string& prompt :
         load_task(parse_task_source("piqa=" + folder.path() + "/" + name), {.examples = 2}).prompts)
      all += prompt;
    return all;
  };
  EXPECT_THAT(prompts("both"), HasSubstr("learn "));
  EXPECT_THAT(prompts("both"), testing::Not(HasSubstr("ask ")));
  EXPECT_THAT(prompts("alone"), HasSubstr("ask "));
}

TEST(TaskSources, AreNamesFilesOrBoth) {
  EXPECT_EQ(parse_task_source("hellaswag").dataset, "");
  EXPECT_EQ(parse_task_source("hellaswag").name, "hellaswag");
  EXPECT_EQ(parse_task_source("ARC-Easy=a/b.jsonl").name, "arc_easy");
  EXPECT_EQ(parse_task_source("arc_easy=a/b.jsonl").dataset, "a/b.jsonl");
  EXPECT_EQ(parse_task_source("a/mine.jsonl").format, nullptr);
  EXPECT_EQ(parse_task_source("a/mine.jsonl").name, "mine");
  EXPECT_THAT(error_of([] { parse_task_source("piqa="); }), HasSubstr("names no file"));
  EXPECT_THAT(error_of([] { parse_task_source("lambada"); }), HasSubstr("unknown task 'lambada'"));
}

TEST(TaskSources, AMissingFileIsNamed) {
  EXPECT_THAT(error_of([] { load_task(parse_task_source("hellaswag=nothing.jsonl"), {}); }),
              HasSubstr("nothing.jsonl: no such file"));
  EXPECT_THAT(error_of([] { load_task(parse_task_source("multiple_choice"), {}); }),
              HasSubstr("multiple_choice=FILE"));
}

}  // namespace
}  // namespace octet::test
