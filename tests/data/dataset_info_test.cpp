#include "data/datasets/dataset_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/error_of.h"
#include "temporary_folder.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct DatasetInfo : testing::Test {
  DatasetPart find(const std::string& entry) {
    folder.write("dataset_info.json", R"({"it": )" + entry + "}");
    return find_dataset_info(folder.path(), "it").value();
  }
  std::string error(const std::string& entry) {
    return error_of([&] { find(entry); });
  }
  TemporaryFolder folder;
};

TEST_F(DatasetInfo, FilesAndHubDatasets) {
  folder.write("a.json", "[]");
  DatasetPart part = find(R"({"file_name": "a.json", "num_samples": 7})");
  EXPECT_EQ(part.path, folder.file("a.json"));
  EXPECT_EQ(part.format, ExampleFormat::Alpaca);
  EXPECT_EQ(part.max_samples, 7);
  part = find(R"({"hf_hub_url": "org/name", "ms_hub_url": "x/y", "subset": "en", "split": "train_sft"})");
  EXPECT_EQ(part.path, "org/name");
  EXPECT_EQ(part.subset, "en");
  EXPECT_EQ(part.split, "train_sft");
  EXPECT_EQ(find(R"({"hf_hub_url": "org/name", "folder": "python"})").subset, "python");
  EXPECT_EQ(find(R"({"hf_hub_url": "org/name", "file_name": "a.json"})").path, folder.file("a.json"));
  EXPECT_EQ(find(R"({"hf_hub_url": "org/name", "file_name": "gone.json"})").path, "org/name");

  EXPECT_EQ(find_dataset_info(folder.path(), "other"), std::nullopt);
  EXPECT_EQ(find_dataset_info(folder.file("nowhere"), "it"), std::nullopt);
  EXPECT_THAT(dataset_info_names(folder.path()), ElementsAre("it"));
}

TEST_F(DatasetInfo, ColumnsAndTags) {
  DatasetPart part =
      find(R"({"hf_hub_url": "a/b", "columns": {"prompt": "question", "response": "answer"}})");
  EXPECT_EQ(part.format, ExampleFormat::PromptCompletion);
  EXPECT_EQ(part.prompt_column, "question");
  EXPECT_EQ(part.completion_column, "answer");
  part = find(R"({"hf_hub_url": "a/b", "columns": {"prompt": "q", "query": "input", "response": "a"}})");
  EXPECT_EQ(part.format, ExampleFormat::Alpaca);
  EXPECT_EQ(part.prompt_column, "q");
  part = find(R"({"hf_hub_url": "a/b", "columns": {"prompt": "content"}})");
  EXPECT_EQ(part.format, ExampleFormat::Text);
  EXPECT_EQ(part.text_column, "content");
  part = find(R"({"hf_hub_url": "a/b", "formatting": "sharegpt"})");
  EXPECT_EQ(part.format, ExampleFormat::ShareGpt);
  EXPECT_EQ(part.messages_column, "conversations");
  part = find(R"({"hf_hub_url": "a/b", "formatting": "sharegpt", "columns": {"messages": "chat"},
                  "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                           "assistant_tag": "assistant", "system_tag": "system"}})");
  EXPECT_EQ(part.format, ExampleFormat::Messages);
  EXPECT_EQ(part.messages_column, "chat");
}

TEST_F(DatasetInfo, WhatCannotBeTrainedOnIsRefusedWithTheReason) {
  EXPECT_THAT(error(R"({"hf_hub_url": "a/b", "ranking": true})"), HasSubstr("dataset it in"));
  EXPECT_THAT(error(R"({"hf_hub_url": "a/b", "ranking": true})"), HasSubstr("preference training"));
  EXPECT_THAT(error(R"({"hf_hub_url": "a/b", "columns": {"kto_tag": "label"}})"), HasSubstr("kto_tag"));
  for (const char* kind : {"images", "videos", "audios"}) {
    EXPECT_THAT(error(fmt::format(R"({{"hf_hub_url": "a/b", "columns": {{"{}": "x"}}}})", kind)),
                HasSubstr(fmt::format("a column for {}; octet trains on text only", kind)));
  }
  EXPECT_THAT(error(R"({"ms_hub_url": "a/b"})"), HasSubstr("only ms_hub_url (a/b)"));
  EXPECT_THAT(error(R"({"script_url": "s"})"), HasSubstr("only script_url"));
  EXPECT_THAT(error(R"({})"), HasSubstr("neither file_name nor hf_hub_url"));
  EXPECT_THAT(error(R"({"file_name": "gone.json"})"), HasSubstr("gone.json, which does not exist"));
  EXPECT_THAT(error(R"({"hf_hub_url": "a/b", "formatting": "xml"})"), HasSubstr("formatting xml"));
  EXPECT_THAT(error(R"({"hf_hub_url": "a/b", "columns": {"prompt": "p", "response": "r", "system": "s"}})"),
              HasSubstr("only from a column named system"));
  EXPECT_THAT(error(R"({"hf_hub_url": "a/b", "formatting": "sharegpt", "tags": {"user_tag": "Q"}})"),
              HasSubstr("user_tag Q; octet knows human, user"));
  EXPECT_THAT(error(R"({"hf_hub_url": "a/b", "formatting": "sharegpt", "tags": {"role_tag": "who"}})"),
              HasSubstr("messages of who and value"));
  EXPECT_THAT(error(R"({"hf_hub_url": "a/b", "num_samples": -1})"), HasSubstr("num_samples -1"));
  EXPECT_THAT(error(R"({"hf_hub_url": 3})"), HasSubstr("hf_hub_url 3, expected text"));
  EXPECT_THAT(error("[]"), HasSubstr("is array, expected an object"));
  EXPECT_THAT(error("{"), HasSubstr("dataset_info.json"));
}

}  // namespace
}  // namespace octet
