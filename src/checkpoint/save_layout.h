#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/tensor_files.h"
#include "model/parameters.h"

namespace octet {

// A tensor of the training state that a checkpoint holds whole.
struct SavedTensor {
  enum class Kind : uint8_t {
    Weight,
    LowHalf,  // the remainder of an adapter, which is written together with its weight
    Optimizer,
  };
  const Parameter* parameter = nullptr;
  std::string name;
  Kind kind = Kind::Weight;
  Tensor share;  // the rows on this rank
  int file = 0;  // number of the file that it goes to, among the files of its kind

  int64_t width() const { return share.shape.rank() == 1 ? 1 : share.shape[1]; }  // elements of a row
  int64_t row_bytes() const { return width() * static_cast<int64_t>(size_of(share.dtype)); }
  int64_t bytes() const { return parameter->spec.shape[0] * row_bytes(); }  // of the whole tensor
  // Its rows are on several ranks. The same answer on all of them.
  bool is_spread() const { return parameter->storage.is_shared() && parameter->storage.cut.parts > 1; }
  // All rows; without memory where they are spread.
  Tensor whole() const;
};

// Which rank writes which tensors of a checkpoint to which file: decided here alone, and the same on all ranks. Without
// ranks there is one file of each kind. With ranks, tensors are dealt by their bytes to at most kMostWriters ranks, and
// writer number i writes file number i of each kind. The weights of adapters are small: they stay one file.
class SaveLayout {
 public:
  static constexpr int64_t kMostWriters = 8;

  SaveLayout(const ParameterSet& parameters, const Sharding& sharding);

  const std::vector<SavedTensor>& tensors() const { return tensors_; }
  const Sharding& sharding() const { return sharding_; }
  bool has_adapters() const { return adapters_; }
  bool is_mine(const SavedTensor& tensor) const { return rank_of(tensor.file) == sharding_.rank; }
  int64_t my_bytes() const;  // of the tensors that this rank writes

  // The files that this rank writes; empty: none.
  std::string my_weights() const { return my_file(weights_name(), weight_files_); }
  std::string my_optimizer() const { return my_file(kOptimizerStem, optimizer_files_); }
  // model.safetensors.index.json; empty where the weights are one file without number.
  std::string weights_index() const;

 private:
  int64_t rank_of(int64_t writer) const { return writer * sharding_.ranks / writers_; }
  std::string_view weights_name() const { return adapters_ ? kAdapterStem : kWeightsStem; }
  std::string file_name(std::string_view stem, int64_t file, int64_t files) const;
  std::string my_file(std::string_view stem, int64_t files) const;

  Sharding sharding_;
  bool adapters_ = false;
  int64_t writers_ = 1;
  int64_t weight_files_ = 1, optimizer_files_ = 1;
  std::vector<SavedTensor> tensors_;
};

// Deals things of these sizes to `writers` as evenly as is easy: the largest first, each to the writer that has least.
// Returns the writer of each. Writers that get nothing come last.
std::vector<int> deal_by_bytes(std::span<const int64_t> bytes, int64_t writers);

}  // namespace octet
