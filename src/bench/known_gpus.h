#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ops/device.h"

namespace octet {

// A GPU that `octet plan --gpu` knows by name. Speeds are in gpu_rates.h, where there are any.
struct KnownGpu {
  std::string_view key;   // as users write it: "h100-nvl"
  std::string_view name;  // "NVIDIA H100 NVL"
  double memory_gib;      // that a program finds free on it, when nothing else uses it
  int multiprocessors;
  Fp8Kernels fp8;
  bool has_kernels;          // octet can run on it
  std::string_view support;  // what octet can do there today, for people; empty: everything

  int64_t memory() const { return static_cast<int64_t>(memory_gib * (int64_t{1} << 30)); }
};

// By any common spelling: "h100", "H100 NVL", "NVIDIA GeForce RTX 4090", "a100-sxm4-40gb". ConfigError, with all known
// names, if there is none.
KnownGpu known_gpu(std::string_view name);
std::string known_gpu_keys();  // "h100, h100-nvl, ..."

}  // namespace octet
