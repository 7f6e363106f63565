#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>

#include "base/clock.h"
#include "base/cpu_threads.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "command.h"
#include "dist/launch_environment.h"
#include "import/import.h"
#include "launcher.h"
#include "ops/device.h"
#include "plan/resolve.h"
#include "run_words.h"

namespace octet {
namespace {

constexpr int kMostProcesses = 1024;

struct Options {
  std::string nproc_per_node;
  int64_t nnodes = 0, node_rank = -1, max_restarts = 0;
  bool standalone = false;
  std::string master;
};

// A number, or torchrun's words: gpu for one process per GPU; auto for the same, or one per core without a GPU; cpu for
// one per core. 0 if nothing is given.
int processes_of(const std::string& text) {
  if (text.empty()) return 0;
  const int gpus = text == "gpu" || text == "auto" ? probe_cuda().devices : 0;
  if (gpus > 0) return gpus;
  if (text == "gpu") fail_config("octet launch -n is gpu, but no GPU can be used: {}", probe_cuda().reason);
  if (text == "auto" || text == "cpu") return default_threads().count;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > kMostProcesses) {
    fail_config("octet launch -n is '{}', expected a number from 1 to {}, gpu, cpu or auto", printable(text),
                kMostProcesses);
  }
  return number;
}

// The flags of `launch` end at the first word that is not one. All of them have a value, except for --standalone.
size_t count_own_words(std::span<const std::string> arguments) {
  size_t i = 0;
  while (i < arguments.size() && arguments[i].starts_with('-') && arguments[i] != "--") {
    const bool is_one_word = arguments[i].find('=') != std::string::npos || arguments[i] == "-h" ||
                             arguments[i] == "--help" || arguments[i] == "--standalone";
    i += is_one_word ? 1 : 2;
  }
  return std::min(i, arguments.size());
}

LaunchPlan plan_of(const Options& options, std::vector<std::string> command) {
  const EnvironmentLookup environment = process_environment();
  const NodeDefaults defaults = read_node_defaults(environment);
  LaunchPlan plan{.command = std::move(command)};
  plan.processes = processes_of(options.nproc_per_node);
  if (plan.processes == 0) plan.processes = defaults.processes.value_or(0);
  plan.nodes = options.nnodes > 0 ? static_cast<int>(options.nnodes) : defaults.nodes.value_or(1);
  plan.node_rank =
      options.node_rank >= 0 ? static_cast<int>(options.node_rank) : defaults.node_rank.value_or(0);
  plan.max_restarts = static_cast<int>(options.max_restarts);
  if (options.standalone) {
    if (options.nnodes > 1)
      fail_config("--standalone means one node, but --nnodes is {}; expected one of them", options.nnodes);
    plan.nodes = 1;
    plan.node_rank = 0;
  }
  if (plan.processes == 0)
    fail_config("octet launch needs -n: the number of processes on this node, one per GPU");
  if (plan.processes > kMostProcesses)
    fail_config("octet launch -n is {}, expected at most {}", plan.processes, kMostProcesses);
  if (plan.node_rank >= plan.nodes) {
    fail_config("--node_rank is {} and --nnodes is {}; expected a node from 0 to {}", plan.node_rank,
                plan.nodes, plan.nodes - 1);
  }
  plan.secret = read_secret(environment);
  plan.job = environment("OCTET_JOB").value_or("");
  if (plan.nodes == 1) return plan;

  HostAndPort master;
  if (!options.master.empty()) {
    master = parse_host_and_port(options.master, "--master");
  } else if (defaults.master_host) {
    master = parse_host_and_port(*defaults.master_host, "MASTER_ADDR");
    master.port = defaults.master_port.value_or(master.port);
  } else {
    fail_config("octet launch on {} nodes needs --master HOST:PORT, the address of node 0, or MASTER_ADDR",
                plan.nodes);
  }
  if (master.port == 0) master.port = defaults.master_port.value_or(29500);
  plan.master = fmt::format(fmt::runtime(master.host.find(':') == std::string::npos ? "{}:{}" : "[{}]:{}"),
                            master.host, master.port);
  if (!plan.secret) {
    fail_config(
        "octet launch on {} nodes needs a secret that all nodes share, because rank 0 listens on the network: "
        "'openssl rand -hex 32 > secret; chmod 600 secret' in a folder that all nodes see, then set "
        "OCTET_SECRET_FILE to its path",
        plan.nodes);
  }
  return plan;
}

CommandBuilder<Options> builder() {
  CommandBuilder<Options> result("launch", "Start a command as several processes, one per GPU");
  result.line.usage = "-n PROCESSES [FLAGS] COMMAND [ARGUMENTS]";
  result.line.about =
      "Starts 'octet COMMAND ARGUMENTS' PROCESSES times on this node. The processes find each other and train "
      "together. Everything from COMMAND on is passed on unchanged.\n"
      "  octet launch -n 8 train run.yaml\n"
      "  octet launch -n 8 --nnodes 2 --node_rank 0 --master node0:29500 train run.yaml\n"
      "On several nodes, start the same command on each node with its own --node_rank. They must share a secret: "
      "OCTET_SECRET, or OCTET_SECRET_FILE with the path of a file.";
  result.line.notes =
      "Rank 0 writes to this console. If another rank fails early, the end of its output is shown. SIGTERM, SIGINT, "
      "SIGUSR1 and SIGHUP are passed on to all processes. If a process fails and the others do not end within 15 s, "
      "they get SIGTERM, and SIGKILL 30 s later.\n"
      "Exit code: the first code other than 0 and 75 that a process ended with. Otherwise 75 if one of them ended "
      "with 75, also if another was killed by a signal: there is a checkpoint, and --resume latest continues. "
      "Otherwise 128 + N if one was killed by signal N. Otherwise 0.\n"
      "OMP_NUM_THREADS is set to the number of cores divided by PROCESSES, unless it is set already. torchrun, "
      "mpirun and srun can start 'octet train' directly; then 'octet launch' is not needed. torchrun needs --no-python for "
      "it: torchrun --standalone --nproc_per_node 8 --no-python octet train run.yaml";
  result.keys
      .add(
          "nproc_per_node", &Options::nproc_per_node,
          "Processes on this node: usually its number of GPUs. gpu: one per GPU. cpu: one per core. auto: gpu if there is "
          "one, else cpu. -np is the same.")
      .short_flag('n')
      .value("PROCESSES")
      .note("NPROC_PER_NODE or GPU_NUM of the environment");
  result.keys.add("nnodes", &Options::nnodes, "Number of nodes.")
      .at_least(1)
      .at_most(kMostRanks)
      .note("NNODES, or WORLD_SIZE, of the environment; else 1");
  result.keys.add("node_rank", &Options::node_rank, "Number of this node, from 0.")
      .at_least(0)
      .at_most(kMostRanks)
      .note("NODE_RANK, or RANK, of the environment; else 0");
  result.keys.add("standalone", &Options::standalone,
                  "One node, whatever the environment says of nodes. For torchrun's command lines.");
  result.keys.add("master", &Options::master, "Address of node 0, and the first of 32 ports to try.")
      .value("HOST:PORT")
      .note("MASTER_ADDR and MASTER_PORT of the environment");
  result.keys
      .add(
          "max_restarts", &Options::max_restarts,
          "If all processes end after a failure and there is a checkpoint (exit code 75 without a signal), start "
          "them again with --resume latest. Gives up with exit code 1 after this many restarts without a new step.")
      .at_least(0)
      .at_most(1000);
  result.line.words = {
      {.name = "COMMAND", .what = "command", .help = "Command of octet to start, with its arguments."}};
  result.line.keys.assign(result.keys.keys().begin(), result.keys.keys().end());
  return result;
}

// All processes read the configuration.
void refuse_pipes(const LaunchPlan& plan) {
  for (std::string_view word : plan.command) {
    if (word.starts_with("--config=")) word.remove_prefix(word.find('=') + 1);
    if (word.ends_with(".yaml") || word.ends_with(".yml") || word.starts_with("/dev/fd/") || word.starts_with("/proc/"))
      require_config_file(std::string(word));
  }
}

// A restart continues the run by its name. Without one, --resume latest would not know which run is meant.
void name_run(LaunchPlan& plan) {
  if (plan.max_restarts == 0 || plan.command.front() != "train") return;
  const ParsedLine parsed =
      parse_command_line(find_command("train").line, std::span(plan.command).subspan(1));
  if (parsed.help || !parsed.errors.empty()) return;  // the processes say what is wrong
  SettingsNotes notes;                                // the processes say them
  const FilesSpec files =
      files_spec(load_train_config(read_run_file(parsed.run.config_file, notes), parsed.run.settings), true);
  if (!files.folders.run_name.empty() || !files.resume.empty()) return;
  if (plan.nodes > 1) {
    fail_config(
        "octet launch --max_restarts on {} nodes needs run_name, the same on every node: a restart continues the run of "
        "that name",
        plan.nodes);
  }
  const std::string name = fmt::format("{}-{}-{}", time_name(), ::getpid(), files.precision);
  plan.command.insert(plan.command.end(), {"--run_name", name});
  log_info("[launch] the run is named {}, so that a restart can continue it; run_name sets another name",
           name);
}

// `octet launch -n 2 octet train`: a habit from torchrun, mpirun and srun.
std::span<const std::string> without_program(std::span<const std::string> command) {
  if (command.empty()) return command;
  const std::string name = std::filesystem::path(command.front()).filename().string();
  const std::string own = std::filesystem::path(program_invocation_name).filename().string();
  return name == "octet" || name == own ? command.subspan(1) : command;
}

int run(std::span<const std::string> given) {
  const CommandBuilder<Options> build = builder();
  std::vector<std::string> arguments(given.begin(), given.end());
  for (size_t i = 0; i < count_own_words(arguments); ++i) {
    if (arguments[i] == "-np") arguments[i] = "-n";
  }
  const size_t own = count_own_words(arguments);
  std::vector<std::string> words(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(own));
  std::span<const std::string> command = std::span(arguments).subspan(own);
  if (!command.empty() && command.front() == "--") command = command.subspan(1);
  command = without_program(command);
  if (!command.empty()) words.insert(words.end(), {"--", command.front()});
  const ParsedLine parsed = parse_command_line(build.line, words);
  if (parsed.help) return print_help(build.line);
  throw_errors(parsed);
  Options options;
  for (const KeyAssignment& assignment : parsed.own)
    build.keys.set(options, assignment.index, assignment.value);
  // A misspelt command is said once, not by every process.
  if (!command.front().starts_with('-') && find_command(command.front()).line.name == "launch")
    fail_config("octet launch cannot start itself; expected another command, such as train");
  LaunchPlan plan = plan_of(options, {command.begin(), command.end()});
  refuse_pipes(plan);
  name_run(plan);
  return launch_processes(plan);
}

}  // namespace

Command launch_command() {
  return {builder().line, run};
}

}  // namespace octet
