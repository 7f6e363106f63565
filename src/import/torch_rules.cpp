#include "import/torch_rules.h"

#include "import/rules.h"

namespace octet {

void wandb_value_rule(Importer& importer, const TreeLeaf& leaf, std::string_view key) {
  if (key.empty()) {
    importer.map(leaf, "use_wandb", "true");
    return;
  }
  if (!importer.is_set("use_wandb")) importer.set("use_wandb", "true", leaf.name, leaf.place);
  importer.map(leaf, key, leaf.text);
}

void find_torchao_fsdp_mistakes(Importer& importer, const TreeLeaf* gathers_fp8,
                                const TreeLeaf* ram_efficient, int fsdp_version) {
  if (gathers_fp8 && !gathers_fp8->is_off() && fsdp_version != 2) {
    importer.find("float8-all-gather", *gathers_fp8,
                  "only FSDP 2 gathers weights as FP8; without it the setting does nothing or is an error",
                  "sends FP8 codes in every sharding_mode of an FP8 run");
  }
  if (ram_efficient && !ram_efficient->is_off()) {
    importer.find("ram-efficient-loading-with-torchao", *ram_efficient,
                  "Accelerate stops with an error if this is on and FP8 runs through torchao",
                  "always reads weights in pieces; the setting is not needed");
  }
}

}  // namespace octet
