// Configurations in the style of public ones: what becomes of each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "import_support.h"
#include "support/places.h"

namespace octet {
namespace {

using testing::HasSubstr;

struct Case {
  const char* file;
  const char* tool;
  std::map<std::string, std::string> values;  // of octet's keys
  std::vector<std::string> refused;           // parts of the refusals, in their order
  std::vector<std::string> findings;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"lf_llama31_lora_sft.yaml",
       "LLaMA-Factory",
       {{"model_name_or_path", "meta-llama/Llama-3.1-8B-Instruct"},
        {"finetuning_type", "lora"},
        {"lora_rank", "16"},
        {"lora_alpha", "32"},
        {"lora_target", "q_proj,v_proj"},
        {"dataset", "support_chats"},
        {"max_samples", "20000"},
        {"max_seq_length", "4096"},
        {"chat_template", "llama3"},
        {"output_dir", "saves/llama31/lora"},
        {"run_name", "support"},
        {"save_total_limit", "2"},
        {"warmup_ratio", "0.05"},
        {"min_lr_ratio", "0"},
        {"weight_decay", "0"},
        {"adam_beta2", "0.999"},
        {"mixed_precision", "bf16"},
        {"eval_split", "0.02"},
        {"eval_strategy", "steps"},
        {"eval_steps", "200"},
        {"packing", "none"}},
       {},
       {}},
      {"lf_qwen25_full_ds3.yaml",
       "LLaMA-Factory",
       {{"dataset", "support_chats,math_hub"},
        {"chat_template", "chatml"},
        {"default_system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
        {"sharding_mode", "fsdp_full"},
        {"gradient_accumulation_steps", "16"},
        {"save_strategy", "epoch"},
        {"use_tensorboard", "true"},
        {"warmup_ratio", "0.1"},
        {"lora_rank", ""}},
       {},
       {"deepspeed-mismatch", "communication-fp32", "cpu-offload", "no-overlap"}},
      {"lf_pretrain.yaml",
       "LLaMA-Factory",
       {{"packing", "stream"},
        {"max_steps", "2000"},
        {"num_train_epochs", ""},
        {"warmup_steps", "100"},
        {"chat_template", ""},
        {"master_weights", "stochastic"}},
       {},
       {}},
      {"lf_minimal.yaml",
       "LLaMA-Factory",
       {{"finetuning_type", "lora"},
        {"lora_rank", "8"},
        {"max_seq_length", "2048"},
        {"num_train_epochs", "3"},
        {"learning_rate", "5e-5"},
        {"lr_scheduler_type", "linear"},
        {"min_lr_ratio", "0"},
        {"warmup_steps", "0"},
        {"logging_steps", "500"},
        {"eval_strategy", "no"},
        {"run_name", "out"},
        {"output_dir", "."}},
       {},
       {}},
      {"lf_fp8_te.yaml",
       "LLaMA-Factory",
       {{"mixed_precision", "fp8"}, {"fp8_recipe", "delayed"}, {"max_seq_length", "1000"}},
       {},
       {"gradient-checkpointing-unused", "warmup-longer-than-run", "length-not-a-multiple-of-16",
        "fp8-with-recompute"}},
      {"lf_all_gather_alone.yaml",
       "LLaMA-Factory",
       {{"mixed_precision", "bf16"}},
       {},
       {"all-gather-without-fp8"}},
      {"lf_qlora.yaml",
       "LLaMA-Factory",
       {{"mixed_precision", "fp8"}, {"finetuning_type", "lora"}, {"optimizer_state", "fp8"}},
       {},
       {"fp16"}},
      {"lf_interleave.yaml",
       "LLaMA-Factory",
       {{"dataset", "support_chats,math_hub"}, {"packing", "best_fit"}, {"max_samples", ""}},
       {},
       {"packing-mixes-documents"}},
      {"lf_dpo.yaml",
       "LLaMA-Factory",
       {},
       {"stage in FILE:2 is dpo", "for preference training, which octet does not do"},
       {"fp8-only-in-pt-and-sft", "fp8-with-lora"}},
      {"lf_multimodal.yaml", "LLaMA-Factory", {}, {"a vision model", "a column for images"}, {}},
      {"lf_dora.yaml", "LLaMA-Factory", {}, {"use_dora in FILE:5 is true: octet has no DoRA"}, {}},
      {"lf_unknown_dataset.yaml", "LLaMA-Factory", {}, {"did you mean 'support_chats'?"}, {}},
      {"lf_export.yaml", "LLaMA-Factory", {}, {"octet export"}, {}},
      {"lf_chat.yaml", "LLaMA-Factory", {}, {"octet generate"}, {}},
      {"lf_anchors.yaml",
       "LLaMA-Factory",
       {{"learning_rate", "2.0e-5"},
        {"mixed_precision", "bf16"},
        {"output_dir", "saves"},
        {"run_name", "first_try"}},
       {},
       {}},
      {"lf_v1.yaml",
       "LLaMA-Factory v1",
       {{"model_name_or_path", "Qwen/Qwen3-0.6B"},
        {"finetuning_type", "lora"},
        {"lora_rank", "8"},
        {"sharding_mode", "zero2"},
        {"dataset", "chats.jsonl"},
        {"per_device_train_batch_size", "2"},
        {"target_effective_batch_size", "16"},
        {"lr_scheduler_type", "constant"},
        {"weight_decay", "0.01"}},
       {},
       {}},
      {"ds_zero0.json",
       "DeepSpeed",
       {{"sharding_mode", "none"},
        {"target_effective_batch_size", "256"},
        {"per_device_train_batch_size", "4"},
        {"max_grad_norm", "0.5"}},
       {},
       {}},
      {"ds_zero1_optimizer.json",
       "DeepSpeed",
       {{"sharding_mode", "zero1"},
        {"learning_rate", "3e-4"},
        {"adam_beta1", "0.9"},
        {"adam_beta2", "0.95"},
        {"weight_decay", "0.1"},
        {"lr_scheduler_type", "linear"},
        {"warmup_steps", "500"},
        {"max_steps", "20000"},
        {"min_lr_ratio", "0"}},
       {},
       {}},
      {"ds_zero2.json",
       "DeepSpeed",
       {{"sharding_mode", "zero2"}, {"per_device_train_batch_size", ""}},
       {},
       {}},
      {"ds_zero3.json",
       "DeepSpeed",
       {{"sharding_mode", "fsdp_full"}, {"gradient_accumulation_steps", "8"}, {"mixed_precision", "bf16"}},
       {},
       {"communication-fp32", "cpu-offload", "no-overlap"}},
      {"ds_fp8_section.json",
       "DeepSpeed",
       {{"mixed_precision", "fp8"}, {"sharding_mode", "zero2"}},
       {},
       {"deepspeed-fp8-section", "grad-accum-fp32", "small-buckets", "unknown-deepspeed-section",
        "fp8-on-fp32"}},
      {"ds_one_bit_adam.json",
       "DeepSpeed",
       {},
       {"octet has AdamW only", "no pipeline parallelism"},
       {"no-precision"}},
      {"hf_training_args.json",
       "Hugging Face TrainingArguments",
       {{"output_dir", "./results"},
        {"run_name", "run-7"},
        {"num_train_epochs", "4"},
        {"lr_scheduler_type", "cosine"},
        {"min_lr", "2e-06"},
        {"warmup_ratio", "0.06"},
        {"eval_strategy", "epoch"},
        {"save_strategy", "epoch"},
        {"save_total_limit", "0"},
        {"gradient_checkpointing", "auto"},
        {"use_tensorboard", "true"},
        {"mixed_precision", "bf16"},
        {"seed", "7"}},
       {},
       {}},
      {"hf_saved_by_trainer.json",
       "Hugging Face TrainingArguments",
       {{"max_steps", "500"},
        {"num_train_epochs", ""},
        {"logging_steps", "50"},
        {"mixed_precision", "fp32"},
        {"use_tensorboard", "false"},
        {"gradient_checkpointing", "none"}},
       {},
       {"no-precision"}},
      {"hf_adafactor.json",
       "Hugging Face TrainingArguments",
       {},
       {"octet has AdamW only", "no label smoothing", "no schedule 'polynomial'"},
       {"no-precision"}},
      {"trl_sft_lora.yaml",
       "Hugging Face TrainingArguments",
       {{"dataset", "HuggingFaceH4/ultrachat_200k"},
        {"dataset_split", "train_sft"},
        {"max_seq_length", "2048"},
        {"packing", "best_fit"},
        {"lora_rank", "64"},
        {"lora_alpha", "16"},
        {"lora_target", "all"},
        {"use_wandb", "true"},
        {"use_tensorboard", "true"},
        {"logging_steps", "5"}},
       {},
       {"trl-loss-on-all"}},
      {"trl_dpo.yaml",
       "Hugging Face TrainingArguments",
       {},
       {"beta in FILE:5", "max_prompt_length in FILE:6"},
       {"trl-loss-on-all"}},
  };
  return all;
}

class ImportedFile : public testing::TestWithParam<Case> {};

TEST_P(ImportedFile, BecomesWhatIsExpected) {
  const Case& expected = GetParam();
  const std::string path = test::source_path("/tests/import/files/") + expected.file;
  const ImportResult result = import_file(path);
  EXPECT_EQ(result.tool, expected.tool);
  for (const auto& [key, value] : expected.values) EXPECT_EQ(result.value(key), value) << key;

  const std::vector<std::string> refused = refusals(result);
  ASSERT_EQ(refused.size(), expected.refused.size()) << import_report(result);
  for (size_t i = 0; i < refused.size(); ++i) {
    std::string part = expected.refused[i];
    if (const size_t at = part.find("FILE"); at != part.npos) part.replace(at, 4, path);
    EXPECT_THAT(refused[i], HasSubstr(part));
  }
  EXPECT_EQ(test::mistakes_of(result), expected.findings);
  // No key is lost, and the result loads: from memory, and as the file that `octet import` writes.
  EXPECT_GE(result.verdicts.size(), read_tree_file(path).leaves.size());
  if (!refused.empty()) return;
  const TrainConfig config = test::load(result);
  std::vector<std::string> errors;
  const FileSettings written{.path = "run.yaml",
                             .settings = parse_settings(import_yaml(result), "run.yaml", errors)};
  EXPECT_THAT(errors, testing::IsEmpty());
  EXPECT_EQ(to_yaml(load_train_config(written, {})), to_yaml(config));
}

INSTANTIATE_TEST_SUITE_P(Import, ImportedFile, testing::ValuesIn(cases()), [](const auto& given) {
  std::string name = given.param.file;
  std::ranges::replace_if(
      name, [](char c) { return c == '.' || c == '-'; }, '_');
  return name;
});

TEST(ImportedFiles, EveryInputHasACase) {
  for (const auto& entry : std::filesystem::directory_iterator(test::source_path("/tests/import/files"))) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() || name.starts_with("octet_")) continue;
    EXPECT_TRUE(std::ranges::any_of(cases(), [&](const Case& c) { return name == c.file; })) << name;
  }
}

TEST(ImportedFiles, SeveralDatasetsKeepTheirWeightsAndLimits) {
  const ImportResult result = import_file(test::source_path("/tests/import/files/lf_interleave.yaml"));
  const TrainConfig config = test::load(result);
  ASSERT_EQ(config.dataset.size(), 2u);
  EXPECT_EQ(config.dataset[0].path, "support_chats");
  EXPECT_EQ(config.dataset[0].weight, 0.7);
  EXPECT_EQ(config.dataset[1].weight, 0.3);
  EXPECT_EQ(config.dataset[1].max_samples, 5000);
}

}  // namespace
}  // namespace octet
