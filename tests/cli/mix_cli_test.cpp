// Several datasets in one run, and the evaluation of a run on its own data.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using Flags = std::map<std::string, std::string>;

struct MixCli : testing::Test {
  MixCli() {
    setenv("XDG_CACHE_HOME", (folder.path() + "/cache").c_str(), 1);
    std::string chats, texts, lines;
    for (int i = 0; i < 120; ++i) {
      chats += fmt::format(R"({{"prompt": "question{:03}", "completion": " is{:03}"}})", i, i) + "\n";
      texts += fmt::format(R"({{"text": "the number {} follows {}"}})", i + 1, i) + "\n";
      lines += fmt::format("line {} of the text\n", i * 7919 % 1000);
    }
    folder.write("chats.jsonl", chats);
    folder.write("texts.jsonl", texts);
    folder.write("plain.txt", lines);
    folder.write("mix.yaml",
                 "dataset:\n- path: chats.jsonl\n  weight: 3\n- path: texts.jsonl\n  weight: 1\n");
  }

  ProcessResult run(const std::vector<std::string>& arguments) {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  static std::vector<std::string> arguments(const std::string& name, const Flags& changes = {},
                                            std::vector<std::string> words = {"train"}) {
    Flags flags = {{"device", "cpu"},     {"max_seq_length", "32"},      {"max_steps", "6"},
                   {"eval_batches", "4"}, {"eval_steps", "0"},           {"progress", "plain"},
                   {"run_name", name},    {"num_threads", "1"},          {"per_device_train_batch_size", "2"},
                   {"save_steps", "3"},   {"eval_split", "0.2"},         {"mixed_precision", "bf16"},
                   {"warmup_steps", "0"}, {"model_preset", "llama-tiny"}};
    for (const auto& [key, value] : changes) flags[key] = value;
    for (const auto& [key, value] : flags) words.push_back("--" + key + "=" + value);
    return words;
  }
  nlohmann::json last_metrics(const std::string& name) {
    std::ifstream file(folder.path() + "/runs/" + name + "/metrics.jsonl");
    std::string line, last;
    while (std::getline(file, line)) last = line;
    return nlohmann::json::parse(last);
  }
  std::string weights(const std::string& name, int step) {
    return read_text(
        fmt::format("{}/runs/{}/checkpoints/step_{}/model.safetensors", folder.path(), name, step));
  }
  TemporaryFolder folder;
};

TEST_F(MixCli, ReportsSharesAndTheLossOfEachDataset) {
  const ProcessResult result = run(arguments("mix", {}, {"train", "mix.yaml"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(ContainsRegex("chats +.* 75\\.0 %"), ContainsRegex("texts +.* 25\\.0 %"),
                                HasSubstr("| eval/chats: "), HasSubstr("| eval/texts: ")));
  EXPECT_THAT(result.out, AllOf(HasSubstr("format     chats: prompt_completion"),
                                HasSubstr("loss       texts: on the whole text")));
  const nlohmann::json metrics = last_metrics("mix");
  const double chats = metrics["eval_loss/chats"], texts = metrics["eval_loss/texts"];
  EXPECT_NEAR(metrics["eval_loss"].get<double>(), 0.75 * chats + 0.25 * texts, 1e-9);
  // The list is in the configuration of the run as it was given.
  EXPECT_THAT(read_text(folder.path() + "/runs/mix/config.yaml"),
              HasSubstr("dataset:\n  - path: chats.jsonl\n    weight: 3\n"));
}

TEST_F(MixCli, OtherWeightsUseThePreparedData) {
  ASSERT_EQ(run(arguments("a", {}, {"train", "mix.yaml"})).exit_code, 0);
  folder.write("mix.yaml", "dataset: [{path: chats.jsonl, weight: 1}, {path: texts.jsonl, weight: 9}]");
  const ProcessResult again = run(arguments("b", {}, {"train", "mix.yaml"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out + again.err, AllOf(HasSubstr("chats.jsonl was prepared before"),
                                           HasSubstr("texts.jsonl was prepared before")));
}

TEST_F(MixCli, AResumedRunEndsWithTheSameWeights) {
  for (const char* packing : {"best_fit", "none", "stream"}) {
    const std::string whole = fmt::format("whole_{}", packing), halves = fmt::format("halves_{}", packing);
    ASSERT_EQ(run(arguments(whole, {{"packing", packing}}, {"train", "mix.yaml"})).exit_code, 0);
    ASSERT_EQ(run(arguments(halves, {{"packing", packing}}, {"train", "mix.yaml"})).exit_code, 0);
    const std::string step = fmt::format("runs/{}/checkpoints/step_3", halves);
    const ProcessResult resumed = run({"train", "--resume", step, "--run_name", "again_" + halves});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_THAT(resumed.err, Not(HasSubstr("another dataset")));
    EXPECT_EQ(weights("again_" + halves, 6), weights(whole, 6)) << packing;
  }
}

TEST_F(MixCli, TwoRanksSeeTheSameData) {
  const Flags flags = {{"packing", "best_fit"}, {"eval_batches", "0"}, {"gradient_reduce_dtype", "fp32"}};
  ASSERT_EQ(run(arguments("one", flags, {"train", "mix.yaml"})).exit_code, 0);
  Flags half = flags;
  half["per_device_train_batch_size"] = "1";
  const ProcessResult two = run(arguments("two", half, {"launch", "-n", "2", "train", "mix.yaml"}));
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(last_metrics("two")["tokens"], last_metrics("one")["tokens"]);
  for (const char* figure : {"loss", "eval_loss", "eval_loss/chats", "eval_loss/texts"}) {
    EXPECT_NEAR(last_metrics("two")[figure].get<double>(), last_metrics("one")[figure].get<double>(), 5e-3)
        << figure;
  }
}

TEST_F(MixCli, RecordsTextAndTheDemoMayBeMixed) {
  const ProcessResult result = run(arguments("all", {{"dataset", "chats.jsonl,plain.txt,demo"}}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("eval/plain"), HasSubstr("eval/demo")));
  const ProcessResult documents =
      run(arguments("no", {{"dataset", "chats.jsonl,demo.bin"}, {"packing", "best_fit"}}));
  EXPECT_EQ(documents.exit_code, 2);
  EXPECT_THAT(documents.err, HasSubstr("demo.bin"));
  EXPECT_THAT(run(arguments("gone", {{"dataset", "chats.jsonl,gone.jsonl"}})).err, HasSubstr("gone.jsonl"));
}

TEST_F(MixCli, PreparesAListIntoOneFolder) {
  const std::vector<std::string> prepare = {"prepare",  "mix.yaml", "--tokenizer",  "bytes",
                                            "--output", "out",      "--eval_split", "0.2"};
  const ProcessResult prepared = run(prepare);
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/out/chats/manifest.json"));
  EXPECT_EQ(run(prepare).exit_code, 0) << "again";
  const ProcessResult trained = run(arguments("prepared", {{"dataset", "out"}}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, AllOf(ContainsRegex("chats +.* 75\\.0 %"), HasSubstr("eval/texts")));
  const ProcessResult nested = run(arguments("nested", {{"dataset", "out,plain.txt"}}));
  EXPECT_EQ(nested.exit_code, 2);
  EXPECT_THAT(nested.err, HasSubstr("cannot be an item of a list"));
  folder.write("out/letter.txt", "x");
  EXPECT_THAT(run(prepare).err, HasSubstr("out holds 'letter.txt'"));
}

TEST_F(MixCli, EvalOfARunReadsWhatTheRunHoldsOut) {
  ASSERT_EQ(run(arguments("mix", {}, {"train", "mix.yaml"})).exit_code, 0);
  const nlohmann::json metrics = last_metrics("mix");
  const ProcessResult result = run(
      {"eval", "runs/mix", "--json", "--device", "cpu", "--mixed_precision", "bf16", "--num_threads", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["max_seq_length"], 32);
  EXPECT_NEAR(json["loss"].get<double>(), metrics["eval_loss"].get<double>(), 1e-6);
  EXPECT_NEAR(json["datasets"]["texts"]["loss"].get<double>(), metrics["eval_loss/texts"].get<double>(),
              1e-6);
  EXPECT_THAT(run({"eval", "runs/mix/checkpoints/step_3", "--device", "cpu"}).out,
              AllOf(HasSubstr("held out of chats.jsonl and texts.jsonl"), HasSubstr("windows of 32")));
  EXPECT_THAT(run({"eval", "runs/mix", "--dataset", "plain.txt", "--device", "cpu"}).out,
              HasSubstr("windows of 32"));

  std::filesystem::remove(folder.path() + "/chats.jsonl");
  std::filesystem::remove_all(folder.path() + "/cache");
  const ProcessResult gone = run({"eval", "runs/mix", "--device", "cpu"});
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_THAT(gone.err, AllOf(HasSubstr("chats.jsonl"), HasSubstr("pass --dataset")));
}

TEST_F(MixCli, EvalOfALoraRunAndOfTheDemo) {
  ASSERT_EQ(run(arguments("lora", {{"dataset", "texts.jsonl"}, {"finetuning_type", "lora"}})).exit_code, 0);
  const ProcessResult lora =
      run({"eval", "runs/lora", "--device", "cpu", "--mixed_precision", "bf16", "--json"});
  ASSERT_EQ(lora.exit_code, 0) << lora.err;
  // Weights with the adapters added are rounded to BF16 once more.
  EXPECT_NEAR(nlohmann::json::parse(lora.out)["loss"].get<double>(),
              last_metrics("lora")["eval_loss"].get<double>(), 1e-3);
  ASSERT_EQ(run(arguments("demo", {{"dataset", "demo"}, {"max_steps", "1"}})).exit_code, 0);
  EXPECT_EQ(run({"eval", "runs/demo", "--device", "cpu"}).exit_code, 0);
}

TEST_F(MixCli, NamesInADatasetInfoFile) {
  std::filesystem::create_directory(folder.path() + "/data");
  folder.write("data/alpaca.json", R"([{"instruction": "say one", "output": "one, two, three and four"},
                                       {"instruction": "say two", "output": "two, three, four and five"},
                                       {"instruction": "say six", "output": "six, seven, eight and nine"}])");
  folder.write("data/dataset_info.json", R"({"mine": {"file_name": "alpaca.json"},
      "pairs": {"file_name": "alpaca.json", "ranking": true}})");
  const ProcessResult named = run(arguments("named", {{"dataset", "mine"}, {"dataset_dir", "data"}}));
  EXPECT_EQ(named.exit_code, 0) << named.err;
  const ProcessResult pairs = run(arguments("pairs", {{"dataset", "pairs"}, {"dataset_dir", "data"}}));
  EXPECT_EQ(pairs.exit_code, 2);
  EXPECT_THAT(pairs.err, HasSubstr("preference training"));
  const ProcessResult near = run(arguments("near", {{"dataset", "minee"}, {"dataset_dir", "data"}}));
  EXPECT_EQ(near.exit_code, 2);
  EXPECT_THAT(near.err, HasSubstr("did you mean 'mine'?"));
}

TEST_F(MixCli, KeysThatChooseNothingAreErrors) {
  const auto error = [&](Flags flags) {
    const ProcessResult result = run(arguments("idle", flags));
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error({{"dataset", "demo"}, {"dataset_split", "test"}}),
              HasSubstr("dataset_split is 'test', which has no effect: the demo"));
  EXPECT_THAT(error({{"dataset", "chats.jsonl"}, {"dataset_subset", "main"}}), HasSubstr("dataset_subset"));
  EXPECT_THAT(error({{"dataset", "chats.jsonl"}, {"dataset_revision", "v2"}}), HasSubstr("dataset_revision"));
  EXPECT_THAT(error({{"data_dir", "nowhere"}}),
              HasSubstr("dataset_dir is 'nowhere', which has no effect: the demo"));
}

// People replace the dataset of a command that they follow, and leave the rest.
TEST_F(MixCli, ASplitBesideASingleFileIsANote) {
  const ProcessResult given =
      run(arguments("given", {{"dataset", "plain.txt"}, {"dataset_split", "train_1M"}, {"dry_run", "true"}}));
  EXPECT_EQ(given.exit_code, 0) << given.err;
  EXPECT_THAT(given.err,
              HasSubstr("dataset_split is 'train_1M', which has no effect: plain.txt is a single file"));
  folder.write("mix.yaml", "dataset: [chats.jsonl, {path: texts.jsonl, split: test}]");
  const ProcessResult item = run(arguments("item", {{"dry_run", "true"}}, {"train", "mix.yaml"}));
  EXPECT_EQ(item.exit_code, 0) << item.err;
  EXPECT_THAT(item.err,
              HasSubstr("split 'test' of item 2 of dataset has no effect: texts.jsonl is a single file"));
}

// The chat template of a run's configuration may be that of its model. What else it says was accepted when it began.
TEST_F(MixCli, ARunOnAPreparedDatasetGoesOnWithItsConfiguration) {
  ASSERT_EQ(run({"prepare", "mix.yaml", "--tokenizer", "bytes", "--output", "list", "--eval_split", "0.2"})
                .exit_code,
            0);
  folder.write("chats.yaml", "dataset: list/chats\nchat_template: chatml\n");
  const ProcessResult first = run(arguments("first", {}, {"train", "chats.yaml"}));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  folder.write("all.yaml", "dataset: list/chats\ntrain_on: all\n");
  EXPECT_THAT(run(arguments("no", {}, {"train", "all.yaml"})).err, HasSubstr("train_on is 'all'"));
  const ProcessResult more =
      run(arguments("first", {{"resume", "latest"}, {"max_steps", "8"}}, {"train", "all.yaml"}));
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_THAT(
      run(arguments("first", {{"resume", "latest"}, {"train_on", "all"}}, {"train", "chats.yaml"})).err,
      HasSubstr("train_on is 'all'"));
}

TEST_F(MixCli, MaxSamplesOfWhatHasNoRecordsIsAnError) {
  const auto error = [&](const std::string& item, const Flags& flags = {}) {
    folder.write("items.yaml", fmt::format("dataset: [{}]", item));
    const ProcessResult result = run(arguments("idle", flags, {"train", "items.yaml"}));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  ASSERT_EQ(run({"prepare", "mix.yaml", "--tokenizer", "bytes", "--output", "list", "--eval_split", "0.2"})
                .exit_code,
            0);
  EXPECT_THAT(
      error("plain.txt", {{"max_samples", "10"}}),
      HasSubstr("max_samples is '10', which has no effect: plain.txt is a single file of text or tokens"));
  EXPECT_THAT(error("list/chats", {{"max_samples", "10"}}), HasSubstr("list/chats is a prepared dataset"));
  EXPECT_THAT(error("list", {{"max_samples", "10"}}), HasSubstr("list is a prepared dataset"));
  EXPECT_THAT(
      error("list/chats", {{"train_on", "all"}, {"eval_split", "0.5"}}),
      AllOf(HasSubstr("train_on is 'all', which has no effect: list/chats is a prepared dataset, made with "
                      "'completion'; prepare it again"),
            HasSubstr("eval_split is '0.5', which has no effect")));
  EXPECT_THAT(error("list/chats", {{"chat_template", "chatml"}}), HasSubstr("chat_template is 'chatml'"));
  EXPECT_THAT(error("list", {{"text_column", "other"}}),
              HasSubstr("text_column is 'other', which has no effect"));
  EXPECT_THAT(error("chats.jsonl, {path: plain.txt, max_samples: 5}"),
              HasSubstr("max_samples '5' of item 2 of dataset has no effect"));
  EXPECT_THAT(error("{path: list, format: text, prompt_column: q, weight: 2}"),
              AllOf(HasSubstr("format of item 1 of dataset has no effect: list is a prepared dataset"),
                    HasSubstr("prompt_column of item 1"), HasSubstr("weight of item 1")));
  folder.write("items.yaml", "dataset: chats.jsonl\neval_dataset: [{path: texts.jsonl, max_samples: 5}]");
  EXPECT_THAT(
      run(arguments("idle", {}, {"train", "items.yaml"})).err,
      HasSubstr("max_samples of item 1 of eval_dataset has no effect: eval_dataset is always read whole"));
  EXPECT_EQ(run(arguments("some", {{"dataset", "chats.jsonl,plain.txt"}, {"max_samples", "50"}})).exit_code,
            0);
  folder.write("tokens.bin", std::string(2000, '\0'));
  EXPECT_THAT(error("tokens.bin", {{"completion_column", "answer"}}),
              HasSubstr("tokens.bin is a stream of tokens without documents"));
}

TEST_F(MixCli, AllConversationsNeedOneTemplate) {
  std::string alpaca;
  for (int i = 0; i < 50; ++i)
    alpaca += fmt::format(R"({{"instruction": "say {}", "output": "the number is {}"}})", i, i) + "\n";
  folder.write("alpaca.jsonl", alpaca);
  Flags flags = {{"dataset", "texts.jsonl,chats.jsonl,alpaca.jsonl"}, {"max_seq_length", "256"}};
  const ProcessResult two = run(arguments("two", flags));
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_THAT(two.err,
              HasSubstr("dataset chats.jsonl has conversations in the chat template plain, but alpaca.jsonl "
                        "in alpaca; set chat_template"));
  flags["chat_template"] = "alpaca";
  const ProcessResult one = run(arguments("one", flags));
  EXPECT_EQ(one.exit_code, 0) << one.err;
}

TEST_F(MixCli, ACheckpointIsResumedWithItsOwnDataset) {
  ASSERT_EQ(run(arguments("run", {{"dataset", "texts.jsonl"}})).exit_code, 0);
  ASSERT_EQ(run({"train", "--resume", "runs/run", "--dataset", "plain.txt", "--max_steps", "9"}).exit_code,
            0);
  const ProcessResult back =
      run({"train", "--resume", "runs/run/checkpoints/step_3", "--run_name", "back", "--dry_run"});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_THAT(back.out, HasSubstr("dataset: texts.jsonl"));
  EXPECT_THAT(back.out + back.err,
              HasSubstr("dataset is texts.jsonl, as when the checkpoint was saved; later the "
                        "run had plain.txt"));
  folder.write("runs/run/config.yaml", "no_such_key: 1\n");  // of the run, which is only compared
  const ProcessResult broken =
      run({"train", "--resume", "runs/run/checkpoints/step_3", "--run_name", "back", "--dry_run"});
  EXPECT_EQ(broken.exit_code, 0) << broken.err;
}

TEST_F(MixCli, AnAutomaticBatchLeavesStepsInAnEpoch) {
  const ProcessResult result = run({"train", "--auto_batch_size", "--dry_run", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out + result.err,
              ContainsRegex("auto_batch_size: [0-9]+ sequences per device, although 4096"));
}

}  // namespace
}  // namespace octet::test
