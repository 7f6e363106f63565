#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "base/print.h"
#include "base/process.h"
#include "base/signals.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/resume.h"
#include "command.h"
#include "import/environment.h"
#include "import/import.h"
#include "plan/resume_config.h"
#include "train/trainer.h"

namespace octet {
namespace {

struct Options {
  RunArguments run;
};

// Lists the checkpoints of checkpoint_dir, or of the run, or of all runs in output_dir.
int list_checkpoints_of(const CommonKeys& config) {
  if (!config.checkpoint_dir.empty()) {
    if (posix_env().is_directory(config.checkpoint_dir)) return list_checkpoints(config.checkpoint_dir);
    print_stdout("checkpoint_dir {} does not exist yet: there are no checkpoints\n", config.checkpoint_dir);
    return kExitDone;
  }
  if (!config.run_name.empty()) return list_checkpoints(run_folder(config));
  Env& env = posix_env();
  std::optional<int> code;
  if (env.is_directory(config.output_dir)) {
    for (const std::string& name : env.list(config.output_dir)) {
      const std::string folder = join_path(config.output_dir, name);
      if (!checkpoint_folders(env, folder).empty())
        code = std::max(code.value_or(kExitDone), list_checkpoints(folder));
    }
  }
  if (!code) fail_config("output_dir {} holds no run with checkpoints", config.output_dir);
  return *code;
}

int run(const Options& options) {
  for (const std::string& note : environment_notes(environment_entries())) log_info("{}", note);
  const TrainConfig config =
      load_resumable_config(read_run_file(options.run.config_file), options.run.settings);
  if (config.list_checkpoints) return list_checkpoints_of(config);
  if (!config.dry_run) survive_broken_pipes();
  return train(config);
}

}  // namespace

Command train_command() {
  CommandBuilder<Options> builder(
      "train", "Pretrain or fine-tune a model; without arguments, train the built-in demo");
  builder.line.about =
      "Pretrains or fine-tunes a model. Without arguments it trains the built-in demo.\n"
      "Every key below may be set in the YAML file or as a flag. Flags override the file.";
  builder.run_arguments(&Options::run, RunKeys::Listed);
  return builder.command(run);
}

}  // namespace octet
