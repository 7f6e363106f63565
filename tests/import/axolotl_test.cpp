// Configurations in the style of the public ones of Axolotl.

#include <gmock/gmock.h>

#include "import/tools.h"
#include "import_case.h"

namespace octet {
namespace {

// What most files have.
const std::string kBase = R"(
base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
output_dir: ./outputs/out
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
)";

TEST(Axolotl, FullFineTuning) {
  expect_import({.name = "full",
                 .tool = "Axolotl",
                 .text = kBase + R"(
strict: false
tf32: false
train_on_inputs: false
val_set_size: 0.05
warmup_ratio: 0.1
evals_per_epoch: 4
saves_per_epoch: 2
weight_decay: 0.01
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
attn_implementation: flash_attention_2
logging_steps: 5
wandb_project:
wandb_name:
special_tokens:
  pad_token: <|end_of_text|>
plugins:
  - axolotl.integrations.liger.LigerPlugin
  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin
liger_rms_norm: true
)",
                 .settings = {{"model_name_or_path", "meta-llama/Llama-3.1-8B"},
                              {"dataset", "tatsu-lab/alpaca"},
                              {"dataset_format", "alpaca"},
                              {"chat_template", "alpaca"},
                              {"output_dir", "./outputs"},
                              {"run_name", "out"},
                              {"max_seq_length", "4096"},
                              {"packing", "best_fit"},
                              {"per_device_train_batch_size", "2"},
                              {"gradient_accumulation_steps", "4"},
                              {"num_train_epochs", "1"},
                              {"learning_rate", "2e-5"},
                              {"lr_scheduler_type", "cosine"},
                              {"min_lr_ratio", "0"},
                              {"warmup_ratio", "0.1"},
                              {"weight_decay", "0.01"},
                              {"adam_beta2", "0.999"},
                              {"mixed_precision", "bf16"},
                              {"train_on", "completion"},
                              {"eval_split", "0.05"},
                              {"evals_per_epoch", "4"},
                              {"saves_per_epoch", "2"},
                              {"save_total_limit", "4"},
                              {"gradient_checkpointing", "auto"},
                              {"logging_steps", "5"}}});
}

TEST(Axolotl, DefaultsAreWrittenOut) {
  expect_import({.name = "minimal",
                 .tool = "Axolotl",
                 .text = "base_model: Qwen/Qwen2.5-0.5B\nlearning_rate: 1e-5\nmicro_batch_size:\n"
                         "datasets:\n  - path: a.jsonl\n    type: chat_template\n",
                 .settings = {{"max_seq_length", "512"},
                              {"per_device_train_batch_size", "1"},
                              {"num_train_epochs", "1"},
                              {"warmup_ratio", "0.03"},
                              {"weight_decay", "0"},
                              {"adam_beta2", "0.999"},
                              {"mixed_precision", "bf16"},
                              {"packing", "none"},
                              {"eval_split", "0"},
                              {"save_strategy", "epoch"},
                              {"dataset_format", "messages"},
                              {"chat_template", "-"},
                              {"finetuning_type", "-"}}});
}

TEST(Axolotl, Lora) {
  expect_import(
      {.name = "lora",
       .tool = "Axolotl",
       .text = kBase +
               "adapter: lora\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\n"
               "lora_target_modules:\n  - q_proj\n  - v_proj\nlora_mlp_kernel: true\npeft_use_rslora: true\n",
       .settings = {{"finetuning_type", "lora"},
                    {"lora_rank", "32"},
                    {"lora_alpha", "16"},
                    {"lora_dropout", "0.05"},
                    {"lora_target", "q_proj,v_proj"},
                    {"use_rslora", "true"},
                    {"mixed_precision", "bf16"}}});
}

TEST(Axolotl, QloraHasAnFp8Base) {
  expect_import(
      {.name = "qlora",
       .tool = "Axolotl",
       .text = kBase + "adapter: qlora\nload_in_4bit: true\nlora_r: 16\nlora_alpha: 32\n"
                       "lora_target_linear: true\nlora_target_modules:\ngradient_checkpointing: true\n",
       .settings = {{"finetuning_type", "lora"}, {"mixed_precision", "fp8"}, {"lora_target", "all"}},
       .warned = {"load_in_4bit"}});
}

TEST(Axolotl, EightBitBaseAndEightBitMoments) {
  const std::string text = kBase.substr(0, kBase.find("optimizer:"));
  expect_import({.name = "lora8",
                 .tool = "Axolotl",
                 .text = text +
                         "optimizer: adamw_bnb_8bit\nlearning_rate: 2e-4\nadapter: lora\nload_in_8bit: true\n"
                         "lora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n",
                 .settings = {{"optimizer_state", "fp8"}, {"mixed_precision", "fp8"}},
                 .warned = {"load_in_8bit"}});
}

TEST(Axolotl, LoraKeysWithoutAnAdapterMeanNothing) {
  expect_import({.name = "no adapter",
                 .tool = "Axolotl",
                 .text = kBase + "adapter:\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj]\n",
                 .settings = {{"finetuning_type", "full"}, {"lora_rank", "-"}, {"lora_target", "-"}}});
}

TEST(Axolotl, AnAdapterToContinueDecidesItsSizes) {
  expect_import(
      {.name = "adapter folder",
       .tool = "Axolotl",
       .text = kBase + "adapter: lora\nlora_model_dir: ./adapter\nlora_r: 8\nlora_target_linear: true\n",
       .settings = {{"adapter_name_or_path", "./adapter"}, {"lora_rank", "-"}, {"lora_target", "-"}}});
}

TEST(Axolotl, AdaptersThatOctetHasNot) {
  expect_import({.name = "dora",
                 .tool = "Axolotl",
                 .text = kBase + "adapter: lora\npeft_use_dora: true\n",
                 .refused = {"peft_use_dora"}});
  expect_import({.name = "pissa",
                 .tool = "Axolotl",
                 .text = kBase + "adapter: lora\npeft_init_lora_weights: pissa\n",
                 .refused = {"peft_init_lora_weights"}});
  expect_import({.name = "saved modules",
                 .tool = "Axolotl",
                 .text = kBase + "adapter: lora\nlora_modules_to_save:\n  - embed_tokens\n  - lm_head\n",
                 .refused = {"lora_modules_to_save"}});
  expect_import({.name = "llama-adapter",
                 .tool = "Axolotl",
                 .text = kBase + "adapter: llama-adapter\n",
                 .refused = {"adapter"}});
}

std::string with_datasets(const std::string& datasets) {
  return "base_model: Qwen/Qwen2.5-7B\nmicro_batch_size: 1\nsequence_len: 2048\nlearning_rate: 1e-5\ndatasets:\n" +
         datasets;
}

TEST(Axolotl, DatasetTypes) {
  expect_import(
      {.name = "sharegpt",
       .tool = "Axolotl",
       .text = with_datasets("  - path: Open-Orca/SlimOrca\n    type: sharegpt\n    conversation: chatml\n"),
       .settings = {{"dataset_format", "messages"},
                    {"messages_column", "conversations"},
                    {"chat_template", "chatml"}}});
  expect_import({.name = "mappings",
                 .tool = "Axolotl",
                 .text = with_datasets(
                     "  - path: mlabonne/FineTome-100k\n    type: chat_template\n    split: train[:500]\n"
                     "    name: main\n    field_messages: conversations\n    message_property_mappings:\n"
                     "      role: from\n      content: value\n    roles:\n      user: [human]\n"
                     "      assistant: [gpt]\n    roles_to_train: [assistant, user]\n"),
                 .settings = {{"messages_column", "conversations"},
                              {"dataset_split", "train"},
                              {"dataset_subset", "main"},
                              {"max_samples", "500"},
                              {"train_on", "assistant,user"}}});
  expect_import(
      {.name = "completion",
       .tool = "Axolotl",
       .text = with_datasets(
           "  - path: book.jsonl\n    ds_type: json\n    type: completion\n    field: chapter\n"),
       .settings = {{"dataset", "book.jsonl"}, {"dataset_format", "text"}, {"text_column", "chapter"}}});
  expect_import(
      {.name = "json loader",
       .tool = "Axolotl",
       .text = with_datasets("  - path: json\n    data_files: data/train.jsonl\n    type: alpaca\n"),
       .settings = {{"dataset", "data/train.jsonl"}}});
  expect_import({.name = "own prompt",
                 .tool = "Axolotl",
                 .text = with_datasets("  - path: qa.jsonl\n    type:\n      field_instruction: question\n"
                                       "      field_output: answer\n      format: '{instruction}'\n"
                                       "      no_input_format: '{instruction}'\n"),
                 .settings = {{"dataset_format", "prompt_completion"},
                              {"prompt_column", "question"},
                              {"completion_column", "answer"},
                              {"chat_template", "plain"}}});
  expect_import(
      {.name = "percent",
       .tool = "Axolotl",
       .text = with_datasets("  - path: org/data\n    type: chat_template\n    split: train[:20%]\n"),
       .settings = {{"dataset_split", "train"}},
       .warned = {"datasets.0.split"}});
}

TEST(Axolotl, DatasetTypesThatOctetHasNot) {
  const auto refused = [](const char* type, const char* key) {
    expect_import({.name = type,
                   .tool = "Axolotl",
                   .text = with_datasets(std::string("  - path: a.jsonl\n    type: ") + type + "\n"),
                   .refused = {key}});
  };
  refused("alpaca:chat", "datasets.0.type");
  refused("input_output", "datasets.0.type");
  refused("bradley_terry.chat_template", "datasets.0.type");
  refused("my_module.transform", "datasets.0.type");
  refused("{format: '[INST] {instruction} [/INST]', field_instruction: q}", "datasets.0.type.format");
  expect_import(
      {.name = "role names",
       .tool = "Axolotl",
       .text = with_datasets("  - path: a.jsonl\n    type: chat_template\n    message_property_mappings:\n"
                             "      role: speaker\n      content: value\n"),
       .refused = {"datasets.0.message_property_mappings.role"}});
}

TEST(Axolotl, SeveralDatasetsBecomeAList) {
  const ImportResult result = import_tree(parse_tree(
      with_datasets("  - path: a.jsonl\n    type: chat_template\n  - path: org/b\n    type: chat_template\n"
                    "    split: train[:100]\n    field_messages: conversations\n"),
      "several.yaml"));
  ASSERT_NE(result.find("dataset"), nullptr);
  EXPECT_THAT(result.find("dataset")->block,
              testing::HasSubstr("- path: org/b\n    max_samples: 100\n    split: train\n"
                                 "    format: messages\n"
                                 "    messages_column: conversations\n"));
  EXPECT_NO_THROW(test::load(result));
  expect_import({.name = "two formats",
                 .tool = "Axolotl",
                 .text = with_datasets(
                     "  - path: a.jsonl\n    type: chat_template\n  - path: b.jsonl\n    type: alpaca\n"),
                 .refused = {"datasets.0.type"}});
}

TEST(Axolotl, EvaluationData) {
  expect_import(
      {.name = "test_datasets",
       .tool = "Axolotl",
       .text =
           with_datasets("  - path: a.jsonl\n    type: chat_template\n") +
           "test_datasets:\n  - path: b.jsonl\n    type: chat_template\n    split: test\nevals_per_epoch: 1\n",
       .settings = {{"dataset", "a.jsonl"},
                    {"eval_dataset", "b.jsonl"},
                    {"eval_dataset_split", "test"},
                    {"evals_per_epoch", "1"}}});
  expect_import({.name = "a count",
                 .tool = "Axolotl",
                 .text = kBase + "val_set_size: 500\n",
                 .settings = {{"eval_split", "0.05"}},
                 .warned = {"val_set_size"}});
  expect_import({.name = "none",
                 .tool = "Axolotl",
                 .text = kBase + "val_set_size: 0.0\nevals_per_epoch: 4\n",
                 .settings = {{"eval_split", "0"}, {"evals_per_epoch", "-"}}});
}

TEST(Axolotl, ChatTemplates) {
  const auto text = [](const char* name) {
    return with_datasets("  - path: a.jsonl\n    type: chat_template\n") + "chat_template: " + name + "\n";
  };
  expect_import({.name = "llama3",
                 .tool = "Axolotl",
                 .text = text("llama3"),
                 .settings = {{"chat_template", "llama3"}}});
  expect_import({.name = "chatml",
                 .tool = "Axolotl",
                 .text = text("chatml"),
                 .settings = {{"chat_template", "chatml"}, {"default_system", ""}}});
  expect_import({.name = "qwen",
                 .tool = "Axolotl",
                 .text = text("qwen_25"),
                 .settings = {{"chat_template", "chatml"}, {"default_system", "-"}}});
  expect_import({.name = "own",
                 .tool = "Axolotl",
                 .text = text("tokenizer_default"),
                 .settings = {{"chat_template", "auto"}}});
  expect_import({.name = "gemma", .tool = "Axolotl", .text = text("gemma3"), .refused = {"chat_template"}});
}

TEST(Axolotl, Pretraining) {
  expect_import(
      {.name = "pretrain",
       .tool = "Axolotl",
       .text =
           "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 2048\nmicro_batch_size: 4\nmax_steps: 1000\n"
           "num_epochs: 3\nlearning_rate: 3e-4\npretraining_dataset:\n  - path: HuggingFaceFW/fineweb-edu\n"
           "    name: sample-10BT\n    type: pretrain\n    text_column: text\n    split: train\n"
           "warmup_steps: 100\nlr_scheduler: constant_with_warmup\n",
       .settings = {{"dataset", "HuggingFaceFW/fineweb-edu"},
                    {"dataset_subset", "sample-10BT"},
                    {"dataset_format", "text"},
                    {"packing", "stream"},
                    {"max_steps", "1000"},
                    {"num_train_epochs", "-"},
                    {"warmup_steps", "100"},
                    {"lr_scheduler_type", "constant"}}});
}

TEST(Axolotl, Fp8AndItsMistakes) {
  expect_import(
      {.name = "fp8",
       .tool = "Axolotl",
       .text = kBase +
               "fp8: true\nfp8_enable_fsdp_float8_all_gather: true\ntorch_compile: true\nfsdp_version: 2\n"
               "fsdp_config:\n  offload_params: false\n  cpu_ram_efficient_loading: false\n"
               "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  reshard_after_forward: true\n",
       .settings = {{"mixed_precision", "fp8"}, {"fp8_recipe", "current"}, {"sharding_mode", "fsdp_full"}}});
  expect_import({.name = "fp8 mistakes",
                 .tool = "Axolotl",
                 .text = kBase +
                         "fp8: true\nfp8_enable_fsdp_float8_all_gather: true\ngradient_checkpointing: true\n"
                         "fsdp:\n  - full_shard\n  - auto_wrap\nfsdp_config:\n  fsdp_offload_params: true\n"
                         "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_state_dict_type: FULL_STATE_DICT\n",
                 .settings = {{"mixed_precision", "fp8"}, {"sharding_mode", "fsdp_full"}},
                 .warned = {"fsdp_config.fsdp_offload_params"},
                 .findings = {"cpu-offload", "float8-all-gather", "ram-efficient-loading-with-torchao",
                              "fp8-with-recompute", "torchao-without-compile"}});
  expect_import(
      {.name = "fp8 adapters",
       .tool = "Axolotl",
       .text = kBase + "fp8: true\ntorch_compile: true\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n",
       .settings = {{"mixed_precision", "fp8"}},
       .findings = {"fp8-adapters-torchao"}});
}

TEST(Axolotl, Precision) {
  const std::string text = kBase.substr(0, kBase.find("bf16:"));
  expect_import({.name = "fp16",
                 .tool = "Axolotl",
                 .text = text + "bf16: false\nfp16: true\n",
                 .settings = {{"mixed_precision", "bf16"}},
                 .warned = {"fp16"},
                 .findings = {"fp16"}});
  expect_import({.name = "fp32",
                 .tool = "Axolotl",
                 .text = text + "bf16: false\nfp16: false\n",
                 .settings = {{"mixed_precision", "fp32"}},
                 .warned = {"bf16"}});
  expect_import({.name = "pure bf16",
                 .tool = "Axolotl",
                 .text = text + "bfloat16: true\n",
                 .settings = {{"mixed_precision", "bf16"}, {"master_weights", "stochastic"}}});
}

TEST(Axolotl, Sharding) {
  const auto mode = [](const char* settings, const char* expected) {
    expect_import({.name = settings,
                   .tool = "Axolotl",
                   .text = kBase + settings,
                   .settings = {{"sharding_mode", expected}}});
  };
  mode("fsdp: [full_shard, auto_wrap]\n", "fsdp_full");
  mode("fsdp_config:\n  fsdp_version: 2\n  state_dict_type: FULL_STATE_DICT\n", "fsdp_full");
  mode("fsdp_config:\n  reshard_after_forward: false\n", "zero2");
  mode("fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n", "zero2");
  mode("dp_shard_size: 4\n", "fsdp_full");
  mode("dp_shard_size: 4\ndp_replicate_size: 2\n", "hsdp");
  mode("fsdp:\nfsdp_config:\ndeepspeed:\n", "-");
  for (const char* key : {"tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree"}) {
    expect_import({.name = key, .tool = "Axolotl", .text = kBase + key + ": 2\n", .refused = {key}});
    expect_import({.name = key, .tool = "Axolotl", .text = kBase + key + ": 1\n"});
  }
}

TEST(Axolotl, OtherWaysOfTraining) {
  for (const char* line : {"rl: dpo", "reward_model: true", "relora: true", "neftune_noise_alpha: 5",
                           "unfrozen_parameters: [lm_head]", "gptq: true",
                           "chat_template_jinja: '{{ messages }}'", "lisa_n_layers: 4", "use_pose: true"}) {
    const std::string key = std::string(line).substr(0, std::string(line).find(':'));
    expect_import({.name = line, .tool = "Axolotl", .text = kBase + line + "\n", .refused = {key}});
  }
  expect_import({.name = "grpo",
                 .tool = "Axolotl",
                 .text = kBase + "rl: grpo\ntrl:\n  beta: 0.001\n  use_vllm: true\n",
                 .refused = {"rl", "trl.beta"}});
  expect_import(
      {.name = "plugin",
       .tool = "Axolotl",
       .text =
           kBase + "plugins:\n  - axolotl.integrations.spectrum.SpectrumPlugin\nspectrum_top_fraction: 0.5\n",
       .refused = {"plugins", "spectrum_top_fraction"}});
  expect_import({.name = "own plugin",
                 .tool = "Axolotl",
                 .text = kBase + "plugins:\n  - mine.Plugin\n",
                 .refused = {"plugins"}});
  expect_import({.name = "muon",
                 .tool = "Axolotl",
                 .text = with_datasets("  - path: a.jsonl\n    type: alpaca\n") + "optimizer: muon\n",
                 .refused = {"optimizer"}});
}

TEST(Axolotl, ModelsThatOctetHasNot) {
  for (const char* model :
       {"mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen2.5-VL-7B-Instruct"}) {
    expect_import({.name = model,
                   .tool = "Axolotl",
                   .text = std::string("base_model: ") + model +
                           "\nmicro_batch_size: 1\nsequence_len: 512\nlearning_rate: 1e-5\n"
                           "datasets:\n  - path: a.jsonl\n    type: chat_template\n",
                   .refused = {"base_model"}});
  }
  expect_import({.name = "vision",
                 .tool = "Axolotl",
                 .text = kBase + "processor_type: AutoProcessor\n",
                 .refused = {"processor_type"}});
  expect_import({.name = "classifier",
                 .tool = "Axolotl",
                 .text = kBase + "model_type: AutoModelForSequenceClassification\nnum_labels: 1\n",
                 .refused = {"model_type", "num_labels"}});
}

TEST(Axolotl, WrongNamesAreFound) {
  expect_import({.name = "names",
                 .tool = "Axolotl",
                 .text = kBase + "adam_eps: 1e-6\neta_min: 1e-6\n",
                 .settings = {{"adam_epsilon", "-"}},
                 .warned = {"adam_eps", "eta_min"},
                 .findings = {"axolotl-unknown-key"}});
}

TEST(Axolotl, SmallThings) {
  expect_import(
      {.name = "small",
       .tool = "Axolotl",
       .text = kBase +
               "warmup_steps: 0.1\nsave_total_limit: 1\nseed: 7\nmax_grad_norm: 0.5\nadam_beta2: 0.95\n"
               "cosine_min_lr_ratio: 0.1\ncurriculum_sampling: true\ngpu_memory_limit: 20GiB\n"
               "hub_model_id: me/model\nearly_stopping_patience: 3\ndefault_system_message: Be brief.\n",
       .settings = {{"warmup_ratio", "0.1"},
                    {"save_total_limit", "2"},
                    {"seed", "7"},
                    {"max_grad_norm", "0.5"},
                    {"adam_beta2", "0.95"},
                    {"min_lr_ratio", "0.1"},
                    {"data_order", "sequential"},
                    {"device_memory_limit_gb", "20"},
                    {"default_system", "Be brief."}},
       .warned = {"hub_model_id", "early_stopping_patience"}});
}

}  // namespace
}  // namespace octet
