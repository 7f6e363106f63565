#include "train/cost_meter.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace octet {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace

void CostMeter::begin(std::unique_ptr<GpuSampler> sampler, int64_t ranks) {
  sampler_ = std::move(sampler);
  ranks_ = ranks;
  timed_ = Clock::now();
}

void CostMeter::restore(double device_seconds, std::optional<double> energy_joules) {
  device_seconds_ = device_seconds;
  energy_ = energy_joules.value_or(kUnknown);
}

double CostMeter::take_energy() {
  if (!sampler_) return kUnknown;
  const double total = sampler_->totals().energy_joules;
  return total - std::exchange(energy_taken_, total);
}

void CostMeter::take_time() {
  const auto now = Clock::now();
  device_seconds_ += static_cast<double>(ranks_) * std::chrono::duration<double>(now - timed_).count();
  timed_ = now;
}

void CostMeter::begin_step(StepNote& note) {
  if (ranks_ > 1) note.energy_joules = static_cast<float>(take_energy());
  if (sampler_) sampler_->set_in_step(true);
}

void CostMeter::end_step(const StepResult& result) {
  if (sampler_) sampler_->set_in_step(false);
  take_time();
  if (ranks_ == 1) {
    energy_ += take_energy();
    return;
  }
  for (const RankRecord& record : result.ranks) energy_ += static_cast<double>(record.note.energy_joules);
}

void CostMeter::finish(HostChannel* host) {
  take_time();
  if (sampler_) sampler_->sample();
  if (ranks_ == 1) {
    if (sampler_) energy_ += take_energy();
  } else if (host) {
    for (const std::string& joules : host->all_gather("energy", fmt::format("{:a}", take_energy())))
      energy_ += std::strtod(joules.c_str(), nullptr);
  }
}

std::optional<double> CostMeter::energy_joules() const {
  return std::isnan(energy_) ? std::nullopt : std::optional(energy_);
}

std::optional<GpuFigures> CostMeter::take_figures() {
  if (!sampler_) return std::nullopt;
  const GpuTotals now = sampler_->totals();
  const GpuTotals window = now.since(std::exchange(recorded_, now));
  return gpu_figures(window, sampler_->state(), energy_);
}

}  // namespace octet
