#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/run_folders.h"
#include "config/interval.h"
#include "config/rank_keys.h"
#include "dist/ranks.h"
#include "plan/data_loaders.h"
#include "plan/device_choice.h"
#include "plan/model_stage.h"
#include "plan/run_plan.h"
#include "plan/start_times.h"
#include "report/console_mode.h"
#include "report/tensorboard.h"
#include "step/optimizer_options.h"

// A run in typed parts. resolve() makes it of the keys; training, saving, evaluation and samples read these parts and no
// key.

namespace octet {

struct EvaluationSpec {
  bool is_wanted = true;
  Interval interval;
  int64_t batches = 0;  // 0: all
  bool fp8 = false;
  std::vector<std::string> tasks;  // as parse_task_source takes them
  Interval task_interval;
  int64_t task_samples = 0;  // 0: all
  int threads = 0;           // that encode tasks; 0: the usual number
};

struct SampleSpec {
  int64_t rows = 0;    // prompts that are continued together; 0: the run makes no samples
  int64_t length = 0;  // the longest context
  int64_t steps = 0;   // between two; 0: none in between
  bool at_evaluations = false;
  bool takes_exam = false;  // the demo's
  std::string prompt;
  int64_t tokens = 0;
  double temperature = 0;
};

struct LogSpec {
  ConsoleMode progress = ConsoleMode::Auto;
  Interval logging, fp8_stats;
  std::string profile_steps;  // as parse_step_range takes them
  double price_per_hour = 0;  // of one device; 0: not known
};

struct WandbSpec {
  bool is_wanted = false;
  std::string mode, project, entity, run_name;
};

// What a run is called in the reports, and its settings.
struct StoredSettings {
  std::string yaml;  // that load_train_config reads back
  HParams hparams;   // for TensorBoard's table and W&B's configuration
};

// The files of a run, and what is written into them.
struct FilesSpec {
  RunFolders folders;
  std::string resume;     // "latest" or a path; "": a new run
  bool fp8 = false;       // the run is in FP8
  std::string precision;  // in the name that a run without one gets
  bool saves = true;      // checkpoints
  int64_t save_total_limit = 0;
  bool save_async = true;
  bool tensorboard = true;
  WandbSpec wandb;
  std::function<StoredSettings(const std::string& run_name)> settings;

  std::string run_folder() const { return folders.run(); }
  std::string checkpoint_folder() const { return folders.checkpoints(fp8); }
};

struct RankSpec {
  int64_t check_steps = 0;  // between two comparisons of weights; 0: never
  int pretended = 0;        // 0: the ranks that there are
  double pretended_gb = 0;  // their bandwidth
  double comm_timeout = 0, rendezvous_timeout = 0;  // seconds
  DeviceKey device = DeviceKey::Auto;
};
RankSpec rank_spec(const RankKeys& keys, DeviceKey device);
DeviceSpec device_spec(const CommonKeys& keys, bool deterministic);

struct RunSpec {
  // What the stages have found; those that nobody wanted have left their part empty.
  DeviceSpec wanted_device;
  std::shared_ptr<Device> device;
  std::string gpu;  // of this rank, as the driver names it; empty without one
  ModelChoice model;
  DataChoice data;
  RunPlan plan;  // shape, numerics, memory, adapters and sharding

  OptimizerOptions optimizer;  // with the schedule
  PenaltyOptions penalty;
  uint64_t seed = 0;
  LoadingOptions loading;
  EvaluationSpec evaluation;
  SampleSpec samples;
  Interval saving;
  LogSpec log;
  FilesSpec files;
  RankSpec ranks;
  std::string dataset;     // its names, for people
  bool holds_out = true;   // what is evaluated was taken from it
  bool is_demo = false;
  bool is_dry = false;               // nothing is trained
  bool names_model = false;          // model_name_or_path was set, not taken from an adapter
  std::string model_name_or_path;
  std::vector<std::string> changed_settings;  // since the checkpoint that the run continues from
  StartTimes times;

  const ScheduleConfig& schedule() const { return optimizer.schedule; }
  double steps_per_epoch() const {
    return static_cast<double>(data.sequences) / static_cast<double>(plan.sequences_per_step());
  }
  // Whether micro-steps are recorded as graphs and replayed.
  bool records_graphs() const { return plan.shape.graphs && device->capabilities().graphs; }
};

}  // namespace octet
