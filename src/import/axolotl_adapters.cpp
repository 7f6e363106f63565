// Axolotl's adapters and quantised bases.

#include <fmt/format.h>

#include "base/text.h"
#include "import/axolotl.h"
#include "import/rules.h"

namespace octet {
namespace {

bool is_qlora(const SettingsTree& tree) {
  return plain_word(tree.text("adapter")) == "qlora";
}

bool is_fp8_config(const SettingsTree& tree) {
  return plain_word(tree.text("model_quantization_config")).starts_with("finegrainedfp8");
}

// For every key of LoRA: without an adapter it has no effect, there and here.
bool is_lora_idle(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else if (!axolotl_trains_adapters(importer.tree())) {
    importer.ignore(leaf, "adapter is empty: all weights are trained");
  } else if (importer.tree().is_on("lora_model_dir") && !leaf.name.starts_with("lora_model_dir")) {
    importer.derive(leaf, "comes from the adapter in lora_model_dir");
  } else {
    return false;
  }
  return true;
}

void lora_rule(Importer& importer, const TreeLeaf& leaf) {
  if (is_lora_idle(importer, leaf)) return;
  importer.map(leaf, Importer::row_of(importer.tool(), leaf.name)->octet_key, leaf.text);
}

void adapter_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (leaf.is_off()) {
    importer.map(leaf, "finetuning_type", "full");
  } else if (word == "lora") {
    importer.map(leaf, "finetuning_type", "lora");
  } else if (word == "qlora") {
    importer.map(leaf, "finetuning_type", "lora", "octet has no 4-bit weights: the frozen ones are FP8");
  } else {
    importer.refuse(leaf, fmt::format("octet has adapters of the type lora, not '{}'", printable(leaf.text)));
  }
}

void small_base_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
  } else if (axolotl_trains_adapters(importer.tree())) {
    importer.warn(
        leaf,
        "octet has no 4-bit or 8-bit integer weights; the frozen weights are FP8, 1 byte each (2 with their "
        "transposes, see fp8_weight_copies)");
  } else {
    importer.warn(leaf, "has no meaning without an adapter; all weights are trained in BF16");
  }
}

void quantization_config_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
  } else if (is_fp8_config(importer.tree()) && axolotl_trains_adapters(importer.tree())) {
    importer.map(leaf, "fp8_recipe", "block", "frozen weights in FP8 with a scale per 128 x 128 values");
  } else {
    importer.refuse(leaf, "octet reads BF16, fp16 and fp32 weights; with adapters it makes FP8 itself");
  }
}

void targets_rule(Importer& importer, const TreeLeaf& leaf) {
  if (is_lora_idle(importer, leaf)) return;
  if (importer.tree().is_on("lora_target_linear")) {
    importer.derive(leaf, "lora_target_linear takes all matrices already");
  } else {
    lora_target_rule(importer, leaf);
  }
}

void all_targets_rule(Importer& importer, const TreeLeaf& leaf) {
  if (is_lora_idle(importer, leaf)) return;
  if (leaf.is_off()) {
    importer.ignore(leaf, "off: lora_target_modules decides");
  } else {
    importer.map(leaf, "lora_target", "all");
  }
}

void adapter_folder_rule(Importer& importer, const TreeLeaf& leaf) {
  if (!is_lora_idle(importer, leaf)) importer.map(leaf, "adapter_name_or_path", leaf.text);
}

void init_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.flag() == true) {
    importer.ignore(leaf, "octet initialises adapters like PEFT");
  } else {
    importer.refuse(leaf, "octet initialises adapters like PEFT's default: A uniform, B zero");
  }
}

constexpr ToolKey kKeys[] = {
    {"adapter", Fate::Mapped, "finetuning_type", "", adapter_rule},
    {"lora_r", Fate::Mapped, "lora_rank", "", lora_rule},
    {"lora_alpha", Fate::Mapped, "lora_alpha", "", lora_rule},
    {"lora_dropout", Fate::Mapped, "lora_dropout", "", lora_rule},
    {"peft_use_rslora", Fate::Mapped, "use_rslora", "", lora_rule},
    {"loraplus_lr_ratio", Fate::Mapped, "loraplus_lr_ratio", "", lora_rule},
    {"lora_target_modules", Fate::Mapped, "lora_target", "", targets_rule},
    {"lora_target_linear", Fate::Mapped, "lora_target", "", all_targets_rule},
    {"lora_model_dir", Fate::Mapped, "adapter_name_or_path", "", adapter_folder_rule},
    {"peft_layers_to_transform", Fate::Refused, "",
     "octet gives every layer adapters; use a regular expression in lora_target_modules"},
    {"peft_layers_pattern", Fate::Ignored, "", "part of peft_layers_to_transform"},
    {"peft_init_lora_weights", Fate::Refused, "", "", init_rule},
    {"load_in_4bit", Fate::Warned, "", "", small_base_rule},
    {"load_in_8bit", Fate::Warned, "", "", small_base_rule},
    {"model_quantization_config", Fate::Mapped, "fp8_recipe", "", quantization_config_rule},
    {"model_quantization_config_kwargs.**", Fate::Ignored, "", "part of model_quantization_config"},
};

}  // namespace

std::span<const ToolKey> axolotl_adapter_keys() {
  return kKeys;
}

bool axolotl_trains_adapters(const SettingsTree& tree) {
  return tree.is_on("adapter");
}

bool axolotl_wants_small_base(const SettingsTree& tree) {
  return axolotl_trains_adapters(tree) &&
         (is_qlora(tree) || tree.is_on("load_in_4bit") || tree.is_on("load_in_8bit") || is_fp8_config(tree));
}

void finish_axolotl_adapters(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  if (!axolotl_trains_adapters(tree) || importer.is_set("adapter_name_or_path")) return;
  if (!importer.is_set("lora_target"))
    importer.set({.key = "lora_target",
                  .values = {"q_proj", "v_proj"},
                  .is_list = true,
                  .block = {},
                  .comment = "default of PEFT",
                  .place = {}});
}

}  // namespace octet
