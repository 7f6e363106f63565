#include "import/torch_rules.h"

#include "config/config.h"

namespace octet {

void wandb_value_rule(Importer& importer, const TreeLeaf& leaf, std::string_view key) {
  const auto keys = train_keys().keys();
  if (!key_called(keys, "use_wandb")) {
    importer.warn(leaf,
                  "nothing is sent to Weights & Biases; metrics are in metrics.jsonl and TensorBoard files");
    return;
  }
  if (leaf.name != "use_wandb" && !importer.is_set("use_wandb"))
    importer.set("use_wandb", "true", leaf.name, leaf.place);
  if (leaf.name == "use_wandb") {
    importer.map(leaf, "use_wandb", "true");
  } else if (!key.empty() && key_called(keys, key)) {
    importer.map(leaf, key, leaf.text);
  } else {
    importer.warn(leaf, "octet has no such setting of Weights & Biases");
  }
}

void find_cpu_offload(Importer& importer, const TreeLeaf& leaf) {
  importer.find(
      {.name = "cpu-offload",
       .where = leaf.describe(),
       .there = "weights and moments cross PCIe in every step and AdamW runs on the CPU, which costs more "
                "time than FP8 saves",
       .here = "keeps everything on the GPUs; optimizer_state fp8 and sharding_mode fsdp_full save memory"});
}

void find_torchao_fsdp_mistakes(Importer& importer, const TreeLeaf* gathers_fp8,
                                const TreeLeaf* ram_efficient, int fsdp_version) {
  if (gathers_fp8 && !gathers_fp8->is_off() && fsdp_version != 2) {
    importer.find(
        {.name = "float8-all-gather",
         .where = gathers_fp8->describe(),
         .there = "only FSDP 2 gathers weights as FP8; without it the setting does nothing or is an error",
         .here = "sends FP8 codes in every sharding_mode of an FP8 run"});
  }
  if (ram_efficient && !ram_efficient->is_off()) {
    importer.find({.name = "ram-efficient-loading-with-torchao",
                   .where = ram_efficient->describe(),
                   .there = "Accelerate stops with an error if this is on and FP8 runs through torchao",
                   .here = "always reads weights in pieces; the setting is not needed"});
  }
}

}  // namespace octet
