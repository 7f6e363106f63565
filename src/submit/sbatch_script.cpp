#include "submit/sbatch_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/names.h"
#include "base/text.h"
#include "submit/shell.h"

namespace octet {
namespace {

bool has_control(std::string_view text) {
  return std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

std::optional<int64_t> number(std::string_view text) {
  if (text.empty() || text.size() > 9 ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; }))
    return std::nullopt;
  return std::stoll(std::string(text));
}

// "8", "h100:8"
std::string gpu_count(const SlurmJob& job) {
  return job.gpu_type.empty() ? fmt::format("{}", job.gpus_per_node)
                              : fmt::format("{}:{}", job.gpu_type, job.gpus_per_node);
}

std::string directives(const SlurmJob& job) {
  std::string text;
  const auto add = [&](std::string_view option, std::string_view value) {
    if (!value.empty()) text += fmt::format("#SBATCH --{}={}\n", option, sbatch_quoted(value));
  };
  const auto add_number = [&](std::string_view option, int64_t value) {
    if (value > 0) text += fmt::format("#SBATCH --{}={}\n", option, value);
  };
  add("job-name", job.name);
  add_number("nodes", job.nodes);
  add_number("ntasks-per-node", job.tasks_per_node);
  if (job.gpus_per_node > 0 && job.gpu_request == GpuRequest::Gpus) add("gpus-per-node", gpu_count(job));
  if (job.gpus_per_node > 0 && job.gpu_request == GpuRequest::Gres)
    add("gres", fmt::format("gpu:{}", gpu_count(job)));
  add_number("cpus-per-task", job.cpus_per_task);
  add("mem", job.memory);
  add("time", slurm_time(job.seconds));
  add("partition", job.partition);
  add("account", job.account);
  add("qos", job.qos);
  add("constraint", job.constraint);
  add("dependency", job.dependency);
  add("array", job.array);
  add("chdir", job.folder);
  add("output", log_pattern(job));
  add("error", log_pattern(job, ".err"));
  text += "#SBATCH --open-mode=append\n";
  text += fmt::format("#SBATCH --signal=USR1@{}\n", job.signal_seconds);
  text += job.requeues ? "#SBATCH --requeue\n" : "#SBATCH --no-requeue\n";
  for (const std::string& argument : job.sbatch_arguments) {
    const size_t equals = argument.find('=');
    text += equals == std::string::npos ? fmt::format("#SBATCH {}\n", sbatch_quoted(argument))
                                        : fmt::format("#SBATCH {}={}\n", argument.substr(0, equals),
                                                      sbatch_quoted(argument.substr(equals + 1)));
  }
  return text;
}

std::string module_lines(const SlurmJob& job) {
  if (job.modules.empty()) return "";
  return fmt::format(
      "\n# A batch shell does not read /etc/profile, which usually defines 'module'.\n"
      "if ! command -v module > /dev/null; then\n"
      "  for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do\n"
      "    # shellcheck disable=SC1090\n"
      "    if [ -r \"$file\" ]; then . \"$file\"; fi\n"
      "  done\n"
      "fi\n"
      "module load {} || exit 1\n",
      shell_command(job.modules));
}

std::string setup_lines(const SlurmJob& job) {
  if (job.setup.empty()) return "";
  std::string text = "\nset -e  # a setup command that fails ends the job\n";
  for (const std::string& command : job.setup) text += fmt::format("{}\n", command);
  return text + "set +e\n";
}

// Variables that srun sets for each task and octet reads. Only enroot needs the list: the others pass the whole environment on.
constexpr std::array<std::string_view, 9> kTaskVariables = {"SLURM_PROCID",
                                                            "SLURM_LOCALID",
                                                            "SLURM_STEP_ID",
                                                            "SLURM_STEP_NUM_TASKS",
                                                            "SLURM_STEP_TASKS_PER_NODE",
                                                            "SLURM_STEP_NODELIST",
                                                            "SLURM_JOB_ID",
                                                            "SLURM_RESTART_COUNT",
                                                            "CUDA_VISIBLE_DEVICES"};

bool uses_enroot(const SlurmJob& job) {
  return !job.container.empty() && container_runtime(job) == ContainerRuntime::Enroot;
}

// Variables that users have set for octet and the libraries below it.
std::string passed_lines(const SlurmJob& job) {
  if (!uses_enroot(job)) return "";
  return "\n# enroot passes on only the variables that it is told.\n"
         "passed=()\n"
         "for name in $(compgen -e); do\n"
         "  case \"$name\" in\n"
         "    HF_* | WANDB_* | NCCL_* | OCTET_* | OMP_NUM_THREADS) passed+=(--env \"$name\") ;;\n"
         "  esac\n"
         "done\n";
}

std::vector<std::string> mounts_of(const SlurmJob& job) {
  std::vector<std::string> mounts = job.mounts;
  mounts.insert(mounts.begin(), job.folder);
  return mounts;
}

// "a" as "a:a": pyxis and enroot need both.
std::string with_target(const std::string& mount) {
  return mount.find(':') == std::string::npos ? fmt::format("{0}:{0}", mount) : mount;
}

// srun and what stands between it and the program.
std::string srun_words(const SlurmJob& job) {
  std::vector<std::string> words = {
      "srun", "--export=ALL", "--mpi=none", "--distribution=block",
      // Ranks end by themselves when one fails. srun must not kill those that still save.
      "--kill-on-bad-exit=0", fmt::format("--wait={}", job.wait_seconds)};
  if (job.gpus_per_node > 0 && job.gpu_request != GpuRequest::None) words.emplace_back("--gpu-bind=none");
  if (job.cpus_per_task > 0) words.push_back(fmt::format("--cpus-per-task={}", job.cpus_per_task));
  if (job.container.empty()) return shell_command(words);
  const std::vector<std::string> mounts = mounts_of(job);
  const bool gpu = job.gpus_per_node > 0;
  switch (container_runtime(job)) {
    case ContainerRuntime::Apptainer:
    case ContainerRuntime::Singularity:
      words.insert(
          words.end(),
          {container_runtime(job) == ContainerRuntime::Apptainer ? "apptainer" : "singularity", "exec"});
      if (gpu) words.emplace_back("--nv");
      for (const std::string& mount : mounts) words.insert(words.end(), {"--bind", mount});
      words.insert(words.end(), {"--pwd", job.folder, job.container});
      break;
    case ContainerRuntime::Pyxis: {
      std::string all;
      for (const std::string& mount : mounts)
        all += fmt::format("{}{}", all.empty() ? "" : ",", with_target(mount));
      words.insert(words.end(), {fmt::format("--container-image={}", job.container),
                                 fmt::format("--container-mounts={}", all),
                                 fmt::format("--container-workdir={}", job.folder)});
      break;
    }
    case ContainerRuntime::Enroot:
    case ContainerRuntime::Auto:
      words.insert(words.end(), {"enroot", "start"});
      for (const std::string_view variable : kTaskVariables)
        words.insert(words.end(), {"--env", std::string(variable)});
      for (const std::string& mount : mounts) words.insert(words.end(), {"--mount", with_target(mount)});
      return fmt::format("{} \"${{passed[@]}}\" {}", shell_command(words), shell_quoted(job.container));
  }
  return shell_command(words);
}

// The run of another configuration has a name of its own, so that it never continues the run of this script.
std::string run_lines(const SlurmJob& job) {
  std::string text = fmt::format(
      "config={}\nrun_name={}\n"
      "if [ -n \"${{CONFIG:-}}\" ]; then  # sbatch --export=ALL,CONFIG=FILE: another configuration, a run of its own\n"
      "  config=$CONFIG\n"
      "  run_name=${{CONFIG##*/}}\n"
      "  run_name=${{RUN_NAME:-${{run_name%.*}}-${{SLURM_ARRAY_JOB_ID:-${{SLURM_JOB_ID:?}}}}}}\n"
      "fi\n",
      shell_quoted(job.config), shell_quoted(job.run_name));
  std::string key_word;
  if (!job.array_key.empty()) {
    text += fmt::format("run_name=\"$run_name-{}${{SLURM_ARRAY_TASK_ID:?}}\"\n", job.array_key);
    key_word = fmt::format(" \"--{}=${{SLURM_ARRAY_TASK_ID:?}}\"", job.array_key);
  }
  return text + fmt::format("command=({} train ${{config:+\"$config\"}} {} \"--run_name=$run_name\"{})\n",
                            shell_quoted(job.octet), shell_command(job.arguments), key_word);
}

std::string sweep_lines(const SlurmJob& job) {
  return fmt::format(
      "config=${{CONFIG:-{}}}\nsweep={}\nfolder={}\n"
      "if [ -n \"${{SWEEP_ID:-}}\" ]; then  # sbatch --export=ALL,SWEEP_ID=NAME: a folder of sweeps/, or a sweep file\n"
      "  case \"$SWEEP_ID\" in\n"
      "    *.yaml | *.yml) sweep=$SWEEP_ID folder=${{SWEEP_ID##*/}} folder=sweeps/${{folder%.*}} ;;\n"
      "    */*) folder=$SWEEP_ID ;;\n"
      "    *) folder=sweeps/$SWEEP_ID ;;\n"
      "  esac\n"
      "fi\n"
      "command=({} sweep \"$sweep\" ${{config:+\"$config\"}} \"--folder=$folder\" {})\n",
      shell_quoted(job.config), shell_quoted(job.sweep), shell_quoted(job.sweep_folder),
      shell_quoted(job.octet), shell_command(job.arguments));
}

}  // namespace

std::optional<int64_t> parse_slurm_time(std::string_view text) {
  int64_t days = 0;
  const size_t dash = text.find('-');
  const bool has_days = dash != std::string_view::npos;
  if (has_days) {
    const auto value = number(text.substr(0, dash));
    if (!value) return std::nullopt;
    days = *value;
    text.remove_prefix(dash + 1);
  }
  std::vector<int64_t> parts;
  while (true) {
    const size_t colon = text.find(':');
    const auto value = number(text.substr(0, colon));
    if (!value) return std::nullopt;
    parts.push_back(*value);
    if (colon == std::string_view::npos) break;
    text.remove_prefix(colon + 1);
  }
  if (parts.size() > 3) return std::nullopt;
  constexpr int64_t kMostDays = 366;  // more is a slip: no cluster gives it
  // A part after a larger unit is less than one of that unit: no 99 minutes after hours.
  for (size_t i = has_days ? 0 : 1; i < parts.size(); ++i) {
    if (parts[i] >= (has_days && i == 0 ? 24 : 60)) return std::nullopt;
  }
  // days-H, days-H:M and days-H:M:S; otherwise M, M:S and H:M:S.
  const bool from_hours = has_days || parts.size() == 3;
  parts.resize(3, 0);
  const int64_t seconds = from_hours ? parts[0] * 3600 + parts[1] * 60 + parts[2] : parts[0] * 60 + parts[1];
  const int64_t all = days * 86400 + seconds;
  return all <= kMostDays * 86400 ? std::optional(all) : std::nullopt;
}

std::string slurm_time(int64_t seconds) {
  const int64_t days = seconds / 86400, rest = seconds % 86400;
  const std::string clock = fmt::format("{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
  return days > 0 ? fmt::format("{}-{}", days, clock) : clock;
}

std::vector<std::string> check_job(const SlurmJob& job) {
  std::vector<std::string> errors;
  const auto check_text = [&](std::string_view flag, std::string_view value) {
    if (has_control(value) || !is_clean_utf8(value))
      errors.push_back(fmt::format("--{} is '{}'; expected text without line breaks and control characters",
                                   flag, printable(value)));
  };
  check_text("job_name", job.name);
  check_text("gpu_type", job.gpu_type);
  check_text("mem", job.memory);
  check_text("partition", job.partition);
  check_text("account", job.account);
  check_text("qos", job.qos);
  check_text("constraint", job.constraint);
  check_text("dependency", job.dependency);
  check_text("array", job.array);
  check_text("log_dir", job.log_folder);
  check_text("container", job.container);
  check_text("run_name", job.run_name);
  if (job.run_name.size() > kMostNameBytes)
    errors.push_back(
        fmt::format("the name of the run has {} bytes; expected at most {}, because it names a folder",
                    job.run_name.size(), kMostNameBytes));
  if (has_control(job.folder))
    errors.push_back("the name of this folder has a line break or control character");
  for (const std::string& mount : job.mounts) check_text("container_mounts", mount);
  for (const std::string& module : job.modules) {
    check_text("modules", module);
    if (module.starts_with('-'))
      errors.push_back(fmt::format("--modules has '{}'; expected names of modules", printable(module)));
  }
  for (const std::string& argument : job.sbatch_arguments) {
    check_text("sbatch_arg", argument);
    if (!argument.starts_with('-') ||
        argument.substr(0, argument.find('=')).find_first_of(" \t\"'") != std::string::npos)
      errors.push_back(
          fmt::format("--sbatch_arg is '{}'; expected one option of sbatch, such as --mail-type=END",
                      printable(argument)));
  }
  for (const std::string& command : job.setup)
    if (command.find('\0') != std::string::npos) errors.emplace_back("--setup has a NUL");
  // Which array SLURM accepts is its own business, but not what octet would put into names.
  if (!job.array.empty() && !std::ranges::all_of(job.array, [](unsigned char c) {
        return std::isdigit(c) != 0 || c == '-' || c == ',' || c == ':' || c == '%';
      }))
    errors.push_back(fmt::format("--array is '{}'; expected task numbers such as 0-3, 1,4,7 or 0-15%4",
                                 printable(job.array)));
  const int64_t least = job.signal_seconds + kSlurmTick;
  if (job.seconds <= least) {
    errors.push_back(fmt::format(
        "--time is {}, too short: SLURM sends the signal to save {} s before the limit (--signal_seconds), and may do "
        "so {} s earlier; expected more than {}",
        slurm_time(job.seconds), job.signal_seconds, kSlurmTick, slurm_time(least)));
  }
  return errors;
}

ContainerRuntime container_runtime(const SlurmJob& job) {
  if (job.runtime != ContainerRuntime::Auto) return job.runtime;
  const std::string& image = job.container;
  const bool apptainer = image.ends_with(".sif") || image.ends_with(".img") ||
                         image.starts_with("docker://") || image.starts_with("library://") ||
                         image.starts_with("oras://");
  return apptainer ? ContainerRuntime::Apptainer : ContainerRuntime::Pyxis;
}

std::string job_file_name(const SlurmJob& job) {
  const std::string name = file_name_of(job.name, '_').substr(0, kMostNameBytes);
  return name.starts_with('.') ? "_" + name : name;
}

std::string log_pattern(const SlurmJob& job, std::string_view ending) {
  std::string folder;
  for (const char c : job.log_folder) folder.append(c == '%' ? 2 : 1, c);
  return fmt::format("{}/{}-{}{}", folder, job_file_name(job), job.array.empty() ? "%j" : "%A_%a", ending);
}

std::string sbatch_script(const SlurmJob& job) {
  std::string text = fmt::format("{}\n", kScriptHeader);
  text +=
      "# SLURM sends USR1 before the time limit: octet saves and ends with exit code 75.\n"
      "# Then this script queues the job again, and the run continues from its last checkpoint.\n";
  text += directives(job) + module_lines(job) + setup_lines(job);
  text += '\n';
  text += job.sweep.empty() ? run_lines(job) : sweep_lines(job);
  if (job.nodes > 1) {
    text +=
        "\n# Ranks on several machines prove to each other that they belong together. A new secret for every start.\n"
        "if [ -z \"${OCTET_SECRET:-}${OCTET_SECRET_FILE:-}\" ]; then\n"
        "  OCTET_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\n"
        "  export OCTET_SECRET\n"
        "fi\n";
  }
  text += passed_lines(job);
  text +=
      "\necho \"$(date '+%F %T') job ${SLURM_JOB_ID:-?} on ${SLURM_JOB_NODELIST:-?}, start ${SLURM_RESTART_COUNT:-0}, "
      "config=$config${CONFIG:+ of CONFIG}: "
      "${command[*]}\"\n";
  text += fmt::format("{} \"${{command[@]}}\"\ncode=$?\n", srun_words(job));
  if (job.requeues) {
    text +=
        "if [ \"$code\" -eq 75 ]; then\n"
        "  echo \"$(date '+%F %T') stopped with a saved state (exit code 75): the job is queued again\"\n"
        "  scontrol requeue \"$SLURM_JOB_ID\"\n"
        "fi\n";
  }
  return text + "exit \"$code\"\n";
}

}  // namespace octet
