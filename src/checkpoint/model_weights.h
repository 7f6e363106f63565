#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/model_folder.h"
#include "checkpoint/tensor_files.h"
#include "hf/merge_adapter.h"

namespace octet {

// The weights of a model on disk, a range of rows at a time: those of its folder, or of a random base, with the adapter
// merged where there is one.
class ModelWeights {
 public:
  // Everything that can be wrong with names, shapes, types and values of the adapter is found here. `table` and
  // `device`, which draws a random base, must outlive this.
  ModelWeights(const ModelFolder& model, std::span<const ParameterSpec> table, Device& device);
  ModelWeights(const ModelWeights&) = delete;  // its parts point at one another

  // The exact weights of a bf16 run, from here on. Error if the checksum of a file of them is wrong: find_model has checked
  // only the weights.
  void open_remainders(Env& env, const Checkpoint& checkpoint);

  // The type that all weights of the base are stored in, or F32 where they differ.
  SafeDType stored_dtype() const;
  // Rows [begin, begin + rows) of a parameter of the table, in octet's layout. A vector counts as rows of one element.
  std::vector<float> rows(const ParameterSpec& spec, int64_t begin, int64_t rows) const;
  void load(Parameter& parameter) const;

 private:
  void add_remainder(const ParameterSpec& spec, int64_t begin, std::vector<float>& values) const;
  std::vector<float> drawn_rows(const ParameterSpec& spec, int64_t begin, int64_t rows) const;

  std::span<const ParameterSpec> table_;
  Device& device_;
  std::string source_;
  std::optional<HfFiles> files_;  // absent: the base is random
  std::optional<HfWeights> weights_;
  uint64_t seed_ = 0;
  DType drawn_ = DType::F32;  // of a random base
  std::optional<TensorFiles> optimizer_;
  std::optional<PeftAdapter> adapter_;
  std::optional<AdapterMerge> merge_;
};

// Loads the model into parameters of the same config that are dense and whole.
void load_weights(Device& device, ParameterSet& parameters, const ModelFolder& model);

}  // namespace octet
