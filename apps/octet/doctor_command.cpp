#include "doctor/doctor.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/print.h"
#include "command.h"
#include "import/import.h"
#include "ops/device.h"

namespace octet {
namespace {

struct Options {
  bool json = false;
  RunArguments run;
};

// Without a configuration: the shapes of a model that people train on such a GPU.
const std::vector<KeySetting> kDefaultRun = {{.name = "model_preset", .values = {"llama-3.1-8b"}},
                                             {.name = "max_seq_length", .values = {"1024"}},
                                             {.name = "per_device_train_batch_size", .values = {"8"}},
                                             {.name = "optimizer_state", .values = {"bf16"}}};

int run(const Options& options) {
  const bool is_given = !options.run.config_file.empty() || !options.run.settings.empty();
  std::string area;
  const auto show = [&](const CheckResult& result) {
    if (options.json) return;
    if (result.area != area) fmt::print("{}{}\n", area.empty() ? "" : "\n", result.area);
    area = result.area;
    print_stdout("{}", check_text(result));
    std::fflush(stdout);
  };
  const DoctorReport report =
      is_given || !probe_cuda().usable
          ? examine(load_plan_config(read_run_file(options.run.config_file), options.run.settings), is_given,
                    show)
          : examine(load_plan_config("", kDefaultRun), is_given, show);
  if (options.json) {
    fmt::print("{}", doctor_json(report));
  } else {
    print_stdout("\n{}\n", report.verdict);
  }
  return report.count(Health::Failure) > 0 ? kExitFailure : kExitDone;
}

}  // namespace

Command doctor_command() {
  CommandBuilder<Options> builder("doctor", "Check whether FP8 really runs on this machine, and how fast");
  builder.line.about =
      "Looks at the driver, the GPU and its clocks, the libraries, the disks and the memory. Multiplies matrices of the "
      "configuration's own shapes in FP8 and in BF16, compares the results with a reference and prints the speeds. "
      "Each line is ok, a warning with its remedy, or a failure.\n"
      "With a configuration or keys of 'octet train', it also checks that run: how much of it runs in FP8, whether it "
      "fits, and whether its files are there. Without them, it uses the shapes of llama-3.1-8b (on a CPU: of the demo).\n"
      "Exit code: 0 without failures, 1 with some. --require_fp8 or --device cuda makes a missing GPU a failure.";
  builder.keys.add("json", &Options::json, "Print one JSON object.");
  builder.run_arguments(&Options::run);
  return builder.command(run);
}

}  // namespace octet
