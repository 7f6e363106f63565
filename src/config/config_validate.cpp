#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <type_traits>
#include <variant>

#include "base/log.h"
#include "base/text.h"
#include "config/config.h"
#include "config/notes.h"
#include "config/step_range.h"
#include "ops/ops.h"

namespace octet {
namespace {

// Two keys that set the same thing: if one is set, the other follows from it or is off.
struct Exclusive {
  const char* first;
  const char* second;
  const char* why;
};

constexpr Exclusive kExclusive[] = {
    {"model_preset", "model_name_or_path", "both name the model"},
    {"target_effective_batch_size", "gradient_accumulation_steps", "the first sets the second"},
    {"auto_batch_size", "per_device_train_batch_size", "the first picks the second"},
    {"min_lr", "min_lr_ratio", "both set the final learning rate"},
    {"max_batch_size", "per_device_train_batch_size", "the first decides the second"},
    {"max_steps", "num_train_epochs", "both set the length of the run"},
    {"warmup_steps", "warmup_ratio", "both set the length of the warm-up"},
};

bool is_off(const KeyValue& value) {
  return std::visit([](const auto& v) { return v == std::decay_t<decltype(v)>{}; }, value);
}

// Set by the user to something other than "off".
bool is_named(const TrainConfig& config, std::string_view key) {
  if (!config.is_set(key)) return false;
  if (key == "min_lr") return config.min_lr >= 0;
  if (key == "max_steps") return config.max_steps > 0;
  const KeyTable<TrainConfig>& table = train_keys();
  return !is_off(table.get(config, table.index_of(key)));
}

constexpr const char* kFp8Only[] = {
    "fp8_recipe",           "fp8_format",       "fp8_margin",       "fp8_interval",
    "fp8_amax_history_len", "fp8_amax_compute", "fp8_block_scales", "fp8_head",
    "fp8_fast_accum",       "fp8_skip_layers",  "fp8_eval",         "fp8_stats_steps"};
constexpr const char* kLoraOnly[] = {"lora_rank",   "lora_alpha", "lora_dropout",
                                     "lora_target", "use_rslora", "loraplus_lr_ratio"};
constexpr const char* kDelayedOnly[] = {"fp8_interval", "fp8_amax_history_len", "fp8_amax_compute"};

constexpr Exclusive kFullWithAdapter{"finetuning_type", "adapter_name_or_path",
                                     "an adapter needs finetuning_type lora"};

// The pairs of which both are set, to values that exclude each other.
std::vector<Exclusive> conflicts(const TrainConfig& config) {
  std::vector<Exclusive> found;
  for (const Exclusive& pair : kExclusive) {
    if (is_named(config, pair.first) && is_named(config, pair.second)) found.push_back(pair);
  }
  if (config.is_set("finetuning_type") && !config.is_lora() && is_named(config, "adapter_name_or_path"))
    found.push_back(kFullWithAdapter);
  return found;
}

}  // namespace

void settle_conflicts(TrainConfig& config) {
  const KeyTable<TrainConfig>& table = train_keys();
  for (const Exclusive& pair : conflicts(config)) {
    const auto is_flag = [&](const char* key) { return config.origins.find(key)->second.starts_with("--"); };
    const bool steps_and_epochs = pair.first == std::string_view("max_steps");
    if (is_flag(pair.first) == is_flag(pair.second) && !steps_and_epochs) continue;
    const char* dropped_key = is_flag(pair.second) && !is_flag(pair.first) ? pair.first : pair.second;
    const size_t dropped = table.index_of(dropped_key);
    if (steps_and_epochs && is_flag(pair.first) == is_flag(pair.second)) {
      log_info("max_steps {} sets the length of the run; num_train_epochs {} is not used", config.max_steps,
               config.num_train_epochs);
    }
    table.set(config, dropped, table.keys()[dropped].default_value);
    config.origins.erase(table.keys()[dropped].name);
  }
}

void check_contradictions(const TrainConfig& config, std::vector<std::string>& errors) {
  const auto origin = [&](const char* key) { return config.origins.find(key)->second; };
  for (const Exclusive& pair : conflicts(config)) {
    errors.push_back(fmt::format("{} and {} contradict each other: {}; give one of them", origin(pair.first),
                                 origin(pair.second), pair.why));
  }
  if (config.lora_target.empty())
    errors.push_back("lora_target is empty; expected all, names of modules or regular expressions");
  if (config.require_fp8 && config.mixed_precision != Precision::Fp8) {
    errors.push_back(fmt::format("require_fp8 contradicts mixed_precision {}; expected fp8",
                                 config_text(config, "mixed_precision")));
  }
  if (config.lr_scheduler_type == ScheduleType::Wsd && config.warmup_ratio + config.decay_ratio > 1) {
    errors.push_back(fmt::format("warmup_ratio is {} and decay_ratio is {}; expected a sum of at most 1",
                                 config.warmup_ratio, config.decay_ratio));
  }
  if (config.run_name == "." || config.run_name == ".." || config.run_name.find('/') != std::string::npos) {
    errors.push_back(fmt::format("run_name is '{}'; expected a plain folder name (output_dir takes paths)",
                                 config.run_name));
  }
  constexpr size_t kLongestName = 255;  // of Linux
  if (config.run_name.size() > kLongestName) {
    errors.push_back(fmt::format("run_name has {} bytes; a folder's name has at most {}",
                                 config.run_name.size(), kLongestName));
  }
  if (config.save_total_limit == 1) {
    errors.push_back(
        "save_total_limit is 1; expected 0 (keep all) or at least 2, because otherwise the checkpoint "
        "that is being replaced is the only one");
  }
  if (!config.eval_dataset_split.empty() && config.eval_dataset.empty()) {
    errors.push_back(fmt::format(
        "eval_dataset_split is '{}' but eval_dataset is not set; set both (eval_dataset may be the same as "
        "dataset)",
        config.eval_dataset_split));
  }
  check_dataset_parts(config.dataset, "dataset", errors);
  check_dataset_parts(config.eval_dataset, "eval_dataset", errors);
  for (const DatasetPart& part : config.eval_dataset) {
    if (part.weight > 0)
      errors.push_back(
          fmt::format("{} in eval_dataset has a weight, which only training data can have", part.path));
  }
  if (config.is_set("dataset") && config.dataset.empty())
    errors.push_back("dataset is empty; expected a path, a preset or a hub id (demo is the built-in data)");
  if (config.output_dir.empty()) errors.push_back("output_dir is empty; expected a folder");
  if (!config.profile_steps.empty() && !parse_step_range(config.profile_steps)) {
    errors.push_back(fmt::format(
        "profile_steps is '{}'; expected two steps such as 10:12, the first not after the last, or one step",
        printable(config.profile_steps)));
  }
  if (config.tokenizer.empty()) errors.push_back("tokenizer is empty; expected bytes or a path");
}

bool is_changed(const TrainConfig& config, std::string_view key) {
  const KeyTable<TrainConfig>& table = train_keys();
  const size_t index = table.index_of(key);
  return config.is_set(key) && table.get(config, index) != table.keys()[index].default_value;
}

bool is_changed(const DataKeys& keys, std::string_view key) {
  TrainConfig config;
  static_cast<DataKeys&>(config) = keys;
  return is_changed(config, key);
}

std::string_view decided_by(const TrainConfig& config, std::string_view key) {
  if (config.is_set(key)) return "";
  for (const Exclusive& pair : kExclusive) {
    if (pair.second == key && is_named(config, pair.first)) return pair.first;
    if (pair.first == key && is_named(config, pair.second)) return pair.second;
  }
  // The default length is in epochs. The trainer computes the steps from it.
  if (key == "max_steps" && config.num_train_epochs > 0) return "num_train_epochs";
  return "";
}

namespace {

struct IdleInRun {
  std::string key, because;
  bool is_changed;  // from its default, so somebody may expect an effect
};

std::vector<IdleInRun> idle_settings_of(const TrainConfig& config, bool on_gpu) {
  std::vector<IdleInRun> idle;
  const auto note = [&](std::string_view key, std::string_view because) {
    if (config.is_set(key)) idle.push_back({std::string(key), std::string(because), is_changed(config, key)});
  };
  const bool fp8 = config.mixed_precision == Precision::Fp8;
  if (!fp8) {
    for (const char* key : kFp8Only) {
      note(key, fmt::format("mixed_precision is {}", config_text(config, "mixed_precision")));
    }
  } else {
    const std::string recipe = fmt::format("fp8_recipe is {}", config_text(config, "fp8_recipe"));
    const bool delayed = config.fp8_recipe == Fp8Recipe::Delayed;
    if (!has_scale_per_tensor(config.fp8_recipe)) note("fp8_margin", recipe);
    if (!delayed) {
      for (const char* key : kDelayedOnly) note(key, recipe);
    }
    if (config.fp8_recipe != Fp8Recipe::Block) note("fp8_block_scales", recipe);
    if (config.fp8_recipe == Fp8Recipe::Mxfp8) note("fp8_weight_copies", recipe);
    if (config.fp8_fast_accum != Fp8FastAccum::None) {  // exact sums are what such a run has
      if (!has_scale_per_tensor(config.fp8_recipe)) {
        note("fp8_fast_accum", recipe);
      } else if (!on_gpu) {
        note("fp8_fast_accum", "the run is on the CPU");
      }
    }
    if (config.fp8_head != Fp8Head::None && std::ranges::count(config.fp8_skip_layers, "head") > 0)
      note("fp8_head", "fp8_skip_layers has the head");
    else if (config.fp8_head == Fp8Head::Wgrad && config.is_lora())
      note("fp8_head", "LoRA freezes the head, so its weight has no gradient");
  }
  if (!config.is_lora()) {
    for (const char* key : kLoraOnly) note(key, "finetuning_type is full");
  }
  if (!fp8)
    note("fp8_weight_copies", fmt::format("mixed_precision is {}", config_text(config, "mixed_precision")));
  if (config.mixed_precision == Precision::Fp32) {
    for (const char* key : {"master_weights", "grad_accum_dtype"}) note(key, "mixed_precision is fp32");
  } else if (config.is_lora()) {
    note("master_weights", "finetuning_type is lora, and adapters are always exact");
    note("grad_accum_dtype", "finetuning_type is lora, and gradients of adapters are always fp32");
  }
  if (config.lr_scheduler_type != ScheduleType::Wsd) note("decay_ratio", "lr_scheduler_type is not wsd");
  if (config.lr_scheduler_type == ScheduleType::Constant) {
    for (const char* key : {"min_lr_ratio", "min_lr"}) note(key, "lr_scheduler_type is constant");
  }
  // A weight of 0 alone means no penalty, and is no idle one: other runs of a sweep have more.
  if (config.penalty_type == PenaltyKind::None &&
      (config.is_set("penalty_type") || config.penalty_weight > 0))
    note("penalty_weight", "penalty_type is none");
  if (config.save_strategy == Strategy::No) {
    for (const char* key : {"save_steps", "saves_per_epoch", "save_total_limit", "save_async"})
      note(key, "save_strategy is no");
  } else {
    const bool by_epoch = config.save_strategy == Strategy::Epoch;
    note(by_epoch ? "save_steps" : "saves_per_epoch",
         fmt::format("save_strategy is {}", config_text(config, "save_strategy")));
  }
  if (config.eval_strategy == Strategy::No) {
    for (const char* key : {"eval_steps", "evals_per_epoch", "eval_batches", "eval_dataset", "fp8_eval"})
      note(key, "eval_strategy is no");
  } else {
    const bool by_epoch = config.eval_strategy == Strategy::Epoch;
    note(by_epoch ? "eval_steps" : "evals_per_epoch",
         fmt::format("eval_strategy is {}", config_text(config, "eval_strategy")));
  }
  if (config.eval_tasks.empty()) {
    for (const char* key : {"eval_task_steps", "eval_task_samples"}) note(key, "eval_tasks is empty");
  }
  if (!config.use_wandb) {
    for (const char* key : {"wandb_project", "wandb_entity", "wandb_run_name", "wandb_mode"})
      note(key, "use_wandb is false");
  }
  if (config.pretend_ranks == 0) note("pretend_bandwidth_gb", "pretend_ranks is 0");
  if (!config.eval_dataset.empty()) note("eval_split", "eval_dataset is given");
  if (!on_gpu && config.cuda_graphs == CudaGraphs::On) note("cuda_graphs", "the run is on the CPU");
  return idle;
}

}  // namespace

std::vector<IdleSetting> find_idle_settings(std::span<const TrainConfig> runs, bool on_gpu) {
  struct Found {
    std::set<const TrainConfig*> runs;
    bool is_changed = false;
    std::vector<std::string> reasons;
  };
  std::vector<std::string> keys;  // in the order of the first run that has them
  std::map<std::string, Found> idle;
  for (const TrainConfig& run : runs) {
    for (const IdleInRun& setting : idle_settings_of(run, on_gpu)) {
      Found& found = idle[setting.key];
      if (found.runs.empty()) keys.push_back(setting.key);
      found.runs.insert(&run);
      found.is_changed = found.is_changed || setting.is_changed;
      if (std::ranges::find(found.reasons, setting.because) == found.reasons.end())
        found.reasons.push_back(setting.because);
    }
  }
  std::vector<IdleSetting> settings;
  for (const std::string& key : keys) {
    const Found& found = idle[key];
    const bool has_effect = std::ranges::any_of(
        runs, [&](const TrainConfig& run) { return run.is_set(key) && !found.runs.contains(&run); });
    if (has_effect || !found.is_changed) continue;
    const bool differs = found.reasons.size() > 1 && found.runs.size() > 1;
    settings.push_back({key, differs
                                 ? fmt::format("{} has no effect in any of the runs ({})", key,
                                               fmt::join(found.reasons, "; "))
                                 : fmt::format("{} has no effect: {}", key, fmt::join(found.reasons, ", "))});
  }
  return settings;
}

std::vector<std::string> idle_settings(std::span<const TrainConfig> runs, bool on_gpu) {
  std::vector<std::string> texts;
  for (const IdleSetting& setting : find_idle_settings(runs, on_gpu)) texts.push_back(setting.text);
  return texts;
}

void warn_of_idle_settings(std::span<const TrainConfig> runs, bool on_gpu) {
  for (const std::string& text : idle_settings(runs, on_gpu)) log_warning("{}", text);
}

}  // namespace octet
