#pragma once

#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "base/keys.h"
#include "plan/device_choice.h"

namespace octet {

// Where and in what precision a model that is only read runs. The options of such a command derive from this.
struct DeviceOptions {
  DeviceKey device = DeviceKey::Auto;
  std::string mixed_precision;
  int64_t num_threads = 0;

  DeviceSpec device_spec() const { return {.key = device, .threads = static_cast<int>(num_threads)}; }
  std::string precision_on(const Device& on) const {
    return !mixed_precision.empty() ? mixed_precision : on.capabilities().fast_bf16 ? "bf16" : "fp32";
  }
};

template <std::derived_from<DeviceOptions> Options>
void add_device_keys(KeyTable<Options>& keys, std::vector<std::string> precisions) {
  DeviceKey Options::*device = &DeviceOptions::device;
  std::string Options::*mixed_precision = &DeviceOptions::mixed_precision;
  int64_t Options::*num_threads = &DeviceOptions::num_threads;
  keys.add("device", device, {"auto", "cpu", "cuda"}, "Where to run. auto takes a GPU if there is one.");
  keys.add("mixed_precision", mixed_precision, std::move(precisions), "Precision of the matrix products.")
      .note("bf16 on a GPU, fp32 on the CPU");
  keys.add(
          "num_threads", num_threads,
          "CPU threads. 0: OMP_NUM_THREADS if it is set; else one per core that this process may use (affinity, cgroup limit).")
      .at_least(0)
      .at_most(4096);
}

}  // namespace octet
