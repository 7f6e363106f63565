// What ranks share, and where weights are kept: FSDP, ZeRO, offload, other kinds of parallelism.

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>

#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNoOffload =
    "octet keeps weights and moments on the GPUs; 'octet plan --ranks N' shows whether they fit";

}  // namespace

std::optional<std::string> sharding_of_zero_stage(std::string_view stage) {
  if (stage == "0") return "none";
  if (stage == "1") return "zero1";
  if (stage == "2") return "zero2";
  if (stage == "3") return "fsdp_full";
  return std::nullopt;
}

void fsdp_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  std::string words;
  for (const std::string& item : leaf.list()) words += plain_word(item) + " ";
  const auto has = [&](std::string_view part) { return words.find(part) != words.npos; };
  if (has("offload")) {
    importer.set("sharding_mode", has("shard_grad_op") ? "zero2" : "fsdp_full", leaf.name, leaf.place);
    importer.warn(leaf, kNoOffload);
  } else if (has("hybrid_shard_zero2") || has("hybrid")) {
    importer.map(leaf, "sharding_mode", "hsdp");
  } else if (has("full_shard") || has("true") || words == "1 ") {
    importer.map(leaf, "sharding_mode", "fsdp_full");
  } else if (has("shard_grad_op") || words == "2 ") {
    importer.map(leaf, "sharding_mode", "zero2");
  } else if (has("no_shard") || words == "3 ") {
    importer.map(leaf, "sharding_mode", "none");
  } else if (words == "4 ") {
    importer.map(leaf, "sharding_mode", "hsdp");
  } else if (has("auto_wrap")) {
    importer.map(leaf, "sharding_mode", "fsdp_full", "auto_wrap alone: full sharding");
  } else {
    importer.refuse(leaf, "expected full_shard, shard_grad_op, no_shard or hybrid_shard");
  }
}

std::string named_file(const Importer& importer, const std::string& path) {
  std::error_code code;
  if (fs::is_regular_file(path, code)) return path;
  if (fs::path(path).is_absolute()) return "";
  // As in the repositories of these tools: the path starts at a folder above the file that names it.
  fs::path folder = fs::path(importer.main_tree().file).parent_path();
  for (int up = 0; up < 5; ++up) {
    const fs::path candidate = folder / path;
    if (fs::is_regular_file(candidate, code)) return candidate.lexically_normal().string();
    folder /= "..";
  }
  return "";
}

void deepspeed_section_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string prefix = leaf.name.substr(0, leaf.name.find('.') + 1);
  SettingsTree section{.file = importer.tree().file, .leaves = {}};
  for (const TreeLeaf& inner : importer.tree().leaves) {
    if (!inner.name.starts_with(prefix)) continue;
    section.leaves.push_back(inner);
    section.leaves.back().name.erase(0, prefix.size());
  }
  importer.derive(leaf, "part of the DeepSpeed settings");
  // The first leaf speaks for all of them.
  if (section.leaves.front().name != leaf.name.substr(prefix.size())) return;
  importer.later([section, prefix](Importer& after) { after.include(deepspeed_tool(), section, prefix); });
}

void deepspeed_file_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  const std::string file = named_file(importer, leaf.text);
  if (!file.empty()) {
    importer.derive(leaf, "read, and its settings are used");
    importer.later([file](Importer& after) { after.include(deepspeed_tool(), read_tree_file(file)); });
    return;
  }
  // The names of the files that the tools ship tell the stage.
  const std::string name = plain_word(fs::path(leaf.text).filename().string());
  for (const char stage : {'0', '1', '2', '3'}) {
    const bool says = name.find(fmt::format("z{}", stage)) != name.npos ||
                      name.find(fmt::format("zero{}", stage)) != name.npos ||
                      name.find(fmt::format("zero_stage{}", stage)) != name.npos ||
                      name.find(fmt::format("stage{}", stage)) != name.npos;
    if (!says) continue;
    importer.set("sharding_mode", *sharding_of_zero_stage(std::string(1, stage)), leaf.name, leaf.place);
    importer.warn(leaf,
                  fmt::format("the file is not here; its name says ZeRO stage {}, which is used", stage));
    return;
  }
  importer.refuse(leaf, "the file is not here; expected a DeepSpeed JSON file, or remove the key");
}

void offload_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  importer.warn(leaf, kNoOffload);
  importer.find(
      "cpu-offload", leaf,
      "weights or moments travel over PCIe in every step and AdamW runs on the CPU, which takes longer "
      "than FP8 can save",
      "offloads nothing; if memory is short, use optimizer_state fp8, master_weights compact, LoRA "
      "or more GPUs with sharding_mode fsdp_full");
}

void parallel_size_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off() || leaf.number().value_or(2) <= 1) {
    importer.ignore(leaf, "off");
  } else {
    importer.refuse(
        leaf,
        "octet splits the batch between GPUs, not a layer, a sequence or the layers; remove it and use "
        "sharding_mode fsdp_full or hsdp");
  }
}

}  // namespace octet
