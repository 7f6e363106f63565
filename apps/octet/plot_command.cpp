#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/names.h"
#include "base/print.h"
#include "base/text.h"
#include "command.h"
#include "io/output_file.h"
#include "report/plot.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// Nothing, with a warning, for what a pattern such as runs/* names as well: runs without a step yet, and other folders.
std::optional<RunFolder> read_run(const std::string& given) {
  std::error_code ignored;
  if (fs::is_directory(given, ignored) && !is_run_folder(given)) {
    log_warning("[{}] is skipped: it has no metrics.jsonl, so it is not the folder of a run", given);
    return std::nullopt;
  }
  RunFolder run = read_run_folder(given);
  if (!run.records.empty()) return run;
  log_warning("[{}] is skipped: it holds no step yet", given);
  return std::nullopt;
}

std::string summary(const std::vector<RunFolder>& runs, bool colour) {
  Table table({{"run"},
               {"precision"},
               {"steps", Align::Right},
               {"loss", Align::Right},
               {"best evaluation", Align::Right},
               {"tokens/s", Align::Right}});
  for (const RunFolder& run : runs) {
    double best = INFINITY;
    std::vector<double> speeds;
    for (const StepRecord& record : run.records) {
      if (record.eval_loss && *record.eval_loss < best) best = *record.eval_loss;
      if (std::isfinite(record.tokens_per_second)) speeds.push_back(record.tokens_per_second);
    }
    std::sort(speeds.begin(), speeds.end());
    const StepRecord& last = run.records.back();
    table.add_row({terminal_safe(run.name), last.precision.empty() ? "-" : terminal_safe(last.precision),
                   fmt::format("{}", last.step), fmt::format("{:.4f}", last.loss),
                   std::isfinite(best) ? fmt::format("{:.4f}", best) : "-",
                   speeds.empty() ? "-" : fmt::format("{:.0f}", speeds[speeds.size() / 2])});
  }
  return table.str(colour);
}

struct Options {
  std::vector<std::string> runs;
  std::string output;
};

int run(const Options& options) {
  std::vector<RunFolder> runs;
  std::vector<std::string> paths;
  for (const std::string& path : options.runs) {
    if (std::optional<RunFolder> run = read_run(path)) {
      runs.push_back(*std::move(run));
      paths.push_back(path);
    }
  }
  if (runs.empty()) fail_config("there is nothing to plot: no run has a step yet");
  tell_apart(runs, paths);
  const Plot plot = plot_of_runs(runs);
  require(!plot.panels.empty(), "[{}] holds no finite loss, rate or throughput", paths.front());
  const bool colour = ::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  fmt::print(
      "{}\n{}",
      plot_terminal(plot, plot.panels.front(), chart_columns(), runs.size() > 1 && !colour ? 9 : 14, colour),
      summary(runs, colour));
  if (!options.output.empty()) {
    write_output_file(options.output, plot_svg(plot));
    print_stdout("{} written\n", options.output);
  }
  return kExitDone;
}

}  // namespace

Command plot_command() {
  CommandBuilder<Options> builder("plot", "Draw the loss, learning rate and throughput of runs");
  builder.line.about =
      "Draws the loss, learning rate and throughput of runs from their metrics.jsonl. Runs without a step are skipped.";
  builder.words(&Options::runs,
                {.name = "RUN", .what = "run", .help = "Folder of a run, or its metrics.jsonl."});
  builder.keys.add("output", &Options::output, "Also write a picture. The name must end in .svg.")
      .value("FILE")
      .short_flag('o');
  builder.check([](const Options& options, std::vector<std::string>& errors) {
    check_picture(options.output, errors);
  });
  return builder.command(run);
}

}  // namespace octet
