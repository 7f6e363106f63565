#include "import/torch_rules.h"

#include <utility>

#include "config/config.h"
#include "import/rules.h"

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

void torchao_findings(Importer& importer, const TorchaoUse& use) {
  if (!use.is_compiled) {
    importer.find(
        {.name = "fp8-without-compile",
         .where = use.where,
         .there = "torchao without torch.compile casts and finds maxima in kernels of their own, so FP8 is "
                  "slower than BF16",
         .here = "casts inside the kernels that make a tensor; nothing has to be compiled"});
  }
  if (use.recomputes) {
    importer.find(
        {.name = "fp8-with-recompute",
         .where = use.where,
         .there = "recomputation repeats the casts to FP8 too, which can make FP8 slower than BF16",
         .here = "recomputes only what memory needs, and keeps FP8 codes instead of making them again"});
  }
  if (use.gathers_fp8 && !use.gathers_fp8->is_off() && use.fsdp_version != 2) {
    importer.find(
        {.name = "fp8-all-gather-without-fsdp2",
         .where = use.gathers_fp8->describe(),
         .there = "only FSDP 2 gathers weights as FP8; without it the setting does nothing or is an error",
         .here = "sends FP8 codes in every sharding_mode of an FP8 run"});
  }
  if (use.ram_efficient && !use.ram_efficient->is_off()) {
    importer.find({.name = "ram-efficient-loading-with-torchao",
                   .where = use.ram_efficient->describe(),
                   .there = "Accelerate stops with an error if this is on and FP8 runs through torchao",
                   .here = "always reads weights in pieces; the setting is not needed"});
  }
}

void find_gpt2_in_bf16(Importer& importer, std::string_view model, std::string where) {
  const std::string word = plain_word(model);
  if (word.find("gpt2") == word.npos && word.find("cerebras-gpt") == word.npos) return;
  importer.find(
      {.name = "gpt2-stays-bf16",
       .where = std::move(where),
       .there = "only nn.Linear runs in FP8, but the matrices of GPT-2 are Conv1D: all of them stay in BF16, "
                "without a warning",
       .here = "runs them in FP8"});
}

}  // namespace octet
