#pragma once

#include <functional>
#include <string>

#include "io/safetensors.h"
#include "model/parameters.h"

namespace octet {

// The config.json of a Hugging Face folder.
ModelConfig read_hf_config(const std::string& folder);

// Weights by Hugging Face names from anything that finds tensors by name. Missing and misshapen tensors are listed
// in one Error; fp32, bf16 and fp16 are taken. `prefix` stands before every name.
class HfWeights {
 public:
  using Find = std::function<const SafeTensor*(std::string_view name)>;
  HfWeights(Find find, std::string place, std::string prefix = "")
      : find_(std::move(find)), place_(std::move(place)), prefix_(std::move(prefix)) {}

  // The parameter's values in octet's layout; throws as above for this one parameter.
  std::vector<float> values(const ParameterSpec& spec) const;
  void load(Backend& backend, ParameterSet& parameters) const;

 private:
  void read(const ParameterSpec& spec, std::vector<float>& values, std::vector<std::string>& faults) const;

  Find find_;
  std::string place_;
  std::string prefix_;
};

// Loads every parameter from model.safetensors or its shards; surplus tensors are an Error too, unless they are
// known to be buffers or a copy of the tied head.
void load_hf_folder(Backend& backend, ParameterSet& parameters, const std::string& folder);

}  // namespace octet
