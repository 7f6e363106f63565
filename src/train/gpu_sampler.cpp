#include "train/gpu_sampler.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "base/start_thread.h"

namespace octet {
namespace {

constexpr uint64_t kPowerCap = 0x04;  // NVML's bit for the power limit
constexpr uint64_t kHeat = 0x20 | 0x40;
constexpr uint64_t kSlowdowns = 0x08 | kHeat | 0x80;  // heat, hardware, and the power brake
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::optional<int> chosen_number() {
  const char* text = std::getenv("OCTET_NVML_GPU");
  if (!text) return std::nullopt;
  const std::string_view digits = text;
  int number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() && number >= 0 ? std::optional(number)
                                                                                     : std::nullopt;
}

}  // namespace

GpuTotals GpuTotals::since(const GpuTotals& before) const {
  GpuTotals window = *this;
  window.samples -= before.samples;
  window.seconds -= before.seconds;
  window.power_watts -= before.power_watts;
  window.utilization -= before.utilization;
  window.sm_clock_mhz -= before.sm_clock_mhz;
  window.slowed -= before.slowed;
  window.heated -= before.heated;
  window.capped -= before.capped;
  window.energy_joules -= before.energy_joules;
  return window;
}

std::unique_ptr<GpuSampler> GpuSampler::start(const std::string& uuid) {
  const std::optional<int> number = chosen_number();
  if (uuid.empty() && !number) return nullptr;
  std::string reason;
  const std::shared_ptr<const Nvml> nvml = Nvml::open(reason);
  if (!nvml) return nullptr;
  std::optional<NvmlGpu> gpu = number ? NvmlGpu::find(nvml, *number) : NvmlGpu::find(nvml, uuid);
  return gpu ? std::make_unique<GpuSampler>(std::move(*gpu)) : nullptr;
}

GpuSampler::GpuSampler(NvmlGpu gpu, std::chrono::milliseconds interval)
    : gpu_(std::move(gpu)), interval_(interval), latest_(gpu_.state()), state_(latest_) {
  if (!state_.energy_joules && !state_.power_watts) totals_.energy_joules = kNan;
  sampled_ = std::chrono::steady_clock::now();
  thread_ = start_thread("watching the GPU", [this] { work(); });
}

GpuSampler::~GpuSampler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void GpuSampler::work() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [this] { return stopping_; })) {
    lock.unlock();
    sample();
    lock.lock();
  }
}

void GpuSampler::set_in_step(bool in_step) {
  const std::lock_guard lock(mutex_);
  in_step_ = in_step;
}

void GpuSampler::sample() {
  const std::lock_guard sampling(sampling_);
  gpu_.update(latest_);  // without the other lock: the driver may be slow, and a step must not wait for it
  const GpuState& now = latest_;
  const std::lock_guard lock(mutex_);
  const auto time = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(time - sampled_).count();
  if (now.energy_joules && state_.energy_joules) {
    // A counter that went back was reset with the driver.
    if (*now.energy_joules > *state_.energy_joules)
      totals_.energy_joules += *now.energy_joules - *state_.energy_joules;
  } else if (now.power_watts && state_.power_watts) {
    totals_.energy_joules += seconds * (*now.power_watts + *state_.power_watts) / 2;
  }
  if (in_step_) {
    ++totals_.samples;
    totals_.seconds += seconds;
    totals_.power_watts += now.power_watts.value_or(state_.power_watts.value_or(kNan));
    totals_.utilization += now.utilization.value_or(state_.utilization.value_or(kNan));
    totals_.sm_clock_mhz += now.sm_clock_mhz.value_or(state_.sm_clock_mhz.value_or(kNan));
    totals_.slowed += (now.throttle_reasons & kSlowdowns) != 0;
    totals_.heated += (now.throttle_reasons & kHeat) != 0;
    totals_.capped += (now.throttle_reasons & kPowerCap) != 0;
  }
  totals_.throttle_reasons |= in_step_ ? now.throttle_reasons : 0;
  state_ = now;
  sampled_ = time;
}

GpuTotals GpuSampler::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

GpuState GpuSampler::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

GpuFigures gpu_figures(const GpuTotals& window, const GpuState& now, double energy_joules) {
  const bool any = window.samples > 0;  // a record sooner than the next sample has the last one
  GpuState reasons;
  // The bits of a single window are not known, only whether a kind of them was there.
  reasons.throttle_reasons = any ? ((window.slowed > 0 ? window.throttle_reasons & kSlowdowns : 0) |
                                    (window.capped > 0 ? kPowerCap : 0))
                                 : now.throttle_reasons;
  return {.power_watts = any ? window.mean(window.power_watts) : now.power_watts.value_or(kNan),
          .energy_joules = energy_joules,
          .utilization = any ? window.mean(window.utilization) : now.utilization.value_or(kNan),
          .sm_clock_mhz = any ? window.mean(window.sm_clock_mhz) : now.sm_clock_mhz.value_or(kNan),
          .temperature_c = now.temperature_c.value_or(kNan),
          .throttled = reasons.throttled()};
}

}  // namespace octet
