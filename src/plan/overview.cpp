#include "plan/overview.h"

#include <set>

#include "plan/data_loaders.h"
#include "plan/sharding_choice.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {

std::string memory_text(const RunPlan& plan) {
  Table table({{"memory"}, {"planned", Align::Right}});
  const auto bytes = plan.memory.bytes_in_arena();
  for (size_t i = 0; i < kMemoryCategories.size(); ++i) {
    if (kMemoryCategories[i] == MemoryCategory::Communication && bytes[i] == 0) continue;  // no other ranks
    table.add_row({std::string(name_of(kMemoryCategories[i])), human_bytes(static_cast<double>(bytes[i]))});
  }
  table.add_rule();
  table.add_row({"peak", human_bytes(static_cast<double>(plan.memory.peak_bytes()))});
  if (plan.sampling_bytes == 0) return table.str();
  return table.str() + fmt::format("plus {} for generating samples\n",
                                   human_bytes(static_cast<double>(plan.sampling_bytes)));
}

std::string recompute_text(Checkpointing level) {
  switch (level) {
    case Checkpointing::None:
      return "nothing";
    case Checkpointing::Act:
      return "outputs of norms and activation (act)";
    case Checkpointing::Mlp:
      return "outputs of norms and activation, and the first product of the MLP (mlp)";
    case Checkpointing::Block:
      return "every block from its input (block)";
  }
  return "?";
}

std::string adapters_text(const ModelConfig& model, const Finetuning& finetuning) {
  const AdapterPlan& plan = finetuning.adapters;
  int64_t trained = 0, lowest = plan.adapters.front().rank, highest = lowest;
  for (const ParameterSpec& spec : adapters_of(parameter_table(model, plan))) trained += spec.shape.numel();
  for (const Adapter& adapter : plan.adapters) {
    lowest = std::min(lowest, adapter.rank);
    highest = std::max(highest, adapter.rank);
  }
  return fmt::format("LoRA, rank {}, scale {:g}, on {}; {} trained parameters, {} frozen ones",
                     lowest == highest ? fmt::format("{}", lowest) : fmt::format("{} to {}", lowest, highest),
                     plan.adapters.front().scale(), counted(std::ssize(plan.adapters), "matrix", "matrices"),
                     human_count(static_cast<double>(trained)),
                     human_count(static_cast<double>(model.parameter_count())));
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

std::string ranks_text(const RunPlan& plan) {
  constexpr auto kCommunication = static_cast<size_t>(MemoryCategory::Communication);
  return fmt::format("{}; sharding_mode {}; buffers for communication take {}", plan.ranks(),
                     sharding_text(plan.finetuning.sharding),
                     human_bytes(static_cast<double>(plan.memory.bytes_in_arena()[kCommunication])));
}

namespace {

// A table of the datasets of a mix: what there is of each, and what the run reads of it.
std::string parts_text(const RunSpec& run) {
  const TrainingData& data = run.data.data;
  const std::vector<MixShare> shares = mix_shares(run.loading, data);
  const auto count = [](int64_t number) { return human_count(static_cast<double>(number)); };
  const auto read = static_cast<double>(run.schedule().max_steps * run.plan.sequences_per_step());
  Table table({{"dataset"},
               {"tokens", Align::Right},
               {"held out", Align::Right},
               {"sequences", Align::Right},
               {"share", Align::Right},
               {"of tokens", Align::Right},
               {"passes", Align::Right}});
  for (size_t i = 0; i < data.train.size(); ++i) {
    const DataPart& part = data.train[i];
    const int64_t sequences = part.sequences(run.loading.length);
    const bool holds_out = run.holds_out && i < data.eval.size();
    table.add_row({part.name, count(part.tokens.size()), holds_out ? count(data.eval[i].tokens.size()) : "-",
                   fmt::format("{}", sequences), fmt::format("{:.1f} %", 100 * shares[i].sequences),
                   fmt::format("{:.1f} %", 100 * shares[i].tokens),
                   fmt::format("{:.2f}", shares[i].sequences * read / static_cast<double>(sequences))});
  }
  return table.str();
}

}  // namespace

std::string overview_text(const RunSpec& run) {
  const ModelConfig& model = run.model.config;
  const TrainingData& data = run.data.data;
  const RunPlan& plan = run.plan;
  const int64_t positions_per_step = plan.ranks() * plan.accumulation * plan.shape.tokens();
  const double used = utilisation(run.loading, data);  // the rest is padding
  const int64_t steps = run.schedule().max_steps;
  const auto count = [](int64_t number) { return human_count(static_cast<double>(number)); };
  std::string precision = plan.precision_label;
  if (plan.is_fp8()) {
    precision += fmt::format(", recipe {}, format {}; {:.0f} % of all FLOPs in FP8",
                             name_of(plan.numerics.fp8.recipe), name_of(plan.numerics.fp8.format),
                             100 * plan.fp8_share);
  }
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("{:<10} {}\n", what, value);
  };
  line("model", fmt::format("{}: {} parameters, {} {}, width {}", model.name, count(model.parameter_count()),
                            model.layers, model.layers == 1 ? "layer" : "layers", model.width));
  if (!plan.finetuning.adapters.empty()) line("training", adapters_text(model, plan.finetuning));
  line("device", fmt::format("{}: {}", run.device->name(), run.device->description()));
  if (plan.finetuning.sharding.is_active()) line("ranks", ranks_text(plan));
  line("precision", precision);
  if (plan.evaluates_in_fp8)
    line("evaluation", "in FP8, because ranks send each other FP8 weights and none has all of them in BF16");
  line("data", fmt::format("{}: {} tokens to train on, {} held out", run.dataset,
                           count(data.train_tokens()), count(data.eval_tokens())));
  for (const DataPart& part : data.train) {
    if (!part.note) continue;
    const std::string whose = data.train.size() > 1 ? part.name + ": " : "";
    for (const auto& [what, value] : note_lines(*part.note)) line(what.c_str(), whose + value);
  }
  if (!run.is_demo && run.data.tokenizer_source.empty()) {
    line("tokenizer", fmt::format("{}, not at hand", run.data.tokenizer_name));
  } else if (!run.is_demo) {
    line("tokenizer", tokenizer_text(run.data.tokenizer_name, *run.data.tokenizer));
  }
  if (const std::string packing = packing_text(run.loading, data); !packing.empty()) line("packing", packing);
  line("batch", fmt::format("{} x {} tokens x {}{} = {} tokens per step{}", plan.shape.rows,
                            plan.shape.length, counted(plan.accumulation, "micro-batch", "micro-batches"),
                            plan.ranks() > 1 ? fmt::format(" x {} ranks", plan.ranks()) : "",
                            positions_per_step, used < 1 ? ", including padding" : ""));
  line("length", fmt::format("{}, {} tokens", counted(steps, "step"),
                             human_count(static_cast<double>(steps * positions_per_step) * used)));
  line("recompute", recompute_text(plan.shape.checkpointing));
  if (plan.transposing_layers > 0)
    line("transpose",
         fmt::format("the FP8 weights of {}, in backward", counted(plan.transposing_layers, "layer")));
  if (data.train.size() > 1) text += fmt::format("\n{}", parts_text(run));
  return text + fmt::format("\n{}", memory_text(plan));
}

}  // namespace octet
