#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "model/transformer.h"

namespace octet {

// A golden file of tests/golden/models or tests/golden/lora: a small model with what Transformers computed for it.
struct GoldenModel {
  explicit GoldenModel(const std::string& name, const std::string& folder = "models");

  std::vector<float> floats(const std::string& tensor) const;
  std::vector<int32_t> ints(const std::string& tensor) const;
  HostBatch batch() const { return {tokens, targets, positions, starts}; }
  int64_t target_count() const;

  SafetensorsFile file;
  ModelConfig config;
  int64_t rows = 0, length = 0;
  std::vector<int32_t> tokens, targets, positions, starts;
};

// ||a - b|| / ||b||
double relative_error(std::span<const float> a, std::span<const float> b);

}  // namespace octet
