#include "data/datasets/dataset_files.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "data/datasets/dataset_presets.h"
#include "data/shards/manifest.h"
#include "temporary_folder.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DatasetFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("HF_HUB_CACHE", folder_.file("hub").c_str(), 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
    previous_ = set_log_sink([](LogLevel, std::string_view) {});
  }
  void TearDown() override {
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HUB_OFFLINE");
    set_log_sink(previous_);
  }
  void put(const std::string& path) const {
    fs::create_directories(fs::path(folder_.file(path)).parent_path());
    folder_.write(path, "x");
  }
  // A file of a dataset's snapshot in the hub's cache.
  void put_cached(const std::string& repository, const std::string& revision, const std::string& path) const {
    const std::string commit(40, 'c');
    put(fmt::format("hub/{}/snapshots/{}/{}", repository, commit, path));
    const std::string ref = fmt::format("hub/{}/refs/{}", repository, revision);
    fs::create_directories(fs::path(folder_.file(ref)).parent_path());
    folder_.write(ref, commit);
  }
  std::vector<std::string> names(const ExampleOptions& options) const {
    std::vector<std::string> found;
    for (const std::string& path : resolve_dataset(options).files)
      found.push_back(fs::path(path).filename().string());
    return found;
  }
  std::string error(const ExampleOptions& options) const {
    try {
      resolve_dataset(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  LogSink previous_;
};

TEST(PathsOfSplit, NamesAreWholeWords) {
  const std::vector<std::string> paths = {"data/test-00000-of-00001.parquet",
                                          "data/train-00000-of-00001.parquet",
                                          "data/train_1M-00000-of-00001.parquet", "data/valid.parquet"};
  EXPECT_THAT(paths_of_split(paths, "train"), ElementsAre(paths[1]));
  EXPECT_THAT(paths_of_split(paths, "train_1M"), ElementsAre(paths[2]));
  EXPECT_THAT(paths_of_split(paths, "validation"), ElementsAre(paths[3]));
  EXPECT_TRUE(paths_of_split(paths, "rain").empty());
  EXPECT_THAT(paths_of_split({"web_train_000.jsonl", "web_val_000.jsonl"}, "train"),
              ElementsAre("web_train_000.jsonl"));
  EXPECT_THAT(paths_of_split({"default/train/0000.parquet", "default/test/0000.parquet"}, "test"),
              ElementsAre("default/test/0000.parquet"));
  EXPECT_THAT(paths_of_split({"test.jsonl"}, ""), ElementsAre("test.jsonl"));
}

TEST(CheckAllParts, MissingPartIsNamed) {
  EXPECT_NO_THROW(
      check_all_parts({"t-00000-of-00002.parquet", "t-00001-of-00002.parquet", "other.parquet"}, "x"));
  try {
    check_all_parts({"t-00000-of-00003.parquet", "t-00002-of-00003.parquet"}, "x");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("t-00001-of-00003 is missing, 2 of 3 parts were found"));
  }
}

TEST_F(DatasetFiles, FoldersAreReadToTheGround) {
  put("set/data/b.jsonl.gz"), put("set/a.json"), put("set/.git/x.jsonl"), put("set/README.md");
  put("set/dataset_infos.json");
  EXPECT_THAT(names({.dataset = folder_.file("set")}), ElementsAre("a.json", "b.jsonl.gz"));
  put("set/c.txt");
  EXPECT_THAT(error({.dataset = folder_.file("set")}), HasSubstr("expected one kind"));
  put("none/README.md");
  EXPECT_THAT(error({.dataset = folder_.file("none")}),
              HasSubstr("none of them a dataset; expected .txt, .jsonl"));
  EXPECT_THAT(error({.dataset = folder_.file("none/*.jsonl")}), HasSubstr("no file matches it"));
  EXPECT_THAT(error({.dataset = folder_.file("nothing.jsonl")}), HasSubstr("no such file or folder"));
  EXPECT_THAT(error({.dataset = folder_.file("set"), .split = "other"}),
              HasSubstr("no file of split 'other'"));
}

TEST_F(DatasetFiles, PresetsComeFromTheCache) {
  put_cached("datasets--nvidia--OpenMathInstruct-2", "main", "data/train_1M-00000-of-00002.parquet");
  EXPECT_THAT(error({.dataset = "openmathinstruct-2"}), HasSubstr("train_1M-00001-of-00002 is missing"));
  put_cached("datasets--nvidia--OpenMathInstruct-2", "main", "data/train_1M-00001-of-00002.parquet");
  put_cached("datasets--nvidia--OpenMathInstruct-2", "main", "data/train-00000-of-00001.parquet");
  EXPECT_THAT(names({.dataset = "openmathinstruct-2"}),
              ElementsAre("train_1M-00000-of-00002.parquet", "train_1M-00001-of-00002.parquet"));
  EXPECT_THAT(names({.dataset = "openmathinstruct-2", .split = "train"}),
              ElementsAre("train-00000-of-00001.parquet"));
  EXPECT_THAT(error({.dataset = "openmathinstruct-2", .split = "train_9M"}),
              HasSubstr("its splits are train_1M, train_2M, train_5M, train"));
  EXPECT_EQ(resolve_dataset({.dataset = "openmathinstruct-2"}).options.format,
            ExampleFormat::ProblemSolution);

  put_cached("datasets--openai--gsm8k", "main", "main/train-00000-of-00001.parquet");
  put_cached("datasets--openai--gsm8k", "main", "main/test-00000-of-00001.parquet");
  put_cached("datasets--openai--gsm8k", "main", "socratic/train-00000-of-00001.parquet");
  EXPECT_EQ(resolve_dataset({.dataset = "gsm8k"}).files.size(), 1u);
  EXPECT_THAT(names({.dataset = "gsm8k", .split = "test"}), ElementsAre("test-00000-of-00001.parquet"));
  // The same repository by its id: the configuration is a folder.
  EXPECT_THAT(resolve_dataset({.dataset = "openai/gsm8k", .subset = "socratic"}).files[0],
              HasSubstr("/socratic/train"));

  put_cached("datasets--karpathy--tiny_shakespeare", "refs/convert/parquet", "default/train/0000.parquet");
  put_cached("datasets--karpathy--tiny_shakespeare", "refs/convert/parquet", "default/test/0000.parquet");
  EXPECT_THAT(resolve_dataset({.dataset = "tinyshakespeare"}).files,
              ElementsAre(HasSubstr("/train/0000.parquet")));
  put_cached("datasets--HuggingFaceFW--fineweb-edu", "main", "sample/10BT/000_00000.parquet");
  put_cached("datasets--HuggingFaceFW--fineweb-edu", "main", "sample/100BT/000_00000.parquet");
  EXPECT_THAT(resolve_dataset({.dataset = "fineweb-edu"}).files,
              ElementsAre(HasSubstr("/10BT/000_00000.parquet")));
  put_cached("datasets--Skylion007--openwebtext", "main", "plain_text/train-00000-of-00001.parquet");
  EXPECT_EQ(resolve_dataset({.dataset = "openwebtext"}).options.text_column, "text");
  put_cached("datasets--tatsu-lab--alpaca", "main", "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet");
  EXPECT_EQ(resolve_dataset({.dataset = "alpaca"}).options.format, ExampleFormat::Alpaca);
}

TEST_F(DatasetFiles, PresetFromAFolder) {
  put("mine/train.jsonl"), put("mine/test.jsonl");
  EXPECT_THAT(names({.dataset = "gsm8k", .data_dir = folder_.file("mine")}), ElementsAre("train.jsonl"));
  EXPECT_THAT(names({.dataset = "gsm8k", .split = "test", .data_dir = folder_.file("mine")}),
              ElementsAre("test.jsonl"));
}

TEST_F(DatasetFiles, WithoutNetworkTheErrorSaysWhereToPutTheFiles) {
  const std::string message = error({.dataset = "fineweb-edu"});
  EXPECT_THAT(message, HasSubstr(folder_.file("hub") + "/datasets--HuggingFaceFW--fineweb-edu"));
  EXPECT_THAT(message, HasSubstr("sample/10BT/*.parquet"));
  EXPECT_THAT(error({.dataset = "no-such-name"}),
              HasSubstr("one of fineweb-edu, openwebtext, tinyshakespeare"));
}

TEST_F(DatasetFiles, PresetFromACopyOfTheRepository) {
  for (const char* path : {"main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet",
                           "socratic/train-00000-of-00001.parquet"}) {
    put(fmt::format("gsm/{}", path));
  }
  EXPECT_THAT(resolve_dataset({.dataset = "gsm8k", .data_dir = folder_.file("gsm")}).files,
              ElementsAre(folder_.file("gsm/main/train-00000-of-00001.parquet")));
  for (const char* split : {"train_1M", "train_2M", "train_5M", "train"}) {
    put(fmt::format("math/data/{}-00000-of-00001.parquet", split));
  }
  EXPECT_THAT(names({.dataset = "openmathinstruct-2", .data_dir = folder_.file("math")}),
              ElementsAre("train_1M-00000-of-00001.parquet"));
  EXPECT_THAT(names({.dataset = "openmathinstruct-2", .split = "train", .data_dir = folder_.file("math")}),
              ElementsAre("train-00000-of-00001.parquet"));
}

// Its splits train_1M, train_2M, train_5M and train hold the same rows.
TEST_F(DatasetFiles, TheHubIdOfAPresetHasThePresetsSplit) {
  const std::string repository = "datasets--nvidia--OpenMathInstruct-2";
  put_cached(repository, "main", "data/train-00000-of-00001.parquet");
  put_cached(repository, "main", "data/train_1M-00000-of-00001.parquet");
  const std::string id = "nvidia/OpenMathInstruct-2";
  EXPECT_THAT(names({.dataset = id}), ElementsAre("train_1M-00000-of-00001.parquet"));
  EXPECT_THAT(names({.dataset = id, .split = "train"}), ElementsAre("train-00000-of-00001.parquet"));
}

TEST_F(DatasetFiles, WhatWasPreparedBelowTheInputIsNoInput) {
  put("set/a.json");
  fs::create_directories(folder_.file("set/out")), fs::create_directories(folder_.file("set/half"));
  folder_.write("set/out/manifest.json", dataset_manifest_text({}));
  folder_.write("set/half/progress.json", dataset_manifest_text({}));
  EXPECT_THAT(names({.dataset = folder_.file("set")}), ElementsAre("a.json"));
}

TEST_F(DatasetFiles, FoldersOutsideTheGlobDoNotNameASplit) {
  put("test/data/train.jsonl"), put("test/data/test.jsonl");
  EXPECT_THAT(names({.dataset = folder_.file("test/data/*.jsonl"), .split = "test"}),
              ElementsAre("test.jsonl"));
  EXPECT_THAT(names({.dataset = folder_.file("test/d*/train.jsonl"), .split = "train"}),
              ElementsAre("train.jsonl"));
}

TEST_F(DatasetFiles, AMissingSplitInTheCacheComesWithTheAdvice) {
  put_cached("datasets--openai--gsm8k", "main", "main/train-00000-of-00001.parquet");
  EXPECT_THAT(error({.dataset = "gsm8k", .split = "test"}),
              ::testing::AllOf(HasSubstr("no file of split 'test'"), HasSubstr("HF_HUB_OFFLINE"),
                               HasSubstr("--repo-type dataset")));
}

}  // namespace
}  // namespace octet
