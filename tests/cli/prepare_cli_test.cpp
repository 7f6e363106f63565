// octet prepare, and octet train on what it wrote and on records directly.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "data/tiny_tokenizer.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

struct PrepareCli : testing::Test {
  PrepareCli() { setenv("XDG_CACHE_HOME", (folder.path() + "/cache").c_str(), 1); }

  // Text is read as bytes, unless a tokenizer is given.
  ProcessResult run(std::vector<std::string> arguments) {
    const auto has = [&](const char* word) { return std::ranges::find(arguments, word) != arguments.end(); };
    if (has("prepare") && has("--dataset") && !has("--tokenizer"))
      arguments.insert(arguments.end(), {"--tokenizer", "bytes"});
    return run_process(test::octet_program(), arguments, folder.path());
  }
  // Questions of 10 bytes and answers of 5, so that every count can be reckoned.
  void write_chats(const std::string& name, int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text +=
          fmt::format(R"({{"prompt": "question{:02}", "completion": " is{:02}"}})", i % 100, i % 100) + "\n";
    }
    folder.write(name, text);
  }
  nlohmann::json manifest(const std::string& output) const {
    return nlohmann::json::parse(read_text(folder.path() + "/" + output + "/manifest.json"));
  }
  std::map<std::string, std::string> files(const std::string& output) const {
    std::map<std::string, std::string> result;
    for (const auto& entry : fs::directory_iterator(folder.path() + "/" + output)) {
      if (entry.path().extension() == ".octet") {
        result[entry.path().filename().string()] = read_text(entry.path().string());
      }
    }
    return result;
  }
  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "train", "--device",          "cpu",       "--max_steps",      "2",  "--run_name",
        name,    "--mixed_precision", "bf16",      "--eval_batches",   "1",  "--progress",
        "plain", "--save_steps",      "0",         "--max_seq_length", "64", "--per_device_train_batch_size",
        "2",     "--model_preset",    "llama-tiny"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  TemporaryFolder folder;
};

TEST_F(PrepareCli, WritesShardsWithMasksAndPrintsStatistics) {
  write_chats("chats.jsonl", 200);
  const ProcessResult result = run({"prepare", "--dataset", "chats.jsonl", "--tokenizer", "bytes", "--output",
                                    "out", "--eval_split", "0.1", "--chat_template", "plain"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json written = manifest("out");
  const auto train = written["train"], validation = written["validation"];
  EXPECT_EQ(train["documents"].get<int>() + validation["documents"].get<int>(), 200);
  EXPECT_GT(validation["documents"].get<int>(), 5);
  // The answer's 5 bytes and the end of text are targets, the question's 10 bytes are not.
  EXPECT_EQ(train["targets"].get<int>(), 6 * train["documents"].get<int>());
  EXPECT_EQ(train["tokens"].get<int>(), 16 * train["documents"].get<int>());
  EXPECT_EQ(written["tokenizer"], "bytes");
  EXPECT_THAT(result.out, ContainsRegex("documents +[0-9]+ +[0-9]+"));
  EXPECT_THAT(result.out, ContainsRegex("targets +37.5 %"));
  EXPECT_THAT(result.out, HasSubstr("16 - 31"));

  const ProcessResult again = run({"prepare", "--dataset", "chats.jsonl", "--tokenizer", "bytes", "--output",
                                   "out", "--eval_split", "0.1", "--chat_template", "plain"});
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_THAT(again.err, HasSubstr("was prepared before"));
  const ProcessResult other =
      run({"prepare", "--dataset", "chats.jsonl", "--tokenizer", "bytes", "--output", "out", "--eval_split",
           "0.1", "--chat_template", "plain", "--train_on", "all"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("train_on \"completion\", this call asks for \"all\""));
  write_chats("chats.jsonl", 201);
  const ProcessResult changed = run({"prepare", "--dataset", "chats.jsonl", "--tokenizer", "bytes",
                                     "--output", "out", "--eval_split", "0.1", "--chat_template", "plain"});
  EXPECT_EQ(changed.exit_code, 2);
  EXPECT_THAT(changed.err,
              HasSubstr("chats.jsonl\" has changed since (its size or time); choose another folder"));
}

// Shards are carried to machines that have neither the tokenizer nor a network.
TEST_F(PrepareCli, TrainsOnPreparedShardsWhoseTokenizerIsGone) {
  folder.write("texts.jsonl", [] {
    std::string text;
    for (int i = 0; i < 200; ++i) text += fmt::format(R"({{"text": "the number {:03}"}})", i) + "\n";
    return text;
  }());
  fs::create_directories(folder.path() + "/words");
  folder.write("words/tokenizer.json", tiny_tokenizer({{"t", "h"}}).dump());
  ASSERT_EQ(run({"prepare", "--dataset", "texts.jsonl", "--output", "out", "--tokenizer", "words"}).exit_code,
            0);
  fs::remove_all(folder.path() + "/words");
  const ProcessResult trained = run(train("a", {"--dataset", "out"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("no samples are made"));
  const ProcessResult resumed = run({"train", "--resume", "runs/a", "--max_steps", "3"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

TEST_F(PrepareCli, TrainsOnPreparedShardsAndOnRecordsAlike) {
  write_chats("chats.jsonl", 300);
  ASSERT_EQ(
      run({"prepare", "--dataset", "chats.jsonl", "--output", "out", "--chat_template", "plain"}).exit_code,
      0);
  const ProcessResult prepared = run(train("a", {"--dataset", "out"}));
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  // 15 inputs a document: four of them fill 60 of 64 places, with 24 targets. The last of 72 sequences holds one.
  EXPECT_THAT(prepared.out, HasSubstr("packing efficiency 92.8 %; loss is taken on 37.1 % of positions"));
  const ProcessResult direct = run(train("b", {"--dataset", "chats.jsonl", "--chat_template", "plain"}));
  ASSERT_EQ(direct.exit_code, 0) << direct.err;
  EXPECT_THAT(direct.err, HasSubstr("preparing chats.jsonl into"));
  const auto losses = [&](const std::string& name) {
    std::vector<double> values;
    std::ifstream file(folder.path() + "/runs/" + name + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("loss")) values.push_back(record["loss"].get<double>());
    }
    return values;
  };
  EXPECT_EQ(losses("a").size(), 2u);
  EXPECT_EQ(losses("a"), losses("b"));
  // The second time at once, from the cache; a changed file is prepared anew.
  const ProcessResult cached =
      run(train("c", {"--dataset", "chats.jsonl", "--template", "plain", "--seed", "7"}));
  EXPECT_THAT(cached.err, HasSubstr("chats.jsonl was prepared before"));
  write_chats("chats.jsonl", 301);
  const ProcessResult changed = run(train("d", {"--dataset", "chats.jsonl", "--template", "plain"}));
  EXPECT_THAT(changed.err, Not(HasSubstr("was prepared before")));
}

TEST_F(PrepareCli, TheEvaluationSetHasItsOwnFiles) {
  write_chats("chats.jsonl", 100);
  fs::create_directories(folder.path() + "/data");
  fs::create_directories(folder.path() + "/other");
  for (const char* name : {"data/train.jsonl", "data/test.jsonl", "other/part.jsonl", "other/test.jsonl"}) {
    write_chats(name, 100);
  }
  // No file of the evaluation set is of the training set's split, and max_samples is not for it.
  const std::vector<std::string> common = {"--dataset",       "data",  "--dataset_split", "train",
                                           "--chat_template", "plain", "--max_samples",   "50"};
  const auto with = [&](const char* name, std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return run(train(name, more));
  };
  const ProcessResult all = with("a", {"--eval_dataset", "other"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_THAT(all.err, HasSubstr("are skipped: test.jsonl"));
  const ProcessResult split = with("b", {"--eval_dataset", "other", "--eval_dataset_split", "test"});
  ASSERT_EQ(split.exit_code, 0) << split.err;
  const ProcessResult same = with("c", {"--eval_dataset", "data", "--eval_dataset_split", "test"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  std::vector<int64_t> examples;
  for (const auto& entry : fs::directory_iterator(folder.path() + "/cache/octet/datasets")) {
    examples.push_back(manifest(fs::relative(entry.path(), folder.path()).string())["examples"]);
  }
  EXPECT_THAT(examples, testing::UnorderedElementsAre(50, 100, 100, 100));
  EXPECT_THAT(with("d", {"--eval_dataset_split", "test"}).err, HasSubstr("eval_dataset is not set"));
  const ProcessResult measured =
      run({"eval", "runs/a", "--dataset", "other", "--dataset_split", "nothing", "--device", "cpu"});
  EXPECT_NE(measured.exit_code, 0);
  EXPECT_THAT(measured.err, testing::AnyOf(HasSubstr("no file of split 'nothing'"), HasSubstr("runs/a")));
}

TEST_F(PrepareCli, PackingIsChosen) {
  write_chats("chats.jsonl", 100);
  const auto out = [&](const char* name, const char* packing) {
    const ProcessResult result =
        run(train(name, {"--dataset", "chats.jsonl", "--chat_template", "plain", "--packing", packing}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const auto last_record = [&](const std::string& name) {
    const std::string text = read_text(folder.path() + "/runs/" + name + "/metrics.jsonl");
    return nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1));
  };
  EXPECT_THAT(out("none", "none"),
              HasSubstr("packing efficiency 23.4 %; loss is taken on 9.4 % of positions"));
  // Two steps of two rows: 15 inputs of one document each with padding, 64 without.
  const auto padded = last_record("none");
  EXPECT_EQ(padded["tokens"], 2 * 2 * 15);
  EXPECT_NEAR(padded["tokens_per_second"].get<double>() * padded["step_ms"].get<double>() / 1e3, 2 * 15,
              1e-3);
  EXPECT_THAT(out("false", "false"), HasSubstr("padded"));
  EXPECT_THAT(out("stream", "stream"), Not(HasSubstr("packing efficiency")));
  EXPECT_EQ(last_record("stream")["tokens"], 2 * 2 * 64);
}

TEST_F(PrepareCli, BadInputIsNamed) {
  folder.write("broken.jsonl", "{\"text\": \"good\"}\n{\"text\": \n");
  folder.write("empty.jsonl", "");
  write_chats("chats.jsonl", 50);
  const auto error = [&](const std::vector<std::string>& arguments) {
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(error({"prepare", "--dataset", "broken.jsonl", "--output", "o1"}), HasSubstr("broken.jsonl"));
  EXPECT_THAT(error({"prepare", "--dataset", "missing.jsonl", "--output", "o1"}), HasSubstr("missing.jsonl"));
  EXPECT_THAT(error({"prepare", "--dataset", "chats.jsonl", "--output", "o1", "--tokenizer", "nowhere.json"}),
              HasSubstr("nowhere.json"));
  const ProcessResult skipped = run(
      {"prepare", "--dataset", "broken.jsonl", "--output", "o2", "--on_error", "skip", "--eval_split", "0"});
  EXPECT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_THAT(skipped.out, HasSubstr("skipped: 1 records"));
  EXPECT_THAT(error({"prepare", "--dataset", "empty.jsonl", "--output", "o3"}), HasSubstr("empty.jsonl"));
  EXPECT_THAT(error({"prepare", "--dataset", "chats.jsonl"}), HasSubstr("needs --output"));
  // Shards of bytes would be those of another model.
  const ProcessResult gpt2 =
      run_process("/usr/bin/env",
                  {"HF_HUB_OFFLINE=1", "HF_HUB_CACHE=hub", test::octet_program(), "prepare", "--dataset",
                   "chats.jsonl", "--output", "o4", "--model_preset", "gpt2"},
                  folder.path());
  EXPECT_EQ(gpt2.exit_code, 2);
  EXPECT_THAT(gpt2.err, HasSubstr("--tokenizer FOLDER"));
  EXPECT_FALSE(fs::exists(folder.path() + "/o4"));
  EXPECT_THAT(error({"prepare", "--output", "o4"}), HasSubstr("needs --dataset"));
  EXPECT_THAT(error({"prepare", "--output="}), HasSubstr("--output is empty"));
  EXPECT_THAT(error({"prepare", "--output", "o4", "--output", "o5"}), HasSubstr("--output is given twice"));
  EXPECT_THAT(error({"prepare", "--outptu", "o4"}), HasSubstr("did you mean '--output'?"));
  EXPECT_THAT(error({"prepare", "--dataset", "chats.jsonl", "--output", "o5", "--chat_template", "chatml"}),
              HasSubstr("<|im_start|>"));
  ASSERT_EQ(run({"prepare", "--dataset", "chats.jsonl", "--output", "good"}).exit_code, 0);
  EXPECT_THAT(error({"prepare", "--dataset", "chats.jsonl", "--output", "good", "--max_samples", "3"}),
              HasSubstr("good"));
  // Shards that somebody damaged or took away. A check names all of them.
  ASSERT_EQ(
      run({"prepare", "--dataset", "chats.jsonl", "--output", "split", "--eval_split", "0.3"}).exit_code, 0);
  fs::resize_file(folder.path() + "/split/train_00000.octet", 1000);
  fs::resize_file(folder.path() + "/split/validation_00000.octet", 1001);
  EXPECT_THAT(error({"prepare", "--output", "split", "--verify"}),
              AllOf(HasSubstr("train_00000.octet] has 1000 bytes"),
                    HasSubstr("validation_00000.octet] has 1001 bytes")));
  fs::resize_file(folder.path() + "/good/train_00000.octet", 1000);
  EXPECT_THAT(error(train("x", {"--dataset", "good"})), HasSubstr("train_00000.octet] has 1000 bytes"));
  fs::remove(folder.path() + "/good/train_00000.octet");
  EXPECT_THAT(error(train("x", {"--dataset", "good"})), HasSubstr("is missing"));
}

TEST_F(PrepareCli, StoppedByASignalItGoesOnToTheSameBytes) {
  write_chats("chats.jsonl", 150000);
  const std::vector<std::string> arguments = {"prepare",     "--tokenizer",    "bytes",  "--dataset",
                                              "chats.jsonl", "--shard_tokens", "150000", "--num_threads",
                                              "1",           "--progress",     "plain",  "--output"};
  const auto with = [&](const char* output) {
    std::vector<std::string> result = arguments;
    result.emplace_back(output);
    return result;
  };
  ASSERT_EQ(run(with("whole")).exit_code, 0);
  const pid_t child = start_process(test::octet_program(), with("stopped"), folder.path());
  for (int i = 0; i < 30000 && !fs::exists(folder.path() + "/stopped/train_00001.octet"); ++i) usleep(1000);
  kill(child, SIGTERM);
  EXPECT_EQ(wait_for_process(child), 143);
  EXPECT_THAT(read_text(folder.path() + "/out.txt"), HasSubstr("run the same command again to continue"));
  EXPECT_FALSE(fs::exists(folder.path() + "/stopped/manifest.json"));
  const ProcessResult unfinished = run(train("x", {"--dataset", "stopped"}));
  EXPECT_THAT(unfinished.err, HasSubstr("is not fully prepared"));
  EXPECT_THAT(run({"prepare", "--output", "stopped", "--verify"}).err,
              HasSubstr("run the same 'octet prepare' command again"));
  EXPECT_THAT(run({"prepare", "--dataset", "stopped", "--output", "second"}).err,
              HasSubstr("dataset stopped is not fully prepared: run the same"));
  const ProcessResult continued = run(with("stopped"));
  ASSERT_EQ(continued.exit_code, 0);
  EXPECT_THAT(continued.err, HasSubstr("data: continuing stopped, complete shards so far: "));
  EXPECT_EQ(manifest("stopped"), manifest("whole"));
  EXPECT_TRUE(files("stopped") == files("whole"));
}

}  // namespace
}  // namespace octet::test
