#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/loading/loader.h"
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
  bool operator==(const TrainerState&) const = default;
};

std::string to_json(const TrainerState& state);
TrainerState trainer_state_from_json(std::string_view text, const std::string& place);

// The files of a checkpoint; docs/formats.md describes each.
namespace checkpoint_file {
constexpr const char* kModelConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";  // or with adapters:
constexpr const char* kAdapterWeights = kAdapterWeightsName;
constexpr const char* kAdapterConfig = kAdapterConfigName;
constexpr const char* kBase = "base.json";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kFp8 = "fp8_state.bin";
constexpr const char* kState = "state.json";
constexpr const char* kTrainConfig = "train_config.yaml";
}  // namespace checkpoint_file

// Bytes of the tensors that a checkpoint of this model holds: of a model with adapters, only theirs.
int64_t state_bytes(const ParameterSet& parameters);

// The whole state of a run between two steps, copied to the host so that training continues while it is written. The
// memory is reused by the next save.
class Snapshot {
 public:
  // Waits for the device. With `in_place` nothing is copied: the state is read from the device while it is written, and
  // must not change until then.
  void take(Device& device, Transformer& model, TrainerState state, std::string train_config,
            bool in_place = false);

  int64_t step() const { return state_.step; }
  int64_t bytes() const;
  // Error, naming the tensor, when a weight or moment is not finite: such a state is not worth keeping.
  void check() const;
  void write(CheckpointWriter& writer) const;

 private:
  // Rows of a weight as the file has them: as stored, or exact fp32 values of adapters.
  std::vector<std::byte> weight_rows(size_t index, int64_t begin, int64_t rows) const;
  struct StateTensor {
    std::string name;
    Tensor device;
    std::unique_ptr<std::byte[]> copy;  // as large as `device`; null: read from there
    size_t size() const { return static_cast<size_t>(device.bytes()); }
  };
  void add(std::vector<StateTensor>& tensors, size_t index, const std::string& name, Tensor device,
           bool in_place);
  // Calls `use` with the bytes of some rows; a vector counts as rows of one element.
  std::vector<std::byte> rows_of(const StateTensor& tensor, int64_t begin, int64_t rows) const;
  // The same piece by piece over the whole tensor.
  template <class Use>
  void for_pieces(const StateTensor& tensor, Use&& use) const;

  Device* device_ = nullptr;
  bool adapters_ = false;                // only adapters are saved
  std::vector<ParameterSpec> table_;     // of what is saved
  std::vector<StateTensor> weights_;     // in the order of the table
  std::vector<StateTensor> remainders_;  // of adapters in bf16, likewise
  std::vector<StateTensor> optimizer_;   // by name
  std::vector<std::byte> fp8_;
  TrainerState state_;
  std::string model_config_, train_config_;
};

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
Restored restore_checkpoint(Env& env, const Checkpoint& checkpoint, Device& device, Transformer& model);

}  // namespace octet
