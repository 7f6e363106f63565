#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/rank_saving.h"

namespace octet {

// Bytes of the tensors that a checkpoint of this model holds: of a model with adapters, only theirs.
int64_t state_bytes(const ParameterSet& parameters);

// The whole state of a run between two steps, copied to the host so that training continues while it is written. The
// memory is reused by the next save. With ranks, each has a copy of the tensors that it writes: see SaveLayout.
class Snapshot {
 public:
  // Waits for the device. With `in_place` nothing is copied: the state is read from the device while it is written, and
  // must not change until then. With `ranks` all of them call this, and nothing is in place. If there is not enough
  // memory for the copy, check() says so: the ranks stay in step.
  void take(Device& device, Transformer& model, TrainerState state, std::string train_config,
            bool in_place = false, const RankSaving* ranks = nullptr);

  int64_t step() const { return state_.step; }
  int64_t bytes() const;  // of what this rank writes
  // Error, naming the tensor, when a weight or moment is not finite: such a state is not worth keeping.
  void check() const;

  // All files of a checkpoint without ranks.
  void write(CheckpointWriter& writer) const {
    write(writer, [&] { write_tensors(writer); });
  }
  // With ranks, every rank writes its files of tensors, and the first one all others. `tensors` adds the files of
  // tensors to the list.
  void write_tensors(CheckpointWriter& writer) const;
  void write(CheckpointWriter& writer, const std::function<void()>& tensors) const;

 private:
  struct StateTensor {
    std::string name;
    Tensor whole;                       // its memory is used only in place
    std::unique_ptr<std::byte[]> copy;  // as large as `whole`; null: read from there
    size_t size() const { return static_cast<size_t>(whole.bytes()); }
  };
  // Where a tensor is copied to; null: nowhere.
  std::byte* add(std::vector<StateTensor>& tensors, size_t index, const SavedTensor& saved, bool in_place);
  // Rows of a weight as the file has them: as stored, or exact fp32 values of adapters.
  std::vector<std::byte> weight_rows(size_t index, int64_t begin, int64_t rows) const;
  // The bytes of some rows; a vector counts as rows of one element.
  std::vector<std::byte> rows_of(const StateTensor& tensor, int64_t begin, int64_t rows) const;
  // Calls `use` with the bytes of the whole tensor, piece by piece.
  template <class Use>
  void for_pieces(const StateTensor& tensor, Use&& use) const;

  Device* device_ = nullptr;
  PartGatherer gatherer_;
  bool adapters_ = false;  // only adapters are saved
  bool out_of_memory_ = false;
  std::string weights_name_, optimizer_name_;  // of the files; empty: other ranks write them
  std::string weights_index_;                  // empty: there is none
  // The part that this rank writes:
  std::vector<ParameterSpec> table_;     // of the weights
  std::vector<StateTensor> weights_;     // in the order of the table
  std::vector<StateTensor> remainders_;  // of adapters in bf16, likewise
  std::vector<StateTensor> optimizer_;   // by name
  std::vector<std::byte> fp8_;
  TrainerState state_;
  std::string model_config_, train_config_;
};

}  // namespace octet
