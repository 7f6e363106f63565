#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer/tokenizer.h"
#include "temporary_folder.h"
#include "tiny_tokenizer.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Without a network, with a cache as the huggingface_hub library leaves it.
class TokenizerHub : public ::testing::Test {
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
  std::string put_cached(const std::string& revision, char commit, const BytePairs& merges) const {
    const std::string repository = "hub/models--org--name";
    const std::string snapshot = fmt::format("{}/snapshots/{}", repository, std::string(40, commit));
    fs::create_directories(folder_.file(snapshot));
    fs::create_directories(folder_.file(repository + "/refs"));
    folder_.write(snapshot + "/tokenizer.json", tiny_tokenizer(merges).dump());
    folder_.write(snapshot + "/tokenizer_config.json", "{}");
    folder_.write(repository + "/refs/" + revision, std::string(40, commit));
    return folder_.file(snapshot);
  }
  static std::string error(const std::string& name) {
    try {
      make_tokenizer(name);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  LogSink previous_;
};

TEST_F(TokenizerHub, IdIsFoundInTheCache) {
  const std::string main = put_cached("main", 'a', {{"t", "h"}});
  const std::string tag = put_cached("v2", 'b', {{"t", "h"}, {"a", "b"}});
  EXPECT_EQ(make_tokenizer("org/name")->vocab_size(), 257);
  EXPECT_EQ(make_tokenizer("org/name@v2")->vocab_size(), 258);
  EXPECT_EQ(make_tokenizer("org/name@" + std::string(40, 'b'))->vocab_size(), 258);
  EXPECT_EQ(local_tokenizer("org/name"), main);
  EXPECT_EQ(local_tokenizer("org/name@v2"), tag);
  const std::vector<TokenizerFile> files = tokenizer_files("org/name");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].path, main + "/tokenizer.json");
  EXPECT_EQ(files[1].name, "tokenizer_config.json");
}

TEST_F(TokenizerHub, WhatIsMissingIsSaid) {
  EXPECT_THAT(error("org/name"),
              AllOf(HasSubstr("there is no file or folder 'org/name'"), HasSubstr("HF_HUB_OFFLINE"),
                    HasSubstr(folder_.file("hub/models--org--name")), HasSubstr("tokenizer.json")));
  EXPECT_THAT(error("nowhere"),
              HasSubstr("'nowhere' does not exist: expected bytes, a tokenizer file or folder, or"));
  put_cached("main", 'a', {});
  EXPECT_THAT(error("org/name@v9"), HasSubstr("v9"));
}

TEST_F(TokenizerHub, APathIsNotAnId) {
  const fs::path before = fs::current_path();
  fs::create_directories(folder_.file("org"));
  fs::current_path(folder_.path());
  put_cached("main", 'a', {});
  EXPECT_FALSE(is_hub_tokenizer("org/name"));  // a mistyped file of the folder org
  EXPECT_THAT(error("org/name"), HasSubstr("'org/name' does not exist"));
  fs::current_path(before);
  EXPECT_TRUE(is_hub_tokenizer("org/name"));
  EXPECT_FALSE(is_hub_tokenizer("bytes"));
  EXPECT_TRUE(is_hub_tokenizer("gpt2"));
}

}  // namespace
}  // namespace octet
