#include "import/fsdp_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "import/rules.h"

namespace octet {
namespace {

constexpr std::string_view kPrefix = "fsdp_";

// "fsdp_config.fsdp_offload_params" as offload_params.
std::string_view short_name(std::string_view name) {
  name.remove_prefix(name.rfind('.') + 1);
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  return name;
}

struct Detail {
  std::string_view names, reason;
};
constexpr Detail kIgnored[] = {
    {" version fsdp_version ", "both versions of FSDP become sharding_mode"},
    {" auto_wrap_policy transformer_layer_cls_to_wrap min_num_params ", "octet shards layer by layer"},
    {" backward_prefetch backward_prefetch_policy forward_prefetch limit_all_gathers ",
     "octet gathers the next layer while it computes the current one"},
    {" use_orig_params sync_module_states cpu_ram_efficient_loading ",
     "octet reads weights in pieces, straight to their place"},
    {" state_dict_type final_state_dict_type ", "octet checkpoints hold whole tensors"},
    {" ignored_modules cpu_offload_pin_memory mixed_precision_policy xla xla_fsdp_v2 xla_fsdp_grad_ckpt ",
     "a detail of PyTorch"},
};

void reshard_rule(Importer& importer, const TreeLeaf& leaf) {
  const TreeLeaf* strategy = fsdp_setting(importer.tree(), "sharding_strategy");
  if (strategy && !strategy->is_null()) {
    importer.derive(leaf, "sharding_strategy says the same");
  } else if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else if (leaf.flag() == true) {
    importer.map(leaf, "sharding_mode", "fsdp_full");
  } else if (leaf.flag() == false) {
    importer.map(leaf, "sharding_mode", "zero2", "weights stay whole after forward");
  } else {
    fsdp_rule(importer, leaf);  // the words of version 1
  }
}

void checkpointing_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off() && importer.is_set("gradient_checkpointing")) {
    importer.derive(leaf, "gradient_checkpointing decides");
  } else {
    recompute_rule(importer, leaf);
  }
}

}  // namespace

void fsdp_config_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.name == "fsdp_config") {
    importer.ignore(leaf, "empty");
    return;
  }
  const std::string_view name = short_name(leaf.name);
  if (name == "sharding_strategy") {
    if (leaf.is_null()) {
      importer.ignore(leaf, "null: the default");
    } else {
      fsdp_rule(importer, leaf);
    }
  } else if (name == "reshard_after_forward") {
    reshard_rule(importer, leaf);
  } else if (name == "offload_params") {
    offload_rule(importer, leaf);
  } else if (name == "activation_checkpointing") {
    checkpointing_rule(importer, leaf);
  } else {
    const std::string word = fmt::format(" {} ", name);
    const auto detail =
        std::ranges::find_if(kIgnored, [&](const Detail& d) { return d.names.find(word) != d.names.npos; });
    if (detail != std::end(kIgnored)) {
      importer.ignore(leaf, std::string(detail->reason));
    } else if (leaf.is_null()) {
      importer.ignore(leaf, "null: nothing is asked for");
    } else {
      importer.warn(leaf, "not a known setting of FSDP; it is not used");
    }
  }
}

void set_default_fsdp_sharding(Importer& importer, std::string comment) {
  if (!importer.is_set("sharding_mode")) importer.set("sharding_mode", "fsdp_full", std::move(comment));
}

const TreeLeaf* fsdp_setting(const SettingsTree& tree, std::string_view name) {
  if (const TreeLeaf* leaf = tree.find(fmt::format("fsdp_config.fsdp_{}", name))) return leaf;
  return tree.find(fmt::format("fsdp_config.{}", name));
}

int fsdp_version_of(const SettingsTree& tree) {
  for (const TreeLeaf* leaf : {tree.find("fsdp_version"), fsdp_setting(tree, "version")}) {
    if (leaf && leaf->number()) return *leaf->number() >= 2 ? 2 : 1;
  }
  return 1;
}

void set_mesh_sharding(Importer& importer, double replicate, double shard, const TreeLeaf& from) {
  if (shard > 1 || shard == -1) {
    importer.map(from, "sharding_mode", replicate > 1 ? "hsdp" : "fsdp_full");
  } else if (replicate > 1) {
    importer.map(from, "sharding_mode", "none");
  }
}

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
