// Rules about precision, batch, schedule and the run itself.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/config.h"
#include "import/rules.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

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

// Names are compared without underscores: adamw_8bit, AdamW8bit.
bool is_adamw(std::string_view name) {
  constexpr std::string_view kNames[] = {"adam",           "fusedadam",         "adamw",        "adamwhf",
                                         "adamwapexfused", "adamwanyprecision", "adamw4bit",    "adamw8bit",
                                         "adamw32bit",     "adamwfp8",          "adamwbnb8bit", "pagedadamw",
                                         "pagedadamw8bit", "pagedadamw32bit",   "optimiadamw"};
  return name.starts_with("adamwtorch") || name.starts_with("aoadamw") ||
         std::ranges::find(kNames, name) != std::end(kNames);
}

// A share of all steps. Their number is not known here if epochs decide, so it becomes a number per epoch.
void share_of_steps(Importer& importer, const TreeLeaf& leaf, std::string_view name, double share) {
  if (name == "logging_steps") {
    importer.set("logging_steps", "1", leaf.name, leaf.place);
    importer.warn(leaf,
                  "a share of all steps there; octet logs every step, set the number of steps for less");
    return;
  }
  const std::string_view what = name.substr(0, 4);  // eval, save
  const std::string strategy = fmt::format("{}_strategy", what),
                    per_epoch = fmt::format("{}s_per_epoch", what);
  const auto value_or_default = [&](std::string_view key) {
    const auto fallback = std::ranges::find(importer.tool().defaults, key, &ToolDefault::octet_key);
    return importer.is_set(key)                         ? importer.value(key)
           : fallback == importer.tool().defaults.end() ? ""
                                                        : std::string(fallback->value);
  };
  // A default of eval_strategy (no) holds with eval_steps, too. One of save_strategy (epoch) holds only without save_steps,
  // and that is given here.
  const std::string when = importer.is_set(strategy) || what == "eval" ? value_or_default(strategy) : "";
  if (when == "no" || when == "epoch") {
    importer.derive(leaf, fmt::format("not used: {} is {}", strategy, when));
    return;
  }
  const double times = 1 / (share * parse_double(value_or_default("num_train_epochs")).value_or(1));
  const int64_t count = std::max<int64_t>(1, whole_number(std::round(times)));
  importer.set(strategy, "epoch", leaf.name, leaf.place);
  importer.map(leaf, per_epoch, fmt::format("{}", count), "a share of all steps");
  if (std::abs(times - static_cast<double>(count)) > 0.01) {
    importer.warn(leaf, fmt::format("a share of all steps, {:.3g} times per epoch; octet takes {} {}", times,
                                    per_epoch, count));
  }
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

void bf16_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.is_auto()) {
    importer.ignore(leaf, "the precision comes from other settings");
  } else if (leaf.is_off()) {
    importer.ignore(leaf, "the precision comes from other settings");
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
  importer.warn(leaf, "octet does not train in fp16; BF16 takes its place, without loss scaling");
  importer.find("fp16", leaf, "fp16 needs loss scaling and skips steps that overflow",
                "trains in BF16 (or FP8), without loss scaling");
}

void optimizer_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_null(leaf)) return;
  std::string name = plain_word(leaf.text);
  name = name.substr(name.rfind('.') + 1);  // torch.optim.AdamW
  std::erase(name, '_');
  if (!is_adamw(name)) {
    importer.refuse(leaf, "octet has AdamW only");
  } else if (name.ends_with("8bit") || name.ends_with("fp8")) {
    importer.map(leaf, "optimizer_state", "fp8",
                 "moments of 8 bits: FP8 with a scale per 128 values here; nothing is paged to the CPU");
  } else if (name.ends_with("4bit")) {
    importer.warn(leaf, "octet has no 4-bit moments; FP8 moments are used");
    importer.set("optimizer_state", "fp8", leaf.name, leaf.place);
  } else {
    importer.derive(leaf, "AdamW, which octet always uses");
  }
}

void betas_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_null(leaf)) return;
  const std::vector<std::string> betas = leaf.list();
  if (betas.size() != 2) {
    importer.refuse(leaf, "expected two numbers");
  } else if (betas[0] == "auto" || betas[1] == "auto") {
    importer.ignore(leaf, "auto: from the trainer's settings");
  } else if (importer.is_included() && importer.is_set("adam_beta2") &&
             parse_double(importer.value("adam_beta2")) != parse_double(betas[1])) {
    importer.warn(leaf, "the trainer's values are used");
  } else {
    importer.set("adam_beta1", betas[0], leaf.name, leaf.place);
    importer.set("adam_beta2", betas[1], leaf.name, leaf.place);
    importer.derive(leaf, "adam_beta1 and adam_beta2");
  }
}

void schedule_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_null(leaf)) return;
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
    importer.later([leaf](Importer& after) {
      after.unset("warmup_ratio");
      after.set("warmup_steps", "0", leaf.name, leaf.place);
    });
    if (importer.tree().is_on("warmup_steps") || importer.tree().is_on("warmup_ratio")) {
      importer.find(
          "constant-ignores-warmup", leaf,
          "the schedule 'constant' of Transformers has no warm-up: the warm-up setting does nothing",
          "does the same (warmup_steps 0); constant_with_warmup warms up");
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
  if (importer.skips_null(leaf)) return;
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

void held_out_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto size = leaf.number();
  if (leaf.is_null() || size == 0.0) {
    importer.map(leaf, "eval_split", "0");
  } else if (size && *size >= 1) {
    importer.set("eval_split", "0.05", leaf.name + " is a number of examples there", leaf.place);
    importer.warn(leaf,
                  "a number of examples; octet holds out a share: 0.05 is used, change eval_split if needed");
  } else {
    importer.map(leaf, "eval_split", leaf.text);  // anything but a share is refused where values are checked
  }
}

void max_steps_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_null(leaf)) return;
  const auto value = leaf.number();
  if (value && *value <= 0) {
    importer.ignore(leaf, "not positive: the number of epochs decides");
  } else {
    importer.unset("num_train_epochs");
    importer.map(leaf, "max_steps", leaf.text, "steps decide; epochs are not used");
  }
}

void interval_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_null(leaf)) return;
  const std::string_view name = std::string_view(leaf.name).substr(leaf.name.rfind('.') + 1);
  const auto value = leaf.number();
  if (value && *value > 0 && *value < 1) {
    const auto steps = importer.main_tree().number("max_steps");
    if (steps && *steps >= 1) {
      importer.map(leaf, name, fmt::format("{}", std::max<int64_t>(1, whole_number(*value * *steps))),
                   "a share of max_steps");
    } else {
      importer.later([leaf, name = std::string(name), share = *value](Importer& after) {
        share_of_steps(after, leaf, name, share);
      });
    }
  } else if (value && *value < 0) {
    importer.ignore(leaf, "negative: never");
  } else {
    importer.map(leaf, name, leaf.text);
  }
}

void report_to_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_null(leaf)) return;
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
  if (!elsewhere.empty()) {
    if (wandb) importer.set("use_wandb", "true", leaf.name, leaf.place);
    if (tensorboard) importer.set("use_tensorboard", "true", leaf.name, leaf.place);
    importer.warn(leaf, fmt::format("nothing is sent to {}; metrics are in metrics.jsonl of the run",
                                    printable(elsewhere.front())));
  } else if (wandb) {
    importer.set("use_tensorboard", tensorboard ? "true" : "false", leaf.name, leaf.place);
    importer.map(leaf, "use_wandb", "true");
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

}  // namespace octet
