// Rules about precision, batch, schedule and the run itself.

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/config.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

bool ignore_if_null(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) importer.ignore(leaf, "null: the default");
  return leaf.is_null();
}

std::string number_text(double value) {
  return fmt::format("{}", value);
}

// A folder name without the characters that run_name does not take.
std::string folder_name(std::string name) {
  for (char& c : name) {
    if (c == '/' || c == ' ' || c == ':') c = '_';
  }
  if (name == "." || name == "..") name = "run";
  return name;
}

bool asks_for_fp8(const Importer& importer) {
  return importer.value("mixed_precision") == "fp8";
}

}  // namespace

void set_run_folder(Importer& importer, const TreeLeaf& leaf, std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  const fs::path path = folder;
  const std::string parent = path.parent_path().string();
  importer.set("output_dir", parent.empty() ? "." : parent, leaf.name, leaf.place);
  if (!importer.is_set("run_name")) {
    importer.set("run_name", folder_name(path.filename().string()), leaf.name, leaf.place);
  }
}

void output_dir_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.text.empty()) {
    importer.ignore(leaf, "null: the default");
    return;
  }
  set_run_folder(importer, leaf, leaf.text);
  importer.map(leaf, "output_dir", importer.value("output_dir"),
               "the folder of one run there; its last part is run_name here");
}

void run_name_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.text.empty()) {
    importer.ignore(leaf, "null: the default");
    return;
  }
  importer.map(leaf, "run_name", folder_name(leaf.text));
}

void learning_rate_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  importer.map(leaf, "learning_rate", leaf.text);
}

void bf16_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.is_auto()) {
    importer.ignore(leaf, "the precision comes from other settings");
  } else if (leaf.is_off()) {
    importer.ignore(leaf, "false: the precision comes from other settings");
  } else if (asks_for_fp8(importer)) {
    importer.derive(leaf, "everything outside the FP8 matrix products is BF16 in octet anyway");
  } else {
    importer.map(leaf, "mixed_precision", "bf16");
  }
}

void fp16_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off() || leaf.is_auto()) {
    importer.ignore(leaf, "off: octet does not train in fp16");
    return;
  }
  if (!asks_for_fp8(importer))
    importer.set("mixed_precision", "bf16", leaf.name + ": BF16 instead", leaf.place);
  importer.warn(leaf, "octet does not train in fp16; BF16 is used, which needs no loss scaling");
  importer.find({.name = "fp16",
                 .where = leaf.describe(),
                 .there = "fp16 needs loss scaling and skips steps that overflow",
                 .here = "trains in BF16 (or FP8), without loss scaling"});
}

void fp8_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
    return;
  }
  importer.map(leaf, "mixed_precision", "fp8");
}

void fp8_backend_rule(Importer& importer, const TreeLeaf& leaf) {
  importer.ignore(leaf, "not needed: octet has its own FP8 kernels");
}

void optimizer_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  std::string name = plain_word(leaf.text);
  if (const size_t dot = name.rfind('.'); dot != name.npos) name = name.substr(dot + 1);  // torch.optim.AdamW
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (has("lomo") || has("galore") || has("apollo") || has("mini") || has("anyprecision") ||
      has("schedule_free") || !has("adam") || has("adamax") || has("adama") || has("radam") || has("nadam")) {
    importer.refuse(leaf, "octet has AdamW only");
    return;
  }
  if (has("8bit") || has("fp8")) {
    importer.map(leaf, "optimizer_state", "fp8",
                 "moments of 8 bits: FP8 with a scale per 128 values here; nothing is paged to the CPU");
  } else if (has("4bit")) {
    importer.warn(leaf, "octet has no 4-bit moments; FP8 moments are used");
    importer.set("optimizer_state", "fp8", leaf.name, leaf.place);
  } else if (name.starts_with("adamw") || name == "adam" || name == "fusedadam" || has("paged_adamw") ||
             has("adamw")) {
    importer.derive(leaf, "AdamW, which octet always uses");
  } else {
    importer.refuse(leaf, "octet has AdamW only");
  }
}

void schedule_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  std::string name = plain_word(leaf.text);
  if (name.starts_with("schedulertype.")) name = name.substr(name.find('.') + 1);
  std::ranges::replace(name, '-', '_');
  if (name == "cosine" || name == "linear") {
    importer.map(leaf, "lr_scheduler_type", name);
    if (!importer.is_set("min_lr_ratio"))
      importer.set("min_lr_ratio", "0", fmt::format("{} falls to 0 there", name), leaf.place);
  } else if (name == "constant_with_warmup") {
    importer.map(leaf, "lr_scheduler_type", "constant");
  } else if (name == "constant") {
    importer.map(leaf, "lr_scheduler_type", "constant");
    if (importer.tree().is_on("warmup_steps") || importer.tree().is_on("warmup_ratio")) {
      importer.find(
          {.name = "constant-ignores-warmup",
           .where = leaf.describe(),
           .there =
               "the schedule 'constant' of Transformers has no warm-up: the warm-up setting does nothing",
           .here = "warms up as set, then stays constant"});
    }
  } else if (name == "cosine_with_min_lr" || name == "cosine_warmup_with_min_lr") {
    importer.map(leaf, "lr_scheduler_type", "cosine");
  } else if (name == "warmup_stable_decay" || name == "wsd") {
    importer.map(leaf, "lr_scheduler_type", "wsd");
  } else {
    importer.refuse(leaf, fmt::format("octet has no schedule '{}'; it has cosine, linear, constant and wsd",
                                      printable(leaf.text)));
  }
}

void warmup_steps_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  const auto value = leaf.number();
  if (value && *value > 0 && *value < 1) {
    importer.unset("warmup_steps");
    importer.map(leaf, "warmup_ratio", number_text(*value), "a value below 1 is a share of all steps");
  } else if (value && *value == 0) {
    if (!importer.is_set("warmup_ratio")) importer.set("warmup_steps", "0", leaf.name, leaf.place);
    importer.derive(leaf, "0: warmup_ratio decides, or there is no warm-up");
  } else {
    importer.unset("warmup_ratio");  // as in Transformers, steps win
    importer.map(leaf, "warmup_steps", leaf.text);
  }
}

void max_steps_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  const auto value = leaf.number();
  if (value && *value <= 0) {
    importer.ignore(leaf, "not positive: the number of epochs decides");
  } else {
    importer.unset("num_train_epochs");
    importer.map(leaf, "max_steps", leaf.text, "steps decide; epochs are not used");
  }
}

void interval_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  const std::string_view name = std::string_view(leaf.name).substr(leaf.name.rfind('.') + 1);
  const auto value = leaf.number();
  if (value && *value > 0 && *value < 1) {
    const auto steps = importer.main_tree().number("max_steps");
    if (steps && *steps >= 1) {
      importer.map(leaf, name, fmt::format("{}", std::max<int64_t>(1, static_cast<int64_t>(*value * *steps))),
                   "a share of max_steps");
    } else {
      importer.warn(leaf, "a share of all steps there; set the number of steps here");
    }
  } else if (value && *value < 0) {
    importer.ignore(leaf, "negative: never");
  } else {
    importer.map(leaf, name, leaf.text);
  }
}

void save_limit_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.map(leaf, "save_total_limit", "0", "all checkpoints are kept");
  } else if (leaf.number() == 1.0) {
    importer.map(leaf, "save_total_limit", "2", "octet keeps the last two, so that one is always complete");
  } else {
    importer.map(leaf, "save_total_limit", leaf.text);
  }
}

void save_strategy_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  std::string word = plain_word(leaf.text);
  word = word.substr(word.rfind('.') + 1);  // IntervalStrategy.STEPS
  if (word == "no" || word == "steps" || word == "epoch") {
    importer.map(leaf, "save_strategy", word);
  } else if (word == "false") {
    importer.map(leaf, "save_strategy", "no", "YAML reads an unquoted no as false");
  } else if (word == "best") {
    importer.map(leaf, "save_strategy", "steps", "the best checkpoint is always kept");
  } else {
    importer.refuse(leaf, "expected steps, epoch, best or no");
  }
}

void eval_strategy_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  std::string word = plain_word(leaf.text);
  word = word.substr(word.rfind('.') + 1);
  if (word == "no" || word == "false") {
    importer.map(leaf, "eval_strategy", "no");
  } else if (word == "epoch" || word == "steps") {
    importer.map(leaf, "eval_strategy", word);
  } else {
    importer.refuse(leaf, "expected steps, epoch or no");
  }
}

void logging_strategy_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (leaf.is_null() || word.ends_with("steps")) {
    importer.derive(leaf, "logging_steps says how often");
  } else {
    importer.warn(leaf, "octet logs every logging_steps");
  }
}

void report_to_rule(Importer& importer, const TreeLeaf& leaf) {
  if (ignore_if_null(importer, leaf)) return;
  std::vector<std::string> elsewhere;
  bool tensorboard = false, wandb = false;
  for (const std::string& item : leaf.list()) {
    const std::string word = plain_word(item);
    if (word == "all") tensorboard = wandb = true;
    if (word == "tensorboard") tensorboard = true;
    if (word == "wandb") wandb = true;
    if (word != "all" && word != "tensorboard" && word != "wandb" && word != "none" && !word.empty() &&
        word != "[]")
      elsewhere.push_back(word);
  }
  if (wandb && key_called(train_keys().keys(), "use_wandb"))
    importer.set("use_wandb", "true", leaf.name, leaf.place);
  if (!elsewhere.empty()) {
    importer.warn(leaf, fmt::format("nothing is sent to {}; metrics are in metrics.jsonl of the run",
                                    printable(elsewhere.front())));
  } else if (wandb && !tensorboard) {
    importer.derive(leaf, "Weights & Biases; TensorBoard files are written as well");
  } else {
    importer.map(leaf, "use_tensorboard", tensorboard ? "true" : "false");
  }
}

void recompute_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: octet decides by memory");
  } else if (leaf.is_off()) {
    importer.map(leaf, "gradient_checkpointing", "none");
  } else {
    importer.map(leaf, "gradient_checkpointing", "auto",
                 "octet recomputes only as much as the memory needs; the results are the same");
  }
}

void resume_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "a new run");
  } else if (leaf.flag() == true) {
    importer.map(leaf, "resume", "latest");
  } else {
    importer.refuse(
        leaf,
        "checkpoints of other programs cannot be resumed; start from their weights with model_name_or_path");
  }
}

void cpu_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
  } else {
    importer.map(leaf, "device", "cpu");
  }
}

std::optional<std::string> sharding_of_zero_stage(std::string_view stage) {
  if (stage == "0") return "none";
  if (stage == "1") return "zero1";
  if (stage == "2") return "zero2";
  if (stage == "3") return "fsdp_full";
  return std::nullopt;
}

void fsdp_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
    return;
  }
  std::string words;
  for (const std::string& item : leaf.list()) words += plain_word(item) + " ";
  const auto has = [&](std::string_view part) { return words.find(part) != words.npos; };
  if (has("offload")) {
    importer.set("sharding_mode", has("shard_grad_op") ? "zero2" : "fsdp_full", leaf.name, leaf.place);
    importer.warn(leaf, "octet keeps weights and optimizer on the GPU; 'octet plan' shows whether they fit");
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

void deepspeed_file_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
    return;
  }
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

}  // namespace octet
