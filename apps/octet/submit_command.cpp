#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/print.h"
#include "base/text.h"
#include "command.h"
#include "config/notes.h"
#include "import/import.h"
#include "io/env.h"
#include "io/output_file.h"
#include "ops/device.h"
#include "report/text.h"
#include "run_words.h"
#include "submit/sbatch_script.h"
#include "submit/shell.h"
#include "sweep/sweep_spec.h"
#include "sweep_checks.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

struct Options {
  int64_t nodes = 1, gpus_per_node = -1, tasks_per_node = 0, cpus_per_task = 0, signal_seconds = 180;
  std::string time, gpu_type, mem, partition, account, qos, constraint, dependency, array, array_key,
      job_name;
  std::string container, log_dir = "slurm", output, octet;
  std::vector<std::string> modules, setup, sbatch_arg, container_mounts;
  ContainerRuntime container_runtime = ContainerRuntime::Auto;
  GpuRequest gpu_request = GpuRequest::Gpus;
  bool requeue = true, print = false;
  std::string folder;
  std::vector<std::string> sweep_arg;
  std::vector<std::string> files;
  RunArguments run;
};

std::string this_program() {
  std::error_code code;
  const fs::path path = fs::read_symlink("/proc/self/exe", code);
  return code ? "octet" : path.string();
}

// The settings without these keys: the script gives them.
std::vector<KeySetting> without(const std::vector<KeySetting>& settings,
                                std::initializer_list<const char*> names) {
  std::vector<KeySetting> rest;
  for (const KeySetting& setting : settings) {
    const Key* key = key_called(train_keys().keys(), setting.name);
    if (!key || std::ranges::none_of(names, [&](const char* name) { return key->name == name; }))
      rest.push_back(setting);
  }
  return rest;
}

// A job that has asked for GPUs must not train on the CPU, as device auto does where the program cannot use them.
void insist_on_gpu(SlurmJob& job, bool chooses_device) {
  if (job.gpus_per_node > 0 && !chooses_device) job.arguments.emplace_back("--device=cuda");
}

// Said before the job waits in the queue.
void warn_if_gpus_cannot_be_used(const SlurmJob& job) {
  if (job.gpus_per_node == 0 || job.octet != this_program() || cuda_backend_built()) return;
  log_warning(
      "the job asks for GPUs, but this program was built without CUDA and cannot use them; build it with 'make build CUDA=ON', "
      "or name another program with --octet");
}

// The name of the file, short enough for what the names of a run and its tasks add to it.
std::string stem_for_name(const std::string& config_file) {
  std::string stem = fs::path(config_file).stem().string();
  size_t bytes = std::min(stem.size(), kMostNameBytes - 50);
  while (bytes < stem.size() && bytes > 0 && (static_cast<unsigned char>(stem[bytes]) & 0xC0) == 0x80)
    --bytes;  // no half characters
  stem.resize(bytes);
  return stem;
}

// The part of the job that follows from the configuration of a run.
void describe_run(SlurmJob& job, const Options& options) {
  require_config_file(options.run.config_file);
  const TrainConfig config = load_train_config(read_run_file(options.run.config_file), options.run.settings);
  if (!config.resume.empty() && config.resume != "latest") {
    fail_config(
        "{} is '{}'; a job continues the run of its run_name by itself. To continue a run, give its name: --run_name "
        "NAME. To start from its weights: --model_name_or_path {}",
        config.origins.at("resume"), printable(config.resume), printable(config.resume));
  }
  if (config.dry_run || config.list_checkpoints)
    fail_config("octet submit starts training; dry_run and list_checkpoints are for 'octet train'");
  tell_assumptions({&config, 1});
  warn_of_costly_settings({&config, 1});
  job.run_name = config.run_name;
  if (job.run_name.empty()) {
    const std::string stem = stem_for_name(options.run.config_file);
    const std::string name = stem.empty() ? "run" : stem, precision = precision_of_name(config);
    const bool says_precision = name.find(precision) != name.npos;
    job.run_name = fmt::format("{}-{}{}{}", name, time_name(), says_precision ? "" : "-",
                               says_precision ? "" : precision);
  }
  if (options.gpus_per_node < 0) job.gpus_per_node = config.device == DeviceKey::Cpu ? 0 : 1;
  if (!job.array.empty()) {
    const Key* key = key_called(train_keys().keys(), options.array_key.empty() ? "seed" : options.array_key);
    if (!key || key->type != KeyType::Int) {
      fail_config(
          "--array_key is '{}'; expected a key that is an integer, such as seed: it gets the number of the "
          "array task",
          printable(options.array_key));
    }
    if (config.is_set_by_flag(key->name))
      fail_config("{} is given, but --array sets {} to the number of each task", config.origins.at(key->name),
                  key->name);
    job.array_key = key->name;
  }
  job.config = options.run.config_file;
  job.arguments = words_of(without(options.run.settings, {"run_name", "resume"}));
  insist_on_gpu(job, config.is_set("device"));
  job.arguments.emplace_back("--resume=latest");
}

int64_t number_of(const CommandLine& line, const ParsedLine& parsed, std::string_view name,
                  int64_t otherwise) {
  for (const KeyAssignment& own : parsed.own) {
    if (line.keys[own.index].name == name) return std::get<int64_t>(own.value);
  }
  return otherwise;
}

// Says now what 'octet sweep' would say in the job. Returns whether somebody has chosen the device of the runs.
bool check_sweep(const SweepSpec& spec, const std::string& config, const SlurmJob& job) {
  std::vector<std::string> words = {job.sweep};
  words.insert(words.end(), job.arguments.begin(), job.arguments.end());
  const CommandLine& line = find_command("sweep").line;
  const ParsedLine agent = parse_command_line(line, words);
  throw_errors(agent);
  for (const std::string& warning : spec.warnings) log_warning("{}", warning);
  const std::vector<KeySetting> settings = base_settings(spec, agent.run);
  const auto seed = static_cast<uint64_t>(number_of(line, agent, "sweep_seed", 42));
  const std::string& config_file = config.empty() ? spec.base_config : config;
  require_config_file(config_file);
  const FileSettings file = read_run_file(config_file);
  const CommonKeys first = check_first_run(spec, file, settings, seed);
  const KnownRuns known(spec, file, settings, seed, count_runs(spec, number_of(line, agent, "runs", 0)));
  known.judge_idle_parameters(job.gpus_per_node > 0 && first.device != DeviceKey::Cpu);
  known.tell_of_settings();
  return first.is_set("device");
}

// Agents of a sweep: one per node, which uses all GPUs of the node, or one per array task.
void describe_sweep(SlurmJob& job, const Options& options, const std::string& sweep,
                    const std::string& config) {
  if (!options.array_key.empty()) fail_config("--array_key is for runs; the tasks of a sweep are agents");
  if (options.tasks_per_node > 1)
    fail_config("--tasks_per_node is {}; a sweep has one agent per node, which starts the runs",
                options.tasks_per_node);
  const SweepSpec spec = read_sweep_file(sweep);  // its faults are said now, not in the job
  if (options.gpus_per_node < 0) job.gpus_per_node = 1;
  const std::string stem = fs::path(sweep).stem().string();
  job.name = spec.name.empty() ? stem : spec.name;
  job.sweep = sweep;
  job.config = config;
  job.sweep_folder = options.folder.empty() ? fmt::format("sweeps/{}", stem) : options.folder;
  if (job.gpus_per_node > 0) job.arguments.emplace_back("--gpus=all");
  job.arguments.insert(job.arguments.end(), options.sweep_arg.begin(), options.sweep_arg.end());
  const std::vector<std::string> words = words_of(options.run.settings);
  job.arguments.insert(job.arguments.end(), words.begin(), words.end());
  insist_on_gpu(job, check_sweep(spec, config, job));
  job.wait_seconds = 0;  // agents need not end together
}

SlurmJob job_of(const Options& options, std::vector<std::string>& errors) {
  SlurmJob job;
  job.nodes = options.nodes;
  job.gpus_per_node = std::max<int64_t>(options.gpus_per_node, 0);
  job.gpu_type = options.gpu_type;
  job.gpu_request = options.gpu_request;
  job.cpus_per_task = options.cpus_per_task;
  job.memory = options.mem;
  job.signal_seconds = options.signal_seconds;
  job.partition = options.partition;
  job.account = options.account;
  job.qos = options.qos;
  job.constraint = options.constraint;
  job.dependency = options.dependency;
  job.array = options.array;
  job.sbatch_arguments = options.sbatch_arg;
  job.folder = fs::current_path().string();
  job.log_folder = options.log_dir;
  job.requeues = options.requeue;
  job.modules = options.modules;
  job.setup = options.setup;
  job.container = options.container;
  job.runtime = options.container_runtime;
  job.mounts = options.container_mounts;
  if (const auto seconds = parse_slurm_time(options.time)) {
    job.seconds = *seconds;
  } else {
    errors.push_back(fmt::format(
        "--time is '{}'; expected a time of SLURM up to 366 days: minutes, 4:00:00, or 2-12:00:00 for days; "
        "hours below 24, minutes and seconds below 60 after a larger unit",
        printable(options.time)));
  }
  // Inside a container the path of this program means nothing.
  job.octet = !options.octet.empty() ? options.octet : job.container.empty() ? this_program() : "octet";
  const auto sweep = std::ranges::find_if(options.files, is_sweep_file);
  if (sweep != options.files.end()) {
    const bool is_first = sweep == options.files.begin();
    describe_sweep(job, options, *sweep,
                   options.files.size() > 1 ? options.files[is_first ? 1 : 0] : std::string());
    job.tasks_per_node = 1;
  } else {
    if (options.files.size() > 1)
      fail_config("octet submit takes one configuration file, or a sweep file and a configuration");
    if (!options.folder.empty() || !options.sweep_arg.empty())
      fail_config("--folder and --sweep_arg are for a sweep file");
    describe_run(job, options);
    job.tasks_per_node =
        options.tasks_per_node > 0 ? options.tasks_per_node : std::max<int64_t>(job.gpus_per_node, 1);
    job.name = job.run_name;
  }
  warn_if_gpus_cannot_be_used(job);
  if (!options.job_name.empty()) job.name = options.job_name;
  if (errors.empty()) errors = check_job(job);
  return job;
}

void write_script(const std::string& path, const std::string& text) {
  Env& env = posix_env();
  // One of a former call may be replaced: sbatch keeps a copy of what it was given.
  if (env.exists(path) && (env.is_directory(path) || !env.read_text(path).starts_with(kScriptHeader)))
    fail_config("{} exists and was not written by 'octet submit'; give another name with --output", path);
  env.make_directories(fs::absolute(path).parent_path().string());
  write_output_file(path, text);
}

struct Answer {
  int code = 0;
  std::string text;
};

Answer run_shell(const std::string& command) {
  std::fflush(stdout);
  FILE* pipe = ::popen(command.c_str(), "r");
  require(pipe != nullptr, "[submit] a shell cannot be started");
  Answer answer;
  std::array<char, 4096> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    answer.text.append(buffer.data(), count);
  const int status = ::pclose(pipe);
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  while (answer.text.ends_with('\n')) answer.text.pop_back();
  return answer;
}

std::string submit_script(const std::string& path) {
  if (run_shell("command -v sbatch").code != 0) {
    fail_config(
        "sbatch is not installed here, so nothing was submitted. The script is {0}: on a machine of the cluster, run "
        "'sbatch {0}'",
        path);
  }
  // sbatch passes the environment on. What is set there for other purposes must not change this job.
  const Answer answer =
      run_shell(fmt::format("unset CONFIG RUN_NAME SWEEP_ID; sbatch --parsable {} 2>&1", shell_quoted(path)));
  if (answer.code != 0)
    fail("sbatch refused the job (exit code {}): {}\nthe script is {}", answer.code, answer.text, path);
  // The last line is "1234" or "1234;cluster". Sites print other things before.
  const size_t line = answer.text.rfind('\n');
  if (line != std::string::npos) print_stdout("{}\n", answer.text.substr(0, line));
  const std::string last = answer.text.substr(line == std::string::npos ? 0 : line + 1);
  return last.substr(0, last.find(';'));
}

std::string log_of(const SlurmJob& job, const std::string& id, std::string_view ending) {
  const std::string pattern = log_pattern(job, ending);
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    const char code = pattern[++i];
    path += code == 'j' || code == 'A' ? id : code == 'a' ? "*" : "%";
  }
  return path;
}

int run(const Options& options) {
  std::vector<std::string> errors;
  const SlurmJob job = job_of(options, errors);
  throw_config_errors(errors);
  const std::string script = sbatch_script(job);
  if (options.print) {
    fmt::print("{}", script);
    return kExitDone;
  }
  std::string path = options.output;
  if (path.empty()) path = (fs::path(options.log_dir) / (job_file_name(job) + ".sbatch")).string();
  write_script(path, script);
  // SLURM does not make the folder of the log, and a job that cannot write it fails without a word.
  posix_env().make_directories(fs::absolute(options.log_dir).string());
  if (!options.output.empty()) {
    print_stdout("{0} written; submit it with: sbatch {1}\n{2}: sbatch --export=ALL,{3} {1}\n", path,
                 shell_quoted(path), job.sweep.empty() ? "another configuration" : "another sweep",
                 job.sweep.empty() ? "CONFIG=FILE" : "SWEEP_ID=NAME");
    return kExitDone;
  }
  const std::string id = submit_script(path);
  print_stdout("submitted job {}: {} on {}, {} each, at most {} per start\n", id, job.name,
               counted(job.nodes, "node"),
               job.gpus_per_node > 0  ? counted(job.gpus_per_node, "GPU")
               : job.run_name.empty() ? "1 agent"
                                      : counted(job.tasks_per_node, "CPU rank"),
               slurm_time(job.seconds));
  print_stdout("script   {}\nlog      {}\nmessages {}\ncancel   scancel {}\n", path, log_of(job, id, ".out"),
               log_of(job, id, ".err"), id);
  return kExitDone;
}

// sbatch --export=CONFIG=FILE SCRIPT is how other scripts take a configuration.
void refuse_export(std::span<const std::string> arguments) {
  for (const std::string& word : arguments) {
    if (word == "--") return;
    if (word != "--export" && !word.starts_with("--export=")) continue;
    fail_config(
        "--export is a flag of sbatch; give the configuration itself: octet submit CONFIG.yaml --time TIME. For one script "
        "that serves several: octet submit CONFIG.yaml --time TIME --output job.sh, then sbatch "
        "--export=ALL,CONFIG=OTHER.yaml job.sh. For other variables: --sbatch_arg=--export=...");
  }
}

}  // namespace

Command submit_command() {
  CommandBuilder<Options> builder("submit", "Train in a SLURM job that continues after its time limit");
  builder.line.usage = "[CONFIG.yaml] --time TIME [FLAGS] [--key value]...";
  builder.line.about =
      "Writes an sbatch script for 'octet train CONFIG.yaml --key value' and submits it.\n"
      "  octet submit run.yaml --nodes 2 --gpus_per_node 8 --time 4:00:00 --partition gpu\n"
      "Before the time limit SLURM sends a signal: the run saves and ends with exit code 75. The script then queues the "
      "job again, and the run continues from its last checkpoint, until it is done.";
  builder.line.notes =
      "--array 0-3 starts four runs that differ in their seed: each gets the number of its task as seed and as suffix of "
      "its run_name. With a sweep file, every node (or array task) is an agent of 'octet sweep'. "
      "A job with GPUs trains with device cuda, unless you set a device: it ends with an error where no GPU can be used. "
      "A script of --output serves other configurations: sbatch --export=ALL,CONFIG=OTHER.yaml SCRIPT. A run without run_name is named after the configuration and the time. docs/slurm.md has more.";
  auto& keys = builder.keys;
  keys.add("time", &Options::time, "Time limit of one start: minutes, 4:00:00 or 2-12:00:00.")
      .value("TIME")
      .must_be_given();
  keys.add("nodes", &Options::nodes, "Machines.").at_least(1).at_most(1 << 16);
  keys.add("gpus_per_node", &Options::gpus_per_node,
           "GPUs of each machine, one rank per GPU. 0: train on the CPU.")
      .at_least(-1)
      .at_most(64)
      .alias("gpus")
      .note("1; 0 with device cpu");
  keys.add("tasks_per_node", &Options::tasks_per_node, "Ranks of each machine.")
      .at_least(0)
      .at_most(1024)
      .alias("ntasks_per_node")
      .note("one per GPU");
  keys.add("gpu_type", &Options::gpu_type, "Kind of GPU as the cluster calls it: h100.").value("NAME");
  keys.add("gpu_request", &Options::gpu_request, {"gpus", "gres", "none"},
           "How GPUs are asked for: --gpus-per-node, --gres=gpu, or not at all (with --sbatch_arg).");
  keys.add("partition", &Options::partition, "Partition of the cluster.").value("NAME").short_flag('p');
  keys.add("account", &Options::account, "Account that is charged.").value("NAME").short_flag('A');
  keys.add("qos", &Options::qos, "Quality of service.").value("NAME").short_flag('q');
  keys.add("constraint", &Options::constraint, "Features that the nodes must have.")
      .value("FEATURES")
      .short_flag('C');
  keys.add("dependency", &Options::dependency, "Jobs to wait for: afterok:1234.")
      .value("JOBS")
      .short_flag('d');
  keys.add("mem", &Options::mem, "Memory of each machine: 200G. 0: all of it.").value("SIZE");
  keys.add("cpus_per_task", &Options::cpus_per_task, "Cores of each rank.")
      .at_least(0)
      .at_most(4096)
      .note("those of the cluster");
  keys.add("array", &Options::array, "Several runs, one per number: 0-3, 1,4,7 or 0-15%4.")
      .value("NUMBERS")
      .short_flag('a');
  keys.add("array_key", &Options::array_key, "With --array: the key that gets the number of the task.")
      .value("KEY")
      .note("seed");
  keys.add("job_name", &Options::job_name, "Name of the job.")
      .value("NAME")
      .short_flag('J')
      .note("that of the run");
  keys.add("sbatch_arg", &Options::sbatch_arg,
           "Another option of sbatch: --sbatch_arg=--mail-type=END. May be repeated.")
      .value("OPTION")
      .repeatable();
  keys.add("signal_seconds", &Options::signal_seconds,
           "Seconds before the time limit at which the run is told to save. More than saving takes.")
      .at_least(5)
      .at_most(65535);
  keys.add("requeue", &Options::requeue, "Queue the job again until the run is done.");
  keys.add("modules", &Options::modules, "Modules to load: cuda/12.8,nccl.").value("NAMES").alias("module");
  keys.add(
          "setup", &Options::setup,
          "Shell command to run before, such as 'source env.sh'. Written into the script as it is. May be repeated.")
      .value("COMMAND")
      .repeatable();
  keys.add("container", &Options::container,
           "Image to run octet in: an Apptainer file (.sif), a squashfs file (.sqsh) or a name for pyxis.")
      .value("IMAGE");
  keys.add("container_runtime", &Options::container_runtime,
           {"auto", "apptainer", "singularity", "pyxis", "enroot"},
           "Program that runs the image. auto: apptainer for .sif and docker://, else pyxis.");
  keys.add("container_mounts", &Options::container_mounts,
           "Folders that the container sees, next to the current one: /data,/scratch:/tmp.")
      .value("FOLDERS");
  keys.add("octet", &Options::octet, "Path of octet on the nodes or in the container.")
      .value("PATH")
      .note("this program; octet in a container");
  keys.add("folder", &Options::folder, "For a sweep file: the folder of the sweep.")
      .value("DIR")
      .note("sweeps/NAME of the sweep file");
  keys.add("sweep_arg", &Options::sweep_arg,
           "For a sweep file: a flag of 'octet sweep', such as --sweep_arg=--parallel=2. May be repeated.")
      .value("FLAG")
      .repeatable();
  keys.add("log_dir", &Options::log_dir, "Folder for the scripts and the output of jobs.").value("DIR");
  keys.add("print", &Options::print, "Print the script. Nothing is written or submitted.");
  keys.add("output", &Options::output, "Write the script to this file and do not submit it.")
      .value("FILE")
      .short_flag('o');
  builder.check([](const Options& options, std::vector<std::string>& errors) {
    if (options.print && !options.output.empty())
      errors.emplace_back("--print and --output exclude each other");
    if (options.array.empty() && !options.array_key.empty()) errors.emplace_back("--array_key needs --array");
  });
  builder.words(&Options::files, config_file_word());
  builder.run_arguments(&Options::run);
  builder.line.words.front().many = true;
  Command command = builder.command(run);
  command.run = [read = command.run](std::span<const std::string> arguments) {
    refuse_export(arguments);
    return read(arguments);
  };
  return command;
}

}  // namespace octet
