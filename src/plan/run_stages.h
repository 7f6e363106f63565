#pragma once

#include <memory>
#include <optional>

#include "dist/ranks.h"
#include "plan/data_stage.h"
#include "plan/model_stage.h"
#include "plan/run_plan.h"
#include "plan/start_times.h"

// The way of a configuration, from its keys to a run that can start:
//
//   keys -> model -> data -> plan -> run
//
// Each stage is a function of those before it (model_stage.h, data_stage.h, run_plan.h), and its result is never changed
// afterwards. `octet plan` and `octet bench` go from the model to the plan without data; `octet train` goes all the way,
// with --dry_run up to the run.

namespace octet {

struct RunStages {
  const TrainConfig keys;  // as given, with the defaults that depend on other keys and on the model
  const std::unique_ptr<Device> device;
  const ModelChoice model;
  const DataChoice data;
  const RunPlan plan;
  const ScheduleConfig schedule;
  const TrainConfig config;  // resolved_config of all before: what the run writes
  const StartTimes times = {};

  double steps_per_epoch() const {
    return static_cast<double>(data.sequences) / static_cast<double>(plan.sequences_per_step());
  }
};

// Whether micro-steps are recorded as graphs and replayed.
inline bool records_graphs(const RunStages& stages) {
  return stages.plan.shape.graphs && stages.device->capabilities().graphs;
}

// All stages of a training run that can start: everything fits together, the memory is enough and the weights that it
// starts from are there. ConfigError or Error otherwise. No large memory is taken, and nothing is written but a dataset
// that has to be prepared, into the cache. With `resumed`, the run continues from that checkpoint. `place`: of this
// process among the ranks of the run.
RunStages prepare_run(const TrainConfig& given, std::optional<Checkpoint> resumed = std::nullopt,
                      const RankPlace& place = {});

// The keys with everything that the stages have found: tokenizer, batch size, accumulation, level of recomputation (where
// the run fits) and number of steps.
TrainConfig resolved_config(const TrainConfig& keys, const DataChoice& data, const RunPlan& plan,
                            const ScheduleConfig& schedule);

}  // namespace octet
