#pragma once

#include <string>
#include <vector>

#include "hf/hf_folder.h"
#include "hf/peft_config.h"
#include "io/safetensors.h"

namespace octet {

PeftConfig read_peft_config(Env& env, const std::string& folder);

// The adapter of a PEFT folder, opened for the model that it is to adapt.
class PeftAdapter {
 public:
  // Error if a tensor is missing, unknown, of another shape or type, or holds values that are not finite.
  PeftAdapter(Env& env, const std::string& folder, const ModelConfig& base);

  const PeftConfig& config() const { return config_; }
  const AdapterPlan& plan() const { return plan_; }

  // The tensors by PEFT's names, for as long as this stays where it is.
  HfWeights weights() const;
  // Rows of A (rank, in) or B (out, rank) of a module, in fp32.
  std::vector<float> rows(const Adapter& adapter, char matrix, int64_t begin, int64_t rows,
                          int64_t cols) const;

 private:
  void check(const ModelConfig& base) const;

  std::string folder_;
  PeftConfig config_;
  AdapterPlan plan_;
  SafetensorsFile file_;
};

// The adapters of a model and where their products go: rows [row_begin, row_begin + out) of a parameter.
struct AdaptedPart {
  const ParameterSpec* spec = nullptr;
  const HfPart* part = nullptr;
  const Adapter* adapter = nullptr;
  int64_t in() const { return spec->shape[1]; }
  int64_t out() const { return part->rows; }
};
// In the order of the table. The table and the plan must outlive them.
std::vector<AdaptedPart> adapted_parts(std::span<const ParameterSpec> table, const AdapterPlan& plan);

}  // namespace octet
