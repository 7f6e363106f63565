// The nested files of LLaMA-Factory's version 1.

#include <fmt/format.h>

#include "import/llamafactory_rules.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

void peft_name_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = plain_word(leaf.text);
  if (name == "lora") {
    importer.map(leaf, "finetuning_type", "lora");
  } else {
    importer.refuse(leaf, "octet has full and lora");
  }
}

void dist_name_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = plain_word(leaf.text);
  if (name == "fsdp2" || name == "fsdp") {
    importer.map(leaf, "sharding_mode", "fsdp_full");
  } else if (name == "deepspeed") {
    importer.derive(leaf, "config_file says how");
  } else if (name == "ddp" || leaf.is_off()) {
    importer.map(leaf, "sharding_mode", "none");
  } else {
    importer.refuse(leaf, "octet has fsdp and the stages of ZeRO (sharding_mode)");
  }
}

void model_class_rule(Importer& importer, const TreeLeaf& leaf) {
  if (plain_word(leaf.text) == "llm") {
    importer.derive(leaf, "a language model, as octet trains");
  } else {
    importer.refuse(leaf, "octet trains text models (llm) only");
  }
}

// A YAML file that describes several datasets; a plain name or path is passed on.
void train_dataset_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "null: no dataset is named");
    return;
  }
  const bool is_list = leaf.text.ends_with(".yaml") || leaf.text.ends_with(".yml");
  if (!is_list) {
    importer.map(leaf, "dataset", leaf.text);
    return;
  }
  const std::string file = named_file(importer, leaf.text);
  if (file.empty()) {
    importer.map(leaf, "dataset", leaf.text);
    importer.find({.name = "no-dataset-info",
                   .where = leaf.describe(),
                   .there = "the file lists the datasets, and it is not here",
                   .here = "needs that file next to this one, or paths or hub ids as dataset"});
    return;
  }
  const SettingsTree list = read_tree_file(file);
  std::vector<std::string> paths;
  for (const TreeLeaf& entry : list.leaves) {
    if (entry.name.ends_with(".path") || entry.name.ends_with(".hf_hub_url")) paths.push_back(entry.text);
  }
  if (paths.empty()) {
    importer.refuse(leaf, fmt::format("{} names no path of a dataset", file));
  } else if (paths.size() == 1) {
    importer.map(leaf, "dataset", paths.front());
  } else {
    importer.map_list(leaf, "dataset", paths);
  }
}

void v1_bf16_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.flag() == false && !importer.is_set("mixed_precision")) {
    importer.map(leaf, "mixed_precision", "fp32", "fp32 there; bf16 and fp8 are several times faster");
  } else {
    bf16_rule(importer, leaf);
  }
}

constexpr const char* kKernels = "not needed: octet has its own kernels";
constexpr const char* kSampling = "for generation; see 'octet generate'";

constexpr ToolKey kKeys[] = {
    {"model", Fate::Mapped, "model_name_or_path", "", model_rule},
    {"model_class", Fate::Derived, "", "", model_class_rule},
    {"trust_remote_code", Fate::Ignored, "", "octet runs no code of a model"},
    {"peft_config", Fate::Ignored, "", "nothing is set"},
    {"peft_config.name", Fate::Mapped, "finetuning_type", "", peft_name_rule},
    {"peft_config.r", Fate::Mapped, "lora_rank"},
    {"peft_config.lora_alpha", Fate::Mapped, "lora_alpha"},
    {"peft_config.lora_dropout", Fate::Mapped, "lora_dropout"},
    {"peft_config.target_modules", Fate::Mapped, "lora_target", "", lora_target_rule},
    {"peft_config.use_rslora", Fate::Mapped, "use_rslora"},
    {"peft_config.use_dora", Fate::Refused, "", "octet has no DoRA"},
    {"peft_config.modules_to_save", Fate::Refused, "",
     "octet trains adapters on the matrices of the layers only"},
    {"peft_config.adapter_name_or_path", Fate::Mapped, "adapter_name_or_path"},
    {"peft_config.**", Fate::Warned, "", "not a setting of octet's adapters"},
    {"kernel_config", Fate::Ignored, "", kKernels},
    {"kernel_config.**", Fate::Ignored, "", kKernels},
    {"dist_config", Fate::Ignored, "", "nothing is set"},
    {"dist_config.name", Fate::Mapped, "sharding_mode", "", dist_name_rule},
    {"dist_config.config_file", Fate::Derived, "", "", deepspeed_file_rule},
    {"dist_config.cp_size", Fate::Refused, "", "", parallel_size_rule},
    {"cp_size", Fate::Refused, "", "", parallel_size_rule},
    {"dist_config.dcp_path", Fate::Refused, "", "octet reads safetensors and its own checkpoints"},
    {"dist_config.**", Fate::Ignored, "", "how PyTorch wraps layers; octet shards by layers itself"},
    {"quant_config.**", Fate::Warned, "", "", quantized_base_rule},
    {"train_dataset", Fate::Mapped, "dataset", "", train_dataset_rule},
    {"eval_dataset", Fate::Mapped, "eval_dataset"},
    {"output_dir", Fate::Mapped, "output_dir", "", output_dir_rule},
    {"micro_batch_size", Fate::Mapped, "per_device_train_batch_size"},
    {"global_batch_size", Fate::Mapped, "target_effective_batch_size"},
    {"cutoff_len", Fate::Mapped, "max_seq_length"},
    {"learning_rate", Fate::Mapped, "learning_rate"},
    {"max_steps", Fate::Mapped, "max_steps", "", max_steps_rule},
    {"num_train_epochs", Fate::Mapped, "num_train_epochs"},
    {"max_grad_norm", Fate::Mapped, "max_grad_norm"},
    {"weight_decay", Fate::Mapped, "weight_decay"},
    {"bf16", Fate::Mapped, "mixed_precision", "", v1_bf16_rule},
    {"seed", Fate::Mapped, "seed"},
    {"logging_steps", Fate::Mapped, "logging_steps", "", interval_rule},
    {"save_steps", Fate::Mapped, "save_steps", "", interval_rule},
    {"enable_activation_checkpointing", Fate::Mapped, "gradient_checkpointing", "", recompute_rule},
    {"batching_strategy", Fate::Ignored, "", "packing decides here"},
    {"batching_workers", Fate::Ignored, "", "octet has its own data loader"},
    {"template", Fate::Mapped, "chat_template", "", template_rule},
    {"sample_backend", Fate::Ignored, "", kSampling},
    {"max_new_tokens", Fate::Ignored, "", kSampling},
    {"lr_scheduler_config.name", Fate::Mapped, "lr_scheduler_type", "", schedule_rule},
    {"lr_scheduler_config.**", Fate::Warned, "", "set warmup_ratio and min_lr_ratio of octet"},
    {"optim_config.name", Fate::Derived, "", "", optimizer_rule},
    {"optim_config.**", Fate::Warned, "", "set adam_beta1, adam_beta2 and weight_decay of octet"},
    {"init_config.**", Fate::Ignored, "", "how PyTorch makes the model"},
};

constexpr ToolDefault kDefaults[] = {
    {"mixed_precision", "bf16"},
    {"num_train_epochs", "3", "max_steps"},
    {"learning_rate", "1e-4"},
    {"max_seq_length", "2048"},
    {"per_device_train_batch_size", "1"},
    {"lr_scheduler_type", "constant"},
    {"warmup_steps", "0", "warmup_ratio"},
    {"weight_decay", "0.01"},
    {"adam_beta2", "0.999"},
    {"eval_strategy", "no"},
};

int score(const SettingsTree& tree) {
  constexpr std::string_view kCertain[] = {"model_class", "kernel_config", "dist_config", "peft_config"};
  return tree.has("model") ? count_keys(tree, kCertain, 40) : 0;
}

}  // namespace

const Tool& llamafactory_v1_tool() {
  static const Tool tool{.name = "LLaMA-Factory v1",
                         .word = "llamafactory_v1",
                         .keys = kKeys,
                         .defaults = kDefaults,
                         .score = score,
                         .finish = nullptr};
  return tool;
}

}  // namespace octet
