#include "train/summary.h"

#include <errno.h>
#include <fmt/ranges.h>

#include <cmath>
#include <sstream>

#include "plan/coverage.h"
#include "plan/data_loaders.h"
#include "plan/overview.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {

namespace {

// By the program's name as it was called.
std::string continue_command(const RunSpec& run, const Outcome& outcome) {
  const int64_t ranks = run.plan.ranks();
  return fmt::format("{} {}train --resume {}", program_invocation_name,
                     ranks > 1 && run.ranks.pretended == 0 ? fmt::format("launch -n {} ", ranks) : "",
                     outcome.run_folder);
}

std::string skipped_steps_text(const Outcome& outcome) {
  if (outcome.skipped_steps == outcome.steps)
    return fmt::format("{}: all of them, so nothing was trained", outcome.skipped_steps);
  if (outcome.skipped_in_a_row == 0) return std::to_string(outcome.skipped_steps);
  return fmt::format("{}, among them the last {}", outcome.skipped_steps,
                     outcome.skipped_in_a_row == 1 ? "one" : std::to_string(outcome.skipped_in_a_row));
}

std::string as_comments(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    result += line.empty() ? "#\n" : fmt::format("# {}\n", line);
  return result;
}

}  // namespace

PlanFacts plan_facts_of(const RunSpec& run, const Transformer& model) {
  PlanFacts facts{.model = run.model.config.name,
                  .parameters = run.model.config.parameter_count(),
                  .device = run.device->description(),
                  .precision = run.plan.precision_label,
                  .fallback = run.plan.fallback_reason,
                  .fp8_share = run.plan.fp8_share,
                  .memory_bytes = run.plan.bytes(),
                  .memory_limit = run.plan.limit.bytes,
                  .sequences_per_step = run.plan.sequences_per_step(),
                  .sequence_length = run.plan.shape.length,
                  .ranks = run.plan.ranks(),
                  .max_steps = run.schedule().max_steps};
  const std::vector<WorkShare> shares = work_shares(model);
  double all = 0;
  for (const WorkShare& share : shares) all += share.flops;
  for (const WorkShare& share : shares)
    facts.work.push_back(
        {share.kind, share.flops / all, share.flops > 0 ? share.fp8_flops / share.flops : 0});
  return facts;
}

std::string summary_text(const RunSpec& run, const Outcome& outcome) {
  Table table({{"summary"}, {""}});
  const auto arrow = [](const std::optional<double>& before, const std::optional<double>& after,
                        const char* format) {
    const std::string now = fmt::format(fmt::runtime(format), *after);
    const std::string was = before ? fmt::format(fmt::runtime(format), *before) : now;
    return was == now ? now : fmt::format("{} -> {}", was, now);
  };
  table.add_row({"steps", fmt::format("{} of {}{}", outcome.steps, run.schedule().max_steps,
                                      outcome.stopped ? " (stopped on request)" : "")});
  if (outcome.steps > 0)
    table.add_row({"training loss", arrow(outcome.first_loss, outcome.last_loss, "{:.4f}")});
  if (outcome.last_eval)
    table.add_row({"evaluation loss", arrow(outcome.first_eval, outcome.last_eval, "{:.4f}")});
  if (outcome.demo_score)
    table.add_row({"unseen stories right", fmt::format("{:.0f} %", 100 * *outcome.demo_score)});
  if (outcome.skipped_steps > 0) table.add_row({"skipped steps", skipped_steps_text(outcome)});
  if (!outcome.start.empty()) table.add_row({"start", outcome.start});
  if (outcome.seconds > 0) {
    table.add_row(
        {"tokens per second", human_count(static_cast<double>(outcome.tokens_timed) / outcome.seconds)});
    table.add_row({"training time", human_duration(outcome.seconds)});
  }
  if (outcome.energy_joules && outcome.tokens > 0) {
    const double joules = *outcome.energy_joules;
    table.add_row({"energy", fmt::format("{:.3g} kWh, {:.3g} J per 1,000 tokens", joules / 3.6e6,
                                         1e3 * joules / static_cast<double>(outcome.tokens))});
  }
  if (const double price = run.log.price_per_hour; price > 0) {
    const double hours = outcome.device_seconds / 3600;
    table.add_row(
        {"cost",
         fmt::format(
             "{} ({:.3g} {} hours at {})",
             price * hours < 1 ? fmt::format("{:.3g}", price * hours) : fmt::format("{:.2f}", price * hours),
             hours, run.device->capabilities().separate_memory ? "GPU" : "device", price)});
  }
  if (!outcome.red_flags.empty())
    table.add_row({"red flags", fmt::format("{}", fmt::join(outcome.red_flags, ", "))});
  if (run.records_graphs()) {
    const GraphCounts counts = run.device->graph_counts();
    table.add_row({"CUDA graphs", fmt::format("{} of {} parts of micro-steps replayed", counts.replayed,
                                              counts.replayed + counts.plain)});
  }
  if (const std::string packing = packing_text(run.loading, run.data.data); !packing.empty())
    table.add_row({"packing", packing});
  table.add_row({"memory", human_bytes(static_cast<double>(outcome.allocated_bytes))});
  table.add_row({"precision", run.plan.precision_label});
  table.add_row({"files", outcome.run_folder});
  if (!outcome.checkpoints.empty()) table.add_row({"checkpoints", outcome.checkpoints});
  if (outcome.save) {
    table.add_row({"last checkpoint",
                   fmt::format("step {}, {}; training waited {:.0f} ms, written in {:.1f} s",
                               outcome.save->step, human_bytes(static_cast<double>(outcome.save->bytes)),
                               outcome.save->wait_ms, outcome.save->write_seconds)});
  }
  if ((outcome.stopped || outcome.save_failed) && outcome.save)
    table.add_row({"continue with", continue_command(run, outcome)});
  return table.str();
}

std::string what_next_text(const RunSpec& run, const Outcome& outcome) {
  constexpr int kSteps = 100;
  const bool was_fp8 = run.plan.is_fp8();
  const double step = outcome.seconds / static_cast<double>(outcome.steps - outcome.first_step);
  const std::string time = fmt::format("about {:.0f} s", std::ceil(kSteps * step));
  return fmt::format(
      "\nwhat to try next:\n"
      "  {0} generate {1} --prompt 'Leo has 3 red balls. Mia gives him 2 more. Now Leo has' --temperature "
      "0\n"
      "  {0} train --mixed_precision {2} --max_steps {3}    train the demo in {4} ({5})\n"
      "  {0} plot {6}/*    compare the loss curves of runs\n"
      "  {0} train --model_preset llama-tiny --dataset my.txt --max_seq_length 128 --max_steps {3}    train on your own text ({5})\n"
      "  {0} plan --model_preset llama-3.2-1b --gpu h200    what a real model needs\n"
      "  {0} train --help    list all keys\n",
      program_invocation_name, outcome.run_folder, was_fp8 ? "bf16" : "fp8", kSteps, was_fp8 ? "BF16" : "FP8",
      time, run.files.folders.output_dir);
}

std::string dry_run_text(const RunSpec& run) {
  const Transformer model(run.model.config, run.plan.shape, run.plan.numerics, *run.device,
                          run.plan.finetuning);
  return fmt::format("{}\n{}", run.files.settings(run.files.folders.run_name).yaml,
                     as_comments(fmt::format("{}\n{}\n{}", overview_text(run), coverage_text(model),
                                             schedule_text(run.schedule()))));
}

}  // namespace octet
