#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keys.h"
#include "config/data_keys.h"
#include "config/interval.h"
#include "config/rank_keys.h"
#include "config/report_keys.h"
#include "config/schedule_keys.h"
#include "config/step_keys.h"

namespace octet {

enum class PenaltyKind : uint8_t;  // ops/ops.h

// Everything a training run is told: what the stages and the helpers of a run read apart from each other, each in a struct
// of its own, and what is left. A member is named as its key; config_keys.cpp holds the table that gives each key its help,
// aliases and limits. The order of an enum is the order of its names in that table.
struct TrainConfig : DataKeys, StepKeys, ScheduleKeys, RankKeys, ReportKeys {
  // Optimizer
  double weight_decay = 0.1;  // 0 with LoRA
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  // 0: no clipping
  PenaltyKind penalty_type{};  // None
  double penalty_weight = 1e-4;

  // Evaluation and samples
  Strategy eval_strategy = Strategy::Steps;  // Epoch if evals_per_epoch is set
  int64_t eval_steps = 100;                  // 0: only at the end
  int64_t evals_per_epoch = 1;
  int64_t eval_batches = 20;
  bool fp8_eval = false;
  int64_t eval_task_steps = 0;       // 0: with the evaluations
  int64_t eval_task_samples = 1000;  // 0: all
  int64_t sample_steps = -1;         // 0: never; -1: at evaluations
  std::string sample_prompt = "Once upon a time";
  int64_t sample_tokens = 64;
  double sample_temperature = 0.8;

  // Checkpoints
  Strategy save_strategy = Strategy::Steps;  // Epoch if saves_per_epoch is set
  int64_t save_steps = 500;                  // 0: only at the end
  int64_t saves_per_epoch = 1;
  int64_t save_total_limit = 3;
  bool save_async = true;

  // Figures
  int64_t logging_steps = 1;
  int64_t fp8_stats_steps = 100;  // 0: never
  std::string profile_steps;      // "10:12" as in StepRange; empty: none
  double price_per_hour = 0;      // of one device; 0: not known

  bool samples_at_evaluations() const { return sample_steps < 0; }
};

const KeyTable<TrainConfig>& train_keys();

// The settings of a configuration file, and what is wrong with it.
struct FileSettings {
  std::string path;  // "": no file
  std::vector<KeySetting> settings;
  std::vector<std::string> errors;
};

// A file with octet's own keys; "": none.
FileSettings read_config_file(const std::string& path);

// Lays the flags over the settings of the file; checks every value and every contradiction, then fills in the defaults
// that depend on other keys. Everything wrong is reported in one ConfigError, a message per line.
TrainConfig load_train_config(FileSettings file, std::span<const KeySetting> flags);
// The same with read_config_file.
TrainConfig load_train_config(const std::string& path, std::span<const KeySetting> flags);

// As load_train_config, for commands that look at a run without its data. Without a dataset, a `-tiny` preset (or no
// model at all) means the demo. For any other model, some dataset is assumed.
TrainConfig load_plan_config(FileSettings file, std::span<const KeySetting> flags);
TrainConfig load_plan_config(const std::string& path, std::span<const KeySetting> flags);

// The same for a caller who brings the batches: without a dataset nothing is assumed, and no model is the demo's.
TrainConfig load_session_config(FileSettings file, std::span<const KeySetting> flags);

// The parts of load_train_config, for callers that build a config in code.
void check_contradictions(const TrainConfig& config, std::vector<std::string>& errors);
// Of two keys that exclude each other, a flag overrides what the file sets: the key of the file gets its default back. Of
// max_steps and num_train_epochs in one place, max_steps stays.
void settle_conflicts(TrainConfig& config);
void resolve_defaults(TrainConfig& config);

// The learning rate of a run that does not set it: 2e-4 with LoRA, 1e-5 when all weights of a given model are trained,
// 2e-3 in the demo, else 6e-4.
double default_learning_rate(const DataKeys& keys, bool starts_from_weights);
// Fills in learning rate, warm-up and sample_steps if they are not set. resolve_defaults calls it with a guess: weights are given if
// model_name_or_path is set. That folder may hold no weights, so it is called again by whoever has looked.
void resolve_start(TrainConfig& config, bool starts_from_weights);

// The key that was set and decides `key` (auto_batch_size for per_device_train_batch_size), or "" if there is none. The
// two must not be set together.
std::string_view decided_by(const TrainConfig& config, std::string_view key);

// Whether the user has set a key to something other than its default.
bool is_changed(const TrainConfig& config, std::string_view key);

// The value of a key as users write it ("fp8", "0.0006"); `key` must be in the table.
std::string config_text(const TrainConfig& config, std::string_view key);

// The whole config as YAML that load_train_config reads back to the same values. A key that follows from
// another one (gradient_accumulation_steps from target_effective_batch_size) is written as a comment.
std::string to_yaml(const TrainConfig& config);

}  // namespace octet
