#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace octet {

// The state of one GPU at this moment, from NVML. Values that a GPU or driver does not tell are empty.
struct GpuState {
  std::string name, uuid;  // "GPU-00112233-4455-..."
  std::optional<double> power_watts, power_limit_watts, default_power_limit_watts;
  std::optional<double> energy_joules;  // since the driver was loaded
  std::optional<double> utilization;    // 0 to 1, over the last part of a second
  std::optional<double> sm_clock_mhz, max_sm_clock_mhz, memory_clock_mhz, max_memory_clock_mhz;
  std::optional<double> temperature_c;
  std::optional<int64_t> memory_bytes, memory_used_bytes;
  std::optional<int> compute_processes;
  int major = 0, minor = 0;  // compute capability; 0: not told
  std::optional<bool> persistence_mode, ecc, mig;
  uint64_t throttle_reasons = 0;  // as NVML gives them

  // In words, for the reasons that cost speed: "power cap, thermal slowdown". Empty: none.
  std::string throttled() const;
};

// The library of the NVIDIA driver that reports on GPUs (libnvidia-ml.so.1), opened at run time. The environment
// variable OCTET_NVML_LIBRARY names another file. Safe to use from several threads.
class Nvml {
 public:
  // Null if there is no driver; `reason` then says so.
  static std::shared_ptr<const Nvml> open(std::string& reason);
  ~Nvml();

  std::string driver_version() const;  // "580.95.05"; empty: not told
  std::string cuda_version() const;    // the newest that the driver supports: "13.0"
  int gpus() const;

  // A GPU by its number in NVML's order, or by its UUID as 32 hexadecimal digits. CUDA_VISIBLE_DEVICES changes CUDA's
  // numbers but not these, so a device of CUDA is found by its UUID. Empty: there is no such GPU.
  std::optional<GpuState> state(int gpu) const;
  std::optional<GpuState> state(const std::string& uuid) const;

 private:
  friend class NvmlGpu;
  struct Api;
  explicit Nvml(std::unique_ptr<Api> api);
  void* find(int gpu) const;  // null: there is none
  void* find(const std::string& uuid) const;
  GpuState read(void* gpu) const;
  void read_changing(void* gpu, GpuState& state) const;

  std::unique_ptr<Api> api_;
};

// One GPU that is looked at often: it is searched for once.
class NvmlGpu {
 public:
  // As Nvml::state. Empty: there is no such GPU.
  static std::optional<NvmlGpu> find(std::shared_ptr<const Nvml> nvml, int gpu);
  static std::optional<NvmlGpu> find(std::shared_ptr<const Nvml> nvml, const std::string& uuid);

  // Everything: some twenty calls of the driver.
  GpuState state() const { return nvml_->read(handle_); }
  // Only what changes from moment to moment: power, energy, utilization, SM clock, temperature, throttle reasons.
  void update(GpuState& state) const { nvml_->read_changing(handle_, state); }

 private:
  NvmlGpu(std::shared_ptr<const Nvml> nvml, void* handle) : nvml_(std::move(nvml)), handle_(handle) {}

  std::shared_ptr<const Nvml> nvml_;
  void* handle_;
};

}  // namespace octet
