// Which tokenizer a run has if none is named, without a network.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config/config.h"
#include "data/tiny_tokenizer.h"
#include "plan/data_stage.h"
#include "support/captured_log.h"
#include "support/environment.h"
#include "support/error_of.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
namespace fs = std::filesystem;
using Flags = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kGpt2 = "openai-community/gpt2";

struct TokenizerChoice : testing::Test {
  TokenizerChoice() {
    text_file = folder.write("text.txt", std::string(400, 'a'));
    token_file = folder.path() + "/tokens.bin";
    const std::vector<uint16_t> ids(400, 50000);
    std::ofstream(token_file, std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(2 * ids.size()));
  }
  void put_into_cache() const {
    const std::string repository = "hub/models--openai-community--gpt2", commit(40, 'a');
    for (const std::string& below : {"/snapshots/" + commit, std::string("/refs")})
      fs::create_directories(folder.path() + "/" + repository + below);
    folder.write(repository + "/snapshots/" + commit + "/tokenizer.json",
                 tiny_tokenizer({{"a", "a"}}).dump());
    folder.write(repository + "/refs/main", commit);
  }
  static DataChoice choice(Flags flags) {
    flags.insert(flags.end(), {{"max_seq_length", "16"}, {"device", "cpu"}});
    std::vector<KeySetting> settings;
    for (const auto& [key, value] : flags) settings.push_back({.name = key, .values = {value}, .place = ""});
    const TrainConfig keys = load_train_config("", settings);
    return open_data(keys, choose_model(keys));
  }

  TemporaryFolder folder;
  Variable cache{"HF_HUB_CACHE", folder.path() + "/hub"}, offline{"HF_HUB_OFFLINE", "1"};
  std::string text_file, token_file;
  CapturedLog log;
};

TEST_F(TokenizerChoice, TextForAModelThatIsNotNamedNeedsThatOfGpt2) {
  EXPECT_THAT(error_of([&] {
                choice({{"dataset", text_file}});
              }),
              AllOf(HasSubstr(kGpt2), HasSubstr("--tokenizer FOLDER"), HasSubstr("--tokenizer bytes"),
                    HasSubstr("--model_preset llama-tiny")));
  EXPECT_EQ(choice({{"dataset", text_file}, {"tokenizer", "bytes"}}).tokenizer_name, "bytes");
  put_into_cache();
  const DataChoice data = choice({{"dataset", text_file}});
  EXPECT_EQ(data.tokenizer_name, kGpt2);
  EXPECT_EQ(data.tokenizer->vocab_size(), 257);
  EXPECT_TRUE(data.is_plain_text);
}

TEST_F(TokenizerChoice, ANamedPresetReadsBytesInNeedAndSaysSo) {
  const Flags flags = {{"dataset", text_file}, {"model_preset", "gpt2-medium"}};
  EXPECT_EQ(choice(flags).tokenizer_name, "bytes");
  EXPECT_THAT(log.messages, Contains(HasSubstr("text is read as bytes")));
  put_into_cache();
  EXPECT_EQ(choice(flags).tokenizer_name, kGpt2);
  // Models that others than GPT-2's tokenizer fit.
  for (const char* preset : {"gpt2-tiny", "llama-tiny", "llama-3.2-1b"})
    EXPECT_EQ(choice({{"dataset", text_file}, {"model_preset", preset}}).tokenizer_name, "bytes") << preset;
}

TEST_F(TokenizerChoice, DataThatAreTokensNeedNone) {
  const DataChoice data = choice({{"dataset", token_file}});
  EXPECT_EQ(data.tokenizer_name, kGpt2);
  EXPECT_EQ(data.tokenizer_source, "");
  EXPECT_FALSE(data.is_plain_text);
  EXPECT_GT(data.sequences, 0);
  EXPECT_THAT(log.messages, Contains(HasSubstr("no samples are made")));
  // A path that was given is a mistake, if it leads nowhere.
  EXPECT_THAT(error_of([&] {
                choice({{"dataset", token_file}, {"tokenizer", "/nowhere"}});
              }),
              HasSubstr("/nowhere"));
  EXPECT_THAT(error_of([&] {
                choice({{"dataset", token_file + "," + text_file}});
              }),
              HasSubstr("--tokenizer FOLDER"));
  put_into_cache();
  EXPECT_TRUE(choice({{"dataset", token_file}}).is_plain_text);
}

}  // namespace
}  // namespace octet::test
