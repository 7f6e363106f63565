#include "plan/data_stage.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "config/config.h"
#include "plan/data_loaders.h"
#include "plan/data_prepare.h"
#include "plan/dataset_items.h"
#include "support/error_of.h"
#include "support/process.h"

namespace octet {
namespace {

// 40 windows of 8 tokens; the first token of each is its number.
std::string write_tokens(const test::TemporaryFolder& folder) {
  const std::string path = folder.path() + "/tokens.bin";
  std::ofstream file(path, std::ios::binary);
  for (uint16_t i = 0; i < 40 * 8 + 1; ++i) {
    const auto id = static_cast<uint16_t>(i % 8 == 0 ? i / 8 : 200);
    file.write(reinterpret_cast<const char*>(&id), 2);
  }
  return path;
}

std::vector<int32_t> first_tokens(const std::string& path, const std::vector<KeySetting>& more, int count,
                                  int64_t sequences = 40) {
  std::vector<KeySetting> flags = {{.name = "dataset", .values = {path}, .place = ""},
                                   {.name = "model_preset", .values = {"llama-tiny"}, .place = ""},
                                   {.name = "max_seq_length", .values = {"8"}, .place = ""},
                                   {.name = "per_device_train_batch_size", .values = {"1"}, .place = ""},
                                   {.name = "eval_split", .values = {"0"}, .place = ""}};
  flags.insert(flags.end(), more.begin(), more.end());
  const TrainConfig keys = load_train_config("", flags);
  const DataChoice data = open_data(keys, choose_model(keys));
  EXPECT_EQ(data.sequences, sequences);
  const std::unique_ptr<BatchSource> loader = make_train_loader(loading_options(keys), data, 1);
  std::vector<int32_t> tokens;
  Batch batch;
  for (int i = 0; i < count; ++i) {
    loader->next(batch);
    tokens.push_back(batch.tokens[0]);
  }
  return tokens;
}

TEST(DataStage, TokenFilesAreShuffledAnewInEachEpoch) {
  const test::TemporaryFolder folder;
  const std::string path = write_tokens(folder);
  const std::vector<int32_t> two = first_tokens(path, {}, 80);
  const std::vector<int32_t> first(two.begin(), two.begin() + 40), second(two.begin() + 40, two.end());
  for (const auto& epoch : {first, second}) {
    const std::set<int32_t> seen(epoch.begin(), epoch.end());
    EXPECT_EQ(seen.size(), 40u);  // each window once
    EXPECT_EQ(*seen.rbegin(), 39);
    EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end()));
  }
  EXPECT_NE(first, second);
  const std::vector<int32_t> in_order =
      first_tokens(path, {{.name = "data_order", .values = {"sequential"}, .place = ""}}, 40);
  EXPECT_TRUE(std::is_sorted(in_order.begin(), in_order.end()));
  const std::vector<int32_t> crops =
      first_tokens(path, {{.name = "data_order", .values = {"random"}, .place = ""}}, 40);
  EXPECT_GT(std::count(crops.begin(), crops.end(), 200), 20);  // most begin inside a window
}

TEST(DataStage, AnEpochReadsDataAsOftenAsItIsNamed) {
  const test::TemporaryFolder folder;
  const std::string path = write_tokens(folder);
  std::filesystem::create_symlink("tokens.bin", folder.path() + "/link.bin");
  const std::string paths = path + "," + folder.path() + "/./tokens.bin," + folder.path() + "/link.bin";
  std::map<int32_t, int> seen;
  for (const int32_t token : first_tokens(paths, {}, 120, 120)) ++seen[token];
  EXPECT_EQ(seen.size(), 40u);
  for (const auto& [token, times] : seen) EXPECT_EQ(times, 3) << token;
}

TEST(DataStage, WeightsOfTheSameDataAddUp) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", "{}"), other = folder.write("b.jsonl", "{}");
  const std::string again = folder.path() + "/./a.jsonl";
  std::vector<DatasetPart> parts = {
      {.path = path, .weight = 1}, {.path = other, .weight = 1.5}, {.path = again, .weight = 2}};
  EXPECT_EQ(join_same_data(parts), (std::vector<int64_t>{2, 1}));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].weight, 3);
  EXPECT_EQ(parts[1].weight, 1.5);
  parts = {{.path = path}, {.path = again, .max_samples = 5}};
  EXPECT_THAT(error_of([&] { join_same_data(parts); }), testing::HasSubstr("different max_samples"));
  parts = {{.path = path}, {.path = again, .split = "test"}};
  EXPECT_EQ(join_same_data(parts).size(), 2u);
  TrainConfig keys;
  keys.eval_dataset = {{.path = path}, {.path = other}, {.path = again}};
  EXPECT_THAT(error_of([&] { expanded_eval_dataset(keys); }), testing::HasSubstr("is named 2 times"));
}

// What ranks compare before the first step.
TEST(DataStage, HashesTellOtherFilesApart) {
  const test::TemporaryFolder folder;
  const auto hashes = [&](const std::string& train, const std::string& eval) {
    folder.write("train.txt", train);
    folder.write("eval.txt", eval);
    const TrainConfig keys = load_train_config(
        "", std::vector<KeySetting>{
                {.name = "model_preset", .values = {"llama-tiny"}, .place = ""},
                {.name = "dataset", .values = {folder.path() + "/train.txt"}, .place = ""},
                {.name = "eval_dataset", .values = {folder.path() + "/eval.txt"}, .place = ""},
                {.name = "max_seq_length", .values = {"8"}, .place = ""}});
    return data_hashes(loading_options(keys), open_data(keys, choose_model(keys)));
  };
  const std::string text(100, 'a'), other = text + "b";
  const DataHashes usual = hashes(text, text);
  EXPECT_EQ(hashes(text, text).training, usual.training);
  EXPECT_EQ(hashes(text, text).evaluation, usual.evaluation);
  EXPECT_NE(hashes(other, text).training, usual.training);
  EXPECT_EQ(hashes(other, text).evaluation, usual.evaluation);
  EXPECT_NE(hashes(text, other).evaluation, usual.evaluation);
}

TEST(DataStage, TheDemoKeepsItsRandomCrops) {
  EXPECT_EQ(load_train_config("", {}).data_order, DataOrder::Random);
  TrainConfig config;
  EXPECT_EQ(config.data_order, DataOrder::Shuffled);
}

TEST(DataStage, AnotherEvaluationSetTakesNothingThatNamesFiles) {
  TrainConfig config;
  config.dataset = {{.path = "gsm8k"}}, config.dataset_split = "train", config.dataset_subset = "main";
  config.dataset_revision = "v1", config.dataset_dir = "mine", config.text_column = "body";
  config.eval_dataset = {{.path = "alpaca"}};
  ExampleOptions eval = eval_examples(config, config.eval_dataset[0]);
  EXPECT_EQ(eval.dataset, "alpaca");
  EXPECT_EQ(eval.split + eval.subset + eval.revision + eval.data_dir, "");
  EXPECT_EQ(eval.text_column, "body");
  config.eval_dataset_split = "test";
  EXPECT_EQ(eval_examples(config, config.eval_dataset[0]).split, "test");
  config.eval_dataset = {{.path = "gsm8k"}};
  eval = eval_examples(config, config.eval_dataset[0]);
  EXPECT_EQ(eval.split, "test");
  EXPECT_EQ(eval.subset + eval.revision + eval.data_dir, "mainv1mine");
}

TEST(DataStage, ADatasetThatIsNotThereIsNamedBeforeItsTokenizer) {
  const std::vector<KeySetting> settings = {
      {.name = "model_preset", .values = {"llama-tiny"}, .place = ""},
      {.name = "dataset", .values = {"no-such-text.txt"}, .place = ""},
      {.name = "tokenizer", .values = {"no-such-tokenizer.json"}, .place = ""}};
  const TrainConfig keys = load_train_config("", settings);
  const ModelChoice model = choose_model(keys);
  EXPECT_THAT(error_of([&] { open_data(keys, model); }), testing::HasSubstr("no-such-text.txt"));
}

}  // namespace
}  // namespace octet
