// TrainingArguments of Transformers and SFTConfig of TRL, as JSON or YAML.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "config/config.h"
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

void peft_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.map(leaf, "finetuning_type", "full");
  } else {
    importer.map(leaf, "finetuning_type", "lora");
  }
}

void assistant_only_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else if (leaf.is_off()) {
    if (!importer.is_set("train_on")) importer.set("train_on", "all", leaf.name, leaf.place);
    importer.derive(leaf, "the loss is taken on all tokens");
  } else {
    importer.map(leaf, "train_on", "completion");
  }
}

void completion_only_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else {
    importer.map(leaf, "train_on", leaf.is_off() ? "all" : "completion");
  }
}

void shuffle_rule(Importer& importer, const TreeLeaf& leaf) {
  importer.ignore(leaf, "octet shuffles unless data_order is sequential");
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
    importer.find({.name = "fp8-on-fp32",
                   .where = leaf.describe(),
                   .there = "with fp32 weights, everything outside FP8 is computed in fp32",
                   .here = "uses BF16 outside the FP8 matrix products"});
  }
}

void loss_type_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (leaf.is_null() || word.find("nll") != word.npos) {
    importer.ignore(leaf, "cross entropy, as in octet");
  } else {
    importer.refuse(leaf, "octet trains with cross entropy (and penalty_type)");
  }
}

void task_type_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || plain_word(leaf.text) == "causal_lm") {
    importer.ignore(leaf, "a language model, as octet trains");
  } else {
    importer.refuse(leaf, "octet trains language models only");
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

constexpr const char* kPreference = "for DPO, GRPO or other preference training, which octet does not have";
constexpr const char* kPreparation = "octet prepares data in its own way";

constexpr ToolKey kTrlKeys[] = {
    {"model_name_or_path", Fate::Mapped, "model_name_or_path", "", model_rule},
    {"model_revision", Fate::Refused, "", "", revision_rule},
    {"max_length", Fate::Mapped, "max_seq_length"},
    {"max_seq_length", Fate::Mapped, "max_seq_length"},
    {"packing", Fate::Mapped, "packing", "", packing_rule},
    {"packing_strategy", Fate::Derived, "", "used with packing"},
    {"dataset_text_field", Fate::Mapped, "text_column", "",
     [](Importer& importer, const TreeLeaf& leaf) {
       if (leaf.is_null() || leaf.text == "text") {
         importer.ignore(leaf, "the usual name; octet looks at the columns");
       } else {
         importer.map(leaf, "text_column", leaf.text);
       }
     }},
    {"completion_only_loss", Fate::Mapped, "train_on", "", completion_only_rule, true},
    {"assistant_only_loss", Fate::Mapped, "train_on", "", assistant_only_rule, true},
    {"use_peft", Fate::Mapped, "finetuning_type", "", peft_rule, true},
    {"lora_r", Fate::Mapped, "lora_rank"},
    {"lora_alpha", Fate::Mapped, "lora_alpha"},
    {"lora_dropout", Fate::Mapped, "lora_dropout"},
    {"lora_target_modules", Fate::Mapped, "lora_target", "", lora_target_rule},
    {"lora_modules_to_save", Fate::Refused, "", "octet trains adapters on the matrices of the layers only"},
    {"lora_task_type", Fate::Derived, "", "", task_type_rule},
    {"lora_target_parameters", Fate::Refused, "", "octet has adapters for modules only"},
    {"use_rslora", Fate::Mapped, "use_rslora", "", nullptr, true},
    {"use_dora", Fate::Refused, "", "octet has no DoRA; use plain LoRA, rsLoRA (use_rslora) or LoRA+",
     nullptr, true},
    {"load_in_4bit", Fate::Warned, "", "", quantized_base_rule, true},
    {"load_in_8bit", Fate::Warned, "", "", quantized_base_rule, true},
    {"bnb_4bit_quant_type", Fate::Ignored, "", "only for 4-bit weights"},
    {"bnb_4bit_compute_dtype", Fate::Ignored, "", "only for 4-bit weights"},
    {"bnb_4bit_use_double_quant", Fate::Ignored, "", "only for 4-bit weights", nullptr, true},
    {"bnb_4bit_quant_storage", Fate::Ignored, "", "only for 4-bit weights"},
    {"use_bnb_nested_quant", Fate::Ignored, "", "only for 4-bit weights", nullptr, true},
    {"attn_implementation", Fate::Ignored, "",
     "octet has its own attention; the result is the same function"},
    {"use_flash_attention_2", Fate::Ignored, "", "octet has its own attention", nullptr, true},
    {"dtype", Fate::Ignored, "", "", dtype_rule},
    {"torch_dtype", Fate::Ignored, "", "", dtype_rule},
    {"chat_template", Fate::Mapped, "chat_template", "", template_rule},
    {"chat_template_path", Fate::Warned, "", "octet takes the template of the tokenizer, or chat_template"},
    {"system_prompt", Fate::Mapped, "default_system"},
    {"eos_token", Fate::Warned, "", "octet takes the end token of the chat template"},
    {"pad_token", Fate::Ignored, "", "octet masks padding, whatever the token"},
    {"loss_type", Fate::Derived, "", "", loss_type_rule},
    {"shuffle_dataset", Fate::Ignored, "", "", shuffle_rule, true},
    {"activation_offloading", Fate::Warned, "", "octet keeps or recomputes activations on the GPU", nullptr,
     true},
    {"eval_packing", Fate::Ignored, "", kPreparation},
    {"padding_free", Fate::Ignored, "", kPreparation, nullptr, true},
    {"pad_to_multiple_of", Fate::Ignored, "", kPreparation},
    {"dataset_num_proc", Fate::Ignored, "", kPreparation},
    {"dataset_kwargs", Fate::Ignored, "", kPreparation},
    {"dataset_kwargs.**", Fate::Ignored, "", kPreparation},
    {"dataset_batch_size", Fate::Ignored, "", kPreparation},
    {"num_of_sequences", Fate::Ignored, "", kPreparation},
    {"chars_per_token", Fate::Ignored, "", kPreparation},
    {"truncation_mode", Fate::Ignored, "", kPreparation},
    {"preprocessing_num_workers", Fate::Ignored, "", kPreparation},
    {"dataset_streaming", Fate::Ignored, "", kPreparation, nullptr, true},
    {"ignore_bias_buffers", Fate::Ignored, "", "a setting of PyTorch", nullptr, true},
    {"router_aux_loss_coef", Fate::Ignored, "", "for experts"},
    {"model_init_kwargs", Fate::Ignored, "", "how the model is loaded there"},
    {"model_init_kwargs.**", Fate::Ignored, "", "how the model is loaded there"},
    {"trust_remote_code", Fate::Ignored, "", "octet runs no code of a model", nullptr, true},
    {"hub_model_revision", Fate::Ignored, "", "nothing is uploaded"},
    {"callbacks", Fate::Ignored, "", "code of that program"},
    {"benchmarks", Fate::Ignored, "", "code of that program"},
    {"wandb_entity", Fate::Mapped, "wandb_entity"},
    {"wandb_project", Fate::Mapped, "wandb_project"},
    {"gradient_checkpointing_use_reentrant", Fate::Ignored, "", "how PyTorch recomputes", nullptr, true},
    {"max_prompt_length", Fate::Refused, "", kPreference},
    {"beta", Fate::Refused, "", kPreference},
    {"max_completion_length", Fate::Refused, "", kPreference},
    {"num_generations", Fate::Refused, "", kPreference},
    {"reward_funcs", Fate::Refused, "", kPreference},
    {"reward_weights", Fate::Refused, "", kPreference},
    {"dataset_prompt_column", Fate::Refused, "", kPreference},
    {"use_vllm", Fate::Refused, "", kPreference, nullptr, true},
    {"log_completions", Fate::Ignored, "", kPreference},
    {"scale_rewards", Fate::Ignored, "", kPreference},
};

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
  constexpr std::string_view kCertain[] = {"per_device_eval_batch_size",
                                           "dataloader_drop_last",
                                           "ddp_find_unused_parameters",
                                           "fp16_opt_level",
                                           "half_precision_backend",
                                           "remove_unused_columns",
                                           "dataset_train_split",
                                           "dataset_mixer",
                                           "label_names",
                                           "push_to_hub"};
  constexpr std::string_view kTypical[] = {"output_dir",
                                           "per_device_train_batch_size",
                                           "num_train_epochs",
                                           "eval_strategy",
                                           "evaluation_strategy",
                                           "save_strategy",
                                           "logging_strategy",
                                           "do_train",
                                           "do_eval",
                                           "fp16",
                                           "bf16",
                                           "optim",
                                           "report_to",
                                           "adam_epsilon",
                                           "lr_scheduler_type",
                                           "dataset_name",
                                           "use_peft",
                                           "torch_dtype",
                                           "seed",
                                           "overwrite_output_dir",
                                           "logging_steps",
                                           "deepspeed",
                                           "fsdp",
                                           "save_total_limit"};
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
  constexpr std::string_view kMore[] = {"model_name_or_path", "learning_rate"};
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
  static const std::vector<ToolKey> keys = joined_keys({kTrlKeys, trl_data_keys(), hf_training_keys()});
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
