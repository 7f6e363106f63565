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
  if (importer.skips_null(leaf)) return true;
  if (!axolotl_trains_adapters(importer.tree())) {
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
  importer.map(leaf, Importer::row_of(importer.tool(), leaf.name)->target(), leaf.text);
}

void small_base_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  if (axolotl_trains_adapters(importer.tree())) {
    importer.warn(
        leaf,
        "octet has no 4-bit or 8-bit integer weights; the frozen weights are FP8, 1 byte each (2 with their "
        "transposes, see fp8_weight_copies)");
  } else {
    importer.warn(leaf, "has no meaning without an adapter; all weights are trained in BF16");
  }
}

void quantization_config_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  if (is_fp8_config(importer.tree()) && axolotl_trains_adapters(importer.tree())) {
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

constexpr KeyRules kRules[] = {
    {"lora_r=lora_rank lora_alpha lora_dropout peft_use_rslora=use_rslora loraplus_lr_ratio", lora_rule},
    {"lora_target_modules", targets_rule},
    {"lora_target_linear", all_targets_rule},
    {"lora_model_dir", adapter_folder_rule},
    {"load_in_4bit load_in_8bit", small_base_rule},
    {"model_quantization_config", quantization_config_rule},
};

}  // namespace

std::span<const KeyRules> axolotl_adapter_rules() {
  return kRules;
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
