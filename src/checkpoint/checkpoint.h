#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/loading/loader.h"
#include "dist/host_channel.h"
#include "hf/peft_config.h"
#include "io/checkpoint_store.h"
#include "io/safetensors.h"
#include "model/transformer.h"

namespace octet {

// The state of a run without its tensors: state.json of a checkpoint. Random numbers need no state: each one is a
// function of the seed and of its purpose.
struct TrainerState {
  int64_t step = 0;  // optimizer steps done
  int64_t tokens = 0;
  int64_t skipped_steps = 0;
  int skipped_in_a_row = 0;
  LoaderState loader;
  double first_loss = 0, last_loss = 0;
  std::optional<double> first_eval, best_eval;
  std::vector<double> loss_window;  // of the SpikeDetector
  int spikes_in_a_row = 0;
  int64_t sequences_per_step = 0;     // of all ranks; 0: not known
  std::optional<double> first_level;  // of RedFlags: the loss in the first steps
  bool operator==(const TrainerState&) const = default;
};

std::string to_json(const TrainerState& state);
TrainerState trainer_state_from_json(std::string_view text, const std::string& place);

// The files of a checkpoint; docs/formats.md describes each. Files of tensors may also be numbered: see tensor_files.h.
namespace checkpoint_file {
constexpr const char* kModelConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";  // or with adapters:
constexpr const char* kWeightsIndex = "model.safetensors.index.json";
constexpr const char* kAdapterWeights = kAdapterWeightsName;
constexpr const char* kAdapterConfig = kAdapterConfigName;
constexpr const char* kBase = "base.json";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kFp8 = "fp8_state.bin";
constexpr const char* kState = "state.json";
constexpr const char* kRunConfig = "train_config.yaml";
}  // namespace checkpoint_file

// Tensors as a safetensors file names their types and shapes.
SafeDType safe_dtype(DType dtype);
std::vector<int64_t> dimensions(const Shape& shape);

// The restored state, and messages for the user about everything that was not restored bit for bit.
struct Restored {
  TrainerState state;
  std::vector<std::string> remarks;
};

// Brings an allocated model to the state of a checkpoint. The same precision, recipe and optimizer_state continue bit
// for bit; otherwise values are converted (through exact fp32 weights) and the remarks say how. Error, naming file and
// tensor, for what does not fit or is not finite.
//
// The checkpoint may have been saved by any number of ranks. If ranks share the model, each reads only its rows. All of
// them call this and pass `host`; what fails on one of them then fails on all.
Restored restore_checkpoint(Env& env, const Checkpoint& checkpoint, Device& device, Transformer& model,
                            HostChannel* host = nullptr);

}  // namespace octet
