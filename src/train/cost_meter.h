#pragma once

#include <memory>
#include <optional>

#include "base/clock.h"
#include "dist/host_channel.h"
#include "train/gpu_sampler.h"
#include "train/step.h"

namespace octet {

// What a run costs: device time and energy since its first step, over all ranks and restarts, and the figures of this
// rank's GPU for the records.
class CostMeter {
 public:
  // From the first step of this process on. `sampler` may be null. `ranks` tell each other their energy with every step.
  void begin(std::unique_ptr<GpuSampler> sampler, int64_t ranks);
  // What earlier processes of the run have used, before begin(). Without energy the total stays unknown.
  void restore(double device_seconds, std::optional<double> energy_joules);

  // Around a step; the first one fills in what this rank tells the others.
  void begin_step(StepNote& note);
  void end_step(const StepResult& result);
  // The end of the last step, with a last look at the GPU. With several ranks all of them call it, and tell each other
  // over `host` what they used since they last did, which is the last step.
  void finish(HostChannel* host = nullptr);

  double device_seconds() const { return device_seconds_; }
  std::optional<double> energy_joules() const;  // empty: not known
  // The figures since the last call; empty without a GPU or a driver that tells.
  std::optional<GpuFigures> take_figures();
  const GpuSampler* sampler() const { return sampler_.get(); }

 private:
  double take_energy();  // of this GPU since the last call; NaN: not known
  void take_time();

  std::unique_ptr<GpuSampler> sampler_;
  int64_t ranks_ = 1;
  Clock::time_point timed_;
  double device_seconds_ = 0, energy_ = 0;
  double energy_taken_ = 0;  // of the sampler's total
  GpuTotals recorded_;       // up to the last record
};

}  // namespace octet
