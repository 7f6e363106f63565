// Tokenizers from the command line: SentencePiece files and hub ids, without a network.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kGolden = test::source_path("/tests/golden/sentencepiece/");

struct TokenizerCli : testing::Test {
  // With standard input from `text`, and a hub cache of this folder.
  ProcessResult tokenize(const std::string& text, const std::string& flags) {
    folder.write("in.txt", text);
    return run_process("sh",
                       {"-c", "HF_HUB_OFFLINE=1 HF_HUB_CACHE=" + folder.path() +
                                  "/hub " + test::octet_program() + " tokenize " + flags + " < in.txt"},
                       folder.path());
  }
  // The files in the cache, as a download of org/name leaves them.
  void put_cached() {
    const std::string commit(40, 'a');
    const fs::path repository = fs::path(folder.path()) / "hub/models--org--name";
    fs::create_directories(repository / "snapshots" / commit);
    fs::create_directories(repository / "refs");
    fs::copy_file(kGolden + "bpe.model", repository / "snapshots" / commit / "tokenizer.model");
    folder.write("hub/models--org--name/refs/main", commit);
  }
  TemporaryFolder folder;
};

TEST_F(TokenizerCli, SentencePieceThereAndBack) {
  const std::string text = "FP8  training \xC3\xBC\xF0\x9F\x98\x80\xFF\n";
  for (const char* name : {"bpe.model", "llama2.json", "mistral_v03.json"}) {
    const ProcessResult ids = tokenize(text, "--tokenizer " + kGolden + name);
    ASSERT_EQ(ids.exit_code, 0) << ids.err;
    const ProcessResult back = tokenize(ids.out, "--decode --tokenizer " + kGolden + name);
    EXPECT_EQ(back.out, text) << name << " " << back.err;
  }
}

TEST_F(TokenizerCli, HubIdIsReadFromTheCache) {
  const ProcessResult missing = tokenize("a", "--tokenizer org/name");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("no file or folder 'org/name'"), HasSubstr("hf download org/name"),
                                 HasSubstr("tokenizer.json, tokenizer.model")));
  put_cached();
  const ProcessResult found = tokenize("The run", "--tokenizer org/name --add_special");
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_EQ(found.out, tokenize("The run", "--add_special --tokenizer " + kGolden + "bpe.model").out);
  EXPECT_EQ(found.out.substr(0, 2), "1 ");
}

TEST_F(TokenizerCli, RunWithAHubIdKeepsItsFiles) {
  put_cached();
  folder.write("text.txt", std::string(2000, 'a') + " model of the run");
  const ProcessResult trained = run_process(
      "sh",
      {"-c", "HF_HUB_OFFLINE=1 HF_HUB_CACHE=hub " + test::octet_program() +
             " train --model_preset llama-tiny --vocab_size 432 --dataset text.txt --tokenizer org/name "
             "--max_steps 2 --max_seq_length 16 --per_device_train_batch_size 1 --run_name r --device cpu "
             "--num_threads 1 --eval_split 0"},
      folder.path());
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(read_text(folder.path() + "/runs/r/config.yaml"), HasSubstr("tokenizer: org/name"));
  // The cache may be gone: the run has a copy.
  fs::remove_all(folder.path() + "/hub");
  const ProcessResult exported =
      run_process(test::octet_program(), {"export", "runs/r", "--output", "out"}, folder.path());
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(read_text(folder.path() + "/out/tokenizer.model"), read_text(kGolden + "bpe.model"));
}

}  // namespace
}  // namespace octet::test
