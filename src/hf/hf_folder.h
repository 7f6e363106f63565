#pragma once

#include <functional>
#include <string>

#include "io/safetensors.h"
#include "model/transformer.h"

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

  // Finds every tensor of the table and looks at its shape and type.
  void check(std::span<const ParameterSpec> table, std::vector<std::string> faults = {}) const;
  // The parameter's values in octet's layout; throws as above for this one parameter.
  std::vector<float> values(const ParameterSpec& spec) const { return values(spec, 0, spec.shape[0]); }
  // The same, only rows [begin, begin + rows).
  std::vector<float> values(const ParameterSpec& spec, int64_t begin, int64_t rows) const;
  // All dense parameters of the model itself, not its adapters. `faults` are listed with what is found here.
  void load(Device& device, ParameterSet& parameters, std::vector<std::string> faults = {}) const;
  // One parameter, of a table that was checked.
  void load(Device& device, Parameter& parameter) const;
  // Rows [begin, ...) of a parameter to `rows` (count, columns), real.
  void load_rows(Device& device, const ParameterSpec& spec, int64_t begin, Tensor rows) const;

 private:
  bool load_as_it_is(Device& device, Parameter& parameter) const;
  const SafeTensor* find(const ParameterSpec& spec, const HfPart& part,
                         std::vector<std::string>& faults) const;

  Find find_;
  std::string place_;
  std::string prefix_;
};

// The files of a Hugging Face folder, by the names of the parameter table: folders made by the bare model have no
// "transformer." or "model." before theirs.
class HfFiles {
 public:
  explicit HfFiles(const std::string& folder);
  const SafeTensor* find(std::string_view name) const { return files_.find(stored_name(name)); }
  HfWeights weights() const;  // for as long as this stays where it is
  // Tensors that are no part of `table`, unless they are known to be buffers or a copy of the tied head.
  std::vector<std::string> surplus(std::span<const ParameterSpec> table) const;

 private:
  std::string_view stored_name(std::string_view name) const;

  std::string folder_;
  SafetensorsFolder files_;
  std::string_view dropped_prefix_;
};

// Tensors that do not belong to the table, as faults to list.
std::vector<std::string> surplus_faults(const HfFiles& files, std::span<const ParameterSpec> table);

// Loads every parameter from model.safetensors or its shards; surplus tensors are an Error too, unless they are
// known to be buffers or a copy of the tied head.
void load_hf_folder(Device& device, ParameterSet& parameters, const std::string& folder);
// The same for a model whose Linears may have only FP8 copies: these are filled some rows at a time, so that no dense
// copy of them exists.
void load_hf_folder(Device& device, Transformer& model, const std::string& folder);
// The same checks of names, shapes and types without reading any weight.
void check_hf_folder(std::span<const ParameterSpec> table, const std::string& folder);

// Rows [begin, begin + rows) of the weight of the parameter with this index, in the dtype that is being written. A
// vector counts as rows of one element.
using ReadWeightRows = std::function<std::vector<std::byte>(size_t parameter, int64_t begin, int64_t rows)>;

// From the device. BF16 of a bf16 run is the weight as it is computed with; F32 of it is the exact value, weight
// and remainder together; BF16 of an fp32 run is rounded to nearest even.
ReadWeightRows device_weight_rows(Device& device, const ParameterSet& parameters, SafeDType dtype);

// One tensor as Hugging Face has it, and the rows of a parameter that it is.
struct HfTensor {
  size_t parameter = 0;
  const ParameterSpec* spec = nullptr;
  const HfPart* part = nullptr;
  SafeTensorSpec as(SafeDType dtype) const;
};
// In the order of the table, which must outlive them.
std::vector<HfTensor> hf_tensors(std::span<const ParameterSpec> table);

// Writes a safetensors file of these tensors, without padding, a piece at a time. `dtype` is F32 or BF16 and what
// `read` returns. `read` decides where the weights come from: the device, or a copy that was taken of it.
void write_hf_tensors(Sink& sink, std::span<const HfTensor> tensors, SafeDType dtype,
                      const ReadWeightRows& read);

// The same of all weights: model.safetensors.
void save_hf_weights(Sink& sink, const ParameterSet& parameters, SafeDType dtype, const ReadWeightRows& read);
inline void save_hf_weights(Sink& sink, Device& device, const ParameterSet& parameters, SafeDType dtype) {
  save_hf_weights(sink, parameters, dtype, device_weight_rows(device, parameters, dtype));
}

}  // namespace octet
