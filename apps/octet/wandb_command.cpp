#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "command.h"
#include "plan/resolve.h"
#include "report/run_folder.h"
#include "report/run_follow.h"
#include "report/wandb_follower.h"
#include "train/run_files.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// A finished run is sent as fast as W&B takes it. An upload of hours is possible, one of days is a mistake.
constexpr std::chrono::hours kLongest{24};

struct Options {
  std::vector<std::string> runs;
  std::string mode;
  std::string project, entity, name;
  bool follow = false, again = false;
};

void check(const Options& options, std::vector<std::string>& errors) {
  if (options.runs.size() > 1 && !options.name.empty())
    errors.emplace_back("--wandb_run_name names one run, but several are given");
  if (options.runs.size() > 1 && options.follow)
    errors.emplace_back("--follow takes one run; start the command once per run");
}

// The run's own configuration. Nothing, with a warning, if this version of octet does not read it: the default values of
// the keys would be wrong.
std::optional<TrainConfig> config_of(const std::string& folder) {
  const std::string path = (fs::path(folder) / "config.yaml").string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    log_warning("[{}] is missing: the run is sent without its configuration", path);
    return std::nullopt;
  }
  try {
    return load_train_config(path, {});
  } catch (const Error& error) {
    log_warning("[{}] cannot be read, so the run is sent without its configuration: {}", path, error.what());
    return std::nullopt;
  }
}

// Whether another process of this machine is training the run now. Only looks: taking the lock could make a run fail
// that is just starting.
bool is_running(const std::string& folder) {
  struct stat file {};
  return ::stat((fs::path(folder) / "run.lock").c_str(), &file) == 0 && is_locked_here(file);
}

void follow(const std::string& folder, const WandbFollower& follower) {
  if (!is_running(folder)) {
    log_warning(
        "[{}] no process of this machine is training this run, so only what is there now is sent; a run of another "
        "machine can be followed there",
        folder);
    return;
  }
  const StopSignal stop;
  while (!stop.requested() && is_running(folder) && !follower.ended())
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

bool send(const Options& options, const std::string& given, const std::string& mode) {
  const RunFolder run = read_run_folder(given);
  if (run.folder.empty())
    fail_config("[{}] is a file, expected the folder of a run: W&B's id is kept in the folder", given);
  if (run.records.empty() && !options.follow) {
    log_warning("[{}] is skipped: it holds no step yet", given);
    return true;
  }
  const std::string folder = fs::absolute(run.folder).lexically_normal().string();
  const std::optional<TrainConfig> own = config_of(folder);
  const TrainConfig config = own.value_or(TrainConfig{});
  const auto either = [](const std::string& flag, const std::string& key) {
    return flag.empty() ? key : flag;
  };
  const std::unique_ptr<WandbFollower> follower =
      WandbFollower::start({.folder = folder,
                            .mode = mode,
                            .run_name = run.name,
                            .project = either(options.project, config.wandb_project),
                            .entity = either(options.entity, config.wandb_entity),
                            .wandb_run_name = either(options.name, config.wandb_run_name),
                            .config = own ? hparams_of(*own) : HParams{},
                            .live = false,
                            .again = options.again,
                            .max_steps = config.max_steps});
  if (!follower) return false;
  if (options.follow) follow(folder, *follower);
  return follower->end(kExitDone, kLongest);
}

int run(const Options& options) {
  const WandbMode mode = choose_wandb_mode(options.mode);
  if (!mode.note.empty()) log_info("W&B: {}", mode.note);
  if (mode.mode == "disabled") return kExitDone;
  int code = kExitDone;
  for (const std::string& given : options.runs) {
    if (!send(options, given, mode.mode)) code = kExitFailure;
  }
  return code;
}

}  // namespace

Command wandb_command() {
  CommandBuilder<Options> builder("wandb", "Send runs to Weights & Biases");
  builder.line.about =
      "Sends runs to Weights & Biases through its Python client (package wandb). A run keeps its id in its folder: what "
      "W&B has already is not sent again, so the command can be repeated. A run that was recorded offline is sent from "
      "its first step.";
  builder.words(&Options::runs, {.name = "RUN", .what = "run", .help = "Folder of a run."});
  builder.keys
      .add("wandb_mode", &Options::mode, {"online", "offline", "disabled"},
           "offline writes files into the folder of the run, for 'wandb sync'.")
      .alias("mode")
      .also("offline", {"dryrun"})
      .note("WANDB_MODE; else online if there is a W&B key, otherwise offline");
  builder.keys.add("wandb_project", &Options::project, "Project in Weights & Biases.")
      .alias("project")
      .note("that of the run, else WANDB_PROJECT, else octet");
  builder.keys.add("wandb_entity", &Options::entity, "User or team that owns the project.")
      .alias("entity")
      .note("that of the run, else WANDB_ENTITY, else that of your login");
  builder.keys.add("wandb_run_name", &Options::name, "Name of the run in Weights & Biases.")
      .alias("name")
      .note("that of the run");
  builder.keys.add("follow", &Options::follow,
                   "Follow a run that another process is training, and end when it ends.");
  builder.keys.add("again", &Options::again, "Send everything again, as a new run with a new id.");
  builder.check(check);
  return builder.command(run);
}

}  // namespace octet
