#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/html_page.h"
#include "sweep/sweep_runner.h"

namespace octet {

// Everything that is known about a sweep, for its reports.
struct SweepResults {
  SweepResults(const SweepSpec& sweep, const SweepPlan& sweep_plan, SweepStore& sweep_store);

  const SweepSpec& spec;
  const SweepPlan& plan;
  const SweepStore& store;
  std::vector<Trial> trials;  // best first; then those without a result, by index
  int64_t finished = 0, stopped = 0, failed = 0, running = 0, open = 0;

  const Trial* best() const;  // nullptr if no run has a result
  // The command that trains the run again, under a name of its own: "octet train run.yaml --learning_rate=0.001".
  std::string command_of(const Trial& trial) const;
  std::string state_of(const Trial& trial) const;
};

std::string sweep_text(const SweepResults& results);  // table, and the best run with its command
nlohmann::ordered_json sweep_json(const SweepResults& results);
// A page with parallel coordinates, the table and the losses of all runs.
HtmlPage sweep_page(const SweepResults& results);

}  // namespace octet
