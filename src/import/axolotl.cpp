// Axolotl's YAML files: the model, adapters, precision, schedule and ranks. axolotl_data.cpp has the data.

#include "import/axolotl.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "import/fsdp_rules.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

bool wants_fp8(const SettingsTree& tree) {
  return tree.is_on("fp8") || axolotl_wants_small_base(tree);
}

void model_class_rule(Importer& importer, const TreeLeaf& leaf) {
  constexpr std::string_view kOwn[] = {"AutoModelForCausalLM", "LlamaForCausalLM", "MistralForCausalLM",
                                       "Qwen2ForCausalLM",     "Qwen3ForCausalLM", "GPT2LMHeadModel"};
  if (leaf.is_off() || std::ranges::find(kOwn, leaf.text) != std::end(kOwn)) {
    importer.ignore(leaf, "octet reads the family from config.json");
  } else if (leaf.text.find("Classification") != leaf.text.npos) {
    importer.refuse(leaf, "a classifier; octet trains language models");
  } else if (leaf.text.find("Conditional") != leaf.text.npos || leaf.text.find("Image") != leaf.text.npos ||
             leaf.text.find("Vision") != leaf.text.npos) {
    importer.refuse(leaf, "a model of images or audio; octet trains text models only");
  } else {
    importer.refuse(leaf, "octet has GPT-2, Llama, Qwen2.5, Qwen3 and Mistral");
  }
}

void tokenizer_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off() || leaf.text == importer.tree().text("base_model")) {
    importer.ignore(leaf, "the tokenizer of the model");
  } else {
    importer.map(leaf, "tokenizer", leaf.text);
  }
}

void memory_limit_rule(Importer& importer, const TreeLeaf& leaf) {
  std::string number = leaf.text;
  for (const char* unit : {"GiB", "GB", "gib", "gb"}) {
    if (number.ends_with(unit)) number.resize(number.size() - std::string_view(unit).size());
  }
  if (!leaf.is_off() && parse_double(number)) {
    importer.map(leaf, "device_memory_limit_gb", number);
  } else {
    importer.ignore(leaf, "octet uses the memory that the device has");
  }
}

void precision_rule(Importer& importer, const TreeLeaf& leaf) {
  const SettingsTree& tree = importer.tree();
  if (leaf.is_off()) {
    importer.derive(leaf, "the precision comes from other settings");
  } else if (wants_fp8(tree)) {
    importer.derive(leaf, "everything outside the FP8 matrix products is BF16 in octet anyway");
  } else if (leaf.name == "float32") {
    importer.map(leaf, "mixed_precision", "fp32");
  } else {
    importer.map(leaf, "mixed_precision", "bf16");
    if (leaf.name == "bfloat16")
      importer.set(
          "master_weights", "stochastic",
          "bfloat16: weights are BF16 only. More accurate: compact, with half a byte more per weight",
          leaf.place);
  }
}

void checkpointing_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (word.starts_with("offload") || word == "unsloth" || word == "legacy") {
    importer.map(leaf, "gradient_checkpointing", "auto",
                 "octet recomputes as much as the memory needs; it moves no activations to the CPU");
  } else {
    recompute_rule(importer, leaf);
  }
}

void per_epoch_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto times = leaf.number();
  const bool saves = leaf.name == "saves_per_epoch";
  if (leaf.is_off() || !times || *times <= 0) {
    importer.ignore(leaf, "off");
  } else if (!saves && !importer.tree().is_on("val_set_size") && !importer.tree().has("test_datasets.0")) {
    importer.ignore(leaf, "there is no evaluation data");
  } else if (*times < 1) {
    importer.warn(leaf,
                  fmt::format("octet counts at least once per epoch, or in steps: {} 1 is used", leaf.name));
    importer.set(leaf.name, "1", leaf.name, leaf.place);
  } else {
    importer.map(leaf, leaf.name, fmt::format("{}", whole_number(*times)));
  }
}

void wandb_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  const std::string_view key = leaf.name == "use_wandb"    ? ""
                               : leaf.name == "wandb_name" ? "wandb_run_name"
                                                           : std::string_view(leaf.name);
  wandb_value_rule(importer, leaf, key);
}

void wrong_name_rule(Importer& importer, const TreeLeaf& leaf) {
  const bool is_epsilon = leaf.name == "adam_eps";
  importer.warn(
      leaf, fmt::format("Axolotl has no such key and drops it; {}",
                        is_epsilon ? "it means adam_epsilon" : "cosine_min_lr_ratio sets the final rate"));
  importer.find("axolotl-unknown-key", leaf, "a key that Axolotl does not know is dropped without a word",
                fmt::format("does not use it either; set {}", is_epsilon ? "adam_epsilon" : "min_lr_ratio"));
}

void plugin_rule(Importer& importer, const TreeLeaf& leaf) {
  struct Plugin {
    std::string_view part, reason;
    Fate fate;
  };
  constexpr Plugin kPlugins[] = {
      {"liger", "octet has its own fused kernels", Fate::Ignored},
      {"cut_cross_entropy", "octet has its own fused kernels", Fate::Ignored},
      {"kernels", "octet has its own kernels", Fate::Ignored},
      {"lm_eval", "run lm-eval on the folder that 'octet export' writes", Fate::Warned},
      {"swanlab", "octet sends nothing there; metrics are in metrics.jsonl and TensorBoard files",
       Fate::Warned},
      {"llm_compressor", "keeps pruned weights at zero; octet has no sparse training", Fate::Refused},
      {"diffusion", "a diffusion language model; octet trains next-token prediction", Fate::Refused},
      {"spectrum", "Spectrum trains a selection of weights; octet trains all weights or adapters",
       Fate::Refused},
      {"grokfast", "Grokfast changes the gradients", Fate::Refused},
      {"expert_parallel", "octet has no mixture of experts", Fate::Refused},
      {".kd", "octet has no distillation", Fate::Refused},
  };
  Fate worst = Fate::Ignored;
  std::string reason = leaf.is_off() ? "off" : "octet has its own fused kernels";
  for (const std::string& name : leaf.is_off() ? std::vector<std::string>() : leaf.list()) {
    const auto known =
        std::ranges::find_if(kPlugins, [&](const Plugin& p) { return name.find(p.part) != name.npos; });
    const Fate fate = known == std::end(kPlugins) ? Fate::Refused : known->fate;
    if (fate <= worst) continue;
    worst = fate;
    reason = known == std::end(kPlugins)
                 ? fmt::format("{} runs Python code of its own; octet runs none", printable(name))
                 : std::string(known->reason);
  }
  if (worst == Fate::Refused) {
    importer.refuse(leaf, reason);
  } else if (worst == Fate::Warned) {
    importer.warn(leaf, reason);
  } else {
    importer.ignore(leaf, reason);
  }
}

constexpr KeyRules kRules[] = {
    {"base_model", model_rule},
    {"tokenizer_config", tokenizer_rule},
    {"model_type type_of_model", model_class_rule},
    {"gpu_memory_limit", memory_limit_rule},
    {"max_steps", max_steps_rule},
    {"optimizer", optimizer_rule},
    {"lr_scheduler", schedule_rule},
    {"eta_min adam_eps", wrong_name_rule},
    {"warmup_steps", warmup_steps_rule},
    {"bf16 bfloat16 float32", precision_rule},
    {"fp16 float16", fp16_rule},
    {"gradient_checkpointing", checkpointing_rule},
    {"output_dir", output_dir_rule},
    {"logging_steps eval_steps save_steps", interval_rule},
    {"evals_per_epoch saves_per_epoch", per_epoch_rule},
    {"use_wandb wandb_project wandb_entity wandb_name wandb_mode", wandb_rule},
    {"deepspeed", deepspeed_file_rule},
    {"deepspeed.**", deepspeed_section_rule},
    {"fsdp", fsdp_rule},
    {"fsdp_config.**", fsdp_config_rule},
    {"context_parallel_size tensor_parallel_size expert_parallel_size sequence_parallel_degree "
     "context_parapllel_size",
     parallel_size_rule},
    {"plugins", plugin_rule},
    {"val_set_size", held_out_rule},
};

constexpr ToolDefault kDefaults[] = {
    {"max_seq_length", "512"},
    {"per_device_train_batch_size", "1"},
    {"num_train_epochs", "1", "max_steps"},
    {"lr_scheduler_type", "cosine"},
    {"min_lr_ratio", "0", "min_lr"},
    {"warmup_ratio", "0.03", "warmup_steps"},
    {"weight_decay", "0"},
    {"adam_beta2", "0.999"},
    {"mixed_precision", "bf16"},
    {"packing", "none"},
    {"save_total_limit", "4"},
    {"save_strategy", "epoch", "save_steps saves_per_epoch"},
};

int score(const SettingsTree& tree) {
  constexpr std::string_view kCertain = "base_model micro_batch_size sequence_len";
  constexpr std::string_view kLikely =
      "datasets.0.type val_set_size saves_per_epoch evals_per_epoch lora_r num_epochs sample_packing "
      "plugins adapter datasets.0.path pretraining_dataset.0.path";
  return count_keys(tree, kCertain, 30) + count_keys(tree, kLikely, 10);
}

void finish_batch(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const TreeLeaf* total = tree.find("batch_size");
  if (!total || total->is_off() || importer.is_set("gradient_accumulation_steps")) return;
  const auto rows = total->number();
  const double micro = std::max(1.0, tree.number("micro_batch_size").value_or(1));
  if (rows && *rows >= micro) {
    importer.map(*total, "gradient_accumulation_steps", fmt::format("{}", whole_number(*rows / micro)),
                 "batch_size / micro_batch_size");
  }
}

// As in Transformers, steps win.
void finish_length(Importer& importer) {
  if (!importer.is_set("max_steps")) return;
  importer.unset("num_train_epochs");
  if (const TreeLeaf* epochs = importer.tree().find("num_epochs"))
    importer.derive(*epochs, "not used: max_steps sets the length of the run");
}

// Without a setting Axolotl warms up over 3 % of the steps, and at most 100.
void finish_warmup(Importer& importer) {
  if (importer.is_set("warmup_steps") || importer.is_set("warmup_ratio")) return;
  if (const auto steps = parse_double(importer.value("max_steps"))) {
    importer.set("warmup_steps", fmt::format("{}", std::min<int64_t>(100, whole_number(*steps * 0.03))),
                 "default of Axolotl");
    return;
  }
  importer.find(
      {.name = "axolotl-warmup-limit",
       .where = "warmup_steps",
       .there = "it is not set, so the warm-up takes 3 % of the steps, and at most 100 steps",
       .here = "warms up over 3 % of the steps; in a run of more than 3333 steps set warmup_steps 100",
       .is_note = true});
}

void finish_precision(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  if (tree.is_on("fp8")) {
    if (!importer.is_set("fp8_recipe"))
      importer.set("fp8_recipe", "current", "torchao scales each tensor by its own maximum");
  } else if (axolotl_wants_small_base(tree)) {
    importer.set("mixed_precision", "fp8", "frozen weights in 4 or 8 bits there");
  }
  const TreeLeaf* bf16 = tree.find("bf16");
  if (bf16 && !bf16->is_null() && bf16->is_off() && !importer.is_set("mixed_precision")) {
    importer.set("mixed_precision", "fp32", "bf16 is off", bf16->place);
    importer.warn(
        *bf16,
        "without bf16 and fp16 everything is fp32, which is several times slower; mixed_precision bf16 "
        "or fp8 is better");
  }
}

void finish_ranks(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const TreeLeaf* shard = tree.find("dp_shard_size");
  const TreeLeaf* replicate = tree.find("dp_replicate_size");
  if (const TreeLeaf* from = shard && !shard->is_off() ? shard : replicate; from && !from->is_off())
    set_mesh_sharding(importer, tree.number("dp_replicate_size").value_or(0),
                      tree.number("dp_shard_size").value_or(0), *from);
  const bool has_fsdp = std::ranges::any_of(tree.leaves, [](const TreeLeaf& leaf) {
    return leaf.name.starts_with("fsdp_config.") && !leaf.is_null();
  });
  if (has_fsdp) set_default_fsdp_sharding(importer, "fsdp_config: everything is sharded by default");
}

void find_mistakes(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const auto is_given = [&](std::string_view name) { return tree.is_on(name); };
  if (tree.is_on("val_set_size") &&
      std::ranges::none_of(
          std::array{"eval_steps", "evals_per_epoch", "eval_strategy", "evaluation_strategy"}, is_given)) {
    importer.find(
        {.name = "axolotl-never-evaluates",
         .where = tree.find("val_set_size")->describe(),
         .there = "without eval_steps, evals_per_epoch and eval_strategy the held-out data is never used",
         .here = "evaluates on it every 100 steps and at the end; set eval_split 0 to train on all data",
         .is_note = true});
  }
  if (!tree.is_on("fp8")) return;
  const TreeLeaf& fp8 = *tree.find("fp8");
  find_torchao_fsdp_mistakes(importer, tree.find("fp8_enable_fsdp_float8_all_gather"),
                             fsdp_setting(tree, "cpu_ram_efficient_loading"), fsdp_version_of(tree));
  if (axolotl_trains_adapters(tree)) {
    importer.find("fp8-adapters-torchao", fp8,
                  "adapters of rank 8 are too narrow for FP8 products, and the frozen weights stay in BF16 "
                  "memory",
                  "keeps frozen weights as FP8 codes; adapters run in BF16 with any rank");
  }
}

void finish(Importer& importer) {
  finish_batch(importer);
  finish_length(importer);
  finish_warmup(importer);
  finish_axolotl_adapters(importer);
  finish_precision(importer);
  finish_ranks(importer);
  finish_axolotl_data(importer);
  find_mistakes(importer);
}

}  // namespace

const Tool& axolotl_tool() {
  static const std::vector<ToolKey> keys =
      joined_keys({key_table(kRules, axolotl_keys()), key_table(axolotl_adapter_rules(), ""),
                   key_table(axolotl_data_rules(), "")});
  static const Tool tool{.name = "Axolotl",
                         .word = "axolotl",
                         .keys = keys,
                         .defaults = kDefaults,
                         .score = score,
                         .finish = finish};
  return tool;
}

}  // namespace octet
