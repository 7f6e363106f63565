#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/text.h"
#include "config/config.h"
#include "config/notes.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using FinetuningType = FinetuningType;

const char* const kData = "dataset: a.txt\n";

TrainConfig load(const std::string& yaml, const std::vector<std::string>& flags = {}) {
  const test::TemporaryFolder folder;
  std::vector<std::string> errors;
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), flags, errors);
  throw_config_errors(errors);
  return load_train_config(folder.write("run.yaml", yaml), parsed.settings);
}

std::string error_of(const std::string& yaml, const std::vector<std::string>& flags = {}) {
  try {
    load(yaml, flags);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> idle(const TrainConfig& config) {
  return idle_settings({&config, 1}, true);
}

TEST(LoraConfig, DefaultsAreResolved) {
  const TrainConfig full = load(kData);
  EXPECT_FALSE(full.is_lora());
  EXPECT_EQ(full.lora_alpha, 0);
  EXPECT_EQ(full.weight_decay, 0.1);

  const TrainConfig lora = load("finetuning_type: lora\ndataset: a.txt\n");
  EXPECT_TRUE(lora.is_lora());
  EXPECT_EQ(lora.lora_rank, 16);
  EXPECT_EQ(lora.lora_alpha, 32);
  EXPECT_EQ(lora.lora_dropout, 0);
  EXPECT_THAT(lora.lora_target, ElementsAre("all"));
  EXPECT_FALSE(lora.use_rslora);
  EXPECT_EQ(lora.loraplus_lr_ratio, 1);
  EXPECT_EQ(lora.fp8_weight_copies, WeightCopiesKey::Auto);
  EXPECT_EQ(lora.weight_decay, 0);
  EXPECT_EQ(load("use_lora: true\nweight_decay: 0.01").weight_decay, 0.01);
  EXPECT_THAT(to_yaml(lora), HasSubstr("\nlora_alpha: 32\n"));
}

TEST(LoraConfig, AlphaFollowsTheRankUnlessItIsSet) {
  EXPECT_EQ(load("use_lora: true\nlora_r: 64").lora_alpha, 128);
  EXPECT_EQ(load("use_lora: true\nlora_r: 64\nlora_alpha: 16").lora_alpha, 16);
  EXPECT_EQ(load("use_lora: true\nlora_alpha: 0.5").lora_alpha, 0.5);
  EXPECT_EQ(load("use_lora: true\nlora_alpha: -8").lora_alpha, -8);  // as adapters in files may have it
  EXPECT_EQ(load("use_lora: true\nlora_alpha: 0").lora_alpha, 32);
}

TEST(LoraConfig, AliasesAreThoseThatUsersHave) {
  EXPECT_EQ(load("use_lora: true").finetuning_type, FinetuningType::Lora);
  EXPECT_EQ(load("use_lora: false").finetuning_type, FinetuningType::Full);
  EXPECT_EQ(load("use_peft: true").finetuning_type, FinetuningType::Lora);
  EXPECT_EQ(load("", {"--use_lora"}).finetuning_type, FinetuningType::Lora);
  EXPECT_EQ(load("lora_r: 4").lora_rank, 4);
  EXPECT_THAT(load("lora_target_modules: [q_proj, v_proj]").lora_target, ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(load("target_modules: all-linear").lora_target, ElementsAre("all"));
  EXPECT_THAT(load("", {"--lora_target", "q_proj, v_proj"}).lora_target, ElementsAre("q_proj", "v_proj"));
}

// A regular expression has commas of its own.
TEST(LoraConfig, TargetsMayBeRegularExpressions) {
  const std::string expression = R"(model\.layers\.\d{1,2}\.(mlp|self_attn)\.[a,k-q]+_proj)";
  EXPECT_THAT(load("", {"--lora_target", expression + ",c_attn"}).lora_target,
              ElementsAre(expression, "c_attn"));
  EXPECT_THAT(load("lora_target: '" + expression + "'").lora_target, ElementsAre(expression));
  EXPECT_THAT(load(to_yaml(load("lora_target: '" + expression + "'"))).lora_target, ElementsAre(expression));
  EXPECT_THAT(split_list("a,{b,c},(d,[e,f],g),h"), ElementsAre("a", "{b,c}", "(d,[e,f],g)", "h"));
}

// Brackets in names of files need not come in pairs.
TEST(LoraConfig, EveryCommaSplitsIfBracketsAreNotBalanced) {
  EXPECT_THAT(split_list("(a, b"), ElementsAre("(a", "b"));
  EXPECT_THAT(split_list("a),{b,c}"), ElementsAre("a)", "{b", "c}"));
  EXPECT_THAT(split_list("(a,b],c"), ElementsAre("(a", "b]", "c"));
  EXPECT_THAT(split_list(")a,b("), ElementsAre(")a", "b("));
}

TEST(LoraConfig, BadValuesAreNamed) {
  EXPECT_THAT(error_of("lora_rank: 0"),
              testing::MatchesRegex("lora_rank in .*run.yaml:1 is '0'; expected an integer from 1 to 4096"));
  EXPECT_THAT(error_of("", {"--lora_r", "5000"}),
              HasSubstr("--lora_r (alias of lora_rank) is '5000'; expected an integer from 1 to 4096"));
  EXPECT_THAT(error_of("lora_dropout: 1"), HasSubstr("is '1'; expected a number of at least 0 and below 1"));
  EXPECT_THAT(error_of("lora_alpha: -2e6"),
              HasSubstr("is '-2e6'; expected a number from -1000000 to 1000000"));
  EXPECT_THAT(error_of("loraplus_lr_ratio: 0"), HasSubstr("is '0'; expected a number above 0"));
  EXPECT_THAT(error_of("finetuning_type: qlora"), HasSubstr("is 'qlora'; expected one of full, lora"));
  EXPECT_THAT(error_of("frozen_copies: three"), HasSubstr("is 'three'; expected one of auto, two, one"));
  EXPECT_EQ(error_of("lora_target: []"),
            "lora_target is empty; expected all, names of modules or regular expressions");
  EXPECT_THAT(error_of("lora_target: [q_proj, '']"), HasSubstr("expected a list of names, none empty"));
}

TEST(LoraConfig, AnAdapterImpliesLora) {
  const TrainConfig config = load("adapter_name_or_path: runs/a\ndataset: a.txt\n");
  EXPECT_TRUE(config.is_lora());
  EXPECT_EQ(config.lora_alpha, 0);  // the adapter's own, which is not known yet
  EXPECT_EQ(config.learning_rate, 2e-4);
  EXPECT_TRUE(load("use_lora: true\nadapter_name_or_path: runs/a").is_lora());
  EXPECT_FALSE(load("use_lora: false\nadapter_name_or_path: ''").is_lora());
}

TEST(LoraConfig, AnAdapterContradictsFull) {
  EXPECT_THAT(
      error_of("finetuning_type: full\nadapter_name_or_path: runs/a"),
      testing::MatchesRegex("finetuning_type in .*run.yaml:1 and adapter_name_or_path in .*run.yaml:2 "
                            "contradict each other: an adapter needs finetuning_type lora; "
                            "give one of them"));
  EXPECT_THAT(error_of("", {"--use_lora=false", "--adapter_name_or_path", "x"}),
              HasSubstr("--use_lora and --adapter_name_or_path contradict each other"));
}

TEST(LoraConfig, AFlagWinsOverTheFileThatContradictsIt) {
  const TrainConfig lora = load("finetuning_type: full", {"--adapter_name_or_path", "runs/a"});
  EXPECT_TRUE(lora.is_lora());
  EXPECT_EQ(lora.adapter_name_or_path, "runs/a");
  const TrainConfig full = load("adapter_name_or_path: runs/a", {"--finetuning_type", "full"});
  EXPECT_FALSE(full.is_lora());
  EXPECT_EQ(full.adapter_name_or_path, "");
}

TEST(LoraConfig, SettingsWithoutEffectAreNamed) {
  EXPECT_THAT(idle(load("lora_r: 4\nlora_alpha: 4\nlora_dropout: 0.1\nlora_target: q_proj\nuse_rslora: true\n"
                        "loraplus_lr_ratio: 16\n")),
              ElementsAre("lora_rank has no effect: finetuning_type is full",
                          "lora_alpha has no effect: finetuning_type is full",
                          "lora_dropout has no effect: finetuning_type is full",
                          "lora_target has no effect: finetuning_type is full",
                          "use_rslora has no effect: finetuning_type is full",
                          "loraplus_lr_ratio has no effect: finetuning_type is full"));
  EXPECT_THAT(idle(load("use_lora: true\nlora_r: 4\nfrozen_copies: one")), ElementsAre());
  EXPECT_THAT(idle(load("fp8_weight_copies: one")), ElementsAre());
  EXPECT_THAT(idle(load("fp8_weight_copies: one\nfp8_recipe: mxfp8")),
              ElementsAre("fp8_weight_copies has no effect: fp8_recipe is mxfp8"));
  EXPECT_THAT(idle(load("use_lora: true\nmixed_precision: bf16\nfp8_weight_copies: one")),
              ElementsAre("fp8_weight_copies has no effect: mixed_precision is bf16"));
  for (const char* yaml : {"use_lora: true", "use_lora: false", "model_name_or_path: gpt2\ndataset: a.txt"}) {
    EXPECT_THAT(idle(load(to_yaml(load(yaml)))), ElementsAre()) << yaml;
  }
}

TEST(StartDefaults, TheLearningRateFollowsFromTheStart) {
  EXPECT_EQ(load("model_preset: gpt2\ndataset: a.txt").learning_rate, 6e-4);
  EXPECT_EQ(load("model_name_or_path: gpt2\ndataset: a.txt").learning_rate, 1e-5);
  EXPECT_EQ(load("model_name_or_path: gpt2\ndataset: a.txt\nuse_lora: true").learning_rate, 2e-4);
  EXPECT_EQ(load("model_preset: gpt2\ndataset: a.txt\nuse_lora: true").learning_rate, 2e-4);
  EXPECT_EQ(load("").learning_rate, 2e-3);
  EXPECT_EQ(load("model_name_or_path: gpt2").learning_rate, 1e-5);
  EXPECT_EQ(load("use_lora: true").learning_rate, 2e-4);
  for (const char* start : {"model_preset: gpt2\n", "model_name_or_path: gpt2\n", "use_lora: true\n"}) {
    EXPECT_EQ(load(start + std::string("lr: 0.25")).learning_rate, 0.25) << start;
  }
}

struct WarmUp {
  int64_t steps = 0;
  double ratio = 0;
  bool operator==(const WarmUp&) const = default;
};
WarmUp warm_up(const TrainConfig& config) {
  return {config.warmup_steps, config.warmup_ratio};
}

TEST(StartDefaults, TheWarmUpFollowsFromTheStart) {
  EXPECT_EQ(warm_up(load("model_preset: gpt2\ndataset: a.txt")), (WarmUp{0, 0}));
  EXPECT_EQ(warm_up(load("")), (WarmUp{50, 0}));
  EXPECT_EQ(warm_up(load("max_steps: 20")), (WarmUp{5, 0}));
  EXPECT_EQ(warm_up(load("num_train_epochs: 2")), (WarmUp{50, 0}));
  const std::string given = "model_name_or_path: gpt2\ndataset: a.txt\n";
  EXPECT_EQ(warm_up(load(given)), (WarmUp{0, 0.03}));
  EXPECT_EQ(warm_up(load("use_lora: true\ndataset: a.txt")), (WarmUp{0, 0.03}));
  EXPECT_EQ(warm_up(load("use_lora: true")), (WarmUp{0, 0.03}));
  EXPECT_EQ(warm_up(load(given + "warmup_steps: 7")), (WarmUp{7, 0}));
  EXPECT_EQ(warm_up(load(given + "warmup_ratio: 0.5")), (WarmUp{0, 0.5}));
  EXPECT_EQ(warm_up(load(given + "warmup_steps: 0")), (WarmUp{0, 0}));
  EXPECT_EQ(warm_up(load(given + "warmup_ratio: 0")), (WarmUp{0, 0}));
}

// Warm-up and decay must not be longer than the run, also when the config is read again.
TEST(StartDefaults, TheWarmUpLeavesRoomForTheDecay) {
  for (const double decay : {1.0, 0.98, 0.971, 0.2}) {
    const TrainConfig config =
        load(fmt::format("use_lora: true\nlr_scheduler_type: wsd\ndecay_ratio: {}", decay));
    EXPECT_EQ(config.warmup_ratio, std::min(0.03, 1 - decay));
    EXPECT_EQ(error_of(to_yaml(config)), "") << decay;
  }
}

// model_name_or_path may have no weights, which only the plan of the run finds out.
TEST(StartDefaults, AreCorrectedWhenTheStartIsKnown) {
  TrainConfig config = load("model_name_or_path: gpt2\ndataset: a.txt\n");
  EXPECT_EQ(default_learning_rate(config, false), 6e-4);
  EXPECT_EQ(default_learning_rate(config, true), 1e-5);
  resolve_start(config, false);
  EXPECT_EQ(config.learning_rate, 6e-4);
  EXPECT_EQ(warm_up(config), (WarmUp{0, 0}));
  resolve_start(config, true);
  EXPECT_EQ(config.learning_rate, 1e-5);
  EXPECT_EQ(warm_up(config), (WarmUp{0, 0.03}));

  TrainConfig demo = load("model_name_or_path: gpt2\n");
  resolve_start(demo, false);
  EXPECT_EQ(demo.learning_rate, 2e-3);
  EXPECT_EQ(warm_up(demo), (WarmUp{50, 0}));

  TrainConfig set = load("model_name_or_path: gpt2\nlr: 3e-4\nwarmup_steps: 7\n");
  resolve_start(set, false);
  EXPECT_EQ(set.learning_rate, 3e-4);
  EXPECT_EQ(warm_up(set), (WarmUp{7, 0}));
}

// A resumed run reads the config.yaml that it wrote: what was resolved must stay, whatever the defaults are now.
TEST(StartDefaults, AreKeptByAConfigThatIsReadAgain) {
  for (const char* yaml :
       {"", "use_lora: true", "dataset: a.txt", "model_name_or_path: gpt2\ndataset: a.txt",
        "model_name_or_path: gpt2\ndataset: a.txt\nuse_lora: true\nlora_rank: 3",
        "adapter_name_or_path: runs/a\ndataset: a.txt", "model_name_or_path: gpt2\nwarmup_steps: 3"}) {
    const std::string text = to_yaml(load(yaml));
    TrainConfig again = load(text);
    EXPECT_EQ(to_yaml(again), text) << yaml;
    for (const bool weights : {false, true}) {
      resolve_start(again, weights);
      EXPECT_EQ(to_yaml(again), text) << yaml;
    }
  }
  TrainConfig random = load("model_name_or_path: gpt2\ndataset: a.txt");
  resolve_start(random, false);
  EXPECT_EQ(load(to_yaml(random)).learning_rate, 6e-4);
  EXPECT_EQ(warm_up(load(to_yaml(random))), (WarmUp{0, 0}));
}

// A run from before there was LoRA has none of its keys.
TEST(StartDefaults, OfAnOlderRunAreThoseThatItWrote) {
  const TrainConfig config = load(
      "model_name_or_path: gpt2\ndataset: a.txt\nlearning_rate: 0.0006\nwarmup_steps: 0\nwarmup_ratio: 0\n"
      "weight_decay: 0.1\n");
  EXPECT_FALSE(config.is_lora());
  EXPECT_EQ(config.learning_rate, 6e-4);
  EXPECT_EQ(warm_up(config), (WarmUp{0, 0}));
  EXPECT_EQ(config.weight_decay, 0.1);
}

}  // namespace
}  // namespace octet
