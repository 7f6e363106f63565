#include "config/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "config/notes.h"
#include "ops/ops.h"
#include "support/error_of.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TrainConfig from_yaml(const std::string& yaml) {
  const test::TemporaryFolder folder;
  return load_train_config(folder.write("run.yaml", yaml), {});
}

TrainConfig from_flags(const std::vector<std::string>& arguments) {
  std::vector<std::string> errors;
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), arguments, errors);
  throw_config_errors(errors);
  EXPECT_TRUE(parsed.positionals.empty());
  return load_train_config("", parsed.settings);
}

TEST(TrainConfig, NumbersAreReadAsUsersWriteThem) {
  EXPECT_EQ(from_yaml("learning_rate: 6e-4").learning_rate, 6e-4);
  EXPECT_EQ(from_yaml("learning_rate: 1E-5").learning_rate, 1e-5);
  EXPECT_EQ(from_yaml("learning_rate: +.5").learning_rate, 0.5);
  EXPECT_EQ(from_yaml("learning_rate: '3e-4'").learning_rate, 3e-4);
  EXPECT_EQ(from_yaml("max_steps: 1e6").max_steps, 1000000);
  EXPECT_EQ(from_yaml("seed: 9223372036854775807").seed, INT64_MAX);
  for (const char* bad :
       {"1_000", "0x10", "1e-1", "1e400", "nan", "''", "' 5'", "5 5", "1,000", "--5", "+-5"}) {
    EXPECT_THROW(from_yaml(fmt::format("max_steps: {}", bad)), ConfigError) << bad;
  }
  for (const char* bad : {"1_000", "0x10", "1e400", "nan", "inf", "-inf", "''", "1.0.0", "1e"}) {
    EXPECT_THROW(from_yaml(fmt::format("learning_rate: {}", bad)), ConfigError) << bad;
  }
}

TEST(TrainConfig, ValuesThatCannotWorkAreRefusedAtOnce) {
  EXPECT_THAT(error_of([] { from_yaml("run_name: " + std::string(256, 'n')); }),
              HasSubstr("run_name has 256 bytes"));
  EXPECT_NO_THROW(from_yaml("run_name: " + std::string(255, 'n')));
  EXPECT_THAT(error_of([] { from_yaml("comm_timeout: 1e-3"); }), HasSubstr("comm_timeout"));
}

TEST(TrainConfig, BoolsListsAndNull) {
  for (const char* yes : {"true", "True", "yes", "on", "1"}) {
    EXPECT_TRUE(from_yaml(fmt::format("fp8_eval: {}", yes)).fp8_eval) << yes;
    EXPECT_EQ(from_yaml(fmt::format("fp8_head: {}", yes)).fp8_head, Fp8Head::Backward) << yes;
  }
  EXPECT_FALSE(from_yaml("fp8_eval: off").fp8_eval);
  EXPECT_EQ(from_yaml("fp8_head: off").fp8_head, Fp8Head::None);
  EXPECT_THAT(from_yaml("fp8_skip_layers: [0, lm_head]").fp8_skip_layers, ElementsAre("0", "lm_head"));
  EXPECT_THAT(from_yaml("fp8_skip_layers: 0, lm_head").fp8_skip_layers, ElementsAre("0", "lm_head"));
  EXPECT_THAT(from_yaml("fp8_skip_layers:\n- 3\n").fp8_skip_layers, ElementsAre("3"));
  EXPECT_THAT(from_yaml("fp8_skip_layers: []").fp8_skip_layers, ElementsAre());
  EXPECT_THAT(from_flags({"--fp8_skip_layers", "1,2"}).fp8_skip_layers, ElementsAre("1", "2"));

  const TrainConfig config = from_yaml("eval_dataset: null\nmax_steps: ~ # none\nseed: NULL");
  EXPECT_FALSE(config.is_set("eval_dataset") || config.is_set("max_steps") || config.is_set("seed"));
  EXPECT_EQ(config.seed, TrainConfig{}.seed);
  EXPECT_EQ(to_yaml(from_yaml("# nothing\n")), to_yaml(load_train_config("", {})));
}

TEST(TrainConfig, AliasesAndBoolsStandForTheirKeys) {
  EXPECT_EQ(from_yaml("use_fp8: true").mixed_precision, Precision::Fp8);
  EXPECT_EQ(from_yaml("use_fp8: false").mixed_precision, Precision::Bf16);
  EXPECT_EQ(from_yaml("gradient_checkpointing: true").gradient_checkpointing, CheckpointingKey::Block);
  EXPECT_EQ(from_yaml("gradient_checkpointing: false").gradient_checkpointing, CheckpointingKey::None);
  EXPECT_EQ(from_yaml("gradient_checkpointing: mlp").gradient_checkpointing, CheckpointingKey::Mlp);
  EXPECT_EQ(from_flags({"--gradient_checkpointing", "act"}).gradient_checkpointing, CheckpointingKey::Act);
  for (const auto& [given, meant] : {std::pair("true", CudaGraphs::On), std::pair("on", CudaGraphs::On),
                                     std::pair("false", CudaGraphs::Off), std::pair("off", CudaGraphs::Off),
                                     std::pair("auto", CudaGraphs::Auto)}) {
    EXPECT_EQ(from_yaml(fmt::format("cuda_graphs: {}", given)).cuda_graphs, meant) << given;
    EXPECT_EQ(from_flags({"--cuda_graphs", given}).cuda_graphs, meant) << given;
  }
  const TrainConfig config = from_yaml(
      "micro_batch_size: 2\nmax_lr: 1e-3\nnum_epochs: 3\neval_freq: 5\nlog_freq: 6\ncutoff_len: 64\n"
      "fp8_scenario: current\ngrad_clip: 0.5\ngrad_accum_steps: 4\nwarmup_iters: 7\n");
  EXPECT_EQ(config.per_device_train_batch_size, 2);
  EXPECT_EQ(config.learning_rate, 1e-3);
  EXPECT_EQ(config.num_train_epochs, 3);
  EXPECT_EQ(config.eval_steps, 5);
  EXPECT_EQ(config.logging_steps, 6);
  EXPECT_EQ(config.max_seq_length, 64);
  EXPECT_EQ(config.fp8_recipe, Fp8Recipe::Current);
  EXPECT_EQ(config.max_grad_norm, 0.5);
  EXPECT_EQ(config.gradient_accumulation_steps, 4);
  EXPECT_EQ(config.warmup_steps, 7);
  EXPECT_TRUE(config.is_set("learning_rate"));
  EXPECT_FALSE(config.is_set("max_lr") || config.is_set("seed"));
}

TEST(TrainConfig, ShardingIsReadInTheWordsOfOtherProjects) {
  using Mode = ShardingKey;
  EXPECT_EQ(from_yaml("seed: 1").sharding_mode, Mode::Auto);
  for (const auto& [given, meant] :
       {std::pair("none", Mode::None), std::pair("DDP", Mode::None), std::pair("ZeRO-1", Mode::Zero1),
        std::pair("zero_2", Mode::Zero2), std::pair("SHARD_GRAD_OP", Mode::Zero2),
        std::pair("fsdp", Mode::FsdpFull), std::pair("FULL_SHARD", Mode::FsdpFull),
        std::pair("zero3", Mode::FsdpFull), std::pair("fsdp2", Mode::FsdpFull),
        std::pair("full", Mode::FsdpFull), std::pair("Hybrid_Shard", Mode::Hsdp),
        std::pair("hsdp", Mode::Hsdp), std::pair("auto", Mode::Auto)}) {
    EXPECT_EQ(from_yaml(fmt::format("sharding_mode: {}", given)).sharding_mode, meant) << given;
    EXPECT_EQ(from_flags({"--sharding", given}).sharding_mode, meant) << given;
  }
  constexpr Mode kStages[] = {Mode::None, Mode::Zero1, Mode::Zero2, Mode::FsdpFull};
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_EQ(from_yaml(fmt::format("zero_stage: {}", stage)).sharding_mode, kStages[stage]) << stage;
  EXPECT_EQ(from_yaml("fsdp: true").sharding_mode, Mode::FsdpFull);
  EXPECT_EQ(from_yaml("fsdp: false").sharding_mode, Mode::None);
  EXPECT_EQ(from_yaml("fsdp: full_shard auto_wrap").sharding_mode, Mode::FsdpFull);
  EXPECT_EQ(from_flags({"--fsdp", "--max_steps", "3"}).sharding_mode, Mode::FsdpFull);
  EXPECT_EQ(from_yaml("gradient_reduce_dtype: Float32").gradient_reduce_dtype, GradientReduceDtype::Fp32);
  EXPECT_THROW(from_yaml("zero_stage: 4"), ConfigError);
  EXPECT_THROW(from_yaml("fsdp: half"), ConfigError);
}

// Names in the table stand in the order of the enumerators: a wrong order would train something else.
TEST(TrainConfig, EnumNamesMatchTheirEnumerators) {
  const auto text = [](auto member, auto value, std::string_view key) {
    TrainConfig config;
    config.*member = value;
    return config_text(config, key);
  };
  using C = TrainConfig;
  EXPECT_EQ(text(&C::data_order, DataOrder::Shuffled, "data_order"), "shuffled");
  EXPECT_EQ(text(&C::data_order, DataOrder::Random, "data_order"), "random");
  EXPECT_EQ(text(&C::data_order, DataOrder::Sequential, "data_order"), "sequential");
  EXPECT_EQ(text(&C::lr_scheduler_type, ScheduleType::Linear, "lr_scheduler_type"), "linear");
  EXPECT_EQ(text(&C::lr_scheduler_type, ScheduleType::Constant, "lr_scheduler_type"), "constant");
  EXPECT_EQ(text(&C::lr_scheduler_type, ScheduleType::Wsd, "lr_scheduler_type"), "wsd");
  EXPECT_EQ(text(&C::optimizer_state, OptimizerState::Bf16, "optimizer_state"), "bf16");
  EXPECT_EQ(text(&C::penalty_type, PenaltyKind::ZLoss, "penalty_type"), "z_loss");
  EXPECT_EQ(text(&C::penalty_type, PenaltyKind::Entropy, "penalty_type"), "entropy");
  EXPECT_EQ(text(&C::penalty_type, PenaltyKind::LogitL2, "penalty_type"), "logit_l2");
  EXPECT_EQ(text(&C::mixed_precision, Precision::Fp8, "mixed_precision"), "fp8");
  EXPECT_EQ(text(&C::mixed_precision, Precision::Fp32, "mixed_precision"), "fp32");
  EXPECT_EQ(text(&C::fp8_recipe, Fp8Recipe::Delayed, "fp8_recipe"), "delayed");
  EXPECT_EQ(text(&C::fp8_recipe, Fp8Recipe::Block, "fp8_recipe"), "block");
  EXPECT_EQ(text(&C::fp8_recipe, Fp8Recipe::Mxfp8, "fp8_recipe"), "mxfp8");
  EXPECT_EQ(text(&C::fp8_format, Fp8Format::E4M3, "fp8_format"), "e4m3");
  EXPECT_EQ(text(&C::fp8_format, Fp8Format::E5M2, "fp8_format"), "e5m2");
  EXPECT_EQ(text(&C::fp8_amax_compute, Fp8AmaxCompute::MostRecent, "fp8_amax_compute"), "most_recent");
  EXPECT_EQ(text(&C::fp8_block_scales, Fp8BlockScales::Exact, "fp8_block_scales"), "exact");
  EXPECT_EQ(text(&C::gradient_checkpointing, CheckpointingKey::Act, "gradient_checkpointing"), "act");
  EXPECT_EQ(text(&C::finetuning_type, FinetuningType::Full, "finetuning_type"), "full");
  EXPECT_EQ(text(&C::finetuning_type, FinetuningType::Lora, "finetuning_type"), "lora");
  EXPECT_EQ(text(&C::fp8_weight_copies, WeightCopiesKey::Auto, "fp8_weight_copies"), "auto");
  EXPECT_EQ(text(&C::fp8_weight_copies, WeightCopiesKey::Two, "fp8_weight_copies"), "two");
  EXPECT_EQ(text(&C::fp8_weight_copies, WeightCopiesKey::One, "fp8_weight_copies"), "one");
  EXPECT_EQ(text(&C::sharding_mode, ShardingKey::Auto, "sharding_mode"), "auto");
  EXPECT_EQ(text(&C::sharding_mode, ShardingKey::None, "sharding_mode"), "none");
  EXPECT_EQ(text(&C::sharding_mode, ShardingKey::Zero1, "sharding_mode"), "zero1");
  EXPECT_EQ(text(&C::sharding_mode, ShardingKey::Hsdp, "sharding_mode"), "hsdp");
  EXPECT_EQ(text(&C::gradient_reduce_dtype, GradientReduceDtype::Fp32, "gradient_reduce_dtype"), "fp32");
  EXPECT_EQ(text(&C::device, DeviceKey::Cuda, "device"), "cuda");
  EXPECT_EQ(text(&C::progress, ConsoleMode::Quiet, "progress"), "quiet");
}

TEST(TrainConfig, TheTableHasNoNameTwiceAndEveryKeyIsExplained) {
  std::set<std::string> names;
  for (const Key& key : train_keys().keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    for (const KeyAlias& alias : key.aliases) EXPECT_TRUE(names.insert(alias.name).second) << alias.name;
    EXPECT_FALSE(key.help.empty() || key.group.empty()) << key.name;
    EXPECT_EQ(key.help.back(), '.') << key.name;
  }
}

TEST(TrainConfig, DefaultsThatDependOnOthersAreFilledIn) {
  const TrainConfig demo = load_train_config("", {});
  EXPECT_EQ(demo.model_preset, "llama-tiny");
  EXPECT_EQ(names_text(demo.dataset), "demo");
  EXPECT_EQ(demo.max_seq_length, 128);
  EXPECT_EQ(demo.max_steps, 600);
  EXPECT_EQ(demo.num_train_epochs, 0);

  const TrainConfig own = from_yaml("model_name_or_path: gpt2\ndataset: a.txt\n");
  EXPECT_EQ(own.model_preset, "");
  EXPECT_EQ(own.max_seq_length, 1024);
  EXPECT_EQ(own.max_steps, 0);
  EXPECT_EQ(own.num_train_epochs, 1);
  EXPECT_EQ(own.sample_steps, 0);
  EXPECT_EQ(from_yaml("num_train_epochs: 2").max_steps, 0);
}

TEST(TrainConfig, ADatasetWithoutAModelIsForGpt2) {
  const TrainConfig pretraining = from_yaml("dataset: a.txt\n");
  EXPECT_EQ(pretraining.model_preset, "gpt2");
  EXPECT_EQ(pretraining.max_seq_length, 1024);
  EXPECT_TRUE(pretraining.samples_at_evaluations());
  EXPECT_EQ(pretraining.sample_tokens, 32);
  EXPECT_EQ(from_yaml("dataset: demo\n").model_preset, "llama-tiny");
  EXPECT_EQ(from_yaml("dataset: demo\n").sample_steps, 200);
  EXPECT_EQ(from_yaml("dataset: a.txt\nuse_lora: true\n").sample_steps, 0);
  const TrainConfig asked = from_yaml("dataset: a.txt\nsample_steps: 7\n");
  EXPECT_EQ(asked.sample_steps, 7);
  EXPECT_EQ(asked.sample_tokens, 64);
  const test::TemporaryFolder folder;
  EXPECT_EQ(load_plan_config(folder.write("run.yaml", "dataset: a.txt\n"), {}).model_preset, "gpt2");
}

TEST(TrainConfig, APenaltyWeightAloneIsAZLoss) {
  using Penalty = PenaltyKind;
  EXPECT_EQ(from_yaml("penalty_weight: 0.01").penalty_type, Penalty::ZLoss);
  EXPECT_EQ(from_yaml("penalty_weight: 0").penalty_type, Penalty::None);
  EXPECT_EQ(from_yaml("penalty_weight: 0.01\npenalty_type: none").penalty_type, Penalty::None);
  EXPECT_EQ(from_yaml("penalty_weight: 0.01\npenalty_type: entropy").penalty_type, Penalty::Entropy);
  EXPECT_EQ(from_yaml("seed: 1").penalty_type, Penalty::None);
  // One run of a sweep over the weight.
  const TrainConfig off = from_yaml("penalty_weight: 0");
  EXPECT_EQ(idle_settings({&off, 1}, false), std::vector<std::string>{});
}

TEST(TrainConfig, PlansAreForTheDemoWithItsModelsOnly) {
  const auto planned = [](const std::string& yaml) {
    const test::TemporaryFolder folder;
    return load_plan_config(folder.write("run.yaml", yaml), {});
  };
  for (const char* demo : {"seed: 1", "model_preset: gpt2-tiny", "model_preset: gpt2\ndataset: demo"}) {
    EXPECT_TRUE(planned(demo).is_demo()) << demo;
    EXPECT_EQ(planned(demo).max_seq_length, 128) << demo;
  }
  for (const char* own : {"model_preset: gpt2", "model_name_or_path: x-tiny", "dataset: a.txt"}) {
    EXPECT_FALSE(planned(own).is_demo()) << own;
    EXPECT_EQ(planned(own).max_seq_length, 1024) << own;
  }
  EXPECT_TRUE(from_yaml("model_preset: gpt2").is_demo());
}

TEST(TrainConfig, AFlagOverridesTheKeyOfTheFileThatItExcludes) {
  const test::TemporaryFolder folder;
  std::vector<std::string> errors;
  const std::vector<std::string> flags = {"--max_steps", "7", "--warmup_steps", "2"};
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), flags, errors);
  const TrainConfig config = load_train_config(
      folder.write("run.yaml", "num_train_epochs: 3\nwarmup_ratio: 0.1\n"), parsed.settings);
  EXPECT_EQ(config.max_steps, 7);
  EXPECT_EQ(config.warmup_steps, 2);
  EXPECT_EQ(to_yaml(config).find("\nnum_train_epochs: 3"), std::string::npos);
}

TEST(TrainConfig, TheTargetBatchSizeSetsTheAccumulation) {
  TrainConfig config = from_yaml("target_effective_batch_size: 32\nbatch_size: 4");
  EXPECT_EQ(config.gradient_accumulation_steps, 8);
  apply_target_batch_size(config, 2);
  EXPECT_EQ(config.gradient_accumulation_steps, 4);
  EXPECT_THROW(apply_target_batch_size(config, 3), ConfigError);
  EXPECT_EQ(from_yaml("target_effective_batch_size: 0\ngrad_accum_steps: 3").gradient_accumulation_steps, 3);
  // The batch size is found later, and the accumulation with it.
  EXPECT_EQ(from_yaml("target_effective_batch_size: 30\nauto_batch_size: true").gradient_accumulation_steps,
            1);
}

TEST(TrainConfig, WhatAnotherKeyDecidedIsDumpedAsAComment) {
  TrainConfig config = from_yaml("target_effective_batch_size: 32\nauto_batch_size: true\n");
  config.per_device_train_batch_size = 16;
  apply_target_batch_size(config);
  const std::string yaml = to_yaml(config);
  EXPECT_THAT(yaml, HasSubstr("\n# per_device_train_batch_size: 16  (from auto_batch_size)\n"));
  EXPECT_THAT(yaml, HasSubstr("\n# gradient_accumulation_steps: 2  (from target_effective_batch_size)\n"));
  EXPECT_NO_THROW(from_yaml(yaml));
}

void expect_round_trip(const TrainConfig& config) {
  const std::string yaml = to_yaml(config);
  const TrainConfig again = from_yaml(yaml);
  EXPECT_EQ(to_yaml(again), yaml);
  const KeyTable<TrainConfig>& table = train_keys();
  for (size_t i = 0; i < table.keys().size(); ++i) {
    EXPECT_EQ(table.get(again, i), table.get(config, i)) << table.keys()[i].name << '\n' << yaml;
  }
}

TEST(TrainConfig, HardTextsRoundTrip) {
  for (const char* text : {"",
                           " ",
                           "true",
                           "null",
                           "~",
                           "1e5",
                           "-",
                           "- a",
                           "a: b",
                           "a #b",
                           "#",
                           "'",
                           "\"",
                           "\\",
                           "\n",
                           "a\r\nb\t",
                           "\x01\x7f",
                           "\xc2\x85",
                           "\xe2\x80\xa8",
                           "\xef\xbb\xbf",
                           "\xf0\x9f\x98\x80",
                           "é x ",
                           "&a",
                           "*a",
                           "!t",
                           "%d",
                           "@",
                           "`",
                           "{a}",
                           "[a]",
                           "a,b",
                           "...",
                           "---",
                           "<<",
                           "?"}) {
    TrainConfig config = load_train_config("", {});
    config.sample_prompt = text;
    if (*text) config.fp8_skip_layers = {text, "x", text};
    expect_round_trip(config);
  }
}

TEST(TrainConfig, RandomConfigsRoundTrip) {
  const KeyTable<TrainConfig>& table = train_keys();
  const Philox random(11);
  uint64_t draw = 0;
  for (int round = 0; round < 50; ++round) {
    TrainConfig config = load_train_config("", {});
    for (size_t i = 0; i < table.keys().size(); ++i) {
      const Key& key = table.keys()[i];
      const double share = static_cast<double>(random.below(draw++, 1u << 30)) / (1 << 30);
      const double high = std::min(key.max, 1e9), value = key.min + share * (high - key.min);
      if (key.type == KeyType::Double && value != 0) table.set(config, i, value);
      if (key.type == KeyType::Int && key.name != "target_effective_batch_size" &&
          key.name != "max_seq_length") {
        table.set(config, i, static_cast<int64_t>(value));
      }
      if (key.type == KeyType::Choice)
        table.set(config, i, key.choices[random.below(draw++, key.choices.size())]);
    }
    // Pairs of keys of which one decides the other.
    config.min_lr = -1;
    config.max_batch_size = 0;
    config.num_train_epochs = 0;
    config.max_steps = 5;
    config.warmup_ratio = 0;
    config.decay_ratio = 0.5;
    expect_round_trip(config);
  }
}

TEST(TrainConfig, SettingsWithoutEffectAreNamed) {
  const auto idle = [](const TrainConfig& config, bool on_gpu = true) {
    return idle_settings({&config, 1}, on_gpu);
  };
  EXPECT_THAT(idle(load_train_config("", {})), ElementsAre());
  EXPECT_THAT(idle(from_yaml("mixed_precision: bf16\nfp8_recipe: block")),
              ElementsAre("fp8_recipe has no effect: mixed_precision is bf16"));
  EXPECT_THAT(idle(from_yaml("fp8_recipe: current\nfp8_margin: 2\nfp8_amax_history_len: 8\nfp8_interval: 1")),
              ElementsAre("fp8_amax_history_len has no effect: fp8_recipe is current"));
  EXPECT_THAT(idle(from_yaml("fp8_recipe: block\nfp8_margin: 2")),
              ElementsAre("fp8_margin has no effect: fp8_recipe is block"));
  EXPECT_THAT(idle(from_yaml("cuda_graphs: on"), false),
              ElementsAre("cuda_graphs has no effect: the run is on the CPU"));
  EXPECT_THAT(idle(from_yaml("cuda_graphs: on"), true), ElementsAre());
  EXPECT_THAT(idle(from_yaml("cuda_graphs: off"), false), ElementsAre());
  EXPECT_THAT(idle(from_yaml("fp8_fast_accum: all"), false),
              ElementsAre("fp8_fast_accum has no effect: the run is on the CPU"));
  EXPECT_THAT(idle(from_yaml("fp8_fast_accum: all"), true), ElementsAre());
  EXPECT_THAT(idle(from_yaml("fp8_fast_accum: none"), false), ElementsAre());
  EXPECT_THAT(idle(from_yaml("fp8_fast_accum: all\nfp8_recipe: block"), true),
              ElementsAre("fp8_fast_accum has no effect: fp8_recipe is block"));
  EXPECT_THAT(idle(from_yaml("fp8_head: all\nfp8_skip_layers: [head]")),
              ElementsAre("fp8_head has no effect: fp8_skip_layers has the head"));
  EXPECT_THAT(idle(from_yaml("fp8_head: none\nfp8_skip_layers: [head]")), ElementsAre());
  EXPECT_THAT(idle(from_yaml("fp8_head: wgrad\nfinetuning_type: lora")),
              ElementsAre("fp8_head has no effect: LoRA freezes the head, so its weight has no gradient"));
  EXPECT_THAT(idle(from_yaml("fp8_head: backward\nfinetuning_type: lora")), ElementsAre());
  EXPECT_THAT(idle(from_yaml("grad_accum_dtype: bf16\nmixed_precision: fp32")),
              ElementsAre("grad_accum_dtype has no effect: mixed_precision is fp32"));
  EXPECT_THAT(
      idle(from_yaml("grad_accum_dtype: bf16\nfinetuning_type: lora")),
      ElementsAre(
          "grad_accum_dtype has no effect: finetuning_type is lora, and gradients of adapters are always "
          "fp32"));
  // A resolved file names every key, and that alone is no reason to complain.
  EXPECT_THAT(idle(from_yaml(to_yaml(from_yaml("mixed_precision: bf16")))), ElementsAre());
}

TEST(TrainConfig, SettingsThatCostAccuracyAreNamed) {
  const auto costly = [](const std::string& text) {
    std::vector<std::string> warnings;
    const TrainConfig config = from_yaml(text);
    const LogSink before =
        set_log_sink([&](LogLevel, std::string_view message) { warnings.emplace_back(message); });
    warn_of_costly_settings({&config, 1});
    set_log_sink(before);
    return warnings;
  };
  EXPECT_THAT(costly(""), ElementsAre());
  EXPECT_THAT(costly("optimizer_state: fp8\nmaster_weights: compact"), ElementsAre());
  EXPECT_THAT(costly("master_weights: stochastic"),
              ElementsAre(AllOf(HasSubstr("master_weights stochastic may cost accuracy"),
                                HasSubstr("set master_weights to compact"))));
  EXPECT_THAT(costly("optimizer_state: fp8\nadam_beta2: 0.99"), ElementsAre());
  EXPECT_THAT(costly("optimizer_state: bf16\nadam_beta2: 0.999"), ElementsAre());
  for (const char* precision : {"fp8", "bf16", "fp32"}) {
    EXPECT_THAT(
        costly(fmt::format("optimizer_state: fp8\nadam_beta2: 0.999\nmixed_precision: {}", precision)),
        ElementsAre(AllOf(HasSubstr("optimizer_state fp8 may cost accuracy with adam_beta2 0.999"),
                          HasSubstr("for 1000 steps"), HasSubstr("optimizer_state to bf16"))));
  }
  EXPECT_THAT(costly("fp8_head: true"), ElementsAre());
  EXPECT_THAT(costly("fp8_fast_accum: all"), ElementsAre());
  EXPECT_THAT(costly("fp8_head: all"), ElementsAre());
  EXPECT_THAT(costly("fp8_head: true\nfp8_recipe: block"), ElementsAre());
  EXPECT_THAT(costly("fp8_format: e4m3"), ElementsAre());
  EXPECT_THAT(costly("fp8_format: e5m2"), ElementsAre(HasSubstr("set fp8_format to hybrid")));
  EXPECT_THAT(costly("fp8_format: e5m2\nmixed_precision: bf16"), ElementsAre());
  EXPECT_THAT(costly("fp8_head: forward\nfp8_format: e4m3"), ElementsAre());
  for (const char* products : {"all", "backward", "dgrad", "wgrad"}) {
    EXPECT_THAT(costly(fmt::format("fp8_head: {}\nfp8_format: e4m3", products)),
                ElementsAre(HasSubstr("the head's gradients in fp8_format e4m3 may cost accuracy")));
  }
  EXPECT_THAT(costly("fp8_head: wgrad\nfp8_format: e4m3\nmixed_precision: bf16"), ElementsAre());
  // There it has no effect, and that is said instead.
  EXPECT_THAT(costly("master_weights: stochastic\nmixed_precision: fp32"), ElementsAre());
  EXPECT_THAT(costly("master_weights: stochastic\nfinetuning_type: lora"), ElementsAre());
}

// Of runs side by side a setting has an effect when it has one in any of them.
TEST(TrainConfig, SettingsWithoutEffectInAnyOfSeveralRunsAreNamed) {
  const std::string keys = "fp8_amax_history_len: 8\nfp8_head: true\n";
  const TrainConfig bf16 = from_yaml(keys + "mixed_precision: bf16"), delayed = from_yaml(keys),
                    current = from_yaml(keys + "fp8_recipe: current");
  EXPECT_THAT(idle_settings(std::vector{bf16, delayed}, true), ElementsAre());
  EXPECT_THAT(idle_settings(std::vector{delayed, bf16}, true), ElementsAre());
  EXPECT_THAT(idle_settings(std::vector{bf16, current, bf16}, true),
              ElementsAre("fp8_amax_history_len has no effect in any of the runs (mixed_precision is bf16; "
                          "fp8_recipe is current)"));
  // A setting of one variant alone.
  const TrainConfig block = from_yaml("fp8_recipe: block\nfp8_margin: 1");
  EXPECT_THAT(idle_settings(std::vector{from_yaml("mixed_precision: bf16"), block}, true),
              ElementsAre("fp8_margin has no effect: fp8_recipe is block"));
  EXPECT_THAT(idle_settings(std::vector{from_yaml("fp8_margin: 1"), block}, true), ElementsAre());
  // Set to its default, and idle there, too.
  EXPECT_THAT(idle_settings(std::vector{from_yaml("mixed_precision: bf16\nfp8_margin: 1"),
                                        from_yaml("fp8_recipe: block\nfp8_margin: 0")},
                            true),
              ElementsAre(testing::StartsWith("fp8_margin has no effect in any of the runs")));
  // Set to its default in one of them: it has an effect there.
  EXPECT_THAT(idle_settings(std::vector{from_yaml("mixed_precision: bf16\nfp8_recipe: current"),
                                        from_yaml("fp8_recipe: delayed")},
                            true),
              ElementsAre());
}

TEST(NearestName, TakesTheNearestAndRefusesTheFar) {
  const std::vector<std::string> names{"lr", "seed", "max_steps", "learning_rate"};
  EXPECT_EQ(nearest_name("leraning_rate", names), "learning_rate");
  EXPECT_EQ(nearest_name("sede", names), "seed");
  EXPECT_EQ(nearest_name("max_step", names), "max_steps");
  EXPECT_EQ(nearest_name("xy", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("tokenizer", names), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), names), "");
}

}  // namespace
}  // namespace octet
