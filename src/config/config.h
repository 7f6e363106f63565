#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keys.h"
#include "config/device_key.h"
#include "config/interval.h"
#include "step/schedule.h"
#include "data/datasets/dataset_part.h"
#include "ops/ops.h"
#include "precision/fp8_config.h"
#include "report/console.h"

namespace octet {

// The model of a run that names a dataset and no model.
inline constexpr const char* kAssumedPreset = "gpt2";

// Everything a training run is told. A member is named as its key; config_keys.cpp holds the table that gives
// each key its help, aliases and limits. The order of an enum is the order of its names in that table.
struct TrainConfig {
  enum class TieWordEmbeddings { Auto, Yes, No };
  enum class FinetuningType { Full, Lora };
  enum class DataOrder { Shuffled, Random, Sequential };
  enum class Packing { Auto, BestFit, None, Stream };
  using LrScheduler = ScheduleType;
  enum class OptimizerState { Fp32, Bf16, Fp8 };
  enum class GradAccumDtype { Auto, Fp32, Bf16 };
  enum class MasterWeights { Exact, Compact, Stochastic };
  using Penalty = PenaltyKind;
  using Precision = octet::Precision;
  using Fp8Recipe = octet::Fp8Recipe;
  using Fp8Format = octet::Fp8Format;
  enum class Fp8AmaxCompute { Max, MostRecent };
  enum class Fp8BlockScales { Pow2, Exact };
  enum class Checkpointing { Auto, None, Act, Mlp, Block };
  enum class WeightCopies { Auto, Two, One };
  enum class ShardingMode { Auto, None, Zero1, Zero2, FsdpFull, Hsdp };
  enum class GradientReduceDtype { Bf16, Fp32 };
  enum class CudaGraphs { Auto, On, Off };
  using Device = DeviceKey;
  using Progress = ConsoleMode;
  using Strategy = octet::Strategy;  // when the run evaluates, and when it saves

  // Model
  std::string model_preset;        // "" with no model_name_or_path: resolved to gpt2, and to llama-tiny in the demo
  std::string model_name_or_path;  // a Hugging Face folder
  // Override the sizes of the model, for a start from random weights. 0: not set. If one is set, all are filled in.
  int64_t hidden_size = 0, num_hidden_layers = 0, num_attention_heads = 0, num_key_value_heads = 0;
  int64_t head_dim = 0, intermediate_size = 0, vocab_size = 0, max_position_embeddings = 0;
  TieWordEmbeddings tie_word_embeddings = TieWordEmbeddings::Auto;

  // LoRA. With adapter_name_or_path, the adapter decides rank, alpha, targets and rslora, see its help.
  FinetuningType finetuning_type = FinetuningType::Full;  // Lora if adapter_name_or_path is set
  int64_t lora_rank = 16;
  // 0 is resolved to 2 x lora_rank. It stays 0 if an adapter decides it, and without LoRA.
  double lora_alpha = 0;
  double lora_dropout = 0;
  std::vector<std::string> lora_target = {"all"};
  bool use_rslora = false;
  double loraplus_lr_ratio = 1;      // 1: off
  std::string adapter_name_or_path;  // "": new adapters

  // Data
  std::vector<DatasetPart> dataset;  // none is resolved to "demo", the built-in stories
  std::vector<DatasetPart> eval_dataset;
  std::string eval_dataset_split;
  std::string dataset_split, dataset_subset, dataset_revision, dataset_dir;
  ExampleFormat dataset_format = ExampleFormat::Auto;
  std::string text_column, prompt_column, completion_column, messages_column;
  ChatTemplate chat_template = ChatTemplate::Auto;
  std::string default_system = "auto";  // the template's own
  std::string train_on = "completion";
  OnError on_error = OnError::Stop;
  int64_t max_samples = 0;  // 0: all
  std::string tokenizer = "bytes";
  // 0 is resolved: 128 in the demo, else 1024; never more than the model's positions.
  int64_t max_seq_length = 0;
  Packing packing = Packing::Auto;
  DataOrder data_order = DataOrder::Shuffled;  // Random in the demo
  double eval_split = 0.05;
  int64_t shard_tokens = 100'000'000;
  std::string cache_dir;  // "": the usual cache folder
  bool verify = false;    // check prepared data again, although it was checked before

  // Batch
  int64_t per_device_train_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  int64_t target_effective_batch_size = 0;  // 0: off
  int64_t max_batch_size = 0;               // 0: not set
  bool auto_batch_size = false;
  double device_memory_limit_gb = 0;  // 0: what the device has

  // Length; after resolving exactly one of the two is not 0
  int64_t max_steps = 0;
  double num_train_epochs = 0;

  // Optimizer
  double learning_rate = 6e-4;  // resolved, see default_learning_rate
  LrScheduler lr_scheduler_type = LrScheduler::Cosine;
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;  // 0.03 with LoRA and from given weights, unless the warm-up is set
  double min_lr_ratio = 0.1;
  double min_lr = -1;         // below 0: min_lr_ratio decides. Otherwise it decides min_lr_ratio.
  double decay_ratio = 0.2;   // wsd
  double weight_decay = 0.1;  // 0 with LoRA
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  // 0: no clipping
  OptimizerState optimizer_state = OptimizerState::Fp32;
  MasterWeights master_weights = MasterWeights::Exact;
  Penalty penalty_type = Penalty::None;
  double penalty_weight = 1e-4;

  // Precision
  Precision mixed_precision = Precision::Fp8;
  Fp8Recipe fp8_recipe = Fp8Recipe::Delayed;
  Fp8Format fp8_format = Fp8Format::Hybrid;
  int64_t fp8_margin = 0;
  int64_t fp8_interval = 1;
  int64_t fp8_amax_history_len = 16;
  Fp8AmaxCompute fp8_amax_compute = Fp8AmaxCompute::Max;
  Fp8BlockScales fp8_block_scales = Fp8BlockScales::Pow2;
  Fp8Head fp8_head = Fp8Head::Auto;
  Fp8FastAccum fp8_fast_accum = Fp8FastAccum::Forward;
  std::vector<std::string> fp8_skip_layers;
  bool fp8_eval = false;
  int64_t fp8_stats_steps = 100;  // 0: never
  bool require_fp8 = false;
  bool fp8_emulation = false;

  // Memory
  Checkpointing gradient_checkpointing = Checkpointing::Auto;  // resolved to the level that fits
  GradAccumDtype grad_accum_dtype = GradAccumDtype::Auto;
  WeightCopies fp8_weight_copies = WeightCopies::Auto;

  // Ranks
  ShardingMode sharding_mode = ShardingMode::Auto;  // see sharding_of
  GradientReduceDtype gradient_reduce_dtype = GradientReduceDtype::Bf16;
  int64_t check_ranks_steps = 500;  // 0: never
  double comm_timeout = 100;        // seconds
  double rendezvous_timeout = 300;  // seconds
  int64_t pretend_ranks = 0;        // 0: the ranks that there are
  double pretend_bandwidth_gb = 300;

  // Run
  std::string output_dir = "runs";
  std::string run_name;  // "": made from the time and the model
  int64_t seed = 42;
  Device device = Device::Auto;
  bool deterministic = false;
  CudaGraphs cuda_graphs = CudaGraphs::Auto;
  int64_t num_threads = 0;  // 0: all
  int64_t logging_steps = 1;
  Strategy eval_strategy = Strategy::Steps;  // Epoch if evals_per_epoch is set
  int64_t eval_steps = 100;                  // 0: only at the end
  int64_t evals_per_epoch = 1;
  int64_t eval_batches = 20;
  std::vector<std::string> eval_tasks;  // as parse_task_source takes them
  int64_t eval_task_steps = 0;          // 0: with the evaluations
  int64_t eval_task_samples = 1000;     // 0: all
  int64_t sample_steps = -1;            // 0: never; -1: at evaluations
  std::string sample_prompt = "Once upon a time";
  int64_t sample_tokens = 64;
  double sample_temperature = 0.8;
  bool dry_run = false;
  std::string profile_steps;  // "10:12" as in StepRange; empty: none
  bool list_checkpoints = false;
  Progress progress = Progress::Auto;

  // Checkpoints
  std::string resume;                        // "latest" or a path; "": a new run
  std::string checkpoint_dir;                // "": a folder of the run
  Strategy save_strategy = Strategy::Steps;  // Epoch if saves_per_epoch is set
  int64_t save_steps = 500;                  // 0: only at the end
  int64_t saves_per_epoch = 1;
  int64_t save_total_limit = 3;
  bool save_async = true;

  // Reports
  bool use_tensorboard = true;
  bool use_wandb = false;
  std::string wandb_project, wandb_entity, wandb_run_name;
  std::string wandb_mode;              // online, offline or disabled; "": decided by choose_wandb_mode
  std::vector<std::string> report_to;  // sets use_tensorboard and use_wandb
  double price_per_hour = 0;           // of one device; 0: not known

  // Where each key was set: "--lr", "max_steps in run.yaml:3". Absent: the default.
  std::map<std::string, std::string, std::less<>> origins;

  // No dataset is given, but the demo is not meant: see load_plan_config.
  bool assumes_data = false;

  bool is_set(std::string_view key) const { return origins.find(key) != origins.end(); }
  bool samples_at_evaluations() const { return sample_steps < 0; }
  bool is_lora() const { return finetuning_type == FinetuningType::Lora; }
  bool is_demo() const {
    return dataset.empty() ? !assumes_data : dataset.size() == 1 && dataset[0].path == "demo";
  }
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
// report_to sets use_wandb and use_tensorboard. A flag overrides what the file sets.
void apply_report_to(TrainConfig& config, std::vector<std::string>& errors);
void resolve_defaults(TrainConfig& config);

// The learning rate of a run that does not set it: 2e-4 with LoRA, 1e-5 when all weights of a given model are trained,
// 2e-3 in the demo, else 6e-4.
double default_learning_rate(const TrainConfig& config, bool starts_from_weights);
// Fills in learning rate, warm-up and sample_steps if they are not set. resolve_defaults calls it with a guess: weights are given if
// model_name_or_path is set. That folder may hold no weights, so it is called again by whoever has looked.
void resolve_start(TrainConfig& config, bool starts_from_weights);

// Sets gradient_accumulation_steps so that an optimizer step sees target_effective_batch_size sequences on
// `device_count` devices; does nothing where the target is 0. A target that does not divide is a ConfigError.
void apply_target_batch_size(TrainConfig& config, int64_t device_count = 1);
// `config` with `rows` as per_device_train_batch_size, and the gradient_accumulation_steps that follow from it.
TrainConfig with_batch_size(TrainConfig config, int64_t rows, int64_t device_count = 1);

// Settings that have no effect because of other settings, one message each. For several runs that are compared:
// settings that have no effect in any of the runs that have them.
std::vector<std::string> idle_settings(std::span<const TrainConfig> runs, bool on_gpu);
void warn_of_idle_settings(std::span<const TrainConfig> runs, bool on_gpu);

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
