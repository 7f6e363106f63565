// torchtune's YAML files. torchtune_data.cpp has the datasets.

#include "import/torchtune.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "import/fsdp_rules.h"
#include "import/rules.h"
#include "import/tools.h"
#include "import/torch_rules.h"

namespace octet {
namespace {

struct ModelFamily {
  std::string_view module;   // of torchtune.models
  std::string_view refusal;  // "": octet has it
};
constexpr ModelFamily kFamilies[] = {
    {"llama2", ""},
    {"code_llama2", ""},
    {"llama3", ""},
    {"llama3_1", ""},
    {"llama3_2", ""},
    {"llama3_3", ""},
    {"mistral", ""},
    {"qwen2", ""},
    {"qwen2_5", ""},
    {"qwen3", ""},
    {"smol", ""},
    {"llama3_2_vision", "Llama 3.2 Vision, a vision model; octet trains text models only"},
    {"llama4", "Llama 4, a mixture of experts; octet trains dense models"},
    {"gemma", "octet has no Gemma"},
    {"gemma2", "octet has no Gemma"},
    {"phi3", "octet has no Phi"},
    {"phi4", "octet has no Phi"},
    {"clip", "octet trains text models only"},
    {"flux", "octet trains text models only"},
    {"t5", "octet has no T5"},
};

bool is_lora(const SettingsTree& tree) {
  const std::string name = component_name(tree.text("model._component_"));
  return name.starts_with("lora_") || name.starts_with("qlora_") || tree.has("model.lora_rank") ||
         tree.has("model.lora_attn_modules");
}

bool is_qlora(const SettingsTree& tree) {
  return component_name(tree.text("model._component_")).starts_with("qlora_") ||
         tree.is_on("model.quantize_base");
}

void model_component_rule(Importer& importer, const TreeLeaf& leaf) {
  constexpr std::string_view kModels = "torchtune.models.";
  const std::string name = component_name(leaf.text);
  if (!leaf.text.starts_with(kModels)) {
    importer.refuse(leaf,
                    "a model in Python of your own; octet has GPT-2, Llama, Qwen2.5, Qwen3 and Mistral");
    return;
  }
  std::string module = leaf.text.substr(kModels.size());
  module = module.substr(0, module.find('.'));
  const auto family = std::ranges::find(kFamilies, module, &ModelFamily::module);
  if (family == std::end(kFamilies)) {
    importer.refuse(leaf, fmt::format("octet has no '{}'; it has GPT-2, Llama, Qwen2.5, Qwen3 and Mistral",
                                      printable(module)));
  } else if (!family->refusal.empty()) {
    importer.refuse(leaf, std::string(family->refusal));
  } else if (name.find("classifier") != name.npos || name.find("reward") != name.npos) {
    importer.refuse(leaf, "a classifier or reward model; octet trains language models");
  } else if (name.find("moe") != name.npos || name.find("_a3b") != name.npos) {
    importer.refuse(leaf, "a mixture of experts; octet trains dense models");
  } else if (!is_lora(importer.tree())) {
    importer.map(leaf, "finetuning_type", "full", "the sizes come from config.json of the model's folder");
  } else if (is_qlora(importer.tree())) {
    importer.warn(
        leaf,
        "octet has no 4-bit weights; the frozen weights are FP8, 1 byte each (2 with their transposes, see "
        "fp8_weight_copies)");
    importer.set("finetuning_type", "lora", leaf.name, leaf.place);
  } else {
    importer.map(leaf, "finetuning_type", "lora", "the sizes come from config.json of the model's folder");
  }
}

void folder_rule(Importer& importer, const TreeLeaf& leaf) {
  std::string folder = leaf.text;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  if (leaf.is_off()) {
    importer.ignore(leaf, "null: no model is named");
  } else {
    importer.map(leaf, "model_name_or_path", folder);
  }
}

void checkpointer_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = component_name(leaf.text);
  if (name.find("Meta") != name.npos || name.find("TorchTune") != name.npos) {
    importer.refuse(
        leaf,
        "octet reads Hugging Face folders with safetensors, not .pth and .pt files; download the model in "
        "that form");
  } else {
    importer.ignore(leaf, "octet reads Hugging Face folders");
  }
}

void weight_files_rule(Importer& importer, const TreeLeaf& leaf) {
  const bool has_pickles = std::ranges::any_of(leaf.items, [](const std::string& file) {
    return file.ends_with(".bin") || file.ends_with(".pth") || file.ends_with(".pt");
  });
  if (has_pickles) {
    importer.warn(leaf,
                  "octet reads the .safetensors files of the folder; it does not read .bin, .pth and .pt");
  } else {
    importer.ignore(leaf, "octet finds the files of the folder itself");
  }
}

// A tokenizer in the model's folder is found there.
void tokenizer_path_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "null: the tokenizer of the model");
    return;
  }
  namespace fs = std::filesystem;
  const std::string path = leaf.text, folder = importer.tree().text("checkpointer.checkpoint_dir");
  if (!folder.empty() && path.starts_with(folder)) {
    importer.ignore(leaf, "octet takes the tokenizer from the model's folder");
  } else if (path.ends_with("vocab.json")) {
    importer.map(leaf, "tokenizer", fs::path(path).parent_path().string());
  } else {
    importer.map(leaf, "tokenizer", path);
  }
}

void prompt_template_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = component_name(leaf.text);
  if (leaf.is_off()) {
    importer.ignore(leaf, "null: that of the tokenizer");
  } else if (name == "ChatMLTemplate") {
    importer.map(leaf, "chat_template", "chatml");
    set_no_system(importer, leaf);
  } else {
    importer.refuse(leaf,
                    "octet has the templates llama3, llama3.1, chatml, alpaca and plain; see chat_template");
  }
}

void length_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() && importer.tree().is_on("dataset.max_seq_len")) {
    importer.ignore(leaf, "null: dataset.max_seq_len decides");
  } else if (leaf.is_null()) {
    importer.map(
        leaf, "max_seq_length", "2048",
        "null: no limit there; octet cuts longer examples into pieces, so raise it if there are any");
  } else {
    importer.map(leaf, "max_seq_length", leaf.text);
  }
}

void scheduler_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = component_name(leaf.text);
  if (name == "get_cosine_schedule_with_warmup") {
    importer.map(leaf, "lr_scheduler_type", "cosine");
    importer.set("min_lr_ratio", "0", "falls to 0 there", leaf.place);
  } else if (leaf.is_null()) {
    importer.ignore(leaf, "null: a constant rate");
  } else {
    importer.refuse(leaf,
                    fmt::format("octet has cosine, linear, constant and wsd, not '{}'", printable(name)));
  }
}

void loss_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = component_name(leaf.text);
  if (name.find("CrossEntropy") != name.npos || name.find("CEWithChunked") != name.npos) {
    importer.ignore(leaf, "cross entropy, as in octet");
  } else {
    importer.refuse(leaf, fmt::format("octet trains with cross entropy, not '{}'", printable(name)));
  }
}

void clipping_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.map(leaf, "max_grad_norm", "0", "null: no clipping there");
  } else {
    importer.map(leaf, "max_grad_norm", leaf.text);
  }
}

void dtype_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  const bool wants_fp8 = importer.tree().is_on("enable_fp8_training") || is_qlora(importer.tree());
  if (word == "bf16" && wants_fp8) {
    importer.derive(leaf, "everything outside the FP8 matrix products is BF16 in octet anyway");
  } else if (word == "bf16" || word == "fp32") {
    importer.map(leaf, "mixed_precision", word);
  } else if (word == "fp16") {
    fp16_rule(importer, leaf);
  } else {
    importer.refuse(leaf, "expected bf16 or fp32");
  }
}

void fp8_recipe_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else if (plain_word(leaf.text) == "tensorwise") {
    importer.map(leaf, "fp8_recipe", "current");
  } else {
    importer.map(leaf, "fp8_recipe", "current",
                 "octet has no scales per row; it has one per tensor (current), or per block (block)");
  }
}

void device_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (word == "cpu") {
    importer.map(leaf, "device", "cpu");
  } else if (word.starts_with("cuda") || leaf.is_null()) {
    importer.derive(leaf, "octet takes a GPU if there is one");
  } else {
    importer.refuse(leaf, "octet runs on NVIDIA GPUs and on CPUs");
  }
}

void seed_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: a random seed there, always 42 here");
  } else {
    importer.map(leaf, "seed", leaf.text);
  }
}

void shuffle_rule(Importer& importer, const TreeLeaf& leaf) {
  importer.map(leaf, "data_order", leaf.is_off() ? "sequential" : "shuffled");
}

void logger_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = component_name(leaf.text);
  if (name == "WandBLogger") {
    wandb_value_rule(importer, leaf, "");
  } else if (name == "TensorBoardLogger") {
    importer.map(leaf, "use_tensorboard", "true");
  } else if (name == "DiskLogger" || name == "StdoutLogger" || leaf.is_null()) {
    importer.ignore(leaf, "octet always writes the console and metrics.jsonl");
  } else {
    importer.warn(leaf, "nothing is sent there; metrics are in metrics.jsonl and TensorBoard files");
  }
}

void project_rule(Importer& importer, const TreeLeaf& leaf) {
  if (component_name(importer.tree().text("metric_logger._component_")) == "WandBLogger" && !leaf.is_off()) {
    wandb_value_rule(importer, leaf, leaf.name.ends_with("project") ? "wandb_project" : "wandb_run_name");
  } else {
    importer.ignore(leaf, "part of metric_logger");
  }
}

void validation_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
  } else {
    importer.map(leaf, "eval_steps", leaf.text);
  }
}

constexpr ToolKey kKeys[] = {
    {"model._component_", Fate::Mapped, "finetuning_type", "", model_component_rule},
    {"model.lora_attn_modules", Fate::Derived, "lora_target", "becomes lora_target"},
    {"model.apply_lora_to_mlp", Fate::Derived, "lora_target", "becomes lora_target"},
    {"model.apply_lora_to_output", Fate::Warned, "",
     "octet has adapters for the matrices of the layers, not for the head"},
    {"model.lora_rank", Fate::Mapped, "lora_rank"},
    {"model.lora_alpha", Fate::Mapped, "lora_alpha"},
    {"model.lora_dropout", Fate::Mapped, "lora_dropout"},
    {"model.use_dora", Fate::Refused, "", "octet has LoRA, not DoRA"},
    {"model.quantize_base", Fate::Warned, "", "octet has no 4-bit weights; the frozen weights are FP8"},
    {"tokenizer._component_", Fate::Ignored, "", "octet takes the tokenizer from the model's folder"},
    {"tokenizer.path", Fate::Mapped, "tokenizer", "", tokenizer_path_rule},
    {"tokenizer.prompt_template", Fate::Mapped, "chat_template", "", prompt_template_rule},
    {"tokenizer.prompt_template.**", Fate::Refused, "",
     "octet has no prompts of your own; see chat_template"},
    {"tokenizer.max_seq_len", Fate::Mapped, "max_seq_length", "", length_rule},
    {"checkpointer._component_", Fate::Ignored, "", "", checkpointer_rule},
    {"checkpointer.checkpoint_dir", Fate::Mapped, "model_name_or_path", "", folder_rule},
    {"checkpointer.checkpoint_files", Fate::Ignored, "", "", weight_files_rule},
    {"checkpointer.keep_last_n_checkpoints", Fate::Mapped, "save_total_limit", "", save_limit_rule},
    {"resume_from_checkpoint", Fate::Refused, "",
     "checkpoints of other programs cannot be resumed; start from their weights"},
    {"batch_size", Fate::Mapped, "per_device_train_batch_size"},
    {"gradient_accumulation_steps", Fate::Mapped, "gradient_accumulation_steps"},
    {"epochs", Fate::Mapped, "num_train_epochs"},
    {"max_steps_per_epoch", Fate::Derived, "max_steps", "times epochs is max_steps"},
    {"seed", Fate::Mapped, "seed", "", seed_rule},
    {"shuffle", Fate::Mapped, "data_order", "", shuffle_rule},
    {"optimizer._component_", Fate::Mapped, "optimizer_state", "", optimizer_rule},
    {"optimizer.lr", Fate::Mapped, "learning_rate", "", learning_rate_rule},
    {"optimizer.weight_decay", Fate::Mapped, "weight_decay"},
    {"optimizer.betas", Fate::Mapped, "adam_beta1", "", betas_rule},
    {"optimizer.eps", Fate::Mapped, "adam_epsilon"},
    {"lr_scheduler._component_", Fate::Mapped, "lr_scheduler_type", "", scheduler_rule},
    {"lr_scheduler.num_warmup_steps", Fate::Mapped, "warmup_steps"},
    {"lr_scheduler.num_cycles", Fate::Ignored, "", "", cycles_rule},
    {"loss._component_", Fate::Ignored, "", "", loss_rule},
    {"clip_grad_norm", Fate::Mapped, "max_grad_norm", "", clipping_rule},
    {"device", Fate::Mapped, "device", "", device_rule},
    {"dtype", Fate::Mapped, "mixed_precision", "", dtype_rule},
    {"enable_activation_checkpointing", Fate::Mapped, "gradient_checkpointing", "", recompute_rule},
    {"enable_fp8_training", Fate::Mapped, "mixed_precision", "", fp8_rule},
    {"fp8_recipe_name", Fate::Mapped, "fp8_recipe", "", fp8_recipe_rule},
    {"metric_logger._component_", Fate::Ignored, "", "", logger_rule},
    {"metric_logger.project", Fate::Mapped, "wandb_project", "", project_rule},
    {"metric_logger.name", Fate::Mapped, "wandb_run_name", "", project_rule},
    {"log_every_n_steps", Fate::Mapped, "logging_steps"},
    {"output_dir", Fate::Mapped, "output_dir", "", output_dir_rule},
    {"save_every_n_steps", Fate::Mapped, "save_steps"},
    {"run_val_every_n_steps", Fate::Mapped, "eval_steps", "", validation_rule},
    {"fsdp_cpu_offload", Fate::Warned, "", "", offload_rule},
    {"fsdp_reshard_after_forward", Fate::Derived, "sharding_mode", "gives sharding_mode"},
    {"data_parallel_shard_dim", Fate::Derived, "sharding_mode", "gives sharding_mode"},
    {"data_parallel_replicate_dim", Fate::Derived, "sharding_mode", "gives sharding_mode"},
    {"tensor_parallel_dim", Fate::Refused, "", "", parallel_size_rule},
    {"context_parallel_dim", Fate::Refused, "", "", parallel_size_rule},
    {"cudnn_deterministic_mode", Fate::Mapped, "deterministic"},
};

constexpr ToolDefault kDefaults[] = {
    {"max_seq_length", "2048"}, {"lr_scheduler_type", "constant"}, {"warmup_steps", "0"},
    {"weight_decay", "0.01"},   {"adam_beta2", "0.999"},           {"max_grad_norm", "0"},
    {"packing", "none"},        {"mixed_precision", "bf16"},       {"save_strategy", "epoch", "save_steps"},
    {"save_total_limit", "0"},
};

int score(const SettingsTree& tree) {
  const bool is_certain = std::ranges::any_of(tree.leaves, [](const TreeLeaf& leaf) {
    return leaf.name.ends_with("._component_") && leaf.text.starts_with("torchtune.");
  });
  constexpr std::string_view kParts[] = {"model._component_", "checkpointer._component_",
                                         "tokenizer._component_", "dataset._component_"};
  return is_certain ? 100 : count_keys(tree, kParts, 30);
}

void finish_adapters(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  if (!is_lora(tree)) return;
  std::vector<std::string> targets;
  if (const TreeLeaf* modules = tree.find("model.lora_attn_modules"); modules && !modules->is_null()) {
    for (const std::string& name : modules->list())
      targets.push_back(name == "output_proj" ? "o_proj" : name);
  }
  if (tree.is_on("model.apply_lora_to_mlp")) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) targets.emplace_back(name);
  }
  if (targets.empty()) targets = {"all"};
  importer.set({.key = "lora_target",
                .values = targets,
                .is_list = true,
                .block = {},
                .comment = "lora_attn_modules and apply_lora_to_mlp",
                .place = {}});
  for (const auto& [key, value] : {std::pair{"lora_rank", "8"}, {"lora_alpha", "16"}}) {
    if (!importer.is_set(key)) importer.set(key, value, "default of torchtune");
  }
}

void finish_precision(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  if (is_qlora(tree)) importer.set("mixed_precision", "fp8", "frozen weights in 4 bits there");
  const TreeLeaf* fp8 = tree.find("enable_fp8_training");
  if (!fp8 || fp8->is_off()) return;
  importer.set("mixed_precision", "fp8", fp8->name, fp8->place);
  if (!importer.is_set("fp8_recipe"))
    importer.set("fp8_recipe", "current", "torchao scales each tensor by its own maximum");
  if (is_lora(tree)) {
    importer.find(
        {.name = "fp8-unused-by-lora-recipe",
         .where = fp8->describe(),
         .there = "only full_finetune_distributed reads it; the LoRA recipes run in BF16 without a word",
         .here = "runs the frozen weights in FP8"});
  }
}

void finish_length(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const TreeLeaf* per_epoch = tree.find("max_steps_per_epoch");
  const auto steps = per_epoch ? per_epoch->number() : std::nullopt;
  if (!steps || *steps < 1) {
    if (per_epoch) importer.ignore(*per_epoch, "null: whole epochs");
    return;
  }
  const double epochs = std::max(1.0, tree.number("epochs").value_or(1));
  importer.unset("num_train_epochs");
  importer.map(*per_epoch, "max_steps", fmt::format("{}", whole_number(*steps * epochs)),
               "max_steps_per_epoch x epochs, if an epoch has that many");
}

void finish_ranks(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const TreeLeaf* shard = tree.find("data_parallel_shard_dim");
  const TreeLeaf* replicate = tree.find("data_parallel_replicate_dim");
  if (const TreeLeaf* from = shard && !shard->is_off() ? shard : replicate; from && !from->is_off())
    set_mesh_sharding(importer, tree.number("data_parallel_replicate_dim").value_or(0),
                      tree.number("data_parallel_shard_dim").value_or(0), *from);
  if (const TreeLeaf* reshard = tree.find("fsdp_reshard_after_forward"); reshard && reshard->flag() == false)
    importer.map(*reshard, "sharding_mode", "zero2", "weights stay whole after forward");
}

// The tokenizers of torchtune write chat markers themselves.
void finish_template(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const TreeLeaf* tokenizer = tree.find("tokenizer._component_");
  if (!tokenizer || importer.is_set("chat_template")) return;
  const std::string name = component_name(tokenizer->text);
  if (name.starts_with("qwen")) {
    importer.set("chat_template", "chatml", name);
    set_no_system(importer, *tokenizer);
  } else if (name.starts_with("llama3_tokenizer") || name.starts_with("llama3_")) {
    importer.set("chat_template", "llama3", name);
  } else if (name.starts_with("llama2") || name.starts_with("mistral")) {
    importer.set("chat_template", name.starts_with("llama2") ? "llama2" : "mistral", name);
  }
}

void finish(Importer& importer) {
  finish_adapters(importer);
  finish_precision(importer);
  finish_length(importer);
  finish_ranks(importer);
  finish_torchtune_data(importer);
  finish_template(importer);
}

}  // namespace

std::string component_name(std::string_view component) {
  return std::string(component.substr(component.rfind('.') + 1));
}

const Tool& torchtune_tool() {
  static const std::vector<ToolKey> keys = [] {
    std::vector<ToolKey> rows(std::begin(kKeys), std::end(kKeys));
    rows.insert(rows.end(), torchtune_data_keys().begin(), torchtune_data_keys().end());
    return joined_keys(rows, torchtune_groups());
  }();
  static const Tool tool{.name = "torchtune",
                         .word = "torchtune",
                         .keys = keys,
                         .defaults = kDefaults,
                         .score = score,
                         .finish = finish};
  return tool;
}

}  // namespace octet
