// TrainingArguments of Transformers and SFTConfig of TRL, as JSON or YAML.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "config/config.h"
#include "import/key_table.h"
#include "import/rules.h"
#include "import/tools.h"
#include "import/trl_data.h"

namespace octet {
namespace {

bool is_trl(const SettingsTree& tree) {
  constexpr std::string_view kNames[] = {
      "dataset_text_field",   "packing",       "max_seq_length",  "max_length",
      "model_name_or_path",   "dataset_name",  "use_peft",        "dataset_train_split",
      "assistant_only_loss",  "dataset_mixer", "dataset_mixture", "eval_packing",
      "completion_only_loss", "torch_dtype",   "lora_r"};
  return std::ranges::any_of(kNames, [&](std::string_view name) { return tree.has(name); });
}

void packing_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.map(leaf, "packing", "none");
    return;
  }
  const std::string strategy = plain_word(importer.tree().text("packing_strategy"));
  importer.map(
      leaf, "packing", strategy == "wrapped" ? "stream" : "best_fit",
      strategy == "wrapped" ? "documents are cut where a sequence ends" : "documents do not see each other");
}

void assistant_only_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_null(leaf)) return;
  if (leaf.is_off()) {
    if (!importer.is_set("train_on")) importer.set("train_on", "all", leaf.name, leaf.place);
    importer.derive(leaf, "the loss is taken on all tokens");
  } else {
    importer.map(leaf, "train_on", "completion");
  }
}

void dtype_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (word == "float16" || word == "fp16" || word == "half") {
    importer.warn(leaf, "octet does not train in fp16; weights are fp32, stored as BF16 and a remainder");
  } else {
    importer.ignore(leaf, "octet's weights are fp32, stored as BF16 and a remainder (master_weights)");
  }
  const bool wants_fp8 = importer.tree().is_on("fp8") || importer.value("mixed_precision") == "fp8";
  if (wants_fp8 && (word == "float32" || word == "fp32")) {
    importer.find("fp8-on-fp32", leaf, "with fp32 weights, everything outside FP8 is computed in fp32",
                  "uses BF16 outside the FP8 matrix products");
  }
}

void template_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the template of the tokenizer");
  } else if (leaf.text.find("<|im_start|>") != leaf.text.npos) {
    importer.map(leaf, "chat_template", "chatml", "a template text with <|im_start|>");
    if (leaf.text.find("You are Qwen") == leaf.text.npos) set_no_system(importer, leaf);
  } else if (leaf.text.find("<|start_header_id|>") != leaf.text.npos) {
    importer.map(leaf, "chat_template", "llama3", "a template text with <|start_header_id|>");
  } else {
    importer.refuse(leaf, "octet has its own templates; set chat_template, or leave it to the tokenizer");
  }
}

constexpr KeyRules kRules[] = {
    {"model_name_or_path", model_rule},
    {"packing", packing_rule},
    {"assistant_only_loss!", assistant_only_rule},
    {"lora_target_modules", lora_target_rule},
    {"load_in_4bit! load_in_8bit!", quantized_base_rule},
    {"dtype torch_dtype", dtype_rule},
    {"chat_template", template_rule},
    {"dataset_mixture.test_split_size test_split_size", held_out_rule},
};

constexpr std::string_view kKeys = R"(
max_length=max_seq_length max_seq_length lora_r=lora_rank lora_alpha lora_dropout use_rslora!
  system_prompt=default_system wandb_entity wandb_project dataset_name=dataset dataset_config=dataset_subset
  dataset_train_split=dataset_split dataset_split dataset_mixture.datasets.*.id=dataset datasets.*.path=dataset
  : mapped
packing_strategy : derived, used with packing
dataset_test_split dataset_splits dataset_configs dataset_mixture.datasets.*.config dataset_mixture.datasets.*.split
  datasets.*.name datasets.*.split : derived, used with the dataset
bnb_4bit_quant_type bnb_4bit_compute_dtype bnb_4bit_use_double_quant! bnb_4bit_quant_storage use_bnb_nested_quant!
  : ignored, only with 4-bit weights, which octet does not have
attn_implementation use_flash_attention_2! : ignored, octet has its own kernels
pad_token : ignored, octet masks padding, whatever the token
eval_packing padding_free! pad_to_multiple_of dataset_num_proc dataset_kwargs dataset_kwargs.** dataset_batch_size
  num_of_sequences chars_per_token truncation_mode preprocessing_num_workers dataset_streaming!
  : ignored, octet prepares, packs and loads data in its own way
ignore_bias_buffers! callbacks benchmarks : ignored, no setting
router_aux_loss_coef log_completions scale_rewards
  : ignored, only with a method or an optimizer that octet does not have
model_init_kwargs model_init_kwargs.** trust_remote_code!
  : ignored, octet takes the model and its tokenizer as their files say, and runs no code of them
hub_model_revision : ignored, nothing is uploaded
gradient_checkpointing_use_reentrant! : ignored, octet chooses itself what to recompute
dataset_mixture.seed : ignored, octet has one seed for everything, the key seed
dataset_mixture.datasets.*.columns datasets.*.columns : ignored, octet looks at the columns
chat_template_path : warned, octet takes the template of the tokenizer, or chat_template
eos_token : warned, octet takes the end token of the chat template
activation_offloading! : warned, octet keeps or recomputes activations on the GPU
lora_modules_to_save : refused, octet trains adapters on the matrices of the layers only
lora_target_parameters : refused, octet has adapters for modules only
use_dora! : refused, octet has no DoRA; use plain LoRA, rsLoRA (use_rslora) or LoRA+
max_prompt_length beta max_completion_length num_generations reward_funcs reward_weights dataset_prompt_column
  use_vllm! : refused, for DPO, GRPO or other preference training, which octet does not have
datasets.*.data_files : refused, name the files themselves as datasets
dataset_text_field : text ignored, the usual name; octet looks at the columns | -> text_column
completion_only_loss! : null ignored, null: the default | off -> train_on all | -> train_on completion
use_peft! : off -> finetuning_type full | -> finetuning_type lora
lora_task_type : causal_lm ignored, a language model, as octet trains | refused, octet trains language models only
loss_type : nll chunked_nll ignored, cross entropy, as in octet
  | refused, octet trains with cross entropy (and penalty_type)
shuffle_dataset! : ignored, octet shuffles unless data_order is sequential
model_revision : off main ignored, main: the newest
  | refused, octet takes the main revision; download this one and name its folder
)";

constexpr ToolDefault kDefaults[] = {
    {"num_train_epochs", "3", "max_steps"},
    {"learning_rate", "5e-5"},
    {"lr_scheduler_type", "linear"},
    {"min_lr_ratio", "0", "min_lr"},
    {"warmup_steps", "0", "warmup_ratio"},
    {"weight_decay", "0"},
    {"adam_beta2", "0.999"},
    {"logging_steps", "500"},
    {"save_total_limit", "0"},
    {"eval_strategy", "no"},
};

bool is_known(const TreeLeaf& leaf) {
  return Importer::row_of(hf_trainer_tool(), leaf.name) != nullptr;
}

int points_of(const SettingsTree& tree) {
  constexpr std::string_view kCertain =
      "per_device_eval_batch_size dataloader_drop_last ddp_find_unused_parameters fp16_opt_level "
      "half_precision_backend remove_unused_columns dataset_train_split dataset_mixer label_names "
      "push_to_hub";
  constexpr std::string_view kTypical =
      "output_dir per_device_train_batch_size num_train_epochs eval_strategy evaluation_strategy "
      "save_strategy logging_strategy do_train do_eval fp16 bf16 optim report_to adam_epsilon "
      "lr_scheduler_type dataset_name use_peft torch_dtype seed overwrite_output_dir logging_steps "
      "deepspeed fsdp save_total_limit";
  // What only octet has makes it a file of octet with keys of Transformers.
  constexpr std::string_view kOwn[] = {
      "mixed_precision", "dataset", "model_preset", "eval_split", "fp8_recipe", "target_effective_batch_size",
      "max_batch_size",  "use_fp8", "template",     "stage"};
  for (const std::string_view name : kOwn) {
    if (tree.has(name)) return 0;
  }
  if (!tree.has("output_dir") && !tree.has("dataset_mixer")) return 0;
  const int points = count_keys(tree, kCertain, 20) + count_keys(tree, kTypical, 8);
  if (!std::ranges::all_of(tree.leaves, is_known)) return points;
  // A short file of which every key is spelled as there.
  constexpr std::string_view kMore = "model_name_or_path learning_rate";
  return points + count_keys(tree, kTypical, 4) + count_keys(tree, kMore, 12);
}

// octet's own keys have the names of Transformers, so these alone are no sign.
int score(const SettingsTree& tree) {
  const bool has_foreign_key = std::ranges::any_of(tree.leaves, [](const TreeLeaf& leaf) {
    return is_known(leaf) && !key_called(train_keys().keys(), leaf.name);
  });
  if (!has_foreign_key) return 0;
  const int points = points_of(tree);
  const bool is_short = points > 0 && tree.has("output_dir") && tree.has("model_name_or_path") &&
                        std::ranges::all_of(tree.leaves, is_known);
  return is_short ? std::max(points, kLikelyScore) : points;
}

void finish(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  // What differs between the two programs: TRL's SFTConfig has its own defaults.
  const auto fallback = [&](std::string_view key, const char* value) {
    if (!importer.is_set(key)) importer.set(key, value, "default of TRL");
  };
  finish_trl_data(importer);
  if (is_trl(tree)) {
    fallback("max_seq_length", "1024");
    if (!importer.is_set("learning_rate")) fallback("learning_rate", "2e-5");
    fallback("logging_steps", "10");
    if (tree.has("packing") || tree.has("model_name_or_path")) fallback("packing", "none");
    if (importer.value("finetuning_type") == "lora") {
      fallback("lora_rank", "16");
      fallback("lora_alpha", "32");
      fallback("lora_dropout", "0.05");
      fallback("lora_target", "q_proj,v_proj");
    }
    if (!importer.is_set("train_on")) {
      importer.set("train_on", "all", "default of TRL");
      importer.find(
          {.name = "trl-loss-on-all",
           .where = "assistant_only_loss",
           .there = "it is not set, so TRL takes the loss of conversations on all tokens, prompts included",
           .here =
               "does the same; set train_on completion for the answers alone, as TRL does with the columns prompt "
               "and completion"});
    }
  }
  if (importer.value("eval_strategy") == "steps" && !importer.is_set("eval_steps"))
    importer.set("eval_steps", importer.is_set("logging_steps") ? importer.value("logging_steps") : "500",
                 "default of Transformers: logging_steps");
  if (!importer.is_set("mixed_precision")) {
    importer.set("mixed_precision", is_trl(tree) ? "bf16" : "fp32",
                 is_trl(tree) ? "default of TRL" : "default of Transformers: neither bf16 nor fp16 is set");
    if (!is_trl(tree)) {
      importer.find({.name = "no-precision",
                     .where = "bf16",
                     .there = "it is not set, so Transformers trains in fp32",
                     .here = "does the same, as asked; mixed_precision bf16 or fp8 is several times faster"});
    }
  }
}

}  // namespace

const Tool& hf_trainer_tool() {
  static const std::vector<ToolKey> keys =
      joined_keys({trl_data_keys(), key_table(kRules, kKeys), hf_training_keys()});
  static const Tool tool{.name = "Hugging Face TrainingArguments",
                         .word = "hf",
                         .keys = keys,
                         .defaults = kDefaults,
                         .score = score,
                         .finish = finish};
  return tool;
}

bool could_be_hf_trainers(const SettingsTree& tree) {
  return std::ranges::all_of(tree.leaves, is_known) && points_of(tree) >= kLikelyScore;
}

}  // namespace octet
