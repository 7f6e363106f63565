#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/precision_keys.h"

namespace octet {

enum class CheckpointingKey { Auto, None, Act, Mlp, Block };
enum class WeightCopiesKey { Auto, Two, One };
enum class ShardingKey { Auto, None, Zero1, Zero2, FsdpFull, Hsdp };
enum class GradientReduceDtype { Bf16, Fp32 };
enum class CudaGraphs { Auto, On, Off };

// What a training step takes in memory and how it computes, apart from the model and the length of its sequences.
struct StepKeys : PrecisionKeys {
  int64_t per_device_train_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  int64_t target_effective_batch_size = 0;  // 0: off
  int64_t max_batch_size = 0;               // 0: not set
  bool auto_batch_size = false;
  double device_memory_limit_gb = 0;  // 0: what the device has

  CheckpointingKey gradient_checkpointing = CheckpointingKey::Auto;  // resolved to the level that fits
  WeightCopiesKey fp8_weight_copies = WeightCopiesKey::Auto;
  ShardingKey sharding_mode = ShardingKey::Auto;  // see sharding_of
  GradientReduceDtype gradient_reduce_dtype = GradientReduceDtype::Bf16;
  bool deterministic = false;
  CudaGraphs cuda_graphs = CudaGraphs::Auto;
};

// The value of a key of this struct as users write it.
std::string config_text(const StepKeys& keys, std::string_view key);

// Sets gradient_accumulation_steps so that an optimizer step sees target_effective_batch_size sequences on
// `device_count` devices; does nothing where the target is 0. A target that does not divide is a ConfigError.
void apply_target_batch_size(StepKeys& keys, int64_t device_count = 1);
// Sets per_device_train_batch_size, and the gradient_accumulation_steps that follow from it.
void set_batch_size(StepKeys& keys, int64_t rows, int64_t device_count = 1);

}  // namespace octet
