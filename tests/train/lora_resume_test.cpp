// LoRA runs that are resumed, that start from an adapter, and what their checkpoints hold.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exit_codes.h"
#include "checkpoint/base_identity.h"
#include "hf/peft_folder.h"
#include "report/metrics.h"
#include "resume_support.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

struct LoraResume : Resume {
  TrainConfig lora(const std::string& name, const Settings& changes) {
    Settings settings = {{"finetuning_type", "lora"}, {"lora_rank", "4"}};
    settings.insert(settings.end(), changes.begin(), changes.end());
    return config(name, settings);
  }
  // Only what is said, as a user would type it.
  TrainConfig typed(const std::string& name, const Settings& given) {
    std::vector<KeySetting> settings = {{.name = "output_dir", .values = {folder.path() + "/runs"}},
                                        {.name = "run_name", .values = {name}}};
    for (const auto& [key, value] : given) settings.push_back({.name = key, .values = {value}});
    return load_resumable_config({}, settings);
  }
  std::vector<StepRecord> metrics(const std::string& run) {
    return read_metrics(folder.path() + "/runs/" + run + "/metrics.jsonl");
  }
  std::string config_yaml(const std::string& run) {
    return read_text(folder.path() + "/runs/" + run + "/config.yaml");
  }
};

struct ExactCase {
  const char* name;
  bool fp8;
  Settings changes;
};

void PrintTo(const ExactCase& c, std::ostream* out) {
  *out << c.name;
}

struct LoraExactResume : LoraResume, testing::WithParamInterface<ExactCase> {};

TEST_P(LoraExactResume, TwoHalvesAreTheWhole) {
  const ExactCase& c = GetParam();
  ASSERT_EQ(train(lora("whole", c.changes)), kExitDone);
  Settings second = c.changes;
  second.push_back({"resume", checkpoint("whole", 6, c.fp8)});
  ASSERT_EQ(train(lora("halves", second)), kExitDone);
  expect_equal_states(checkpoint("whole", 12, c.fp8), checkpoint("halves", 12, c.fp8));
  const auto whole = metrics("whole"), halves = metrics("halves");
  ASSERT_EQ(whole.size(), 12u);
  ASSERT_EQ(halves.size(), 6u);
  for (size_t i = 0; i < halves.size(); ++i) {
    EXPECT_EQ(halves[i].step, whole[i + 6].step);
    EXPECT_EQ(halves[i].loss, whole[i + 6].loss);
    EXPECT_EQ(halves[i].grad_norm, whole[i + 6].grad_norm);
  }

  second.push_back({"gradient_checkpointing", "block"});
  ASSERT_EQ(train(lora("recomputed", second)), kExitDone);
  expect_equal_states(checkpoint("whole", 12, c.fp8), checkpoint("recomputed", 12, c.fp8));
}

INSTANTIATE_TEST_SUITE_P(
    , LoraExactResume,
    testing::Values(
        ExactCase{"fp32", false, {{"mixed_precision", "fp32"}}},
        ExactCase{"fp32_dropout", false, {{"mixed_precision", "fp32"}, {"lora_dropout", "0.2"}}},
        ExactCase{"bf16", false, {{"mixed_precision", "bf16"}, {"lora_target", "q_proj,v_proj"}}},
        ExactCase{"bf16_moments",
                  false,
                  {{"mixed_precision", "bf16"}, {"optimizer_state", "bf16"}, {"loraplus_lr_ratio", "4"}}},
        ExactCase{"fp8_moments_stochastic",
                  true,
                  {{"optimizer_state", "fp8"}, {"master_weights", "stochastic"}, {"use_rslora", "true"}}},
        ExactCase{"delayed", true, {{"fp8_recipe", "delayed"}, {"weight_decay", "0.1"}}},
        ExactCase{"delayed_one_copy",
                  true,
                  {{"fp8_recipe", "delayed"}, {"fp8_weight_copies", "one"}, {"fp8_head", "true"}}},
        ExactCase{"delayed_dropout_accumulation",
                  true,
                  {{"fp8_recipe", "delayed"}, {"lora_dropout", "0.2"}, {"gradient_accumulation_steps", "2"}}},
        ExactCase{"current", true, {{"fp8_recipe", "current"}, {"gradient_checkpointing", "act"}}},
        ExactCase{"block", true, {{"fp8_recipe", "block"}, {"fp8_weight_copies", "one"}}},
        ExactCase{"mxfp8", true, {{"fp8_recipe", "mxfp8"}}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(LoraResume, ACheckpointHoldsOnlyAdapters) {
  ASSERT_EQ(train(lora("lora", {})), kExitDone);
  ASSERT_EQ(train(config("full", {})), kExitDone);
  const std::string folder_of_lora = checkpoint("lora", 12, true);
  std::vector<std::string> files;
  uintmax_t bytes = 0, bytes_of_full = 0;
  for (const auto& entry : fs::directory_iterator(folder_of_lora)) {
    files.push_back(entry.path().filename().string());
    bytes += entry.file_size();
  }
  for (const auto& entry : fs::directory_iterator(checkpoint("full", 12, true)))
    bytes_of_full += entry.file_size();
  EXPECT_THAT(files, UnorderedElementsAre("adapter_config.json", "adapter_model.safetensors", "base.json",
                                          "config.json", "fp8_state.bin", "manifest.json",
                                          "optimizer.safetensors", "state.json", "train_config.yaml"));
  EXPECT_LT(bytes, uintmax_t{256} << 10);
  EXPECT_LT(bytes, bytes_of_full / 3);
  // The adapters, in fp32 under PEFT's names, and twice as much for the moments.
  const SafetensorsFile weights =
      SafetensorsFile::open(posix_env(), folder_of_lora + "/adapter_model.safetensors");
  const SafetensorsFile moments =
      SafetensorsFile::open(posix_env(), folder_of_lora + "/optimizer.safetensors");
  int64_t values = 0, moment_values = 0;
  for (const SafeTensor& tensor : weights.tensors()) {
    EXPECT_EQ(tensor.dtype, SafeDType::F32) << tensor.name;
    EXPECT_THAT(tensor.name, HasSubstr(".lora_"));
    values += tensor.count();
  }
  for (const SafeTensor& tensor : moments.tensors()) {
    EXPECT_THAT(tensor.name, HasSubstr(".lora_"));
    moment_values += tensor.count();
  }
  EXPECT_EQ(weights.tensors().size(), 2u * 2 * 7);
  EXPECT_EQ(moment_values, 2 * values);
}

// The state is the same in both precisions: weights of adapters are fp32.
TEST_F(LoraResume, PrecisionMayChangeBothWays) {
  ASSERT_EQ(train(lora("bf16", {{"mixed_precision", "bf16"}})), kExitDone);
  const std::string from_bf16 = checkpoint("bf16", 6, false);
  ASSERT_EQ(train(lora("to_fp8", {{"mixed_precision", "fp8"}, {"resume", from_bf16}})), kExitDone);
  EXPECT_TRUE(fs::exists(checkpoint("to_fp8", 12, true) + "/fp8_state.bin"));
  const std::string from_fp8 = checkpoint("to_fp8", 12, true);
  ASSERT_EQ(train(lora("back", {{"mixed_precision", "bf16"}, {"max_steps", "14"}, {"resume", from_fp8}})),
            kExitDone);
  ASSERT_EQ(train(lora("fp32", {{"mixed_precision", "fp32"}, {"resume", from_bf16}})), kExitDone);
  EXPECT_NEAR(metrics("to_fp8").back().loss / metrics("bf16").back().loss, 1, 5e-3);
  EXPECT_NEAR(metrics("fp32").back().loss / metrics("bf16").back().loss, 1, 1e-3);
  // Another margin: the frozen base is quantised with it, so the old scales would be wrong.
  for (const char* recipe : {"delayed", "current"}) {
    const std::string plain = std::string(recipe) + "_plain", other = std::string(recipe) + "_margin";
    ASSERT_EQ(train(lora(plain, {{"fp8_recipe", recipe}, {"max_steps", "12"}})), kExitDone);
    ASSERT_EQ(train(lora(other, {{"fp8_recipe", recipe},
                                 {"fp8_margin", "2"},
                                 {"max_steps", "14"},
                                 {"resume", checkpoint(plain, 12, true)}})),
              kExitDone);
    EXPECT_NEAR(metrics(other).back().loss / metrics("back").back().loss, 1, 5e-3) << recipe;
  }
  // Another recipe: scales begin anew, and the rest continues.
  ASSERT_EQ(train(lora("block", {{"fp8_recipe", "block"}, {"max_steps", "14"}, {"resume", from_fp8}})),
            kExitDone);
  EXPECT_NEAR(metrics("block").back().loss / metrics("back").back().loss, 1, 5e-3);
}

// A resumed run has no weights to start from. Its default learning rate is still that of fine-tuning.
TEST_F(LoraResume, AFullFineTuneKeepsItsDefaultLearningRate) {
  // As from a file of the user that does not set the learning rate.
  const auto fine_tune = [&](const std::string& name, const std::string& resume) {
    TrainConfig keys = config(name, {});
    keys.origins.erase("learning_rate");
    resolve_defaults(keys);
    keys.resume = resume;
    return keys;
  };
  ASSERT_EQ(train(fine_tune("tune", "")), kExitDone);
  ASSERT_EQ(train(fine_tune("again", checkpoint("tune", 6, true))), kExitDone);
  EXPECT_LE(metrics("tune").front().lr, 1e-5);
  EXPECT_GT(metrics("tune").back().lr, 0);
  EXPECT_EQ(metrics("again").back().lr, metrics("tune").back().lr);
}

// Without any key but resume: the base, rank and targets are those of the run.
TEST_F(LoraResume, LatestContinuesTheRun) {
  ASSERT_EQ(train(lora("run", {{"lora_target", "q_proj,down_proj"}})), kExitDone);
  fs::remove_all(checkpoint("run", 12, true));
  const auto whole = metrics("run");
  ASSERT_EQ(train(typed("run", {{"resume", "latest"}})), kExitDone);
  const auto records = metrics("run");
  ASSERT_EQ(records.size(), 12u);
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].loss, whole[i].loss) << i;
}

// config.yaml holds only keys that have an effect: a resumed run must not warn of what octet itself wrote.
TEST_F(LoraResume, ConfigYamlGivesNoWarnings) {
  for (const char* precision : {"fp32", "bf16", "fp8"}) {
    ASSERT_EQ(train(lora(precision, {{"mixed_precision", precision}})), kExitDone);
    const CapturedLog log;
    ASSERT_EQ(train(typed(precision, {{"resume", "latest"}, {"max_steps", "13"}})), kExitDone);
    EXPECT_THAT(log.messages, Not(testing::Contains(HasSubstr("has no effect")))) << precision;
  }
}

TEST_F(LoraResume, ARandomBaseIsDrawnAgain) {
  const Settings random = {{"model_name_or_path", ""},
                           {"model_preset", "llama-tiny"},
                           {"num_hidden_layers", "2"},
                           {"max_steps", "4"},
                           {"save_steps", "2"}};
  const CapturedLog log;
  ASSERT_EQ(train(lora("whole", random)), kExitDone);
  EXPECT_THAT(log.messages, testing::Contains(HasSubstr("the base has random weights")));
  Settings second = random;
  second.push_back({"resume", checkpoint("whole", 2, true)});
  ASSERT_EQ(train(lora("halves", second)), kExitDone);
  expect_equal_states(checkpoint("whole", 4, true), checkpoint("halves", 4, true));
  second.push_back({"seed", "99"});
  EXPECT_THAT(error_of([&] { train(lora("other", second)); }), HasSubstr("base.json"));
  EXPECT_FALSE(fs::exists(folder.path() + "/runs/other"));
}

// Samples and evaluations between the steps leave no trace, whether the base is dense or only FP8.
TEST_F(LoraResume, SamplesAndEvaluationsChangeNoBit) {
  for (const char* precision : {"bf16", "fp8"}) {
    const bool fp8 = precision == std::string("fp8");
    const Settings settings = {{"mixed_precision", precision}, {"lora_dropout", "0.1"}};
    Settings with = settings, without = settings;
    with.insert(with.end(), {{"sample_steps", "2"}, {"eval_steps", "1"}, {"sample_tokens", "8"}});
    without.insert(without.end(), {{"sample_steps", "0"}});
    ASSERT_EQ(train(lora(std::string("with_") + precision, with)), kExitDone);
    ASSERT_EQ(train(lora(std::string("without_") + precision, without)), kExitDone);
    for (const char* file : {"adapter_model.safetensors", "optimizer.safetensors", "fp8_state.bin"}) {
      if (!fp8 && file == std::string("fp8_state.bin")) continue;
      EXPECT_TRUE(read_text(checkpoint(std::string("with_") + precision, 12, fp8) + "/" + file) ==
                  read_text(checkpoint(std::string("without_") + precision, 12, fp8) + "/" + file))
          << precision << " " << file;
    }
    int64_t samples = 0;
    for (const StepRecord& record : metrics(std::string("with_") + precision))
      samples += !record.samples.empty();
    EXPECT_EQ(samples, 5);  // after steps 2, 4, ..., 10
  }
}

TEST_F(LoraResume, AnotherBaseIsRefused) {
  ASSERT_EQ(train(lora("run", {})), kExitDone);
  const std::string other = folder.path() + "/other";
  fs::copy(model_folder(), other);
  // One bit of the last tensor.
  std::fstream weights(other + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  weights.seekg(-3, std::ios::end);
  const char byte = static_cast<char>(weights.get());
  weights.seekp(-3, std::ios::end);
  weights.put(static_cast<char>(byte ^ 1));
  weights.close();
  const std::string text = error_of([&] {
    train(lora("again", {{"model_name_or_path", other}, {"resume", checkpoint("run", 6, true)}}));
  });
  EXPECT_THAT(text, AllOf(HasSubstr("base.json"), HasSubstr(other)));
  // The same base elsewhere is the same base.
  fs::rename(model_folder(), folder.path() + "/moved");
  EXPECT_EQ(train(lora("moved", {{"model_name_or_path", folder.path() + "/moved"},
                                 {"resume", checkpoint("run", 6, true)}})),
            kExitDone);
}

TEST_F(LoraResume, ACheckpointOfTheOtherKindIsRefused) {
  ASSERT_EQ(train(config("full", {})), kExitDone);
  ASSERT_EQ(train(lora("lora", {})), kExitDone);
  const std::string full = checkpoint("full", 6, true), adapters = checkpoint("lora", 6, true);
  EXPECT_EQ(error_of([&] {
              train(lora("new", {{"resume", full}}));
            }),
            fmt::format(
                "finetuning_type is lora, but the checkpoint {} holds all weights of a model; to start a new "
                "run from it, set model_name_or_path to it instead of resume",
                full));
  EXPECT_EQ(error_of([&] {
              train(config("new", {{"finetuning_type", "full"}, {"resume", adapters}}));
            }),
            fmt::format(
                "finetuning_type is full, but the checkpoint {} holds adapters; to start a new run from it, "
                "set adapter_name_or_path to it instead of resume",
                adapters));
  EXPECT_FALSE(fs::exists(folder.path() + "/runs/new"));
  // What both messages advise.
  EXPECT_EQ(train(lora("on_full", {{"model_name_or_path", full}})), kExitDone);
  EXPECT_EQ(train(lora("from_adapters", {{"adapter_name_or_path", adapters}})), kExitDone);
}

TEST_F(LoraResume, OtherAdaptersAreRefused) {
  ASSERT_EQ(train(lora("run", {{"lora_target", "q_proj,v_proj"}})), kExitDone);
  const std::string from = checkpoint("run", 6, true);
  const auto refusal = [&](const char* key, const char* value) {
    return error_of([&] { train(typed("new", {{key, value}, {"resume", from}})); });
  };
  EXPECT_EQ(refusal("lora_rank", "8"),
            fmt::format("lora_rank is 8, but the adapter {} has 4; remove the key", from));
  EXPECT_EQ(refusal("lora_alpha", "3"),
            fmt::format("lora_alpha is 3, but the adapter {} has 8; remove the key", from));
  EXPECT_EQ(refusal("use_rslora", "true"),
            fmt::format("use_rslora is true, but the adapter {} has false; remove the key", from));
  EXPECT_EQ(refusal("lora_target", "all"),
            fmt::format("lora_target is all, but the adapter {} has q_proj,v_proj; remove the key", from));
  // The same modules in other words, and settings that may change.
  EXPECT_EQ(train(typed("same", {{"lora_target", R"(.*\.(v|q)_proj)"},
                                 {"lora_dropout", "0.1"},
                                 {"loraplus_lr_ratio", "2"},
                                 {"resume", from}})),
            kExitDone);
}

// A relative path of the base leads nowhere in another directory. The checkpoint knows the whole one.
TEST_F(LoraResume, TheBaseIsFoundFromAnotherDirectory) {
  ASSERT_EQ(train(lora("run", {})), kExitDone);
  TrainConfig keys = lora("again", {{"resume", checkpoint("run", 6, true)}});
  keys.model_name_or_path = "no/such/model";
  ASSERT_EQ(train(keys), kExitDone);
  EXPECT_EQ(metrics("again").back().loss, metrics("run").back().loss);
  fs::rename(model_folder(), folder.path() + "/moved");
  keys.run_name = "lost";
  EXPECT_THAT(error_of([&] { train(keys); }),
              AllOf(HasSubstr("the base of the run"), HasSubstr("--model_name_or_path")));
}

TEST_F(LoraResume, AnAdapterToStartFromIsRefused) {
  ASSERT_EQ(train(lora("run", {})), kExitDone);
  const std::string from = checkpoint("run", 6, true);
  TrainConfig keys = lora("again", {{"resume", from}, {"adapter_name_or_path", from}});
  keys.origins["adapter_name_or_path"] = "--adapter_name_or_path";
  EXPECT_THAT(error_of([&] { train(keys); }), HasSubstr("has no effect with resume"));
}

}  // namespace
}  // namespace octet::test
