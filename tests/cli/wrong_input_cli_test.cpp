// What is wrong with a model, a tokenizer or data ends a command with 2, before anything is done.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/env.h"
#include "support/model_fixture.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

struct WrongInputCli : testing::Test {
  WrongInputCli() {
    RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path("model"));
    folder.write("text.txt", std::string(600, 'a'));
    std::string tokens;
    for (int i = 0; i < 600; ++i) tokens += std::string("\1\0", 2);
    folder.write("tokens.bin", tokens);
  }
  std::string path(const std::string& name) const { return join_path(folder.path(), name); }
  ProcessResult run(const std::vector<std::string>& arguments) {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  // The command ends with 2 and says why.
  void expect_wrong(const std::vector<std::string>& arguments, const std::string& why) {
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments[0] << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(why)) << arguments[0];
  }
  TemporaryFolder folder;
};

TEST_F(WrongInputCli, OfAModel) {
  const auto expect_all = [&](const std::string& why) {
    expect_wrong({"eval", "model", "--dataset", "tokens.bin", "--max_seq_length", "32", "--device", "cpu"},
                 why);
    expect_wrong({"generate", "model", "--prompt_ids", "1", "--print_ids", "--device", "cpu"}, why);
    expect_wrong({"export", "model", "--output", "out"}, why);
    expect_wrong({"export", "model", "--output", "out.gguf", "--format", "gguf"}, why);
    EXPECT_FALSE(fs::exists(path("out")));
  };
  const std::string weights = read_text(path("model/model.safetensors"));
  folder.write("model/model.safetensors", weights.substr(0, weights.size() / 2));
  expect_all("model.safetensors");
  folder.write("model/model.safetensors", weights);
  const std::string config = read_text(path("model/config.json"));
  folder.write("model/config.json", R"({"model_type": "llama", "hidden_size": "x"})");
  expect_all("config.json");
  folder.write("model/config.json", config);
  const size_t end = weights.size() - 4;
  folder.write("model/model.safetensors", weights.substr(0, end) + std::string("\0\0\xC0\x7F", 4));  // NaN
  expect_all("not finite");
  folder.write("model/model.safetensors", weights);
  expect_wrong({"generate", "model", "--best", "--prompt", "a"}, "--best needs the folder of a run");
}

TEST_F(WrongInputCli, OfATokenizerOrItsInput) {
  folder.write("tokenizer.json", "{}");
  expect_wrong({"tokenize", "--tokenizer", "tokenizer.json"}, "has no `model`");
  const ProcessResult words = run_process(
      "sh", {"-c", "echo 1 x | " + test::octet_program() + " tokenize --decode --tokenizer bytes"}, folder.path());
  EXPECT_EQ(words.exit_code, 2);
}

// An evaluation of tokens needs no tokenizer, and so it does not matter that octet cannot read the one of the model.
TEST_F(WrongInputCli, OfATokenizerThatIsNotNeeded) {
  folder.write("model/tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  const auto eval = [](const char* dataset) {
    return std::vector<std::string>{"eval", "model",    "--dataset", dataset,         "--max_seq_length",
                                    "32",   "--device", "cpu",       "--num_threads", "1"};
  };
  expect_wrong(eval("text.txt"), "WordPiece");
  const ProcessResult tokens = run(eval("tokens.bin"));
  EXPECT_EQ(tokens.exit_code, 0) << tokens.err;
  EXPECT_EQ(tokens.err, "");
  ASSERT_EQ(run({"prepare", "--dataset", "text.txt", "--dataset_format", "text", "--tokenizer", "bytes",
                 "--output", "shards"})
                .exit_code,
            0);
  const ProcessResult shards = run(eval("shards"));
  EXPECT_EQ(shards.exit_code, 0) << shards.err;
  EXPECT_THAT(shards.err, HasSubstr("it is not known whether shards was prepared with this tokenizer"));
}

TEST_F(WrongInputCli, OfDataThatIsNamedTwice) {
  expect_wrong({"eval", "model", "--tokenizer", "bytes", "--dataset", "text.txt,./text.txt"},
               "text.txt is named 2 times");
}

}  // namespace
}  // namespace octet::test
