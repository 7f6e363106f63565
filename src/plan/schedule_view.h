#pragma once

#include <span>
#include <string>
#include <vector>

#include "step/schedule.h"
#include "report/plot.h"

// What `octet lr` shows of a schedule.

namespace octet {

struct NamedSchedule {
  std::string name;  // of the configuration
  ScheduleConfig schedule;
};

// What is allowed but rarely intended, one message each: a warm-up that never ends, a decay that never starts, ...
std::vector<std::string> schedule_warnings(const ScheduleConfig& schedule);

// First steps (0-based) of the phases, last steps of them, and about `wanted` more over the whole run; ascending.
std::vector<int64_t> schedule_marks(const ScheduleConfig& schedule, int64_t wanted);

// "warm-up", "decay", "constant": what happens in this step (0-based).
std::string schedule_phase(const ScheduleConfig& schedule, int64_t step);

// The mean rate over all steps of the run, as a share of the peak: how far training gets compared with a constant rate.
double mean_rate_share(const ScheduleConfig& schedule);

std::string schedule_table(const ScheduleConfig& schedule);             // a line per mark
std::string schedules_table(std::span<const NamedSchedule> schedules);  // a line per configuration
Plot schedule_plot(std::span<const NamedSchedule> schedules);

}  // namespace octet
