#include "plan/schedule_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/table.h"
#include "report/text.h"

namespace octet {
namespace {

// Of more steps than this, points at equal distances are taken.
constexpr int64_t kMostPoints = 1000;

bool is_decaying(const ScheduleConfig& schedule) {
  return schedule.type != ScheduleType::Constant;
}

// The first step (0-based) of the decay; max_steps if there is none.
int64_t decay_begin(const ScheduleConfig& schedule) {
  if (!is_decaying(schedule)) return schedule.max_steps;
  const int64_t begin = schedule.type == ScheduleType::Wsd
                            ? std::max(schedule.warmup_steps, schedule.max_steps - schedule.decay_steps)
                            : schedule.warmup_steps;
  return std::min(begin, schedule.max_steps);
}

std::string rate(double value) {
  return fmt::format("{:.3e}", value);
}

double share_of_run(int64_t steps, const ScheduleConfig& schedule) {
  return static_cast<double>(steps) / static_cast<double>(schedule.max_steps);
}

}  // namespace

std::vector<std::string> schedule_warnings(const ScheduleConfig& schedule) {
  std::vector<std::string> warnings;
  if (schedule.peak_lr == 0) warnings.emplace_back("learning_rate is 0: nothing is trained");
  const bool only_warmup = schedule.warmup_steps > 0 && schedule.warmup_steps >= schedule.max_steps;
  const int64_t decay = schedule.max_steps - decay_begin(schedule);
  if (const auto remark = schedule.remark())
    warnings.push_back(only_warmup ? "the warm-up never ends: " + *remark : *remark);
  if (!only_warmup && 2 * schedule.warmup_steps > schedule.max_steps) {
    warnings.push_back(fmt::format(
        "the warm-up takes {:.0f} % of the run ({} of {} steps); usual are 1 to 10 %",
        100 * share_of_run(schedule.warmup_steps, schedule), schedule.warmup_steps, schedule.max_steps));
  }
  if (!is_decaying(schedule)) return warnings;
  if (only_warmup) {
    warnings.push_back(
        fmt::format("the decay never starts: {} has no step after the warm-up", to_string(schedule.type)));
  } else if (decay == 0) {
    warnings.push_back(fmt::format(
        "the decay never starts: decay_ratio of {} steps is less than one step; the rate stays at its peak",
        schedule.max_steps));
  } else if (schedule.min_lr_ratio == 1) {
    warnings.push_back(
        fmt::format("the decay never starts: min_lr_ratio is 1, so the rate of {} stays at its peak",
                    to_string(schedule.type)));
  } else if (decay == 1 && schedule.max_steps > 2) {
    warnings.push_back(fmt::format(
        "the decay has one step: the rate falls from {:.2e} to {:.2e} at once, in the last step of {}",
        schedule.peak_lr, schedule.peak_lr * schedule.min_lr_ratio, schedule.max_steps));
  }
  return warnings;
}

std::vector<int64_t> schedule_marks(const ScheduleConfig& schedule, int64_t wanted) {
  const int64_t last = schedule.max_steps - 1;
  std::set<int64_t> steps = {0, last};
  for (int64_t i = 1; i < wanted; ++i)
    steps.insert(static_cast<int64_t>(static_cast<double>(last) * static_cast<double>(i) /
                                      static_cast<double>(wanted)));
  for (const int64_t corner : {schedule.warmup_steps, decay_begin(schedule)})
    for (const int64_t step : {corner - 1, corner})
      if (step >= 0 && step <= last) steps.insert(step);
  return {steps.begin(), steps.end()};
}

std::string schedule_phase(const ScheduleConfig& schedule, int64_t step) {
  if (step < schedule.warmup_steps) return "warm-up";
  return step >= decay_begin(schedule) ? "decay" : "constant";
}

double mean_rate_share(const ScheduleConfig& schedule) {
  if (schedule.peak_lr == 0) return 0;
  // The middles of equal pieces: exact for the straight phases, and closer than anyone reads it for the cosine.
  constexpr int64_t kPieces = 100'000;
  const int64_t pieces = std::min(schedule.max_steps, kPieces);
  double sum = 0;
  for (int64_t i = 0; i < pieces; ++i) {
    const double middle = (static_cast<double>(i) + 0.5) / static_cast<double>(pieces);
    sum += learning_rate(schedule, static_cast<int64_t>(middle * static_cast<double>(schedule.max_steps)));
  }
  return sum / static_cast<double>(pieces) / schedule.peak_lr;
}

std::string schedule_table(const ScheduleConfig& schedule) {
  Table table({{"step", Align::Right},
               {"of the run", Align::Right},
               {"phase"},
               {"learning rate", Align::Right},
               {"of the peak", Align::Right}});
  for (const int64_t step : schedule_marks(schedule, 8)) {
    const double lr = learning_rate(schedule, step);
    table.add_row({fmt::format("{}", step + 1),
                   fmt::format("{:.1f} %", 100 * share_of_run(step + 1, schedule)),
                   schedule_phase(schedule, step), rate(lr),
                   schedule.peak_lr > 0 ? fmt::format("{:.1f} %", 100 * lr / schedule.peak_lr) : "-"});
  }
  return table.str();
}

std::string schedules_table(std::span<const NamedSchedule> schedules) {
  Table table({{"configuration"},
               {"schedule"},
               {"steps", Align::Right},
               {"warm-up", Align::Right},
               {"decay", Align::Right},
               {"peak", Align::Right},
               {"at 25 %", Align::Right},
               {"at 50 %", Align::Right},
               {"at 75 %", Align::Right},
               {"end", Align::Right},
               {"mean / peak", Align::Right}});
  for (const auto& [name, schedule] : schedules) {
    const auto at = [&](double share) {
      return rate(
          learning_rate(schedule, static_cast<int64_t>(share * static_cast<double>(schedule.max_steps - 1))));
    };
    table.add_row({terminal_safe(name), std::string(to_string(schedule.type)),
                   fmt::format("{}", schedule.max_steps), fmt::format("{}", schedule.warmup_steps),
                   fmt::format("{}", schedule.max_steps - decay_begin(schedule)), rate(schedule.peak_lr),
                   at(0.25), at(0.5), at(0.75), at(1),
                   fmt::format("{:.1f} %", 100 * mean_rate_share(schedule))});
  }
  return table.str();
}

Plot schedule_plot(std::span<const NamedSchedule> schedules) {
  Plot plot;
  PlotPanel panel{.title = "learning rate", .series = {}, .from_zero = true};
  for (const auto& [name, schedule] : schedules) {
    PlotSeries series{.run = static_cast<int>(plot.runs.size()), .points = {}, .width = 1.8};
    for (const int64_t step : schedule_marks(schedule, std::min(schedule.max_steps, kMostPoints)))
      series.points.push_back({static_cast<double>(step + 1), learning_rate(schedule, step)});
    plot.runs.push_back(name);
    panel.series.push_back(std::move(series));
  }
  plot.panels.push_back(std::move(panel));
  return plot;
}

}  // namespace octet
