#include "base/key_search.h"

#include <gmock/gmock.h>

#include "config/config.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> similar(std::string_view name) {
  return similar_keys(train_keys().keys(), name);
}

TEST(KeySearch, TypingErrorsFindTheirKey) {
  EXPECT_THAT(similar("learnig_rate"), ElementsAre("learning_rate"));
  EXPECT_THAT(similar("max_stesp"), ElementsAre("max_steps"));
  EXPECT_THAT(similar("cutof_len"), ElementsAre("max_seq_length"));
  EXPECT_THAT(similar("wandb_proj"), ElementsAre("wandb_project"));
}

// None of these is near its key by letters.
TEST(KeySearch, NamesOfTheSameMeaningFindTheirKey) {
  EXPECT_THAT(similar("eval_every_steps"), ElementsAre("eval_steps"));
  EXPECT_THAT(similar("validation_interval"), Contains("eval_steps"));
  EXPECT_THAT(similar("num_iterations"), ElementsAre("max_steps"));
  EXPECT_THAT(similar("lr_min"), ElementsAre("min_lr"));
  EXPECT_THAT(similar("ckpt_path"), ElementsAre("checkpoint_dir"));
  EXPECT_THAT(similar("ctx_len"), ElementsAre("max_seq_length"));
  EXPECT_THAT(similar("fp8_history"), ElementsAre("fp8_amax_history_len"));
  EXPECT_THAT(similar("batch"), Contains("per_device_train_batch_size"));
}

TEST(KeySearch, LettersAloneAreNoReason) {
  // Near eval_split by its letters, if vocab_size were not a key.
  KeyTable<TrainConfig> few;
  few.add("eval_split", &TrainConfig::eval_split, "");
  few.add("seed", &TrainConfig::seed, "");
  EXPECT_THAT(similar_keys(few.keys(), "vocab_size"), IsEmpty());
  EXPECT_THAT(similar("vocab_size"), ElementsAre("vocab_size"));
  for (const char* name : {"zebra_crossing_count", "xy", "verbose", "size", "use", ""})
    EXPECT_THAT(similar(name), IsEmpty()) << name;
}

TEST(KeySearch, SearchReadsNamesAliasesAndHelp) {
  const auto names = [](std::string_view query) {
    std::vector<std::string> found;
    for (const Key& key : search_keys(train_keys().keys(), query)) found.push_back(key.name);
    return found;
  };
  EXPECT_THAT(names("fp8"), AllOf(Contains("fp8_recipe"), Contains("mixed_precision"),
                                  Contains("require_fp8"), Not(Contains("learning_rate"))));
  EXPECT_THAT(names("validation"), Contains("eval_steps"));  // in other words
  EXPECT_THAT(names("eval steps"), AllOf(Contains("eval_steps"), Not(Contains("save_steps"))));
  EXPECT_THAT(names("history"), Contains("fp8_amax_history_len"));
  EXPECT_THAT(names("cutoff_len"), Contains("max_seq_length"));
  EXPECT_THAT(names("zebra"), IsEmpty());
  EXPECT_THAT(names(""), IsEmpty());
}

}  // namespace
}  // namespace octet
