// The copy of the tokenizer in every checkpoint: what it holds, and that it is used when the run's own is gone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exit_codes.h"
#include "checkpoint/export.h"
#include "checkpoint/model_folder.h"
#include "data/tiny_tokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/export_tokenizer.h"
#include "support/error_of.h"
#include "support/places.h"
#include "train/resume_support.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

struct CheckpointTokenizer : Resume {
  CheckpointTokenizer() {
    fs::create_directories(tokenizer);
    folder.write("tokenizer/tokenizer.json", tiny_tokenizer({{"n", "u"}}).dump());
    folder.write("tokenizer/tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
    folder.write("tokenizer/notes.txt", "not of the tokenizer");
  }

  TrainConfig with_tokenizer(const std::string& name, Settings changes = {}) {
    changes.insert(changes.begin(), {{"tokenizer", tokenizer}, {"mixed_precision", "bf16"}});
    return config(name, changes);
  }

  std::string tokenizer = folder.path() + "/tokenizer";
};

TEST_F(CheckpointTokenizer, IsInTheManifestOfEveryCheckpoint) {
  ASSERT_EQ(train(with_tokenizer("run")), kExitDone);
  for (const int step : {6, 12}) {
    const Checkpoint saved = open_checkpoint(posix_env(), checkpoint("run", step, false));
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      EXPECT_EQ(read_text(saved.file_path(name)), read_text(join_path(tokenizer, name))) << name;
    EXPECT_FALSE(fs::exists(join_path(saved.path, "notes.txt")));
  }
  EXPECT_EQ(find_model(folder.path() + "/runs/run").tokenizer, checkpoint("run", 12, false));
}

TEST_F(CheckpointTokenizer, IsUsedWhereTheRunsOwnIsGone) {
  ASSERT_EQ(train(with_tokenizer("whole")), kExitDone);
  const std::string half = checkpoint("whole", 6, false);
  const uint64_t fingerprint = load_tokenizer(tokenizer)->fingerprint();
  fs::rename(tokenizer, folder.path() + "/elsewhere");

  Stderr log;
  ASSERT_EQ(train(with_tokenizer("halves", {{"resume", half}})), kExitDone);
  EXPECT_THAT(log.text(), HasSubstr("tokenizer " + tokenizer + " is gone; using the copy in " + half));
  expect_equal_states(checkpoint("whole", 12, false), checkpoint("halves", 12, false));
  // And on from there: what a copy was read from is copied too.
  EXPECT_TRUE(open_checkpoint(posix_env(), checkpoint("halves", 12, false)).has_file("tokenizer.json"));

  const ModelFolder model = find_model(folder.path() + "/runs/halves");
  EXPECT_EQ(model.tokenizer, checkpoint("halves", 12, false));
  EXPECT_EQ(make_tokenizer(model.tokenizer)->fingerprint(), fingerprint);
  const Exported exported = export_model(posix_env(), model, folder.path() + "/out", {});
  EXPECT_EQ(exported.tokenizer, "tokenizer.json, tokenizer_config.json");
  EXPECT_EQ(load_tokenizer(folder.path() + "/out")->fingerprint(), fingerprint);
}

// As a scheduler does it: the same command again and again, with a path that is relative and no longer there.
TEST_F(CheckpointTokenizer, IsUsedByEveryRestart) {
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const auto run = [&](const char* steps) {
    return train(
        with_tokenizer("run", {{"tokenizer", "tokenizer"}, {"resume", "latest"}, {"max_steps", steps}}));
  };
  EXPECT_EQ(run("6"), kExitDone);
  fs::rename("tokenizer", "elsewhere");
  EXPECT_EQ(run("8"), kExitDone);
  EXPECT_EQ(run("10"), kExitDone);
  fs::current_path(before);
}

// Other ids behind the old path: neither the training nor what is made of it may notice.
TEST_F(CheckpointTokenizer, IsUsedWhereTheRunsOwnHasChanged) {
  ASSERT_EQ(train(with_tokenizer("whole")), kExitDone);
  const std::string half = checkpoint("whole", 6, false);
  const uint64_t fingerprint = load_tokenizer(tokenizer)->fingerprint();
  folder.write("tokenizer/tokenizer.json", tiny_tokenizer({{"u", "n"}}).dump());
  ASSERT_NE(load_tokenizer(tokenizer)->fingerprint(), fingerprint);

  Stderr log;
  ASSERT_EQ(train(with_tokenizer("halves", {{"resume", half}})), kExitDone);
  EXPECT_THAT(log.text(), HasSubstr("has changed since the run began; using the copy in " + half));
  expect_equal_states(checkpoint("whole", 12, false), checkpoint("halves", 12, false));
  EXPECT_EQ(make_tokenizer(find_model(half).tokenizer)->fingerprint(), fingerprint);
}

// A name with a mistake in it must not pass for the tokenizer that the run had.
TEST_F(CheckpointTokenizer, IsNotTakenForAnotherOne) {
  ASSERT_EQ(train(with_tokenizer("run")), kExitDone);
  const std::string half = checkpoint("run", 6, false);
  const std::string said = error_of([&] {
    train(with_tokenizer("fork", {{"resume", half}, {"tokenizer", folder.path() + "/tokeniser"}}));
  });
  EXPECT_THAT(said, HasSubstr("/tokeniser' does not exist"));
  EXPECT_THAT(said, HasSubstr("--tokenizer " + half));
}

TEST_F(CheckpointTokenizer, IsCheckedBeforeItIsUsed) {
  ASSERT_EQ(train(with_tokenizer("run")), kExitDone);
  const std::string broken = checkpoint("run", 12, false);
  std::string bytes = read_text(broken + "/tokenizer.json");
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(broken + "/tokenizer.json", std::ios::binary) << bytes;
  EXPECT_THAT(error_of([&] { find_model(broken); }), HasSubstr("tokenizer.json has checksum"));
  Stderr log;
  EXPECT_EQ(find_model(folder.path() + "/runs/run").checkpoint->step, 6);
  EXPECT_THAT(log.text(), HasSubstr("it is skipped"));
}

// A SentencePiece model comes with the files that change what it does.
TEST_F(CheckpointTokenizer, CopiesASentencePieceModel) {
  const std::string golden = test::source_path("/tests/golden/sentencepiece/bpe.model");
  fs::remove(tokenizer + "/tokenizer.json");
  fs::copy_file(golden, tokenizer + "/tokenizer.model");
  folder.write("tokenizer/tokenizer_config.json", R"({"add_bos_token": false, "legacy": false})");
  ASSERT_EQ(train(with_tokenizer(
                "run", {{"model_name_or_path", ""}, {"model_preset", "llama-tiny"}, {"vocab_size", "432"}})),
            kExitDone);
  const uint64_t fingerprint = load_tokenizer(tokenizer)->fingerprint();
  fs::remove_all(tokenizer);
  const ModelFolder model = find_model(folder.path() + "/runs/run");
  EXPECT_EQ(make_tokenizer(model.tokenizer)->fingerprint(), fingerprint);
  const Exported exported = export_model(posix_env(), model, folder.path() + "/out", {});
  EXPECT_EQ(exported.tokenizer, "tokenizer.model, tokenizer_config.json");
  EXPECT_EQ(load_tokenizer(folder.path() + "/out")->fingerprint(), fingerprint);
}

// The class that Transformers is told must be able to read the files.
TEST(ExportTokenizer, ASentencePieceModelAloneIsALlamaTokenizer) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() + "/in");
  fs::create_directories(folder.path() + "/out");
  fs::copy_file(test::source_path("/tests/golden/sentencepiece/bpe.model"),
                folder.path() + "/in/tokenizer.model");
  export_tokenizer(posix_env(), folder.path() + "/in", folder.path() + "/out", 64,
                   ExportedChat{"{{ x }}", "</s>"});
  EXPECT_THAT(read_text(folder.path() + "/out/tokenizer_config.json"), HasSubstr("\"LlamaTokenizer\""));
}

}  // namespace
}  // namespace octet::test
