#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/nvml.h"
#include "report/step_record.h"

namespace octet {

// Sums over samples of a GPU. The difference of two is what happened between them.
struct GpuTotals {
  int64_t samples = 0;            // of steps; those between steps count for energy alone
  double seconds = 0;             // between them
  double power_watts = 0;         // the sums of these over the samples
  double utilization = 0;         // likewise
  double sm_clock_mhz = 0;        // likewise
  int64_t slowed = 0;             // samples in which heat or hardware lowered the clock
  int64_t heated = 0;             // those of them in which it was heat
  int64_t capped = 0;             // samples in which the power limit lowered it
  uint64_t throttle_reasons = 0;  // of any sample
  double energy_joules = 0;       // of all time; NaN if the GPU tells neither energy nor power

  GpuTotals since(const GpuTotals& before) const;
  double mean(double sum) const { return samples > 0 ? sum / static_cast<double>(samples) : 0; }
};

// Looks at a GPU in a thread of its own, so that a step never waits for the driver.
class GpuSampler {
 public:
  static constexpr std::chrono::milliseconds kInterval{100};

  // Watches the GPU with this UUID (CudaProbe::uuid), or the one whose number in NVML's order is in the environment
  // variable OCTET_NVML_GPU. Null if there is none, or no NVML.
  static std::unique_ptr<GpuSampler> start(const std::string& uuid);

  explicit GpuSampler(NvmlGpu gpu, std::chrono::milliseconds interval = kInterval);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  // Whether a training step is running. Samples of other times would show a GPU that idles during a save.
  void set_in_step(bool in_step);
  // Takes a sample now: for the beginning and the end of a measurement.
  void sample();
  GpuTotals totals() const;
  // The last sample, with what does not change (limits, the maximal clock) as it was at the start.
  GpuState state() const;

 private:
  void work();

  const NvmlGpu gpu_;
  const std::chrono::milliseconds interval_;

  std::mutex
      sampling_;  // held while a sample is read and added, so that samples come in the order of their times
  GpuState latest_;  // guarded by it

  mutable std::mutex mutex_;  // guards what follows; never held while the driver is asked
  std::condition_variable wake_;
  bool stopping_ = false, in_step_ = false;
  GpuTotals totals_;
  GpuState state_;
  std::chrono::steady_clock::time_point sampled_;
  std::thread thread_;
};

// The figures of a record: means between the two totals, as far as there are samples.
GpuFigures gpu_figures(const GpuTotals& window, const GpuState& now, double energy_joules);

}  // namespace octet
