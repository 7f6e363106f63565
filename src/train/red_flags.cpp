#include "train/red_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/text.h"

namespace octet {
namespace {

using Limits = RedFlagLimits;

// The value that `share` of the others do not exceed.
double quantile(std::vector<double> values, double share) {
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

double median(const std::vector<double>& values) {
  return quantile(values, 0.5);
}

}  // namespace

bool RedFlags::is_raised(std::string_view kind) const {
  return std::find(raised_.begin(), raised_.end(), kind) != raised_.end();
}

void RedFlags::raise(std::vector<RedFlag>& flags, const char* kind, std::string text) {
  if (is_raised(kind)) return;
  raised_.emplace_back(kind);
  flags.push_back({kind, std::move(text)});
}

void RedFlags::restore(std::optional<double> first_level, double first_loss,
                       const std::vector<double>& losses, int64_t steps_done) {
  first_level_ = first_level;
  if (steps_done > 0 && std::isfinite(first_loss)) first_loss_ = first_loss;
  // Without the first losses there is nothing to compare with.
  const bool is_early = steps_done < static_cast<int64_t>(Limits::kFirstLosses);
  if (is_early && !first_level) first_losses_ = losses;
  loss_judged_ = steps_done >= about_.warmup_steps + Limits::kStepsAfterWarmup ||
                 (!first_level && !is_early) || (steps_done > 0 && !first_loss_);
}

std::vector<RedFlag> RedFlags::look(const Step& step, const std::vector<double>& losses) {
  std::vector<RedFlag> flags;
  ++steps_here_;
  look_at_loss(step, losses, flags);
  if (flags.empty()) look_at_rise(losses, flags);
  if (step.spike) {
    spikes_.push_back(step.step);
    while (spikes_.front() <= step.step - Limits::kSpikeSteps) spikes_.pop_front();
    if (static_cast<int64_t>(spikes_.size()) >= Limits::kSpikes) {
      raise(
          flags, "loss_spikes",
          fmt::format(
              "{} spikes of the loss or the gradient norm in the last {} steps. Lower learning_rate (now {}) or max_grad_norm, or make the "
              "warm-up longer; if they come at the same data, look at it",
              spikes_.size(), Limits::kSpikeSteps, about_.learning_rate));
    }
  }
  look_at_data(step, flags);
  return flags;
}

void RedFlags::look_at_loss(const Step& step, const std::vector<double>& losses,
                            std::vector<RedFlag>& flags) {
  const bool is_usable = !step.skipped && std::isfinite(step.loss) && step.loss > 0;  // 0: no targets
  if (is_usable && !first_level_ && !loss_judged_) {
    if (!first_loss_) {
      first_loss_ = step.loss;
      if (step.loss > Limits::kWorseThanGuessing * about_.uniform_loss) {
        raise(
            flags, "worse_than_guessing",
            fmt::format(
                "the first loss is {:.4f}, but a model that guesses would have {:.4f}. Check that the tokenizer belongs to the "
                "model and the data to what it was trained on; with random weights, check initializer_range",
                step.loss, about_.uniform_loss));
      }
    }
    first_losses_.push_back(step.loss);
    if (first_losses_.size() == Limits::kFirstLosses) first_level_ = median(first_losses_);
  }
  if (loss_judged_ || step.step < about_.warmup_steps + Limits::kStepsAfterWarmup) return;
  if (!first_level_ || losses.size() < Limits::kLastLosses) return;
  loss_judged_ = true;
  const std::vector<double> last(losses.end() - static_cast<std::ptrdiff_t>(Limits::kLastLosses),
                                 losses.end());
  const double now = median(last);
  if (*first_loss_ >= Limits::kFreshLoss * about_.uniform_loss) {
    if (now <= (1 - Limits::kLeastFall) * *first_loss_) return;
    raise(
        flags, "loss_not_falling",
        fmt::format(
            "the loss was {:.4f} at the start and is {:.4f} now, {} steps after the warm-up. Check learning_rate "
            "(now {}) and whether the data has the right tokens and targets",
            *first_loss_, now, step.step - about_.warmup_steps, about_.learning_rate));
    return;
  }
  if (now < (1 + Limits::kMostRise) * *first_level_ || quantile(last, 0.25) <= *first_level_) return;
  if (is_raised("loss_rising")) return;  // it says the same
  raise(
      flags, "loss_not_falling",
      fmt::format(
          "the loss has risen from {:.4f} at the start to {:.4f}, {} steps after the warm-up. Lower learning_rate "
          "(now {}), and check that the chat template and the tokenizer are those of the model",
          *first_level_, now, step.step - about_.warmup_steps, about_.learning_rate));
}

void RedFlags::look_at_rise(const std::vector<double>& losses, std::vector<RedFlag>& flags) {
  if (losses.size() < Limits::kLastLosses) return;
  const std::vector<double> last(losses.end() - static_cast<std::ptrdiff_t>(Limits::kLastLosses),
                                 losses.end());
  const double now = median(last), lowest = std::min(lowest_level_.value_or(now), now);
  lowest_level_ = lowest;
  // Of normal scatter: the quartiles are 1.35 deviations apart, and a median's error is 1.25 deviations / sqrt(n).
  const double deviation = (quantile(last, 0.75) - quantile(last, 0.25)) / 1.35;
  const double error = 1.25 * deviation / std::sqrt(static_cast<double>(last.size()));
  if (now - lowest <
      std::max({Limits::kMostRiseAboveLowest * lowest, Limits::kLeastRise, Limits::kLeastErrors * error}))
    return;
  raise(
      flags, "loss_rising",
      fmt::format(
          "the loss was as low as {:.4f} and is {:.4f} now (medians of {} steps), so the run is about to diverge, or its data "
          "has changed. Lower learning_rate (now {}) and continue from an earlier checkpoint",
          lowest, now, Limits::kLastLosses, about_.learning_rate));
}

void RedFlags::look_at_data(const Step& step, std::vector<RedFlag>& flags) {
  // On the CPU the loader and the step share the cores: who waits for whom says nothing.
  if (!about_.on_gpu || steps_here_ <= Limits::kFirstSteps) return;
  waits_.push_back({step.step_ms, step.data_wait_ms});
  double &total = waited_.step_ms, &waited = waited_.data_ms;
  total += step.step_ms;
  waited += step.data_wait_ms;
  // The shortest window that is long enough in steps and in time.
  while (static_cast<int64_t>(waits_.size()) > Limits::kDataSteps &&
         total - waits_.front().step_ms >= 1e3 * Limits::kDataSeconds) {
    total -= waits_.front().step_ms;
    waited -= waits_.front().data_ms;
    waits_.pop_front();
  }
  if (static_cast<int64_t>(waits_.size()) < Limits::kDataSteps || total < 1e3 * Limits::kDataSeconds) return;
  data_share_ = waited / total;
  if (data_share_ <= Limits::kDataShare) return;
  raise(
      flags, "waiting_for_data",
      fmt::format(
          "{:.0f} % of the step time is spent waiting for data, over {} steps. Tokenize it once with 'octet "
          "prepare', keep it on a local disk, and leave CPU cores for the loader",
          100 * data_share_, waits_.size()));
}

std::vector<RedFlag> RedFlags::look(const GpuTotals& totals, const std::function<GpuState()>& last_state) {
  std::vector<RedFlag> flags;
  if (!about_.on_gpu) return flags;
  if (steps_here_ <= Limits::kFirstSteps) {
    window_start_ = totals;
    return flags;
  }
  const GpuTotals window = totals.since(window_start_);
  if (window.seconds < Limits::kGpuSeconds || window.samples == 0) return flags;
  window_start_ = totals;
  const GpuState state = last_state();
  const double utilization = window.mean(window.utilization);
  // A GPU that waits for data has a flag of its own, with another remedy.
  if (utilization < Limits::kLeastUtilization && data_share_ <= Limits::kDataShare) {
    raise(
        flags, "low_utilization",
        fmt::format(
            "the GPU computes in only {:.0f} % of the time. Raise per_device_train_batch_size{}, or use longer "
            "sequences or packing; --profile_steps shows where the time goes",
            100 * utilization, about_.cuda_graphs ? "" : ", set cuda_graphs to on"));
  }
  const auto share = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(window.samples);
  };
  const double clock = window.mean(window.sm_clock_mhz), highest = state.max_sm_clock_mhz.value_or(clock);
  const std::string clocks = fmt::format("{:.0f} MHz of {:.0f}", clock, highest);
  if (share(window.slowed) > Limits::kSlowedShare) {
    const bool is_heat = 2 * window.heated >= window.slowed;
    raise(flags, "throttled",
          fmt::format(
              "{} lowers the clock of the GPU in {:.0f} % of the time ({}, {:.0f} C). {}; 'nvidia-smi -q "
              "-d PERFORMANCE' names the cause",
              is_heat ? "heat" : "the hardware", 100 * share(window.slowed), clocks,
              state.temperature_c.value_or(0),
              is_heat ? "Check its cooling: fans, air flow and the temperature of the room"
                      : "Check its power supply and the power cables"));
  } else if (share(window.capped) > Limits::kCappedShare) {
    const double limit = state.power_limit_watts.value_or(0),
                 normal = state.default_power_limit_watts.value_or(0);
    if (limit > 0 && limit < Limits::kLoweredLimit * normal) {
      raise(flags, "throttled",
            fmt::format(
                "the power limit, which somebody has lowered to {:.0f} W, lowers the clock of the GPU ({}). "
                "If that is not intended: nvidia-smi -pl {:.0f}",
                limit, clocks, normal));
    }
  }
  return flags;
}

std::vector<RedFlag> RedFlags::look(int64_t step, const std::vector<ScaleTable::Report>& reports) {
  std::vector<RedFlag> flags;
  if (step <= about_.warmup_steps) return flags;
  const double jump = std::log2(Limits::kScaleJump);
  int64_t restless = 0;
  std::string worst;
  double widest = 0;
  for (const ScaleTable::Report& tensor : reports) {
    if (tensor.elements == 0 || !(tensor.scale > 0) || !std::isfinite(tensor.scale)) continue;
    std::deque<double>& scales = scales_[tensor.name];
    scales.push_back(std::log2(tensor.scale));
    if (scales.size() > Limits::kScaleRecords + 1) scales.pop_front();
    int up = 0, down = 0;
    for (size_t i = 1; i < scales.size(); ++i) {
      up += scales[i] - scales[i - 1] >= jump;
      down += scales[i - 1] - scales[i] >= jump;
    }
    if (up + down < Limits::kScaleJumps || up == 0 || down == 0) continue;
    ++restless;
    const auto [low, high] = std::minmax_element(scales.begin(), scales.end());
    if (*high - *low <= widest) continue;
    widest = *high - *low;
    worst = tensor.name;
  }
  if (restless > 0) {
    raise(
        flags, "scales_not_settling",
        fmt::format("the FP8 scales of {} {} up and down; that of {} by a factor of {:.0f}. Use {}, a longer "
                    "fp8_amax_history_len, or a lower learning_rate",
                    counted(restless, "tensor"), restless == 1 ? "jumps" : "jump", worst, std::exp2(widest),
                    worst.starts_with("head.") ? "fp8_head none" : "fp8_recipe current"));
  }
  return flags;
}

std::vector<RedFlag> RedFlags::saturation(const std::string& text) {
  std::vector<RedFlag> flags;
  raise(flags, "saturation", text);
  return flags;
}

}  // namespace octet
