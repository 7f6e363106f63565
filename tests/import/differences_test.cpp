// Settings that mean something else in octet unless they are translated with care.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "import_support.h"
#include "support/process.h"

namespace octet {
namespace {

using test::fate_of;
using test::has_finding;
using test::import_lf;
using test::import_text;
using test::reason_of;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kAxolotl =
    "base_model: org/llama\nmicro_batch_size: 2\nsequence_len: 1024\nval_set_size: 0.1\nflash_attention: true\n";

ImportResult import_axolotl(const std::string& lines) {
  return import_text(kAxolotl + lines, "axolotl.yaml");
}

TEST(ImportDifferences, DeepSpeedsBatchOfAllRanks) {
  const auto with = [](const std::string& rest) {
    return import_text("{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": 2}" + rest + "}",
                       "ds.json");
  };
  for (const ImportResult& result : {with(""), with(", \"gradient_accumulation_steps\": 4"),
                                     with(", \"train_micro_batch_size_per_gpu\": 2")}) {
    EXPECT_EQ(result.value("target_effective_batch_size"), "64");
    EXPECT_EQ(result.find("gradient_accumulation_steps"), nullptr);
  }
  const ImportResult both =
      with(", \"gradient_accumulation_steps\": 4, \"train_micro_batch_size_per_gpu\": 2");
  EXPECT_EQ(both.find("target_effective_batch_size"), nullptr);
  EXPECT_EQ(both.value("gradient_accumulation_steps"), "4");
  EXPECT_EQ(fate_of(both, "train_batch_size"), "derived");
}

TEST(ImportDifferences, DeepSpeedsStorageInBf16) {
  const ImportResult result = import_text(
      "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true, "
      "\"bf16_master_weights_and_grads\": true, \"bf16_optimizer_states\": true}}",
      "ds.json");
  EXPECT_EQ(result.value("master_weights"), "stochastic");
  EXPECT_EQ(result.value("optimizer_state"), "bf16");
}

TEST(ImportDifferences, DeepSpeedInsideAnotherFile) {
  const char* const section =
      "deepspeed: {zero_optimization: {stage: 3, offload_optimizer: {device: cpu}}, gradient_clipping: 0.5,\n"
      "  gradient_accumulation_steps: auto}\n";
  for (const ImportResult& result : {import_lf(section), import_axolotl(section)}) {
    EXPECT_EQ(result.value("sharding_mode"), "fsdp_full") << import_report(result);
    EXPECT_EQ(result.value("max_grad_norm"), "0.5");
    EXPECT_EQ(fate_of(result, "deepspeed.zero_optimization.stage"), "mapped");
    EXPECT_EQ(fate_of(result, "deepspeed.zero_optimization.offload_optimizer.device"), "warned");
    EXPECT_EQ(fate_of(result, "deepspeed.gradient_accumulation_steps"), "ignored");
    EXPECT_EQ(fate_of(result, "zero_optimization.stage"), "");  // each key once
  }
  EXPECT_EQ(
      fate_of(import_lf("deepspeed: {zero_optimization: {stage: 7}}\n"), "deepspeed.zero_optimization.stage"),
      "refused");
}

// octet's chatml has Qwen's system message.
TEST(ImportDifferences, DeepSpeedWithMsAmpIsFp8) {
  const ImportResult result = import_text(
      R"({"msamp": {"enabled": true, "opt_level": "O3"}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}})");
  EXPECT_EQ(result.value("mixed_precision"), "fp8");
  EXPECT_EQ(result.count(Fate::Warned), 0u);
}

// A stage with a point is still a number: 3.0 does not end with the value 0.
TEST(ImportDifferences, AZeroStageMayBeWrittenWithAPoint) {
  EXPECT_EQ(import_text(R"({"zero_optimization": {"stage": 3.0}})").value("sharding_mode"), "fsdp_full");
  EXPECT_EQ(import_text(R"({"zero_optimization": {"stage": 1.0}})").value("sharding_mode"), "zero1");
}

TEST(ImportDifferences, LlamaFactoryV1WithoutBf16) {
  const std::string v1 =
      "model: org/llama\nmodel_class: llm\ntrain_dataset: a.jsonl\ndist_config: {name: fsdp2}\n";
  EXPECT_EQ(import_text(v1 + "bf16: false\n").value("mixed_precision"), "fp32");
  EXPECT_EQ(import_text(v1 + "bf16: true\n").value("mixed_precision"), "bf16");
  EXPECT_EQ(import_text(v1 + "bf16: false\nmixed_precision: fp8\n").value("mixed_precision"), "fp8");
  EXPECT_EQ(fate_of(import_text(v1 + "cp_size: 2\n"), "cp_size"), "refused");
}

constexpr const char* kTrl =
    "output_dir: out/a\nper_device_train_batch_size: 1\nper_device_eval_batch_size: 1\nbf16: true\n"
    "model_name_or_path: org/llama\nreport_to: none\nnum_train_epochs: 1\n";

TEST(ImportDifferences, TrlTakesTheLossOnAllTokens) {
  const ImportResult unset = import_text(std::string(kTrl) + "dataset_name: org/d\n");
  EXPECT_EQ(unset.value("train_on"), "all");
  EXPECT_TRUE(has_finding(unset, "trl-loss-on-all"));
  const ImportResult set =
      import_text(std::string(kTrl) + "dataset_name: org/d\nassistant_only_loss: true\n");
  EXPECT_EQ(set.value("train_on"), "completion");
  EXPECT_FALSE(has_finding(set, "trl-loss-on-all"));
}

TEST(ImportDifferences, TrlsSplits) {
  const std::string mixer =
      std::string(kTrl) + "dataset_mixer: {org/d: 1.0}\ndataset_splits: [train_sft, test_sft]\n";
  const ImportResult result = import_text(mixer + "eval_strategy: epoch\n");
  EXPECT_EQ(result.value("dataset"), "org/d");
  EXPECT_EQ(result.value("dataset_split"), "train_sft");
  EXPECT_EQ(result.value("eval_dataset"), "org/d");
  EXPECT_EQ(result.value("eval_dataset_split"), "test_sft");
  EXPECT_EQ(result.count(Fate::Warned), 0u) << import_report(result);
  const ImportResult without = import_text(mixer);
  EXPECT_EQ(without.value("dataset_split"), "train_sft");
  EXPECT_FALSE(without.find("eval_dataset"));
  const ImportResult script = import_text(
      std::string(kTrl) + "dataset_name: org/d\ndataset_test_split: test\neval_strategy: steps\n");
  EXPECT_EQ(script.value("eval_dataset_split"), "test");
}

TEST(ImportDifferences, TrlsMixtures) {
  const ImportResult part = import_text(std::string(kTrl) + "dataset_mixer: {org/d: 0.25}\n");
  EXPECT_EQ(part.value("dataset"), "org/d");
  EXPECT_THAT(reason_of(part, "dataset_mixer.org/d"), HasSubstr("a share of the dataset"));
  const ImportResult several = import_text(std::string(kTrl) + "dataset_mixer: {org/a: 1.0, org/b: 1.0}\n");
  EXPECT_EQ(several.value("dataset"), "org/a,org/b");
  EXPECT_EQ(several.count(Fate::Refused), 0u) << import_report(several);

  const ImportResult mixture = import_text(
      std::string(kTrl) +
      "dataset_mixture:\n  datasets:\n    - {id: org/a, config: SFT, split: train_a, columns: [messages], weight: 1.0}\n"
      "    - {id: org/b, weight: 0.5}\n  seed: 0\n  test_split_size: 0.02\neval_strategy: steps\n");
  const TrainConfig config = test::load(mixture);
  ASSERT_EQ(config.dataset.size(), 2u) << import_report(mixture);
  EXPECT_EQ(config.dataset[0].subset, "SFT");
  EXPECT_EQ(config.dataset[0].split, "train_a");
  EXPECT_EQ(config.dataset[1].path, "org/b");
  EXPECT_EQ(config.dataset[1].weight, 0);  // a share of its examples, not of the mixture
  EXPECT_EQ(config.eval_split, 0.02);
  EXPECT_EQ(mixture.count(Fate::Warned), 1u) << import_report(mixture);
}

TEST(ImportDifferences, AxolotlHoldsOutWithoutEvaluating) {
  EXPECT_TRUE(has_finding(import_axolotl(""), "axolotl-never-evaluates"));
  EXPECT_FALSE(has_finding(import_axolotl("evals_per_epoch: 4\n"), "axolotl-never-evaluates"));
  EXPECT_FALSE(has_finding(import_axolotl("eval_steps: 0.1\n"), "axolotl-never-evaluates"));
}

TEST(ImportDifferences, ChatmlHasNoSystemMessageElsewhere) {
  const std::string data = "datasets: [{path: org/d, type: chat_template, chat_template: chatml}]\n";
  const std::string old = "datasets: [{path: org/d, type: sharegpt, conversation: chatml}]\n";
  const std::string trl =
      "output_dir: out/a\nper_device_train_batch_size: 1\nper_device_eval_batch_size: 1\npush_to_hub: false\nseed: 1\nbf16: true\nmodel_name_or_path: a/b\n"
      "chat_template: \"<|im_start|>{{ m }}\"\n";
  for (const ImportResult& result :
       {import_axolotl(data), import_axolotl(old), import_axolotl("chat_template: chatml\n"),
        import_text(trl)}) {
    EXPECT_EQ(result.value("chat_template"), "chatml") << import_report(result);
    ASSERT_NE(result.find("default_system"), nullptr) << import_report(result);
    EXPECT_EQ(result.value("default_system"), "");
  }
  EXPECT_EQ(import_axolotl("chat_template: chatml\ndefault_system_message: Hi\n").value("default_system"),
            "Hi");
  EXPECT_EQ(import_axolotl("chat_template: qwen_25\n").find("default_system"), nullptr);
}

TEST(ImportDifferences, ConstantHasNoWarmUp) {
  for (const char* lines : {"lr_scheduler_type: constant\nwarmup_ratio: 0.1\n",
                            "warmup_steps: 10\nlr_scheduler_type: constant\n"}) {
    const ImportResult result = import_lf(lines);
    EXPECT_EQ(result.value("warmup_steps"), "0") << lines;
    EXPECT_EQ(result.find("warmup_ratio"), nullptr);
    EXPECT_TRUE(has_finding(result, "constant-ignores-warmup"));
  }
  EXPECT_EQ(import_lf("lr_scheduler_type: constant_with_warmup\nwarmup_steps: 10\n").value("warmup_steps"),
            "10");
}

TEST(ImportDifferences, AxolotlsSchedule) {
  EXPECT_EQ(import_axolotl("").value("min_lr_ratio"), "0");
  EXPECT_EQ(import_axolotl("cosine_min_lr_ratio: 0.1\n").value("min_lr_ratio"), "0.1");
  EXPECT_EQ(import_axolotl("max_steps: 1000\n").value("warmup_steps"), "30");
  EXPECT_EQ(import_axolotl("max_steps: 1000\n").find("warmup_ratio"), nullptr);
  EXPECT_EQ(import_axolotl("max_steps: 9000\n").value("warmup_steps"), "100");
  EXPECT_EQ(import_axolotl("").value("warmup_ratio"), "0.03");
  EXPECT_TRUE(has_finding(import_axolotl(""), "axolotl-warmup-limit"));
  EXPECT_FALSE(has_finding(import_axolotl("warmup_ratio: 0.1\n"), "axolotl-warmup-limit"));
}

TEST(ImportDifferences, AxolotlsTrainedRoles) {
  const auto with = [](const std::string& first, const std::string& second = "") {
    std::string lines = "datasets:\n  - {path: org/a, type: chat_template" + first + "}\n";
    if (!second.empty()) lines += "  - {path: org/b, type: chat_template" + second + "}\n";
    return import_axolotl(lines + "train_on_inputs: false\n");
  };
  const std::string both = ", roles_to_train: [user, assistant]";
  EXPECT_EQ(with(both).value("train_on"), "user,assistant");
  EXPECT_EQ(with("").value("train_on"), "completion");
  EXPECT_EQ(with(both, both).count(Fate::Refused), 0u);
  EXPECT_EQ(fate_of(with(both, ", roles_to_train: [assistant]"), "datasets.1.roles_to_train"), "refused");
  EXPECT_EQ(fate_of(with(both, ", split: train"), "datasets.0.roles_to_train"), "refused");
}

TEST(ImportDifferences, AxolotlsMessages) {
  const auto fate = [](const std::string& lines, const std::string& name) {
    return fate_of(import_axolotl("datasets:\n  - {path: org/a, type: chat_template, " + lines + "}\n"),
                   "datasets.0." + name);
  };
  EXPECT_EQ(fate("roles: {tool: [tool, observation]}", "roles.tool"), "ignored");
  EXPECT_EQ(fate("roles: {user: [tool]}", "roles.user"), "refused");
  EXPECT_EQ(fate("roles: {tool: [search]}", "roles.tool"), "refused");
  EXPECT_EQ(fate("field_tools: tools", "field_tools"), "ignored");
  EXPECT_EQ(fate("field_tools: functions", "field_tools"), "refused");
  for (const char* name : {"training", "train", "weight"})
    EXPECT_EQ(fate(fmt::format("message_field_training: {}", name), "message_field_training"), "ignored");
  EXPECT_EQ(fate("message_field_training: learn", "message_field_training"), "refused");
  EXPECT_EQ(fate("field_thinking: reasoning_content", "field_thinking"), "ignored");
  EXPECT_EQ(fate("field_thinking: thoughts", "field_thinking"), "refused");
  EXPECT_EQ(fate("message_property_mappings: {tool_calls: calls}", "message_property_mappings.tool_calls"),
            "refused");
}

TEST(ImportDifferences, LongExamplesAreANoteOfTheReportAlone) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/lf.yaml";
  std::ofstream(path) << "stage: sft\ndo_train: true\ntemplate: llama3\ncutoff_len: 512\n";
  const ImportResult result = import_file(path);
  EXPECT_TRUE(has_finding(result, "long-examples-are-cut"));
  EXPECT_THAT(import_report(result), HasSubstr("[long-examples-are-cut] cutoff_len in"));
  SettingsNotes notes;
  read_run_file(path, notes);
  EXPECT_THAT(notes.warnings, Each(Not(HasSubstr("several sequences"))));
  EXPECT_TRUE(has_finding(import_axolotl(""), "long-examples-are-cut"));
  EXPECT_FALSE(has_finding(import_text("stage: pt\ndo_train: true\ntemplate: llama3\ncutoff_len: 512\n"),
                           "long-examples-are-cut"));
}

TEST(ImportDifferences, InterleavedDatasetsWeighTheSame) {
  const ImportResult result =
      import_lf("dataset: org/a,org/b\ndataset_dir: ONLINE\nmix_strategy: interleave_under\n");
  ASSERT_NE(result.find("dataset"), nullptr);
  EXPECT_EQ(result.find("dataset")->block,
            "  - path: org/a\n    weight: 1\n  - path: org/b\n    weight: 1\n");
}

TEST(ImportDifferences, DatasetInfoIsCheckedAsInTraining) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() + "/a.json") << "[]";
  std::ofstream(folder.path() + "/dataset_info.json")
      << R"({"good": {"file_name": "a.json"}, "tags": {"file_name": "a.json", "formatting": "sharegpt",
            "tags": {"user_tag": "Q"}}, "missing": {"file_name": "b.json"}})";
  const auto with = [&](const std::string& name) {
    return import_lf(fmt::format("dataset: {}\ndataset_dir: {}\n", name, folder.path()));
  };
  EXPECT_EQ(fate_of(with("good"), "dataset"), "mapped");
  EXPECT_THAT(reason_of(with("tags"), "dataset"), HasSubstr("user_tag Q"));
  EXPECT_THAT(reason_of(with("missing"), "dataset"), HasSubstr("does not exist"));
}

TEST(ImportDifferences, OtherRevisionsAreRefusedEverywhere) {
  EXPECT_EQ(fate_of(import_axolotl("revision_of_model: v2\n"), "revision_of_model"), "refused");
  EXPECT_EQ(fate_of(import_axolotl("revision_of_model: main\n"), "revision_of_model"), "ignored");
  EXPECT_EQ(fate_of(import_lf("model_revision: v2\n"), "model_revision"), "refused");
}

TEST(ImportDifferences, WeightsAndBiasesIsMapped) {
  for (const char* line : {"wandb_project: p\n", "use_wandb: true\n"}) {
    const ImportResult result = import_axolotl(line);
    EXPECT_EQ(result.count(Fate::Warned), 0u) << import_report(result);
    EXPECT_EQ(result.value("use_wandb"), "true");
  }
  EXPECT_EQ(import_axolotl("wandb_project: p\n").value("wandb_project"), "p");
  const ImportResult all =
      import_axolotl("wandb_entity: e\nwandb_name: n\nwandb_mode: offline\nwandb_watch: all\n");
  EXPECT_EQ(all.value("wandb_entity"), "e");
  EXPECT_EQ(all.value("wandb_run_name"), "n");
  EXPECT_EQ(all.value("wandb_mode"), "offline");
  EXPECT_EQ(all.count(Fate::Warned), 1u) << import_report(all);
}

TEST(ImportDifferences, Mxfp8RunsAsDelayed) {
  const ImportResult result = import_lf("fp8: true\nfp8_recipe: mxfp8\n");
  ASSERT_TRUE(has_finding(result, "mxfp8-not-native"));
  const auto found = std::ranges::find(result.findings, "mxfp8-not-native", &Finding::name);
  EXPECT_THAT(finding_text(*found),
              testing::AllOf(HasSubstr("fp8_recipe in given.yaml"), HasSubstr("runs delayed in its place")));
}

}  // namespace
}  // namespace octet
