#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "model/run_shape.h"

namespace octet {

// One micro-batch on the host, as views; see data/loading/batch.h for their meaning.
struct HostBatch {
  std::span<const int32_t> tokens, targets, positions, document_starts;
  std::span<const float> weights;
  std::span<const int32_t> sequences;
  int64_t token_count = 0, target_count = 0;
};

// The loaded micro-batch on the device, of N tokens.
struct BatchInputs {
  Tensor tokens, targets, positions;  // (N) int32
  Tensor document_starts;             // (N + 1) int32
  Tensor gradient_scale;              // (1) fp32: 1 / (targets of the whole step)
  Tensor dropout_seed;                // (2) int32; only if adapters have dropout
  Documents documents;
  std::vector<int32_t> starts_on_host;

  void plan(BufferPlanner& planner, int64_t tokens, bool dropout);
  // Checks the batch and adds its tensors to what is copied to the device. It must stay until then.
  void load(const HostBatch& batch, const RunShape& shape, std::vector<InputCopy>& copies);
  int64_t staged_bytes() const;
};

// Bytes of the staging memory that these inputs take; see Device::reserve_inputs.
int64_t staged_bytes(std::initializer_list<Tensor> inputs);

}  // namespace octet
