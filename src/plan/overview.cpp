#include "plan/overview.h"

#include <set>

#include "plan/coverage.h"
#include "report/table.h"
#include "report/text.h"

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
  const int64_t places_per_step = rows * accumulation * config.max_seq_length;
  const double used = setup.data.train_plan ? setup.data.train_plan->utilisation() : 1;
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
  line("device", fmt::format("{}: {}", setup.device->name(), setup.device->description()));
  line("precision", precision);
  line("data", fmt::format("{}: {} tokens to train on, {} held out", config.dataset,
                           human_count(static_cast<double>(setup.data.train.size())),
                           human_count(static_cast<double>(setup.data.eval.size()))));
  if (const std::string use = utilisation_text(setup); !use.empty()) line("packing", use);
  line("batch",
       fmt::format("{} x {} tokens x {} micro-batches = {} tokens a step{}", rows, config.max_seq_length,
                   accumulation, places_per_step, used < 1 ? ", padding included" : ""));
  line("length", fmt::format("{} steps, {} tokens", config.max_steps,
                             human_count(static_cast<double>(config.max_steps * places_per_step) * used)));
  line("recompute", recompute_text(setup));
  text += fmt::format("\n{}", memory_text(setup.transformer->plan()));
  if (setup.sampling_bytes > 0) {
    text +=
        fmt::format("and {} beside it for samples\n", human_bytes(static_cast<double>(setup.sampling_bytes)));
  }
  return text;
}

}  // namespace octet
