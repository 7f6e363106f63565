#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/model_folder.h"
#include "config/config.h"
#include "config/schedule.h"
#include "model/transformer.h"
#include "plan/data_setup.h"
#include "plan/memory_fit.h"

namespace octet {

// Everything that follows from a configuration before memory is allocated. The order of the members is the order in
// which they are made.
struct Setup {
  TrainConfig config;  // resolved: batch size and steps are filled in
  std::unique_ptr<Device> device;
  std::optional<ModelFolder> start;  // what model_name_or_path names, where it is given
  ModelConfig model;
  std::string tokenizer_source;  // config.tokenizer, or a checkpoint's copy of it
  std::unique_ptr<Tokenizer> tokenizer;
  TrainingData data;
  Numerics numerics;            // after any fallback
  std::string precision_label;  // "FP8 (emulated)", "BF16 (fallback)", ...
  std::string fallback_reason;  // empty when there was none
  MemoryLimit memory;
  RunShape shape;
  std::unique_ptr<Transformer> transformer;  // planned, not allocated
  bool precision_is_given = false;           // mixed_precision is what is asked for, and not to be changed
  bool makes_samples = true;                 // where the configuration asks for them; a benchmark does not
  int64_t sampling_bytes = 0;                // what generating samples allocates beside the plan
  ScheduleConfig schedule;
};

// Throws ConfigError or Error naming what is wrong; no large memory is taken, and nothing is written
// but a dataset that has to be prepared, into the cache.
// With `resumed`, the model is that of the checkpoint, and what model_name_or_path names is not needed any more.
Setup make_setup(TrainConfig config, const Checkpoint* resumed = nullptr);
// The same without tokenizer, data and steps: what a plan or a benchmark needs.
// On `device` where one is given, else on the one that the configuration asks for. With `makes_samples`, the memory
// for those that the configuration asks for counts.
Setup make_model_setup(TrainConfig config, std::unique_ptr<Device> device = nullptr,
                       bool makes_samples = false);

// Parts that other commands use alone.
std::unique_ptr<Device> make_device(const TrainConfig& config);
// Whether make_device makes that of a GPU, or refuses because there is none.
bool runs_on_gpu(const TrainConfig& config);
Numerics numerics_from(const TrainConfig& config, const Device& device);

}  // namespace octet
