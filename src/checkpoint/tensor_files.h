#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint_store.h"
#include "io/safetensors.h"

namespace octet {

// The safetensors files of a checkpoint come in two forms: model.safetensors, or model-00001-of-00004.safetensors and so
// on. These are the names before the number.
constexpr std::string_view kWeightsStem = "model";
constexpr std::string_view kAdapterStem = "adapter_model";
constexpr std::string_view kOptimizerStem = "optimizer";

std::string single_file(std::string_view stem);
std::string numbered_file(std::string_view stem, int64_t file, int64_t files);  // `file` counts from 0
bool is_tensor_file(std::string_view name, std::string_view stem);              // in either form

// The names of these files in a checkpoint, in order. Error if some of the numbers are missing.
std::vector<std::string> tensor_file_names(const Checkpoint& checkpoint, std::string_view stem);

// All tensors of a checkpoint in files of one stem. Movable; tensors stay valid.
class TensorFiles {
 public:
  TensorFiles(Env& env, const Checkpoint& checkpoint, std::string_view stem);

  const SafeTensor* find(std::string_view name) const;  // nullptr: not there
  const SafeTensor& at(std::string_view name) const;    // Error: not there
  const std::string& place() const { return place_; }   // for messages

 private:
  std::string place_;
  std::vector<SafetensorsFile> files_;
};

}  // namespace octet
