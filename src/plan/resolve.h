#pragma once

#include <memory>
#include <optional>

#include "config/config.h"
#include "dist/ranks.h"
#include "plan/run_spec.h"

// The way of a configuration, from its keys to a run that can start:
//
//   keys -> model -> data -> plan -> run
//
// Each stage is a function of those before it (model_stage.h, data_stage.h, run_plan.h), and its result is never changed
// afterwards. Every command that looks at a run goes this way: what `octet plan` shows is what `octet train` does.

namespace octet {

// Which stages a command goes through, and for which ranks. Each command has a line in the list of functions below.
struct Wanted {
  enum class Model { AnyPlace, OnDisk };  // OnDisk: nothing is downloaded, and a model that is not there is not looked at
  enum class Data { No, Tokenizer, Opened };  // Tokenizer: it may be downloaded, for its chat template
  enum class Plan {
    No,
    ForBatchSize,  // only if the batch size follows from the memory
    MayNotFit,     // a run that does not fit has RunPlan::shortage
    MustFit        // ... is refused with a ConfigError
  };

  Model model = Model::AnyPlace;
  Data data = Data::No;
  Plan plan = Plan::No;
  bool schedule = false;
  bool start = false;              // weights must be there, and settings that suit the run badly are named
  bool makes_samples = true;       // where the configuration asks for them; a benchmark makes none
  bool precision_is_given = false;  // advice on memory must not change mixed_precision

  RankPlace place = {};                                      // of this process among the ranks of the run
  std::optional<ShardingMode> mode_if_alone = std::nullopt;  // of a single rank that acts as one of several
  std::optional<Checkpoint> resumed = std::nullopt;          // the run continues from it
  std::shared_ptr<Device> device = nullptr;                  // null: the one that the configuration asks for

  static Wanted by_train(const RankPlace& place = {}, std::optional<Checkpoint> resumed = std::nullopt);
  static Wanted by_session(bool has_data, bool has_schedule);
  static Wanted by_plan(const RankPlace& place = {}, std::shared_ptr<Device> device = nullptr);
  static Wanted by_bench(std::shared_ptr<Device> device = nullptr);
  static Wanted by_bench_of_ranks(const RankPlace& place);
  static Wanted by_doctor(std::shared_ptr<Device> device);
  static Wanted by_lr(const ScheduleKeys& given, const RankPlace& place = {});
  static Wanted by_prepare();
  static Wanted by_sweep();
};

// The run, and the keys that it came from.
struct ResolvedRun : RunSpec {
  TrainConfig keys;    // as given, with the defaults that depend on other keys and on the model
  TrainConfig config;  // resolved_config of all stages: what the run writes
};

// The stages that are wanted, in their order. ConfigError or Error if something does not fit together. No large memory is
// taken, and nothing is written but a dataset that has to be prepared, into the cache.
ResolvedRun resolve(const TrainConfig& given, Wanted wanted);
// The same for a run that has its keys. If a stage fails, the run keeps what the stages before it have found.
void resolve_stages(ResolvedRun& run, Wanted wanted);

// The schedule that the run of a checkpoint had, if it made so many sequences per step. Nothing if its settings cannot be
// read.
std::optional<ScheduleConfig> schedule_of_checkpoint(const Checkpoint& checkpoint, int64_t sequences,
                                                     int64_t sequences_per_step);

// The place of a rank that is alone, or with pretend_ranks of the first of so many.
RankPlace place_alone(const RankKeys& keys);

// What a plan needs to know of the keys apart from those of the step. It has all samples that the keys ask for.
PlanOptions plan_options(const TrainConfig& keys);

// The files of a run. `fp8`: whether the run is in FP8, if that was asked for.
FilesSpec files_spec(const TrainConfig& config, bool fp8);
// The settings of a run as reports take them.
HParams hparams_of(const TrainConfig& config);

// The keys with everything that the stages have found: tokenizer, batch size, accumulation, level of recomputation (where
// the run fits) and number of steps.
TrainConfig resolved_config(const TrainConfig& keys, const DataChoice& data, const RunPlan& plan,
                            const ScheduleConfig& schedule);

}  // namespace octet
