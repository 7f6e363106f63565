// Configurations in the style of torchtune's recipes.

#include "import/tools.h"
#include "import_case.h"

namespace octet {
namespace {

std::string recipe(const std::string& model, const std::string& dataset, const std::string& more = "") {
  return "output_dir: /tmp/torchtune/run\n"
         "model:\n  _component_: torchtune.models." +
         model +
         "\n"
         "tokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n"
         "  path: /tmp/Llama-3.1-8B/original/tokenizer.model\n  max_seq_len: 4096\n"
         "checkpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n"
         "  checkpoint_dir: /tmp/Llama-3.1-8B/\n  checkpoint_files: [model.safetensors]\n  recipe_checkpoint: null\n"
         "  output_dir: ${output_dir}\n  model_type: LLAMA3\nresume_from_checkpoint: False\n"
         "dataset:\n" +
         dataset +
         "seed: null\nshuffle: True\nbatch_size: 2\nepochs: 3\n"
         "optimizer:\n  _component_: torch.optim.AdamW\n  fused: True\n  lr: 2e-5\n"
         "loss:\n  _component_: torchtune.modules.loss.LinearCrossEntropyLoss\n"
         "max_steps_per_epoch: null\ngradient_accumulation_steps: 8\nclip_grad_norm: null\n"
         "device: cuda\ndtype: bf16\nenable_activation_checkpointing: True\n"
         "metric_logger:\n  _component_: torchtune.training.metric_logging.DiskLogger\n  log_dir: ${output_dir}/logs\n"
         "log_every_n_steps: 1\nlog_peak_memory_stats: True\n"
         "profiler:\n  _component_: torchtune.training.setup_torch_profiler\n  enabled: False\n" +
         more;
}

const std::string kAlpaca = "  _component_: torchtune.datasets.alpaca_cleaned_dataset\n  packed: False\n";

TEST(Torchtune, LengthOfTheDataset) {
  const std::string dataset =
      "  _component_: torchtune.datasets.text_completion_dataset\n  source: org/d\n  max_seq_len: 8192\n";
  std::string text = recipe("llama3_1.llama3_1_8b", dataset);
  expect_import(
      {.name = "both", .tool = "torchtune", .text = text, .settings = {{"max_seq_length", "4096"}}});
  const size_t at = text.find("  max_seq_len: 4096\n");
  text.replace(at, 20, "  max_seq_len: null\n");
  expect_import(
      {.name = "null", .tool = "torchtune", .text = text, .settings = {{"max_seq_length", "8192"}}});
  text.erase(at, 20);
  expect_import({.name = "one", .tool = "torchtune", .text = text, .settings = {{"max_seq_length", "8192"}}});
}

TEST(Torchtune, TheAlpacaTextIsADifference) {
  EXPECT_TRUE(
      test::has_finding(test::import_text(recipe("llama3_1.llama3_1_8b", kAlpaca)), "torchtune-alpaca-text"));
  EXPECT_TRUE(test::has_finding(
      test::import_text(recipe("llama3_1.llama3_1_8b",
                               "  - {_component_: torchtune.datasets.chat_dataset, source: org/c}\n"
                               "  - {_component_: torchtune.datasets.alpaca_dataset}\n")),
      "torchtune-alpaca-text"));
}

TEST(Torchtune, FullFineTuning) {
  expect_import({.name = "full",
                 .tool = "torchtune",
                 .text = recipe("llama3_1.llama3_1_8b", kAlpaca, "compile: False\noptimizer_in_bwd: False\n"),
                 .settings = {{"model_name_or_path", "/tmp/Llama-3.1-8B"},
                              {"tokenizer", "-"},
                              {"finetuning_type", "full"},
                              {"dataset", "yahma/alpaca-cleaned"},
                              {"dataset_format", "alpaca"},
                              {"dataset_split", "train"},
                              {"train_on", "all"},
                              {"chat_template", "llama3"},
                              {"packing", "none"},
                              {"max_seq_length", "4096"},
                              {"per_device_train_batch_size", "2"},
                              {"gradient_accumulation_steps", "8"},
                              {"num_train_epochs", "3"},
                              {"learning_rate", "2e-5"},
                              {"lr_scheduler_type", "constant"},
                              {"warmup_steps", "0"},
                              {"weight_decay", "0.01"},
                              {"adam_beta2", "0.999"},
                              {"max_grad_norm", "0"},
                              {"mixed_precision", "bf16"},
                              {"data_order", "shuffled"},
                              {"seed", "-"},
                              {"output_dir", "/tmp/torchtune"},
                              {"run_name", "run"},
                              {"eval_split", "0"},
                              {"save_strategy", "epoch"}}});
}

TEST(Torchtune, Lora) {
  expect_import(
      {.name = "lora",
       .tool = "torchtune",
       .text = recipe(
           "llama3_1.lora_llama3_1_8b\n  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']\n"
           "  apply_lora_to_mlp: True\n  apply_lora_to_output: False\n  lora_rank: 64\n  lora_alpha: 128\n"
           "  lora_dropout: 0.0",
           kAlpaca,
           "lr_scheduler:\n  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup\n"
           "  num_warmup_steps: 100\nsave_adapter_weights_only: True\n"),
       .settings = {{"finetuning_type", "lora"},
                    {"lora_rank", "64"},
                    {"lora_alpha", "128"},
                    {"lora_target", "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"},
                    {"lr_scheduler_type", "cosine"},
                    {"min_lr_ratio", "0"},
                    {"warmup_steps", "100"}}});
}

TEST(Torchtune, QloraHasAnFp8Base) {
  expect_import({.name = "qlora",
                 .tool = "torchtune",
                 .text = recipe("llama3_2.qlora_llama3_2_1b\n  lora_attn_modules: ['q_proj']", kAlpaca),
                 .settings = {{"finetuning_type", "lora"},
                              {"mixed_precision", "fp8"},
                              {"lora_rank", "8"},
                              {"lora_alpha", "16"},
                              {"lora_target", "q_proj"}},
                 .warned = {"model._component_"}});
}

TEST(Torchtune, Datasets) {
  const std::string model = "llama3_1.llama3_1_8b";
  expect_import(
      {.name = "instruct",
       .tool = "torchtune",
       .text = recipe(model,
                      "  _component_: torchtune.datasets.instruct_dataset\n  source: json\n"
                      "  data_files: data/my.json\n  split: train\n  column_map:\n    input: question\n"
                      "    output: answer\n  train_on_input: False\n  packed: True\n"),
       .settings = {{"dataset", "data/my.json"},
                    {"dataset_format", "prompt_completion"},
                    {"prompt_column", "question"},
                    {"completion_column", "answer"},
                    {"train_on", "completion"},
                    {"packing", "best_fit"}}});
  expect_import({.name = "chat",
                 .tool = "torchtune",
                 .text = recipe(model,
                                "  _component_: torchtune.datasets.chat_dataset\n  source: org/chats\n"
                                "  conversation_column: conversations\n  conversation_style: sharegpt\n"
                                "  new_system_prompt: Be brief.\n  split: train[:1000]\n"),
                 .settings = {{"dataset", "org/chats"},
                              {"messages_column", "conversations"},
                              {"max_samples", "1000"},
                              {"default_system", "Be brief."}}});
  expect_import(
      {.name = "text",
       .tool = "torchtune",
       .text = recipe(model,
                      "  _component_: torchtune.datasets.text_completion_dataset\n"
                      "  source: allenai/c4\n  subset: en\n  column: body\n"),
       .settings = {{"dataset_format", "text"}, {"text_column", "body"}, {"dataset_subset", "en"}}});
  expect_import({.name = "several",
                 .tool = "torchtune",
                 .text = recipe(model,
                                "  - _component_: torchtune.datasets.instruct_dataset\n    source: a/b\n"
                                "  - _component_: torchtune.datasets.samsum_dataset\n"),
                 .settings = {{"dataset", "a/b,Samsung/samsum"}}});
  expect_import({.name = "own",
                 .tool = "torchtune",
                 .text = recipe(model, "  _component_: data.mine\n"),
                 .refused = {"dataset._component_"}});
  expect_import({.name = "preferences",
                 .tool = "torchtune",
                 .text = recipe(model, "  _component_: torchtune.datasets.stack_exchange_paired_dataset\n"),
                 .refused = {"dataset._component_"}});
}

TEST(Torchtune, Validation) {
  const std::string split = "  split: train[:95%]\n";
  const std::string val =
      "dataset_val:\n  _component_: torchtune.datasets.alpaca_cleaned_dataset\n  split: train[95%:]\n"
      "batch_size_val: ${batch_size}\n";
  expect_import(
      {.name = "off",
       .tool = "torchtune",
       .text = recipe("qwen2_5.qwen2_5_7b_instruct", kAlpaca + split, val + "run_val_every_n_steps: null\n"),
       .settings = {{"eval_split", "0.05"}, {"eval_steps", "0"}}});
  expect_import(
      {.name = "on",
       .tool = "torchtune",
       .text = recipe("qwen2_5.qwen2_5_7b_instruct", kAlpaca + split, val + "run_val_every_n_steps: 50\n"),
       .settings = {{"eval_split", "0.05"}, {"eval_steps", "50"}, {"dataset", "yahma/alpaca-cleaned"}}});
  expect_import(
      {.name = "other data",
       .tool = "torchtune",
       .text = recipe("qwen2_5.qwen2_5_7b_instruct", kAlpaca,
                      "dataset_val:\n  _component_: torchtune.datasets.alpaca_dataset\n  split: train\n"
                      "run_val_every_n_steps: 50\n"),
       .settings = {{"dataset", "yahma/alpaca-cleaned"}, {"eval_dataset", "tatsu-lab/alpaca"}}});
}

TEST(Torchtune, Fp8AndItsMistakes) {
  expect_import({.name = "fp8",
                 .tool = "torchtune",
                 .text = recipe("llama3_1.llama3_1_8b", kAlpaca,
                                "compile: True\nenable_fp8_training: true\nfp8_recipe_name: tensorwise\n"),
                 .settings = {{"mixed_precision", "fp8"}, {"fp8_recipe", "current"}},
                 .findings = {"fp8-with-recompute"}});
  expect_import(
      {.name = "slow",
       .tool = "torchtune",
       .text = recipe("llama3_1.llama3_1_8b", kAlpaca, "compile: False\nenable_fp8_training: true\n"),
       .settings = {{"mixed_precision", "fp8"}},
       .findings = {"fp8-with-recompute", "torchao-without-compile"}});
  expect_import(
      {.name = "lora",
       .tool = "torchtune",
       .text = recipe("llama3_1.lora_llama3_1_8b", kAlpaca, "compile: True\nenable_fp8_training: true\n"),
       .settings = {{"mixed_precision", "fp8"}},
       .findings = {"fp8-unused-by-lora-recipe", "fp8-with-recompute"}});
}

TEST(Torchtune, RanksAndLength) {
  expect_import(
      {.name = "ranks",
       .tool = "torchtune",
       .text = recipe("llama3_3.llama3_3_70b", kAlpaca,
                      "data_parallel_shard_dim: 8\ndata_parallel_replicate_dim: 2\ntensor_parallel_dim: 1\n"
                      "fsdp_cpu_offload: True\n"),
       .settings = {{"sharding_mode", "hsdp"}},
       .warned = {"fsdp_cpu_offload"},
       .findings = {"cpu-offload"}});
  expect_import({.name = "tp",
                 .tool = "torchtune",
                 .text = recipe("llama3_3.llama3_3_70b", kAlpaca, "tensor_parallel_dim: 8\n"),
                 .refused = {"tensor_parallel_dim"}});
  std::string text = recipe("qwen3.qwen3_4b_instruct", kAlpaca);
  text.replace(text.find("max_steps_per_epoch: null"), 25, "max_steps_per_epoch: 100 ");
  expect_import({.name = "steps",
                 .tool = "torchtune",
                 .text = text,
                 .settings = {{"max_steps", "300"}, {"num_train_epochs", "-"}}});
}

TEST(Torchtune, WhatOctetHasNot) {
  expect_import({.name = "gemma",
                 .tool = "torchtune",
                 .text = recipe("gemma2.gemma2_9b", kAlpaca),
                 .refused = {"model._component_"}});
  expect_import({.name = "dora",
                 .tool = "torchtune",
                 .text = recipe("llama3.lora_llama3_8b\n  use_dora: True", kAlpaca),
                 .refused = {"model.use_dora"}});
  expect_import(
      {.name = "qat",
       .tool = "torchtune",
       .text = recipe(
           "llama3.llama3_8b", kAlpaca,
           "quantizer:\n  _component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer\n"
           "  groupsize: 256\n"),
       .refused = {"quantizer._component_"}});
  expect_import(
      {.name = "generation",
       .tool = "torchtune",
       .text =
           "model:\n  _component_: torchtune.models.llama2.llama2_7b\nmax_new_tokens: 300\ndevice: cuda\n",
       .refused = {"max_new_tokens"}});
}

}  // namespace
}  // namespace octet
