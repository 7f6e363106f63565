// The nested files of LLaMA-Factory's version 1.

#include <fmt/format.h>

#include "import/key_table.h"
#include "import/llamafactory_rules.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

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
    importer.find("no-dataset-info", leaf, "the file lists the datasets, and it is not here",
                  "needs that file next to this one, or paths or hub ids as dataset");
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

constexpr KeyRules kRules[] = {
    {"model", model_rule},
    {"peft_config.target_modules", lora_target_rule},
    {"dist_config.config_file", deepspeed_file_rule},
    {"dist_config.cp_size cp_size", parallel_size_rule},
    {"quant_config.**", quantized_base_rule},
    {"train_dataset", train_dataset_rule},
    {"output_dir", output_dir_rule},
    {"max_steps", max_steps_rule},
    {"bf16", v1_bf16_rule},
    {"logging_steps save_steps", interval_rule},
    {"enable_activation_checkpointing", recompute_rule},
    {"template", template_rule},
    {"lr_scheduler_config.name", schedule_rule},
    {"optim_config.name", optimizer_rule},
};

constexpr std::string_view kKeys = R"(
peft_config.r=lora_rank peft_config.lora_alpha=lora_alpha peft_config.lora_dropout=lora_dropout
  peft_config.use_rslora=use_rslora peft_config.adapter_name_or_path=adapter_name_or_path eval_dataset
  micro_batch_size=per_device_train_batch_size global_batch_size=target_effective_batch_size cutoff_len=max_seq_length
  learning_rate num_train_epochs max_grad_norm weight_decay seed : mapped
trust_remote_code init_config.**
  : ignored, octet takes the model and its tokenizer as their files say, and runs no code of them
peft_config dist_config : ignored, no setting
kernel_config kernel_config.** : ignored, octet has its own kernels
dist_config.** : ignored, octet shards layer by layer, by sharding_mode
batching_strategy batching_workers : ignored, octet prepares, packs and loads data in its own way
sample_backend max_new_tokens : ignored, for inference; see 'octet generate'
peft_config.** : warned, not a setting of octet's adapters
lr_scheduler_config.** : warned, set warmup_ratio and min_lr_ratio of octet
optim_config.** : warned, set adam_beta1, adam_beta2 and weight_decay of octet
peft_config.use_dora : refused, octet has no DoRA
peft_config.modules_to_save : refused, octet trains adapters on the matrices of the layers only
dist_config.dcp_path : refused, octet reads safetensors and its own checkpoints
peft_config.name : lora -> finetuning_type | refused, octet has full and lora
dist_config.name : fsdp2 fsdp -> sharding_mode fsdp_full | deepspeed derived, config_file says how
  | off ddp -> sharding_mode none | refused, octet has fsdp and the stages of ZeRO (sharding_mode)
model_class : llm derived, a language model, as octet trains | refused, octet trains text models (llm) only
)";

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
  constexpr std::string_view kCertain = "model_class kernel_config dist_config peft_config";
  return tree.has("model") ? count_keys(tree, kCertain, 40) : 0;
}

}  // namespace

const Tool& llamafactory_v1_tool() {
  static const std::vector<ToolKey> keys = key_table(kRules, kKeys);
  static const Tool tool{.name = "LLaMA-Factory v1",
                         .word = "llamafactory_v1",
                         .keys = keys,
                         .defaults = kDefaults,
                         .score = score,
                         .finish = nullptr};
  return tool;
}

}  // namespace octet
