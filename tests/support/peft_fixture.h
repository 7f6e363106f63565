#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "model/parameters.h"

namespace octet::test {

// A PEFT folder with random adapters, as PEFT writes it. What is wrong with a folder is changed here before it is
// written.
struct PeftFixture {
  struct Matrix {
    std::vector<int64_t> shape;
    std::vector<float> values;
    SafeDType dtype = SafeDType::F32;
  };

  // The config has the fields of PEFT 0.18 with list targets. The settings of `lora` beyond rank, alpha and rslora are
  // only used to choose the tensors; set their fields in `config` as well.
  PeftFixture(const ModelConfig& model, const LoraConfig& lora, uint64_t seed = 1);

  void write(const std::string& folder) const;
  std::string weights() const;  // adapter_model.safetensors
  Matrix& matrix(const std::string& module, char matrix);
  void set_dtype(SafeDType dtype);  // F32, BF16 and F16 hold the same values

  // The values of a parameter with its adapters, from sums in double.
  std::vector<double> merged(const ParameterSpec& spec, const std::vector<float>& base) const;

  nlohmann::ordered_json config;
  std::map<std::string, Matrix> tensors;
  AdapterPlan plan;
};

}  // namespace octet::test
