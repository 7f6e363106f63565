#pragma once

#include "model/layer.h"

namespace octet {

// The size of a micro-batch and what is kept in memory.
struct RunShape {
  int64_t rows = 1;
  int64_t length = 0;
  bool training = true;
  Checkpointing checkpointing = Checkpointing::None;
  int64_t head_chunk_bytes = int64_t{64} << 20;  // most memory for logits at one time
  bool graphs = false;                           // a micro-step may be recorded by the device and replayed
  bool head_all_rows = false;  // training computes the head also for tokens without a target; for comparison
  // Only without training: forward_loss computes the head only for tokens with a target, with fp32 logits.
  bool scoring = false;
  int64_t tokens() const { return rows * length; }
};

// The dtypes in which the run computes and stores.
struct Numerics {
  Precision precision = Precision::Bf16;
  Fp8Config fp8;
  DType moments = DType::F32;                      // fp32 | bf16 | e4m3
  RemainderKind remainder = RemainderKind::Exact;  // of bf16 matrices
  DType gradients = DType::F32;                    // of matrices
  DType dense() const { return precision == Precision::Fp32 ? DType::F32 : DType::BF16; }
};

}  // namespace octet
