#pragma once

#include <string>

#include "io/checkpoint_store.h"
#include "io/safetensors.h"
#include "support/tiny_run.h"

namespace octet::test {

// A model of random weights that knows the bytes tokenizer's ids.
struct RandomModel {
  RandomModel(const ModelConfig& config, DType dtype, uint64_t seed = 9);

  // A Hugging Face folder without a tokenizer.
  void write_folder(const std::string& folder);
  // A checkpoint as training leaves it, remainders of bf16 weights included.
  Checkpoint save(CheckpointStore& store, int64_t step, double loss, bool best = false);
  std::vector<float> exact(const std::string& parameter);

  ModelConfig config;
  std::unique_ptr<Device> device;
  BufferPlanner planner;
  ParameterSet parameters;
  std::shared_ptr<void> memory;

 private:
  SafeDType stored() const;
  DType dtype_;
};

// The folder of a golden model of tests/golden/models.
void write_golden_folder(const std::string& name, const std::string& folder);

}  // namespace octet::test
