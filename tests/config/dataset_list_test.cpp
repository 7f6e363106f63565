// The keys dataset and eval_dataset as lists.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"
#include "support/error_of.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct DatasetList : testing::Test {
  TrainConfig from_yaml(const std::string& yaml) {
    return load_train_config(folder.write("run.yaml", yaml), {});
  }
  std::string error(const std::string& yaml) {
    return error_of([&] { from_yaml(yaml); });
  }
  std::vector<std::string> paths(const std::vector<std::string>& flags) {
    std::vector<std::string> errors, found;
    const KeyArguments parsed = parse_key_arguments(train_keys().keys(), flags, errors);
    throw_config_errors(errors);
    for (const DatasetPart& part : load_train_config("", parsed.settings).dataset) found.push_back(part.path);
    return found;
  }
  test::TemporaryFolder folder;
};

TEST_F(DatasetList, CommasSeparatePathsUnlessTheFileExists) {
  using Paths = std::vector<std::string>;
  EXPECT_EQ(paths({"--dataset", "a.jsonl,b.parquet"}), (Paths{"a.jsonl", "b.parquet"}));
  EXPECT_EQ(paths({"--dataset", "a.jsonl, b.parquet"}), (Paths{"a.jsonl", "b.parquet"}));
  EXPECT_EQ(paths({"--dataset", "data/{a,b}.csv"}), (Paths{"data/{a,b}.csv"})) << "a glob";
  const std::string odd = folder.write("one, two,three.txt", "x");
  EXPECT_EQ(paths({"--dataset", odd}), (Paths{odd}));
  EXPECT_EQ(from_yaml("dataset: a.jsonl,b.parquet").dataset,
            (std::vector<DatasetPart>{{.path = "a.jsonl"}, {.path = "b.parquet"}}));
  EXPECT_EQ(from_yaml("dataset: ['a,b.jsonl', c]").dataset,
            (std::vector<DatasetPart>{{.path = "a,b.jsonl"}, {.path = "c"}}));
}

TEST_F(DatasetList, ItemsAreMapsWithKeysOfTheirOwn) {
  const TrainConfig config = from_yaml(
      "dataset:\n"
      "  - path: a.jsonl\n"
      "    weight: 0.7\n"
      "    max_samples: 1000\n"
      "    format: alpaca\n"
      "  - name: org/b\n"
      "    weight: 3\n"
      "    split: train_1M\n"
      "    subset: main\n"
      "    revision: v1\n"
      "    data_dir: here\n"
      "    prompt_column: q\n"
      "    completion_column: a\n"
      "  - {file: c.jsonl, weight: 1e-2, text_column: body}\n"
      "eval_dataset:\n"
      "- d.jsonl\n"
      "- dataset: e.jsonl\n"
      "  messages_column: chat\n");
  ASSERT_EQ(config.dataset.size(), 3u);
  EXPECT_EQ(
      config.dataset[0],
      (DatasetPart{.path = "a.jsonl", .weight = 0.7, .max_samples = 1000, .format = ExampleFormat::Alpaca}));
  EXPECT_EQ(config.dataset[1], (DatasetPart{.path = "org/b",
                                            .weight = 3,
                                            .split = "train_1M",
                                            .subset = "main",
                                            .revision = "v1",
                                            .dataset_dir = "here",
                                            .prompt_column = "q",
                                            .completion_column = "a"}));
  EXPECT_EQ(config.dataset[2], (DatasetPart{.path = "c.jsonl", .weight = 0.01, .text_column = "body"}));
  EXPECT_EQ(config.eval_dataset,
            (std::vector<DatasetPart>{{.path = "d.jsonl"}, {.path = "e.jsonl", .messages_column = "chat"}}));
}

TEST_F(DatasetList, IsWrittenBackAsItWasRead) {
  for (const char* yaml :
       {"dataset: a.jsonl", "dataset: a.jsonl,b.jsonl", "dataset: ['a,b', 'c: d', 'null']",
        "dataset: ['a,b']",
        "dataset: [{path: a, weight: 0.25}, {path: 'b c', weight: 1, split: '5', format: text}]",
        "dataset: [a, {path: b, max_samples: 3}]\neval_dataset: [{path: d, split: test}]"}) {
    const TrainConfig config = from_yaml(yaml), again = from_yaml(to_yaml(config));
    EXPECT_EQ(again.dataset, config.dataset) << to_yaml(config);
    EXPECT_EQ(again.eval_dataset, config.eval_dataset) << yaml;
  }
  const std::string text = to_yaml(from_yaml("dataset: [{weight: 3, path: a.jsonl}, {path: b, weight: 1}]"));
  EXPECT_THAT(text, HasSubstr("dataset:\n  - path: a.jsonl\n    weight: 3\n  - path: b\n    weight: 1\n"));
  EXPECT_THAT(to_yaml(from_yaml("dataset: a,b")), HasSubstr("dataset: [a, b]\n"));
  EXPECT_THAT(to_yaml(from_yaml("dataset: a")), HasSubstr("dataset: a\n"));
  EXPECT_EQ(config_text(from_yaml("dataset: [{path: a, weight: 3}, {path: b, weight: 1}]"), "dataset"),
            "a (weight 3), b (weight 1)");
}

TEST_F(DatasetList, ErrorsNameTheItem) {
  const std::string file = folder.path() + "/run.yaml";
  EXPECT_THAT(
      error("dataset:\n- path: a\n  weight: 0\n- path: b\n  weight: -1\n"),
      AllOf(HasSubstr("weight in item 1 of dataset (" + file + ":3) is '0'; expected a number above 0"),
            HasSubstr("weight in item 2 of dataset (" + file + ":5) is '-1'")));
  EXPECT_THAT(error("dataset: [{path: a, wieght: 1}]"),
              HasSubstr("unknown key 'wieght' in item 1 of dataset"));
  EXPECT_THAT(error("dataset: [{path: a, wieght: 1}]"), HasSubstr("did you mean 'weight'?"));
  EXPECT_THAT(error("dataset: [a, {weight: 1}]"),
              HasSubstr("item 2 of dataset in " + file + ":1 has no path"));
  EXPECT_THAT(error("dataset: [a, '']"), HasSubstr("item 2 of dataset in " + file + ":1 has no path"));
  EXPECT_THAT(error("dataset: [{path: a, weight: 1}, b]"),
              HasSubstr("item 2 of dataset (b) has no weight, but a has"));
  EXPECT_EQ(from_yaml("dataset: [{path: a, split: x}, {path: a, split: y}]").dataset.size(), 2u);
  EXPECT_THAT(error("eval_dataset: [{path: a, weight: 1}]"), HasSubstr("only training data can have"));
  EXPECT_THAT(error("dataset: [{path: a, format: xml}]"), HasSubstr("format in item 1"));
  EXPECT_THAT(error("dataset: [{path: a, split: [x]}]"), HasSubstr("list inside a map inside a list"));
  EXPECT_THAT(error("dataset: [{path: {x: y}}]"), HasSubstr("map inside a list inside"));
  EXPECT_THAT(error("dataset: {path: a}"), HasSubstr("is a nested map"));
  EXPECT_THAT(error("fp8_skip_layers: [{path: a}]"), HasSubstr("is a map inside a list"));
  EXPECT_THAT(error("dataset:\n- path: a\n  weight:\n- b\n"), HasSubstr("has no value"));
}

}  // namespace
}  // namespace octet
