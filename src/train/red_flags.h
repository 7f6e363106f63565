#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "precision/scale_table.h"
#include "report/step_record.h"
#include "train/gpu_sampler.h"

namespace octet {

// When a run has gone wrong, in numbers. A flag that comes for nothing teaches people to ignore flags, so each one needs a
// sign that healthy runs do not show.
struct RedFlagLimits {
  // loss_not_falling: looked at once, so many steps after the warm-up. Later plateaus are normal. A fresh model first
  // learns which tokens are common, and that alone takes off far more than this share of the loss of the first step.
  static constexpr int64_t kStepsAfterWarmup = 100;
  static constexpr size_t kLastLosses = 50;  // their median is compared
  static constexpr double kLeastFall = 0.03;
  // A model that starts below this share of ln(vocabulary) has learnt before. Its loss may stay where it is, but must not
  // rise by so much above the median of the first steps, in three quarters of the steps.
  static constexpr double kFreshLoss = 0.7;
  static constexpr double kMostRise = 0.10;
  static constexpr size_t kFirstLosses = 20;

  // loss_rising: the median of the last losses against the lowest such median of this process. A run that diverges slowly
  // has no spike. Losses near 0 change by more than a fifth without harm. The lowest of thousands of medians is far below
  // their mean where losses scatter, so the rise must also be many standard errors of a median.
  static constexpr double kMostRiseAboveLowest = 0.20, kLeastRise = 0.1, kLeastErrors = 12;

  // worse_than_guessing: the first loss against ln(vocabulary), which a model has that knows nothing. Random weights are up
  // to about 15 % above it. Weights that read the ids of another tokenizer are sure of the wrong tokens.
  static constexpr double kWorseThanGuessing = 1.5;

  // loss_spikes: a run recovers from one spike. Several close together mean that it is about to diverge.
  static constexpr int64_t kSpikes = 3, kSpikeSteps = 200;

  // scales_not_settling: with delayed scaling a value must not outgrow the scale of the steps before. A factor of 8 is
  // three of the about 18 powers of two that E4M3 has. A drift in one direction is normal, jumps up and down are not.
  static constexpr double kScaleJump = 8;
  static constexpr int kScaleJumps = 3, kScaleRecords = 6;  // jumps among the last records

  // waiting_for_data: share of the step time, over a window that one slow file does not fill.
  static constexpr double kDataShare = 0.10;
  static constexpr int64_t kDataSteps = 50;
  static constexpr double kDataSeconds = 5;
  static constexpr int64_t kFirstSteps = 10;  // of a process: they tune kernels and fill caches

  // low_utilization, throttled: over a minute of steps, so that the start of a run and a short pause do not count.
  static constexpr double kGpuSeconds = 60;
  static constexpr double kLeastUtilization = 0.80;
  static constexpr double kSlowedShare = 0.10;  // of the samples: heat or hardware is a fault
  // Large products reach the power limit of a healthy GPU: an H200 then runs at about 70 % of its maximal clock. That is
  // a fault only if somebody has lowered the limit.
  static constexpr double kCappedShare = 0.50;
  static constexpr double kLoweredLimit = 0.95;  // of the default limit
};

// Looks at a run and raises each kind of flag once. Pure logic: the caller says what it saw and gets the new flags.
class RedFlags {
 public:
  struct About {
    int64_t warmup_steps = 0;
    double uniform_loss = 0;  // ln(vocabulary)
    double learning_rate = 0;
    bool on_gpu = false;
    bool cuda_graphs = false;
  };
  explicit RedFlags(const About& about) : about_(about) {}

  struct Step {
    int64_t step = 0;  // from 1
    double loss = 0;
    bool skipped = false;
    bool spike = false;  // of the loss or the gradient norm
    double step_ms = 0, data_wait_ms = 0;
  };
  // `losses`: the recent ones without spikes, as SpikeDetector::window() has them.
  std::vector<RedFlag> look(const Step& step, const std::vector<double>& losses);
  // Totals since the start of the process. `state` gives the last state of the GPU; it is asked once a minute.
  std::vector<RedFlag> look(const GpuTotals& totals, const std::function<GpuState()>& state);
  // The statistics of the delayed recipe, after the warm-up.
  std::vector<RedFlag> look(int64_t step, const std::vector<ScaleTable::Report>& reports);
  // Saturation is watched elsewhere; this keeps it to one flag.
  std::vector<RedFlag> saturation(const std::string& text);

  // What a checkpoint keeps: the median loss of the first steps. The loss of the very first one is known as well.
  std::optional<double> first_level() const { return first_level_; }
  // `losses` are the recent ones; in the first steps, all of them.
  void restore(std::optional<double> first_level, double first_loss, const std::vector<double>& losses,
               int64_t steps_done);
  // The kinds that were raised, which the metrics keep.
  const std::vector<std::string>& raised() const { return raised_; }
  void set_raised(std::vector<std::string> kinds) { raised_ = std::move(kinds); }

 private:
  bool is_raised(std::string_view kind) const;
  void raise(std::vector<RedFlag>& flags, const char* kind, std::string text);
  void look_at_loss(const Step& step, const std::vector<double>& losses, std::vector<RedFlag>& flags);
  void look_at_rise(const std::vector<double>& losses, std::vector<RedFlag>& flags);
  void look_at_data(const Step& step, std::vector<RedFlag>& flags);

  const About about_;
  std::vector<std::string> raised_;
  int64_t steps_here_ = 0;  // of this process
  std::vector<double> first_losses_;
  std::optional<double> first_loss_, first_level_;
  bool loss_judged_ = false;
  std::optional<double> lowest_level_;  // of the last losses, in this process
  std::deque<int64_t> spikes_;
  struct Wait {
    double step_ms, data_ms;
  };
  std::deque<Wait> waits_;
  Wait waited_{};          // their sum
  double data_share_ = 0;  // of the last full window
  std::map<std::string, std::deque<double>> scales_;
  GpuTotals window_start_;
};

}  // namespace octet
