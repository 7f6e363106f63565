#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/names.h"
#include "base/print.h"
#include "base/text.h"
#include "command.h"
#include "config/config.h"
#include "import/import.h"
#include "io/output_file.h"
#include "plan/resolve.h"
#include "plan/schedule_view.h"
#include "report/plot.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

struct Options {
  int64_t ranks = 1;
  std::string output;
  bool json = false;
  std::vector<std::string> files;
  RunArguments run;
};

// The memory is planned only if the batch size follows from it: the schedule of a run may be looked at on a machine that
// could not run it.
ResolvedRun resolve_schedule(const TrainConfig& given, int64_t ranks) {
  const RankPlace place{.ranks = static_cast<int>(ranks), .local_ranks = static_cast<int>(ranks)};
  const Wanted wanted = Wanted::by_lr(given, place);
  if (wanted.data == Wanted::Data::No) return resolve(given, wanted);
  try {
    return resolve(given, wanted);
  } catch (const Error& error) {
    fail_config(
        "{}\nthe number of steps follows from num_train_epochs and the data, which cannot be opened: give "
        "it with --total_steps N",
        error.what());
  }
}

NamedSchedule read_schedule(const std::string& file, const Options& options) {
  const ResolvedRun run =
      resolve_schedule(load_plan_config(read_run_file(file), options.run.settings), options.ranks);
  if (const TrainConfig& keys = run.keys; !keys.is_set("learning_rate")) {
    // A model that was not looked at has weights.
    const bool has_weights = run.model.start ? run.model.has_weights() : !keys.model_name_or_path.empty();
    log_info("learning_rate is not set: {:g} is the default of {}", keys.learning_rate,
             keys.is_lora()   ? "LoRA"
             : has_weights    ? "training all weights of a given model"
             : keys.is_demo() ? "the demo"
                              : "training from random weights");
  }
  return {file.empty() ? "schedule" : fs::path(file).stem().string(), run.schedule()};
}

nlohmann::ordered_json to_json(const NamedSchedule& named) {
  const ScheduleConfig& schedule = named.schedule;
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const int64_t step : schedule_marks(schedule, std::min<int64_t>(schedule.max_steps, 1000)))
    points.push_back({{"step", step + 1}, {"lr", learning_rate(schedule, step)}});
  return {{"name", named.name},
          {"lr_scheduler_type", to_string(schedule.type)},
          {"learning_rate", schedule.peak_lr},
          {"final_lr", learning_rate(schedule, schedule.max_steps - 1)},
          {"mean_lr", schedule.peak_lr * mean_rate_share(schedule)},
          {"total_steps", schedule.max_steps},
          {"warmup_steps", schedule.warmup_steps},
          {"decay_steps", schedule.type == ScheduleType::Wsd ? schedule.decay_steps
                          : schedule.type == ScheduleType::Constant
                              ? 0
                              : std::max<int64_t>(0, schedule.max_steps - schedule.warmup_steps)},
          {"warnings", schedule_warnings(schedule)},
          {"points", points}};
}

void print_schedules(const std::vector<NamedSchedule>& schedules, const Plot& plot) {
  const bool colour = ::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  const bool several = schedules.size() > 1;
  fmt::print("{}\n{}",
             plot_terminal(plot, plot.panels.front(), chart_columns(), several && !colour ? 7 : 12, colour),
             several ? schedules_table(schedules) : schedule_table(schedules.front().schedule));
  if (several) return;
  fmt::print("mean learning rate: {:.3e}, {:.1f} % of the peak\n",
             schedules.front().schedule.peak_lr * mean_rate_share(schedules.front().schedule),
             100 * mean_rate_share(schedules.front().schedule));
}

int run(const Options& options) {
  std::vector<std::string> files = options.files;
  if (files.empty()) files.emplace_back();
  std::vector<NamedSchedule> schedules;
  for (const std::string& file : files) schedules.push_back(read_schedule(file, options));
  tell_apart(schedules, files);
  const Plot plot = schedule_plot(schedules);
  if (options.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const NamedSchedule& each : schedules) all.push_back(to_json(each));
    fmt::print("{}\n", nlohmann::ordered_json{{"schedules", all}}.dump(
                           1, ' ', true, nlohmann::json::error_handler_t::replace));
  } else {
    print_schedules(schedules, plot);
    std::fflush(stdout);
  }
  for (const NamedSchedule& each : schedules) {
    for (const std::string& warning : schedule_warnings(each.schedule)) {
      if (schedules.size() > 1) {
        log_warning("[{}] {}", each.name, warning);
      } else {
        log_warning("{}", warning);
      }
    }
  }
  if (!options.output.empty()) {
    write_output_file(options.output, plot_svg(plot));
    if (!options.json) print_stdout("{} written\n", options.output);
  }
  return kExitDone;
}

}  // namespace

Command lr_command() {
  CommandBuilder<Options> builder("lr", "Show the learning-rate schedule of a configuration");
  builder.line.usage = "[CONFIG.yaml...] [--key value]...";
  builder.line.about =
      "Draws the learning rate of a run over its steps and prints a table. Several configurations are shown "
      "side by side. Without a configuration, the keys of the schedule are enough:\n"
      "  octet lr --max_lr 3e-4 --warmup_steps 100 --total_steps 2000\n"
      "Warns of a warm-up that never ends, a decay that never starts, and the like. Nothing is trained.";
  builder.line.notes =
      "The keys of the schedule: learning_rate (max_lr), lr_scheduler_type, warmup_steps, warmup_ratio, min_lr, "
      "min_lr_ratio, decay_ratio, max_steps (total_steps), num_train_epochs. With num_train_epochs the data is "
      "opened, and prepared if necessary, to count the steps.";
  builder.keys.add("output", &Options::output, "Also write a picture. The name must end in .svg.")
      .value("FILE")
      .short_flag('o');
  builder.keys.add("json", &Options::json, "Print JSON instead of the chart and the table.");
  builder.keys
      .add("ranks", &Options::ranks, "GPUs of the run. With num_train_epochs, more GPUs need fewer steps.")
      .at_least(1)
      .at_most(1 << 14);
  builder.check([](const Options& options, std::vector<std::string>& errors) {
    check_picture(options.output, errors);
  });
  builder.words(&Options::files, config_file_word());
  builder.run_arguments(&Options::run);
  builder.line.words.front().many = true;
  return builder.command(run);
}

}  // namespace octet
