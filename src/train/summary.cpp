#include "train/summary.h"

#include <errno.h>

#include "plan/data_loaders.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {

namespace {

// By the program's name as it was called.
std::string continue_command(const RunStages& stages, const Outcome& outcome) {
  const int64_t ranks = stages.plan.ranks();
  return fmt::format("{} {}train --resume {}", program_invocation_name,
                     ranks > 1 && stages.keys.pretend_ranks == 0 ? fmt::format("launch -n {} ", ranks) : "",
                     outcome.run_folder);
}

}  // namespace

std::string summary_text(const RunStages& stages, const Outcome& outcome) {
  Table table({{"summary"}, {""}});
  const auto arrow = [](const std::optional<double>& before, const std::optional<double>& after,
                        const char* format) {
    const std::string now = fmt::format(fmt::runtime(format), *after);
    const std::string was = before ? fmt::format(fmt::runtime(format), *before) : now;
    return was == now ? now : fmt::format("{} -> {}", was, now);
  };
  table.add_row({"steps", fmt::format("{} of {}{}", outcome.steps, stages.schedule.max_steps,
                                      outcome.stopped ? " (stopped on request)" : "")});
  if (outcome.steps > 0)
    table.add_row({"training loss", arrow(outcome.first_loss, outcome.last_loss, "{:.4f}")});
  if (outcome.last_eval)
    table.add_row({"evaluation loss", arrow(outcome.first_eval, outcome.last_eval, "{:.4f}")});
  if (outcome.demo_score)
    table.add_row({"unseen stories right", fmt::format("{:.0f} %", 100 * *outcome.demo_score)});
  if (outcome.skipped_steps > 0) table.add_row({"skipped steps", std::to_string(outcome.skipped_steps)});
  if (outcome.seconds > 0) {
    table.add_row(
        {"tokens per second", human_count(static_cast<double>(outcome.tokens_timed) / outcome.seconds)});
    table.add_row({"training time", human_duration(outcome.seconds)});
  }
  if (records_graphs(stages)) {
    const GraphCounts counts = stages.device->graph_counts();
    table.add_row({"CUDA graphs", fmt::format("{} of {} micro-steps replayed", counts.replayed,
                                              counts.replayed + counts.plain)});
  }
  if (const std::string packing = packing_text(stages.keys, stages.data.data); !packing.empty())
    table.add_row({"packing", packing});
  table.add_row({"memory", human_bytes(static_cast<double>(outcome.allocated_bytes))});
  table.add_row({"precision", stages.plan.precision_label});
  table.add_row({"files", outcome.run_folder});
  if (!outcome.checkpoints.empty()) table.add_row({"checkpoints", outcome.checkpoints});
  if (outcome.save) {
    table.add_row({"last checkpoint",
                   fmt::format("step {}, {}; training waited {:.0f} ms, written in {:.1f} s",
                               outcome.save->step, human_bytes(static_cast<double>(outcome.save->bytes)),
                               outcome.save->wait_ms, outcome.save->write_seconds)});
  }
  if (outcome.stopped && outcome.save) table.add_row({"continue with", continue_command(stages, outcome)});
  return table.str();
}

}  // namespace octet
