#include "config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/regular_file.h"
#include "config/trained_run.h"
#include "model/config.h"
#include "ops/ops.h"

namespace octet {
namespace {

void apply(TrainConfig& config, std::span<const KeySetting> settings, std::vector<std::string>& errors) {
  const KeyTable<TrainConfig>& table = train_keys();
  for (const KeyAssignment& assignment : resolve_settings(table.keys(), settings, errors)) {
    table.set(config, assignment.index, assignment.value);
    config.origins[table.keys()[assignment.index].name] = assignment.origin;
  }
}

// People write the name of a preset where the name of a model goes. GPT-2's names are also hub ids from the time before
// these had an organisation; there the weights are meant.
void read_preset_name(TrainConfig& config) {
  const std::string& name = config.model_name_or_path;
  const std::vector<std::string> presets = model_preset_names();
  std::error_code code;
  if (std::ranges::find(presets, name) == presets.end() || std::filesystem::exists(name, code)) return;
  if (name.starts_with("gpt2") && !name.ends_with("-tiny")) {
    config.model_name_or_path = "openai-community/" + name;
    return;
  }
  log_warning(
      "{} is {}, the name of a preset: the model starts from random weights. For trained weights, give a folder or a "
      "hub id such as meta-llama/Llama-3.2-1B",
      config.origins["model_name_or_path"], name);
  config.model_preset = std::exchange(config.model_name_or_path, "");
  config.origins["model_preset"] = config.origins["model_name_or_path"];
  config.origins.erase("model_name_or_path");
}

TrainConfig read_config(FileSettings file, std::span<const KeySetting> flags) {
  TrainConfig config;
  std::vector<std::string> errors = std::move(file.errors);
  apply(config, file.settings, errors);
  apply(config, flags, errors);
  throw_config_errors(errors);
  if (!config.is_set("model_preset")) read_preset_name(config);
  settle_conflicts(config);
  apply_report_to(config, config, errors);
  check_contradictions(config, errors);
  throw_config_errors(errors);
  return config;
}

}  // namespace

FileSettings read_config_file(const std::string& path) {
  FileSettings file{.path = path, .settings = {}, .errors = {}};
  if (path.empty()) return file;
  require_regular_file(path);  // a configuration that a user names may be a pipe, and is read elsewhere
  file.settings = read_settings_file(path, file.errors);
  return file;
}

TrainConfig load_train_config(FileSettings file, std::span<const KeySetting> flags) {
  TrainConfig config = read_config(std::move(file), flags);
  resolve_defaults(config);
  return config;
}

TrainConfig load_train_config(const std::string& path, std::span<const KeySetting> flags) {
  return load_train_config(read_config_file(path), flags);
}

TrainConfig load_plan_config(const std::string& path, std::span<const KeySetting> flags) {
  return load_plan_config(read_config_file(path), flags);
}

TrainConfig load_plan_config(FileSettings file, std::span<const KeySetting> flags) {
  TrainConfig config = read_config(std::move(file), flags);
  const bool demo_model = config.model_name_or_path.empty() &&
                          (config.model_preset.empty() || config.model_preset.ends_with("-tiny"));
  config.assumes_data = config.dataset.empty() && !demo_model;
  resolve_defaults(config);
  return config;
}

TrainConfig load_session_config(FileSettings file, std::span<const KeySetting> flags) {
  TrainConfig config = read_config(std::move(file), flags);
  config.assumes_data = config.dataset.empty();
  resolve_defaults(config);
  return config;
}

TrainedRun load_trained_run(const std::string& path) {
  TrainConfig config = load_train_config(path, {});
  TrainedRun run;
  run.mixed_precision = config.mixed_precision;
  run.per_device_train_batch_size = config.per_device_train_batch_size;
  run.eval_batches = config.eval_batches;
  static_cast<DataKeys&>(run) = std::move(config);
  return run;
}

double default_learning_rate(const DataKeys& keys, bool starts_from_weights) {
  if (keys.is_lora()) return 2e-4;
  if (starts_from_weights) return 1e-5;
  return keys.is_demo() ? 2e-3 : 6e-4;
}

void resolve_start(TrainConfig& config, bool starts_from_weights) {
  if (!config.is_set("learning_rate"))
    config.learning_rate = default_learning_rate(config, starts_from_weights);
  if (config.min_lr >= 0) {
    if (config.min_lr > config.learning_rate) {
      fail_config("min_lr is {}; expected at most the learning rate, which is {}", config.min_lr,
                  config.learning_rate);
    }
    config.min_lr_ratio = config.learning_rate > 0 ? config.min_lr / config.learning_rate : 0;
  }
  // Who fine-tunes looks at scores, not at texts that begin with the prompt of a story.
  if (!config.is_set("sample_steps") && !config.is_demo())
    config.sample_steps = config.is_lora() || starts_from_weights ? 0 : -1;
  if (!config.is_set("sample_tokens")) config.sample_tokens = config.samples_at_evaluations() ? 32 : 64;
  if (config.is_set("warmup_steps") || config.is_set("warmup_ratio")) return;
  config.warmup_steps = 0;
  config.warmup_ratio = 0;
  if (config.is_lora() || starts_from_weights) {
    const bool wsd = config.lr_scheduler_type == ScheduleType::Wsd;
    // The decay of wsd may take all steps.
    config.warmup_ratio = wsd ? std::min(0.03, 1 - config.decay_ratio) : 0.03;
  } else if (config.is_demo()) {
    config.warmup_steps = config.max_steps > 0 ? std::min<int64_t>(50, config.max_steps / 4) : 50;
  }
}

void resolve_defaults(TrainConfig& config) {
  const bool demo = config.is_demo();
  if (demo && config.dataset.empty()) config.dataset = {{.path = "demo"}};
  // A dataset without a model is meant for GPT-2, as in nanoGPT and llm.c.
  if (config.model_preset.empty() && config.model_name_or_path.empty())
    config.model_preset = demo ? "llama-tiny" : kAssumedPreset;
  if (config.is_set("penalty_weight") && !config.is_set("penalty_type") && config.penalty_weight > 0)
    config.penalty_type = PenaltyKind::ZLoss;
  if (config.max_seq_length == 0) config.max_seq_length = demo ? 128 : 1024;
  config.max_steps = std::max<int64_t>(config.max_steps, 0);
  if (config.max_steps == 0 && config.num_train_epochs == 0) {
    if (demo) {
      config.max_steps = 600;
    } else {
      config.num_train_epochs = 1;
    }
  }
  if (demo) {  // what learns the stories in under two minutes on two cores
    if (!config.is_set("data_order")) config.data_order = DataOrder::Random;
    if (!config.is_set("sample_steps")) config.sample_steps = 200;
    if (!config.is_set("logging_steps")) config.logging_steps = 20;
    if (!config.is_set("sample_prompt")) config.sample_prompt = "Mia has";
  }
  if (!config.adapter_name_or_path.empty()) config.finetuning_type = FinetuningType::Lora;
  if (config.is_lora()) {
    if (config.lora_alpha == 0 && config.adapter_name_or_path.empty())
      config.lora_alpha = 2 * static_cast<double>(config.lora_rank);
    if (!config.is_set("weight_decay")) config.weight_decay = 0;
  }
  if (config.is_set("evals_per_epoch") && !config.is_set("eval_strategy"))
    config.eval_strategy = Strategy::Epoch;
  if (config.is_set("saves_per_epoch") && !config.is_set("save_strategy"))
    config.save_strategy = Strategy::Epoch;
  if (config.eval_strategy == Strategy::No && !config.is_set("eval_split")) config.eval_split = 0;
  std::ranges::replace(config.lora_target, "all-linear", "all");  // PEFT's word for it
  resolve_start(config, !config.model_name_or_path.empty());
  if (!config.auto_batch_size && config.max_batch_size == 0) apply_target_batch_size(config);
}

void apply_target_batch_size(StepKeys& keys, int64_t device_count) {
  if (keys.target_effective_batch_size == 0) return;
  const int64_t micro_step = keys.per_device_train_batch_size * device_count;
  if (keys.target_effective_batch_size % micro_step != 0) {
    fail_config(
        "target_effective_batch_size {} is not a multiple of {} (per_device_train_batch_size {} on {} {})",
        keys.target_effective_batch_size, micro_step, keys.per_device_train_batch_size, device_count,
        device_count == 1 ? "device" : "devices");
  }
  keys.gradient_accumulation_steps = keys.target_effective_batch_size / micro_step;
}

void set_batch_size(StepKeys& keys, int64_t rows, int64_t device_count) {
  keys.per_device_train_batch_size = rows;
  apply_target_batch_size(keys, device_count);
}

std::string to_yaml(const TrainConfig& config) {
  const KeyTable<TrainConfig>& table = train_keys();
  std::string text;
  std::string_view group;
  for (size_t i = 0; i < table.keys().size(); ++i) {
    const Key& key = table.keys()[i];
    if (key.transient) continue;
    if (key.group != group) {
      text += fmt::format("{}# {}\n", group.empty() ? "" : "\n", key.group);
      group = key.group;
    }
    const std::string_view decider = decided_by(config, key.name);
    // A choice that is decided later, and the dataset of a session without one: "" is none of their values.
    const KeyValue held = table.get(config, i);
    const bool is_open = (key.type == KeyType::Choice || key.name == "dataset") && value_text(held).empty();
    const std::string value = is_open ? "null" : value_yaml(held);
    text += fmt::format("{}{}:{}{}", decider.empty() ? "" : "# ", key.name,
                        value.starts_with('\n') ? "" : " ", value);
    text += decider.empty() ? "\n" : fmt::format("  (from {})\n", decider);
  }
  return text;
}

std::string config_text(const TrainConfig& config, std::string_view key) {
  return value_text(train_keys().get(config, train_keys().index_of(key)));
}

namespace {

// The table knows members by their place in the whole.
template <class Part>
std::string text_in_part(const Part& keys, std::string_view key) {
  TrainConfig config;
  static_cast<Part&>(config) = keys;
  return config_text(config, key);
}

}  // namespace

std::string config_text(const ModelKeys& keys, std::string_view key) {
  return text_in_part(keys, key);
}
std::string config_text(const DataKeys& keys, std::string_view key) {
  return text_in_part(keys, key);
}
std::string config_text(const PrecisionKeys& keys, std::string_view key) {
  return text_in_part(keys, key);
}
std::string config_text(const StepKeys& keys, std::string_view key) {
  return text_in_part(keys, key);
}

}  // namespace octet
