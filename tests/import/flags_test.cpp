// Keys of other programs as flags, and inside files of octet.

#include "import/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "import_support.h"
#include "support/places.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Translated {
  std::vector<KeySetting> settings;
  SettingsNotes notes;
  std::vector<std::string> errors;

  std::string value(const std::string& key) const {
    for (const KeySetting& setting : settings) {
      if (setting.name == key) return setting.values.empty() ? "" : setting.values.front();
    }
    return "(unset)";
  }
};

// As the command line does it.
Translated translate(const std::vector<std::string>& words) {
  std::vector<Key> keys(train_keys().keys().begin(), train_keys().keys().end());
  keys.insert(keys.end(), foreign_keys().begin(), foreign_keys().end());
  Translated result;
  KeyArguments read = parse_key_arguments(keys, words, result.errors);
  EXPECT_THAT(read.positionals, IsEmpty());
  result.settings = translate_settings(std::move(read.settings), result.notes, result.errors);
  return result;
}

TEST(ForeignFlags, WhatHasNoMeaningIsAcceptedWithOneLine) {
  const std::vector<std::vector<std::string>> kFlags = {
      {"--use_te"},
      {"--use_flash_attn"},
      {"--fp8_backend", "te"},
      {"--empty_cache_freq", "25"},
      {"--num_workers", "4"},
      {"--dataloader_num_workers", "4"},
      {"--dataloader_pin_memory", "true"},
      {"--per_device_eval_batch_size", "8"},
      {"--overwrite_output_dir"},
      {"--ddp_timeout", "180000"},
      {"--flash_attn", "fa2"},
      {"--stage", "sft"},
      {"--optim", "adamw_torch"},
      {"--do_train"},
      {"--trust_remote_code"},
      {"--torch_compile"},
      {"--local_rank", "0"},
  };
  for (const auto& words : kFlags) {
    const Translated result = translate(words);
    EXPECT_THAT(result.settings, IsEmpty()) << words[0];
    EXPECT_THAT(result.errors, IsEmpty()) << words[0];
    EXPECT_THAT(result.notes.notes, ElementsAre(HasSubstr(words[0]))) << words[0];
    EXPECT_THAT(result.notes.warnings, IsEmpty()) << words[0];
  }
}

TEST(ForeignFlags, WhatIsDoneInAnotherWaySaysHow) {
  EXPECT_THAT(translate({"--num_gpus", "2"}).errors, ElementsAre(HasSubstr("octet launch -n N train")));
  EXPECT_THAT(translate({"--dropout", "0.1"}).errors, ElementsAre(HasSubstr("lora_dropout")));
}

TEST(ForeignFlags, WhatOctetHasIsTranslated) {
  EXPECT_EQ(translate({"--optim", "paged_adamw_8bit"}).value("optimizer_state"), "fp8");
  EXPECT_EQ(translate({"--fp8"}).value("mixed_precision"), "fp8");
  EXPECT_EQ(translate({"--bf16"}).value("mixed_precision"), "bf16");
  EXPECT_EQ(translate({"--bf16", "--fp8"}).value("mixed_precision"), "fp8");
  EXPECT_EQ(translate({"--fp8", "--bf16", "true"}).value("mixed_precision"), "fp8");
  EXPECT_EQ(translate({"--fsdp_sharding_strategy", "SHARD_GRAD_OP"}).value("sharding_mode"), "zero2");
  EXPECT_EQ(translate({"--disable_gradient_checkpointing"}).value("gradient_checkpointing"), "none");
  EXPECT_EQ(translate({"--load_in_4bit"}).value("mixed_precision"), "fp8");
}

TEST(ForeignFlags, ADeepSpeedFileIsRead) {
  const Translated result = translate({"--deepspeed", test::source_path("/tests/import/files/ds_zero2.json")});
  EXPECT_EQ(result.value("sharding_mode"), "zero2");
  EXPECT_THAT(result.errors, IsEmpty());
}

TEST(ForeignFlags, WhatCannotBeDoneIsAnErrorWithTheReason) {
  const auto error = [](const std::vector<std::string>& words) {
    const Translated result = translate(words);
    EXPECT_EQ(result.errors.size(), 1u) << words[0];
    return result.errors.empty() ? "" : result.errors[0];
  };
  EXPECT_THAT(error({"--use_dora"}), AllOf(HasSubstr("--use_dora"), HasSubstr("no DoRA")));
  EXPECT_THAT(error({"--stage", "dpo"}), HasSubstr("--stage is dpo"));
  EXPECT_THAT(error({"--load_in_fp8"}), HasSubstr("mixed_precision fp8"));
  EXPECT_THAT(error({"--optim", "lion"}), HasSubstr("AdamW only"));
  EXPECT_THAT(error({"--neftune_noise_alpha", "5"}), HasSubstr("noise"));
  EXPECT_THAT(error({"--deepspeed", "none.json"}), HasSubstr("not here"));
  EXPECT_THAT(translate({"--use_dora", "false"}).errors, IsEmpty());
}

TEST(ForeignFlags, OctetsOwnKeyWins) {
  const Translated same = translate({"--mixed_precision", "fp8", "--bf16"});
  EXPECT_EQ(same.value("mixed_precision"), "fp8");
  EXPECT_EQ(same.settings.size(), 1u);
  EXPECT_THAT(same.notes.warnings, IsEmpty());
  const Translated other = translate({"--mixed_precision", "bf16", "--fp8"});
  EXPECT_EQ(other.settings.size(), 1u);
  EXPECT_THAT(other.notes.warnings,
              ElementsAre(HasSubstr("fp8 has no effect: mixed_precision is set to bf16")));
}

TEST(ForeignFlags, UnknownFlagsStayUnknown) {
  std::vector<std::string> errors;
  SettingsNotes notes;
  const auto left = translate_settings({{.name = "no_such_thing", .values = {"1"}}}, notes, errors);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].name, "no_such_thing");
  EXPECT_THAT(errors, IsEmpty());
}

TEST(RunFile, OwnFilesMayHaveKeysOfOtherPrograms) {
  SettingsNotes notes;
  const FileSettings file =
      read_run_file(test::source_path("/tests/import/files/octet_with_foreign_keys.yaml"), notes);
  const TrainConfig config = load_train_config(file, {});
  EXPECT_EQ(config.mixed_precision, Precision::Fp8);
  EXPECT_FALSE(config.use_tensorboard);
  EXPECT_EQ(config.target_effective_batch_size, 16);
  EXPECT_EQ(config.num_train_epochs, 1);
  EXPECT_EQ(notes.notes.size(),
            5u);  // num_workers, fp8_backend, fp8, bf16, per_device_eval_batch_size
}

// One message for one flag, and none that another one takes back.
TEST(ForeignFlags, AFlagIsExplainedOnce) {
  const Translated half = translate({"--fp16"});
  EXPECT_THAT(half.notes.warnings,
              ElementsAre(HasSubstr("octet does not train in fp16; BF16 takes its place")));
  EXPECT_THAT(half.notes.notes, IsEmpty());
  const Translated idle = translate({"--fp8", "true", "--mixed_precision", "bf16"});
  EXPECT_THAT(idle.notes.warnings, ElementsAre("fp8 has no effect: mixed_precision is set to bf16"));
  EXPECT_THAT(idle.notes.notes, IsEmpty());
  const Translated whole = translate({"--fp16", "--mixed_precision", "fp32"});
  EXPECT_THAT(whole.notes.warnings, ElementsAre("fp16 has no effect: mixed_precision is set to fp32"));
  const Translated moments = translate({"--optim", "adamw_4bit", "--optimizer_state", "fp32"});
  EXPECT_THAT(moments.notes.warnings, ElementsAre("optim has no effect: optimizer_state is set to fp32"));
  EXPECT_THAT(moments.notes.notes, IsEmpty());
}

TEST(RunFile, OtherProgramsFilesAreTranslatedAndSummed) {
  SettingsNotes notes;
  const FileSettings file = read_run_file(test::source_path("/tests/import/files/lf_qlora.yaml"), notes);
  EXPECT_THAT(file.errors, IsEmpty());
  EXPECT_THAT(notes.notes, ElementsAre(AllOf(HasSubstr("is a configuration of LLaMA-Factory; 13 keys: "),
                                             HasSubstr("'octet import "))));
  EXPECT_THAT(notes.warnings, testing::Contains(HasSubstr("quantization_bit")));
  EXPECT_THAT(notes.warnings, testing::Contains(HasSubstr("loss scaling")));
  // Flags win over the file, also over the tool's defaults.
  const KeySetting steps{.name = "max_steps", .values = {"5"}};
  const TrainConfig config = load_train_config(file, {&steps, 1});
  EXPECT_EQ(config.max_steps, 5);
  EXPECT_EQ(config.num_train_epochs, 0);
}

// octet trains in FP8 unless it is told otherwise, so false asks for BF16.
TEST(ForeignFlags, Fp8FalseIsBf16) {
  EXPECT_EQ(translate({"--fp8", "false"}).value("mixed_precision"), "bf16");
  EXPECT_EQ(translate({"--fp8", "false", "--mixed_precision", "fp32"}).value("mixed_precision"), "fp32");
  EXPECT_EQ(translate({"--fp8", "false", "--bf16"}).value("mixed_precision"), "bf16");
  EXPECT_EQ(translate({"--fp8"}).value("mixed_precision"), "fp8");
  EXPECT_THAT(translate({"--fp8", "false", "--mixed_precision", "bf16"}).notes.notes,
              ElementsAre("--fp8 false: off"));
  EXPECT_THAT(translate({"--fp8", "false", "--mixed_precision", "fp8"}).notes.warnings,
              ElementsAre("--fp8 false: no effect, because mixed_precision is fp8"));
}

struct ReadFile {
  SettingsNotes notes;
  TrainConfig config;
};

ReadFile read_text_as_file(const std::string& text) {
  const test::TemporaryFolder folder;
  ReadFile read;
  read.config = load_train_config(read_run_file(folder.write("run.yaml", text), read.notes), {});
  return read;
}

// A key of octet neither hides whose file it is nor depends on its place in it.
TEST(RunFile, AKeyOfOctetInAFileOfAnotherProgramDecides) {
  const std::string lines =
      "stage: sft\ntemplate: alpaca\ndataset: a.json\ncutoff_len: 64\nmodel_name_or_path: m\n";
  for (const std::string& text :
       {"mixed_precision: fp8\nbf16: true\n" + lines, lines + "bf16: true\nmixed_precision: fp8\n"}) {
    const ReadFile read = read_text_as_file(text);
    EXPECT_EQ(read.config.mixed_precision, Precision::Fp8) << text;
    EXPECT_TRUE(read.config.is_lora()) << "LLaMA-Factory's default";
    EXPECT_THAT(read.notes.notes, testing::Contains(HasSubstr("is a configuration of LLaMA-Factory")))
        << text;
  }
  EXPECT_EQ(read_text_as_file(lines + "mixed_precision: fp32\nbf16: true\n").config.mixed_precision,
            Precision::Fp32);
}

TEST(RunFile, AFileOfOctetWithKeysOfLlamaFactoryStaysOctets) {
  const ReadFile read = read_text_as_file(
      "model_preset: gpt2\nmixed_precision: fp8\ndataset: demo\nmax_steps: 3\ntemplate: alpaca\nplot_loss: true\n");
  EXPECT_FALSE(read.config.is_lora());
  EXPECT_THAT(read.notes.notes, testing::Not(testing::Contains(HasSubstr("is a configuration of"))));
}

TEST(RunFile, ProcessesOfALauncherAreNamed) {
  const ReadFile read = read_text_as_file(
      "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n");
  EXPECT_THAT(read.notes.notes,
              testing::Contains(HasSubstr("start the run with 'octet launch -n 8 train ...'")));
}

TEST(RunFile, RefusedKeysAndBrokenFilesAreErrors) {
  SettingsNotes notes;
  const FileSettings refused = read_run_file(test::source_path("/tests/import/files/lf_dora.yaml"), notes);
  EXPECT_THAT(test::config_error_of([&] { load_train_config(refused, {}); }), HasSubstr("octet has no DoRA"));
  const test::TemporaryFolder folder;
  const std::string broken = folder.write("a.yaml", "a: [1\n"),
                    unknown = folder.write("b.yaml", "max_stepz: 1\n");
  EXPECT_NE(test::config_error_of([&] { read_run_file(broken, notes); }), "");
  EXPECT_THAT(test::config_error_of([&] { load_train_config(read_run_file(unknown, notes), {}); }),
              HasSubstr("did you mean 'max_steps'?"));
  EXPECT_TRUE(read_run_file("", notes).path.empty());
}

// As 'octet train <(...)' gives it.
TEST(RunFile, MayBeAPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = "max_steps: 2\nbogus_key: 3\n";
  ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  SettingsNotes notes;
  const FileSettings file = read_run_file("/dev/fd/" + std::to_string(ends[0]), notes);
  close(ends[0]);
  ASSERT_EQ(file.settings.size(), 2u);
  EXPECT_EQ(file.settings[0].name, "max_steps");
}

}  // namespace
}  // namespace octet
