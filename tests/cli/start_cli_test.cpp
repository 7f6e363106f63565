// How a run starts: prepared data that is read only once, the line about the time, and the folder for what is kept.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

constexpr const char* kShard = "data/train_00000.octet";

struct StartCli : testing::Test {
  StartCli() {
    setenv("OCTET_CACHE", (folder.path() + "/cache").c_str(), 1);
    std::string text;
    for (int i = 0; i < 200; ++i) text += fmt::format("{{\"text\": \"this is text number {:04}\"}}\n", i);
    folder.write("text.jsonl", text);
  }
  ~StartCli() override { unsetenv("OCTET_CACHE"); }

  ProcessResult run(std::vector<std::string> arguments) const {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  std::string path(const std::string& name) const { return folder.path() + "/" + name; }

  // Prepares the dataset, as if it had been done an hour ago.
  void prepare() const {
    const ProcessResult result = run({"prepare", "--dataset", "text.jsonl", "--output", "data", "--tokenizer",
                                      "bytes", "--eval_split", "0.2"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const auto& entry : fs::directory_iterator(path("data"))) {
      fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
    }
  }
  // Damages a token; size and time stay the same.
  void damage() const {
    const auto time = fs::last_write_time(path(kShard));
    std::fstream file(path(kShard), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(100);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(100);
    file.put(byte);
    file.close();
    fs::last_write_time(path(kShard), time);
  }
  ProcessResult train(const std::vector<std::string>& more, const std::string& dataset = "data",
                      const std::string& save_strategy = "no") const {
    std::vector<std::string> words = {"train",
                                      "--device=cpu",
                                      "--dataset=" + dataset,
                                      "--model_preset=llama-tiny",
                                      "--max_seq_length=32",
                                      "--max_steps=1",
                                      "--num_threads=1",
                                      "--mixed_precision=bf16",
                                      "--save_strategy=" + save_strategy,
                                      "--progress=plain",
                                      "--eval_batches=1",
                                      "--per_device_train_batch_size=1"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }

  TemporaryFolder folder;
};

TEST_F(StartCli, PreparedDataIsReadOnce) {
  prepare();
  ASSERT_EQ(train({"--dry_run"}).exit_code, 0);
  ASSERT_TRUE(fs::exists(path("data/checked.json")));
  damage();
  const ProcessResult again = train({"--dry_run"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  const ProcessResult verified = train({"--dry_run", "--verify"});
  EXPECT_NE(verified.exit_code, 0);
  EXPECT_THAT(verified.err, AllOf(HasSubstr(kShard), HasSubstr("the tokens")));
  // From now on it is known to be damaged.
  EXPECT_THAT(train({"--dry_run"}).err, HasSubstr(kShard));
  damage();  // back to what it was
  const ProcessResult sound = train({"--dry_run", "--verify"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.err,
              ContainsRegex("data: verified 2 files, [0-9.]+ KiB, in [0-9.]+ m?s: no damage was found\n"));
  EXPECT_EQ(sound.err.find("verified"), sound.err.rfind("verified")) << "one line: " << sound.err;
  EXPECT_THAT(train({"--dry_run"}).err, Not(HasSubstr("verified")));
  fs::resize_file(path(kShard), 200);
  EXPECT_THAT(train({"--dry_run"}).err,
              AllOf(HasSubstr(kShard), HasSubstr("has 200 bytes, manifest.json says")));
}

// Whoever finds the damage says what helps.
TEST_F(StartCli, ADamagedPreparedFolderIsNamedWithWhatHelps) {
  const char* helps = "remove the folder and prepare the dataset again";
  prepare();
  const std::vector<std::string> same = {"prepare",     "--dataset", "text.jsonl",   "--output", "data",
                                         "--tokenizer", "bytes",     "--eval_split", "0.2"};
  EXPECT_EQ(run(same).exit_code, 0);
  damage();
  EXPECT_EQ(run(same).exit_code, 0) << "size and time say nothing, and not all shards are read again";
  fs::last_write_time(path(kShard), fs::file_time_type::clock::now());
  const ProcessResult changed = run(same);
  EXPECT_EQ(changed.exit_code, 2);
  EXPECT_THAT(changed.err, AllOf(HasSubstr(kShard), HasSubstr(helps)));
  damage();
  const auto flip_magic = [&] {
    std::fstream file(path(kShard), std::ios::binary | std::ios::in | std::ios::out);
    const char first = static_cast<char>(file.get() ^ 1);
    file.seekp(0);
    file.put(first);
  };
  flip_magic();
  EXPECT_THAT(train({"--dry_run"}).err, AllOf(HasSubstr("bad magic"), HasSubstr(helps)));
  flip_magic();
  fs::rename(path(kShard), path("kept"));
  EXPECT_THAT(train({"--dry_run"}).err, AllOf(HasSubstr(kShard), HasSubstr("is missing"), HasSubstr(helps)));
  const ProcessResult planned = run({"plan", "--dataset", "data", "--device", "cpu"});
  EXPECT_EQ(planned.exit_code, 0);
  EXPECT_THAT(planned.err,
              AllOf(HasSubstr("this run would not start"), HasSubstr(kShard), HasSubstr("is missing")));
  fs::rename(path("kept"), path(kShard));
  fs::resize_file(path("data/manifest.json"), fs::file_size(path("data/manifest.json")) - 10);
  EXPECT_THAT(train({"--dry_run"}).err, AllOf(HasSubstr("data/manifest.json"), HasSubstr(helps)));
  fs::remove(path("data/manifest.json"));
  EXPECT_THAT(train({"--dry_run"}).err,
              AllOf(HasSubstr("data holds shards of a prepared dataset, but its manifest.json is missing"),
                    HasSubstr(helps)));
  const ProcessResult kept = run(same);
  EXPECT_EQ(kept.exit_code, 2);
  EXPECT_THAT(
      kept.err,
      HasSubstr("data holds shards ('train_00000.octet'), but no manifest.json and no progress.json"));
  fs::remove_all(path("data"));
  EXPECT_EQ(run(same).exit_code, 0);
  EXPECT_EQ(train({"--dry_run"}).exit_code, 0) << "that has helped";
  // A file of another program is nothing that octet should advise to remove.
  fs::create_directories(path("other"));
  for (const std::string name : {"manifest.json", "progress.json"}) {
    std::ofstream(path("other/" + name)) << "{}";
    const ProcessResult other =
        run({"prepare", "--dataset", "text.jsonl", "--output", "other", "--tokenizer", "bytes"});
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.err, AllOf(HasSubstr(fmt::format("other/{} is no manifest of an octet dataset", name)),
                                 Not(HasSubstr(helps))));
    fs::remove(path("other/" + name));
  }
}

TEST_F(StartCli, PrepareAndEvalVerify) {
  prepare();
  const std::vector<std::string> same = {"prepare",     "--dataset", "text.jsonl",   "--output", "data",
                                         "--tokenizer", "bytes",     "--eval_split", "0.2",      "--verify"};
  const ProcessResult sound = run(same);
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.err, HasSubstr("data: verified 2 files of data, "));
  const ProcessResult trained = train({"--run_name", "a"}, "data", "steps");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const ProcessResult alone = run({"prepare", "--output", "data", "--verify"});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("data: verified 2 files of data, "));
  damage();
  for (const std::vector<std::string>& words : {same, {"prepare", "--output", "data", "--verify"}}) {
    const ProcessResult prepared = run(words);
    EXPECT_EQ(prepared.exit_code, 2);  // as octet train ends
    EXPECT_THAT(prepared.err, HasSubstr(kShard));
  }
  fs::copy_file(path("text.jsonl"), path("more.jsonl"));
  const ProcessResult two =
      run({"prepare", "--dataset", "text.jsonl,more.jsonl", "--output", "list", "--tokenizer", "bytes"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  const ProcessResult list = run({"prepare", "--output", "list", "--verify"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.err, AllOf(HasSubstr("files of list/text, "), HasSubstr("files of list/more, ")))
      << list.err;
  fs::remove_all(path("list/more"));
  for (const ProcessResult& result :
       {run({"prepare", "--output", "list", "--verify"}), train({"--dry_run"}, "list")}) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("lists \"more\", but there is no such folder in list"));
  }
  EXPECT_THAT(run({"prepare", "--output", "nowhere", "--verify"}).err,
              HasSubstr("[nowhere] is not a folder, expected a prepared dataset"));
  fs::create_directory(path("empty"));
  EXPECT_THAT(run({"prepare", "--output", "empty", "--verify"}).err,
              HasSubstr("empty holds no prepared dataset: it has no "));
  EXPECT_THAT(run({"plan", "--dataset", "data", "--verify"}).err, HasSubstr("verify has no effect"));
  const ProcessResult twice = run({"prepare", "--dataset", "data", "--output", "again"});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err,
              HasSubstr("dataset data is already prepared: train on it as it is, or give the files"));
  damage();
  ASSERT_EQ(run(same).exit_code, 0);
  damage();
  EXPECT_EQ(run({"eval", "runs/a", "--device", "cpu"}).exit_code, 0);
  EXPECT_THAT(run({"eval", "runs/a", "--device", "cpu", "--dataset", "data"}).err,
              HasSubstr("data: the held-out part of data is evaluated: "));
  const ProcessResult evaluated = run({"eval", "runs/a", "--device", "cpu", "--verify"});
  EXPECT_EQ(evaluated.exit_code, 2);
  EXPECT_THAT(evaluated.err, HasSubstr(kShard));
  fs::resize_file(path("data/validation_00000.octet"), 200);
  const ProcessResult elsewhere = run({"eval", "runs/a", "--device", "cpu", "--dataset", "data"});
  EXPECT_EQ(elsewhere.exit_code, 2);
  EXPECT_THAT(elsewhere.err, HasSubstr("validation_00000.octet] has 200 bytes"));
  EXPECT_THAT(run({"eval", "runs/a", "--task", "hellaswag", "--verify"}).err,
              HasSubstr("--verify has no meaning with --task"));
}

TEST_F(StartCli, ADamagedMemoryIsReplaced) {
  prepare();
  ASSERT_EQ(train({"--dry_run"}).exit_code, 0);
  const std::string sound = read_text(path("data/checked.json"));
  folder.write("data/checked.json", sound.substr(0, sound.size() / 2));
  const ProcessResult result = train({"--dry_run"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("checked.json"), HasSubstr("it is ignored")));
  EXPECT_EQ(result.err.find("it is ignored"), result.err.rfind("it is ignored"))
      << "said once: " << result.err;
  EXPECT_EQ(read_text(path("data/checked.json")), sound);
  EXPECT_THAT(train({"--dry_run"}).err, Not(HasSubstr("checked.json")));
}

TEST_F(StartCli, TwoProcessesStartAtOnce) {
  prepare();
  std::vector<pid_t> started;
  for (const char* name : {"one", "two", "three"}) {
    started.push_back(start_process(test::octet_program(),
                                    {"train", "--device", "cpu", "--dataset", "data", "--max_seq_length",
                                     "32", "--max_steps", "1", "--dry_run", "--model_preset", "llama-tiny"},
                                    folder.path(), fmt::format("{}.txt", name)));
  }
  for (const pid_t pid : started) EXPECT_EQ(wait_for_process(pid), 0);
  damage();
  EXPECT_EQ(train({"--dry_run"}).exit_code, 0) << "all was remembered";
}

TEST_F(StartCli, TwoRanksVerifyOnce) {
  prepare();
  const ProcessResult result = run({"launch",
                                    "-n",
                                    "2",
                                    "train",
                                    "--device",
                                    "cpu",
                                    "--dataset",
                                    "data",
                                    "--model_preset",
                                    "llama-tiny",
                                    "--max_seq_length",
                                    "32",
                                    "--max_steps",
                                    "1",
                                    "--num_threads",
                                    "1",
                                    "--per_device_train_batch_size",
                                    "1",
                                    "--save_strategy",
                                    "no",
                                    "--eval_strategy",
                                    "no",
                                    "--mixed_precision",
                                    "bf16",
                                    "--verify"});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_TRUE(fs::exists(path("data/checked.json")));
}

TEST_F(StartCli, OneVariableSaysWhereThingsAreKept) {
  const ProcessResult result = train({"--dry_run"}, "text.jsonl");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr(path("cache/datasets/text-")));
  EXPECT_TRUE(fs::exists(path("cache/datasets")));
}

TEST_F(StartCli, ACacheThatIsNoFolderIsNamedWithItsVariable) {
  folder.write("cache", "");
  const ProcessResult result = train({"--dry_run"}, "text.jsonl");
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("Not a directory"), HasSubstr("(OCTET_CACHE is " + path("cache") + ")")));
}

// Size and time are those of a file that was checked. The run finds the damage when it uses the token.
TEST_F(StartCli, ATokenOutsideOfTheVocabularyIsNamedWithItsFile) {
  prepare();
  ASSERT_EQ(train({"--dry_run"}).exit_code, 0);
  const auto damage_from = [&](int first) {
    const auto time = fs::last_write_time(path(kShard));
    {
      std::fstream file(path(kShard), std::ios::binary | std::ios::in | std::ios::out);
      for (int place = first; place < 7400; place += 40) {
        file.seekp(place + 1);
        file.put(0x40);
      }
    }
    fs::last_write_time(path(kShard), time);
  };
  damage_from(204);
  for (const char* packing : {"--packing=stream", "--packing=best_fit"}) {
    const ProcessResult result = train({packing});
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr(kShard), ContainsRegex("id [0-9]+ at token [0-9]+ .byte offset"),
                                  HasSubstr("vocabulary"), HasSubstr("--verify")))
        << packing;
  }
  damage_from(64);  // the first document, which the start shows
  const ProcessResult result = train({"--dry_run"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr(kShard), HasSubstr("at token 0 (byte offset 64)")));
}

TEST_F(StartCli, VerifyThatHasNothingToReadIsSaid) {
  EXPECT_THAT(train({"--dry_run", "--verify"}, "demo").err, HasSubstr("verify has no effect"));
}

TEST_F(StartCli, SaysHowLongTheStartTook) {
  prepare();
  const ProcessResult result = train({});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("\nready after [0-9]+\\.[0-9] s"));
  EXPECT_THAT(result.out, ContainsRegex("\nstart +[0-9]+\\.[0-9] s"));
  EXPECT_LT(result.out.find("ready after"), result.out.find("step 1/1"));
}

}  // namespace
}  // namespace octet::test
