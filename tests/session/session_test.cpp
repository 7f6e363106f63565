#include "octet/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "report/metrics.h"
#include "support/error_of.h"
#include "support/places.h"
#include "support/process.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAreArray;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;

// A small model of bytes on the CPU, without data.
Arguments arguments(const Arguments& more = {}) {
  Arguments all = {"--device",
                   "cpu",
                   "--num_threads",
                   "2",
                   "--model_preset",
                   "llama-tiny",
                   "--num_hidden_layers",
                   "2",
                   "--max_seq_length",
                   "16",
                   "--per_device_train_batch_size",
                   "2",
                   "--learning_rate",
                   "1e-3",
                   "--tokenizer",
                   "bytes"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<int32_t> some_ids(int64_t count, int seed = 0) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((7 * i + 13 * i * i + static_cast<size_t>(seed)) % 200);
  return ids;
}

std::vector<double> losses_of(Session& session, int first, int last) {
  std::vector<double> losses;
  for (int i = first; i < last; ++i) {
    const std::vector<int32_t> ids = some_ids(32, i);
    losses.push_back(session.step({.input_ids = ids, .length = 16}).loss);
  }
  return losses;
}

std::string config_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError was thrown";
}

TEST(Session, TrainsOnTheCallersRows) {
  Session session(arguments());
  EXPECT_EQ(session.facts().rows, 2);
  EXPECT_EQ(session.facts().length, 16);
  EXPECT_FALSE(session.facts().has_data);
  const std::vector<int32_t> ids = some_ids(32);
  const double before = session.evaluate({.input_ids = ids, .length = 16}).loss;
  SessionStep last;
  for (int i = 0; i < 20; ++i) last = session.step({.input_ids = ids, .length = 16});
  EXPECT_EQ(last.step, 20);
  EXPECT_EQ(session.steps_done(), 20);
  EXPECT_EQ(last.tokens, 32);
  EXPECT_EQ(last.learning_rate, 1e-3);
  const SessionScore after = session.evaluate({.input_ids = ids, .length = 16});
  EXPECT_LT(after.loss, before - 0.5);
  EXPECT_EQ(after.targets, 30) << "the last place of a row has nothing to predict";
}

// More rows than a micro-batch has are accumulated: the step is that of the large batch, and padding counts for nothing.
TEST(Session, RowsBecomeAsManyMicroBatchesAsTheyNeed) {
  const std::vector<int32_t> ids = some_ids(5 * 12);
  const auto loss = [&](const char* rows) {
    Arguments settings = arguments({"--mixed_precision", "fp32"});
    *(std::ranges::find(settings, "--per_device_train_batch_size") + 1) = rows;
    Session session(settings);
    session.step({.input_ids = ids, .length = 12});
    return session.evaluate({.input_ids = ids, .length = 12}).loss;
  };
  const double of_one = loss("1");
  EXPECT_NEAR(loss("2"), of_one, 1e-5);
  EXPECT_NEAR(loss("5"), of_one, 1e-5);
  EXPECT_NEAR(loss("8"), of_one, 1e-5);
}

// What follows the last label of a row is padding, whatever it holds.
TEST(Session, PaddingIsNotCounted) {
  Session session(arguments({"--mixed_precision", "fp32"}));
  std::vector<int32_t> ids = some_ids(32), labels = ids;
  std::fill(labels.begin() + 4, labels.begin() + 16, -100);
  EXPECT_EQ(session.step({.input_ids = ids, .length = 16, .labels = labels}).tokens, 4 + 16);
  const double loss = session.evaluate({.input_ids = ids, .length = 16, .labels = labels}).loss;
  std::fill(ids.begin() + 4, ids.begin() + 16, 7);
  EXPECT_EQ(session.evaluate({.input_ids = ids, .length = 16, .labels = labels}).loss, loss);
}

TEST(Session, LabelsAreNotShiftedAndMayBeIgnored) {
  Session session(arguments({"--mixed_precision", "fp32"}));
  const std::vector<int32_t> ids = some_ids(16);
  const double whole = session.evaluate({.input_ids = ids, .length = 16}).loss;
  EXPECT_EQ(session.evaluate({.input_ids = ids, .length = 16, .labels = ids}).loss, whole);
  // The first label has no place before it; the mean over single labels is the mean over all.
  double sum = 0;
  for (size_t only = 1; only < ids.size(); ++only) {
    std::vector<int32_t> labels(ids.size(), -100);
    labels[only] = ids[only];
    const SessionScore score = session.evaluate({.input_ids = ids, .length = 16, .labels = labels});
    EXPECT_EQ(score.targets, 1);
    sum += score.loss;
  }
  EXPECT_NEAR(sum / 15, whole, 1e-6);
}

TEST(Session, OwnDataGivesTheLossesOfTheRun) {
  const test::TemporaryFolder folder;
  const Arguments run = arguments({"--dataset", "demo", "--max_steps", "6", "--gradient_accumulation_steps",
                                   "2", "--eval_strategy", "no", "--save_strategy", "no", "--sample_steps",
                                   "0", "--use_tensorboard", "false", "--logging_steps", "1"});
  Arguments command = {"train", "--output_dir", "runs", "--run_name", "run"};
  command.insert(command.end(), run.begin(), run.end());
  const test::ProcessResult result = test::run_process(test::octet_program(), command, folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<double> expected;
  for (const StepRecord& record : read_metrics(folder.path() + "/runs/run/metrics.jsonl"))
    expected.push_back(record.loss);
  Session session(run);
  std::vector<double> losses;
  for (int i = 0; i < 6; ++i) losses.push_back(session.step().loss);
  EXPECT_THAT(losses, ElementsAreArray(expected));
  EXPECT_GT(session.evaluate().targets, 0);
}

struct SessionState : testing::TestWithParam<const char*> {};

TEST_P(SessionState, ContinuesWithTheSameBits) {
  const test::TemporaryFolder folder;
  const Arguments settings = arguments({"--mixed_precision", GetParam()});
  Session session(settings);
  losses_of(session, 0, 3);
  const auto state = session.snapshot();
  const std::string checkpoint = session.save_checkpoint(folder.path() + "/checkpoints");
  EXPECT_EQ(checkpoint, folder.path() + "/checkpoints/step_3");
  const std::vector<double> expected = losses_of(session, 3, 7);
  session.restore(*state);
  EXPECT_EQ(session.steps_done(), 3);
  EXPECT_THAT(losses_of(session, 3, 7), ElementsAreArray(expected));

  Session another(settings);
  another.load_checkpoint(folder.path() + "/checkpoints");  // the latest
  EXPECT_EQ(another.steps_done(), 3);
  EXPECT_THAT(losses_of(another, 3, 7), ElementsAreArray(expected));
}

// Nothing of the session's own past is left, also where the checkpoint has no scales.
TEST(Session, ACheckpointOfAnotherPrecisionContinuesAsInANewSession) {
  const test::TemporaryFolder folder;
  Session bf16(arguments({"--mixed_precision", "bf16"}));
  losses_of(bf16, 0, 2);
  const std::string checkpoint = bf16.save_checkpoint(folder.path());
  Session fresh(arguments({"--mixed_precision", "fp8"})), used(arguments({"--mixed_precision", "fp8"}));
  for (int i = 0; i < 6; ++i) {
    const std::vector<int32_t> ids = some_ids(32, i);
    used.step({.input_ids = ids, .length = 16}, 0.05);
  }
  fresh.load_checkpoint(checkpoint);
  used.load_checkpoint(checkpoint);
  EXPECT_THAT(losses_of(used, 2, 6), ElementsAreArray(losses_of(fresh, 2, 6)));
}

// A run of the program continues what a session has saved, with its data or without.
TEST(Session, TheProgramContinuesACheckpoint) {
  const test::TemporaryFolder folder;
  const auto resume = [&](const std::string& checkpoint, const Arguments& more) {
    Arguments command = {"train",
                         "--resume",
                         checkpoint,
                         "--max_steps",
                         "4",
                         "--eval_strategy",
                         "no",
                         "--sample_steps",
                         "0",
                         "--use_tensorboard",
                         "false",
                         "--output_dir",
                         folder.path() + "/runs"};
    command.insert(command.end(), more.begin(), more.end());
    return test::run_process(test::octet_program(), command, folder.path());
  };
  const auto expect_resumed = [](const test::ProcessResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("after step 2"));
  };
  Session own(arguments({"--dataset", "demo", "--max_steps", "4"}));
  own.step(), own.step();
  expect_resumed(resume(own.save_checkpoint(folder.path() + "/own"), {}));
  Session without(arguments());
  losses_of(without, 0, 2);
  const std::string checkpoint = without.save_checkpoint(folder.path() + "/without");
  expect_resumed(resume(checkpoint, {"--dataset", "demo"}));
  const test::ProcessResult refused = resume(checkpoint, {});
  EXPECT_EQ(refused.exit_code, 2) << "its data are not the demo's";
  EXPECT_THAT(refused.err, HasSubstr("names no dataset; set dataset"));
}

TEST(Session, ASnapshotOfAnotherModelIsRefusedAndChangesNothing) {
  Arguments larger = arguments();
  *(std::ranges::find(larger, "--num_hidden_layers") + 1) = "3";
  Session session(arguments()), other(larger);
  EXPECT_THAT(error_of([&] { session.restore(*other.snapshot()); }), HasSubstr("of another model"));
  Session fresh(arguments());
  EXPECT_THAT(losses_of(session, 0, 3), ElementsAreArray(losses_of(fresh, 0, 3)));
}

TEST_P(SessionState, ASnapshotOfTheStartIsTheStart) {
  Session session(arguments({"--mixed_precision", GetParam()}));
  const auto start = session.snapshot();
  const std::vector<double> expected = losses_of(session, 0, 3);
  session.restore(*start);
  EXPECT_THAT(losses_of(session, 0, 3), ElementsAreArray(expected));
}

INSTANTIATE_TEST_SUITE_P(Precisions, SessionState, testing::Values("fp32", "bf16", "fp8"));

TEST(Session, AdaptersContinueWithTheSameBitsAndAreSavedForPeft) {
  const test::TemporaryFolder folder;
  const Arguments settings = arguments({"--finetuning_type", "lora", "--lora_rank", "4"});
  Session session(settings);
  EXPECT_LT(session.facts().trainable_parameters, session.facts().parameters / 4);
  losses_of(session, 0, 2);
  const std::string checkpoint = session.save_checkpoint(folder.path() + "/checkpoints");
  const std::vector<double> expected = losses_of(session, 2, 5);
  session.load_checkpoint(checkpoint);
  EXPECT_THAT(losses_of(session, 2, 5), ElementsAreArray(expected));
  session.save(folder.path() + "/adapter");
  EXPECT_TRUE(fs::exists(folder.path() + "/adapter/adapter_model.safetensors"));
  EXPECT_TRUE(fs::exists(folder.path() + "/adapter/adapter_config.json"));

  Session other(arguments({"--finetuning_type", "lora", "--lora_rank", "4", "--seed", "7"}));
  EXPECT_THAT(error_of([&] { other.load_checkpoint(checkpoint); }), HasSubstr("base.json"));
}

// What is saved is the model that was trained: a new session that starts from it measures the same.
TEST(Session, SavesAModelThatLoads) {
  const test::TemporaryFolder folder;
  const Arguments settings = arguments({"--mixed_precision", "fp32"});
  Session session(settings);
  losses_of(session, 0, 3);
  const std::string path = folder.path() + "/model";
  session.save(path);
  const std::vector<int32_t> ids = some_ids(32);
  const double loss = session.evaluate({.input_ids = ids, .length = 16}).loss;
  Session loaded(Arguments{"--device", "cpu", "--model_name_or_path", path, "--max_seq_length", "16",
                           "--mixed_precision", "fp32"});
  EXPECT_EQ(loaded.evaluate({.input_ids = ids, .length = 16}).loss, loss);
  EXPECT_EQ(loaded.facts().tensors.size(), session.facts().tensors.size());
  for (const SessionTensor& tensor : session.facts().tensors)
    EXPECT_THAT(loaded.tensor(tensor.name), ElementsAreArray(session.tensor(tensor.name))) << tensor.name;
  EXPECT_THAT(config_error_of([&] { session.save(path); }), HasSubstr("already exists"));
}

TEST(Session, SavesTheTemplateOfItsConversations) {
  const test::TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += R"({"prompt": "count", "response": "one two three"})"
             "\n";
  Arguments settings =
      arguments({"--dataset", folder.write("chat.jsonl", lines), "--cache_dir", folder.path()});
  *(std::ranges::find(settings, "--max_seq_length") + 1) = "64";
  Session session(settings);
  session.save(folder.path() + "/model");
  EXPECT_THAT(test::read_text(folder.path() + "/model/tokenizer_config.json"), HasSubstr("chat_template"));
}

TEST(Session, GeneratesAndReadsText) {
  Session session(arguments());
  const std::vector<int32_t> ids = session.encode("hello");
  EXPECT_EQ(session.decode(ids), "hello");
  const std::vector<std::string> prompts = {"a", "longer prompt", "b"};
  const SessionSampling sampling{.max_new_tokens = 5, .temperature = 0};
  const std::vector<std::string> texts = session.generate(prompts, sampling);
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(session.generate(std::vector<std::string>{"b"}, sampling).front(), texts[2]);
  EXPECT_EQ(session.generate("b", sampling), texts[2]);
  EXPECT_EQ(session.generate(std::vector<std::string>(), sampling).size(), 0u);
  const std::vector<std::string> many(20, "b");
  EXPECT_THAT(session.generate(many, sampling), testing::Each(texts[2]));
  EXPECT_THAT(config_error_of([&] { session.generate("a", {.max_new_tokens = 0}); }),
              HasSubstr("[max_new_tokens] is 0"));
  EXPECT_THAT(config_error_of([&] { session.generate("a", {.temperature = -1}); }),
              HasSubstr("[temperature] is -1"));
  EXPECT_THAT(config_error_of([&] { session.generate("a", {.top_k = -1}); }), HasSubstr("[top_k] is -1"));
  EXPECT_THAT(config_error_of([&] { session.generate("a", {.top_p = 1.5}); }), HasSubstr("[top_p] is 1.5"));
}

TEST(Session, FollowsTheScheduleIfItHasOne) {
  Session session(arguments({"--max_steps", "4", "--lr_scheduler_type", "linear", "--min_lr_ratio", "0.5"}));
  const std::vector<int32_t> ids = some_ids(32);
  const Rows rows{.input_ids = ids, .length = 16};
  EXPECT_DOUBLE_EQ(session.step(rows).learning_rate, 1e-3);
  EXPECT_DOUBLE_EQ(session.step(rows, 0.5).learning_rate, 0.5);
  session.step(rows);
  EXPECT_DOUBLE_EQ(session.step(rows).learning_rate, 5e-4);
}

TEST(Session, WrongArgumentsChangeNothing) {
  Session session(arguments());
  std::vector<int32_t> ids = some_ids(32);
  const auto refused = [&](const Rows& rows) { return config_error_of([&] { session.step(rows); }); };
  ids[19] = 257;
  EXPECT_THAT(refused({.input_ids = ids, .length = 16}),
              HasSubstr("[input_ids] row 1, column 3 is 257; expected 0 to 256"));
  ids[19] = -100;
  EXPECT_THAT(refused({.input_ids = ids, .length = 16}), HasSubstr("row 1, column 3 is -100"));
  const std::vector<int32_t> good = some_ids(32);
  EXPECT_THAT(refused({.input_ids = good, .length = 17}), HasSubstr("no rows of 17"));
  EXPECT_THAT(refused({.input_ids = good, .length = 32}), HasSubstr("at most max_seq_length, which is 16"));
  EXPECT_THAT(refused({.input_ids = good, .length = 0}), HasSubstr("no rows of 0"));
  EXPECT_THAT(refused({.input_ids = {}, .length = 16}), HasSubstr("holds no ids"));
  const std::vector<int32_t> ignored(32, -100);
  EXPECT_THAT(refused({.input_ids = good, .length = 16, .labels = ignored}), HasSubstr("no place"));
  EXPECT_THAT(refused({.input_ids = good, .length = 16, .labels = std::span(good).first(16)}),
              HasSubstr("[labels] has 16 labels; expected 32"));
  EXPECT_THAT(config_error_of([&] { session.step(); }), HasSubstr("there is no dataset"));
  EXPECT_THAT(config_error_of([&] { session.evaluate(); }), HasSubstr("there is no dataset"));
  EXPECT_THAT(config_error_of([&] { session.tensor("nothing"); }), HasSubstr("nothing"));
  for (const double rate : {-1.0, 1e40, std::nan("")}) {
    EXPECT_THAT(config_error_of([&] { session.step({.input_ids = good, .length = 16}, rate); }),
                HasSubstr("[lr] is "));
  }
  EXPECT_THAT(config_error_of([&] { session.save(""); }), HasSubstr("[path] is empty"));
  EXPECT_EQ(session.steps_done(), 0);
  Session fresh(arguments());
  EXPECT_THAT(losses_of(session, 0, 3), ElementsAreArray(losses_of(fresh, 0, 3)));

  EXPECT_THAT(config_error_of([] { Session(Arguments{"--learning_rat", "1"}); }), HasSubstr("learning_rate"));
  EXPECT_THAT(config_error_of([] {
                Session(arguments({"--resume", "latest"}));
              }),
              HasSubstr("load_checkpoint"));
  EXPECT_THAT(config_error_of([] { Session(arguments({"--pretend_ranks", "2"})); }), HasSubstr("one rank"));
}

}  // namespace
}  // namespace octet
