#include "train/overview.h"

#include <set>

#include "report/table.h"
#include "report/text.h"
#include "train/fp8_report.h"

namespace octet {

std::string memory_text(const MemoryPlan& plan) {
  Table table({{"memory"}, {"planned", Align::Right}});
  const auto bytes = plan.bytes_in_arena();
  for (size_t i = 0; i < kMemoryCategories.size(); ++i) {
    table.add_row({std::string(name_of(kMemoryCategories[i])), human_bytes(static_cast<double>(bytes[i]))});
  }
  table.add_rule();
  table.add_row({"peak", human_bytes(static_cast<double>(plan.peak_bytes()))});
  return table.str();
}

std::string recompute_text(const Setup& setup) {
  switch (setup.shape.checkpointing) {
    case Checkpointing::None:
      return "nothing";
    case Checkpointing::Act:
      return "outputs of norms and activation (act)";
    case Checkpointing::Mlp:
      return "outputs of norms and activation, the MLP's first product (mlp)";
    case Checkpointing::Block:
      return "every block from its input (block)";
  }
  return "?";
}

std::string schedule_text(const ScheduleConfig& schedule) {
  const int64_t last = schedule.max_steps - 1;
  std::set<int64_t> steps = {0, last / 4, last / 2, last * 3 / 4, last};
  if (schedule.warmup_steps > 0) steps.insert({schedule.warmup_steps - 1, schedule.warmup_steps});
  if (schedule.decay_steps > 0) steps.insert(schedule.max_steps - schedule.decay_steps);
  Table table({{"step", Align::Right}, {"learning rate", Align::Right}});
  for (const int64_t step : steps) {
    if (step >= 0 && step <= last) {
      table.add_row({std::to_string(step + 1), fmt::format("{:.3e}", learning_rate(schedule, step))});
    }
  }
  return table.str();
}

std::string overview_text(const Setup& setup) {
  const TrainConfig& config = setup.config;
  const int64_t rows = config.per_device_train_batch_size, accumulation = config.gradient_accumulation_steps;
  const int64_t tokens_per_step = rows * accumulation * config.max_seq_length;
  std::string precision = setup.precision_label;
  if (setup.numerics.precision == Precision::Fp8) {
    precision +=
        fmt::format(", recipe {}, format {}; {:.0f} % of all FLOPs in FP8", config_text(config, "fp8_recipe"),
                    config_text(config, "fp8_format"), 100 * fp8_share(work_shares(*setup.transformer)));
  }
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("{:<10} {}\n", what, value);
  };
  line("model", fmt::format("{}: {} parameters, {} layers, width {}", setup.model.name,
                            human_count(static_cast<double>(setup.model.parameter_count())),
                            setup.model.layers, setup.model.width));
  line("device", fmt::format("{}: {}", setup.backend->name(), setup.backend->description()));
  line("precision", precision);
  line("data", fmt::format("{}: {} tokens to train on, {} held out", config.dataset,
                           human_count(static_cast<double>(setup.data.train.size())),
                           human_count(static_cast<double>(setup.data.eval.size()))));
  if (const std::string use = utilisation_text(setup); !use.empty()) line("packing", use);
  line("batch", fmt::format("{} x {} tokens x {} micro-batches = {} tokens a step", rows,
                            config.max_seq_length, accumulation, tokens_per_step));
  line("length", fmt::format("{} steps, {} tokens", config.max_steps,
                             human_count(static_cast<double>(config.max_steps * tokens_per_step))));
  line("recompute", recompute_text(setup));
  text += fmt::format("\n{}", memory_text(setup.transformer->plan()));
  if (setup.sampling_bytes > 0) {
    text +=
        fmt::format("and {} beside it for samples\n", human_bytes(static_cast<double>(setup.sampling_bytes)));
  }
  return text;
}

std::string summary_text(const Setup& setup, const Outcome& outcome) {
  Table table({{"summary"}, {""}});
  const auto arrow = [](const std::optional<double>& before, const std::optional<double>& after,
                        const char* format) {
    const std::string now = fmt::format(fmt::runtime(format), *after);
    return before ? fmt::format("{} -> {}", fmt::format(fmt::runtime(format), *before), now) : now;
  };
  table.add_row({"steps", fmt::format("{} of {}{}", outcome.steps, setup.config.max_steps,
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
  if (const std::string use = utilisation_text(setup); !use.empty()) table.add_row({"packing", use});
  table.add_row({"memory", human_bytes(static_cast<double>(outcome.allocated_bytes))});
  table.add_row({"precision", setup.precision_label});
  table.add_row({"files", outcome.run_folder});
  if (!outcome.checkpoints.empty()) table.add_row({"checkpoints", outcome.checkpoints});
  if (outcome.save) {
    table.add_row({"last checkpoint",
                   fmt::format("step {}, {}; training waited {:.0f} ms, written in {:.1f} s",
                               outcome.save->step, human_bytes(static_cast<double>(outcome.save->bytes)),
                               outcome.save->wait_ms, outcome.save->write_seconds)});
  }
  return table.str();
}

}  // namespace octet
