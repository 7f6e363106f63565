#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The batch script of `octet submit`.

namespace octet {

enum class ContainerRuntime { Auto, Apptainer, Singularity, Pyxis, Enroot };
enum class GpuRequest { Gpus, Gres, None };

// Limit for a name that becomes part of file names, which have at most 255 bytes.
inline constexpr size_t kMostNameBytes = 200;

struct SlurmJob {
  std::string name;
  int64_t nodes = 1;
  int64_t tasks_per_node = 1;
  int64_t gpus_per_node = 0;
  std::string gpu_type;  // "": any
  GpuRequest gpu_request = GpuRequest::Gpus;
  int64_t cpus_per_task = 0;  // 0: not said
  std::string memory;         // per node; "": not said
  int64_t seconds = 0;        // time limit
  int64_t signal_seconds = 180;
  std::string partition, account, qos, constraint, dependency, array;
  std::vector<std::string> sbatch_arguments;  // more lines, each one whole option
  std::string folder;                         // absolute: where the job runs
  std::string log_folder;
  bool requeues = true;
  std::vector<std::string> modules;
  std::vector<std::string> setup;  // shell commands, as they are
  std::string container;           // "": none
  ContainerRuntime runtime = ContainerRuntime::Auto;
  std::vector<std::string> mounts;  // of the container: SOURCE[:TARGET]

  // Seconds after the end of the first task at which srun ends the others; 0: never. Ranks end together.
  int64_t wait_seconds = 300;

  // How every task starts. The script adds --run_name and the array key, or the folder of the sweep.
  std::string octet;                   // the program
  std::string config;                  // "": none. The variable CONFIG replaces it when the job starts
  std::vector<std::string> arguments;  // what follows
  std::string run_name;                // of octet train; "" for a sweep
  std::string array_key;               // the key that gets the number of the array task; "": none
  std::string sweep, sweep_folder;     // of octet sweep; "" for a run. The variable SWEEP_ID replaces them
};

// "90" (minutes), "1:30", "4:00:00", "2-12", "2-12:30", "2-12:30:00", as SLURM reads them; none if it is no time, or
// more than a year.
std::optional<int64_t> parse_slurm_time(std::string_view text);
std::string slurm_time(int64_t seconds);  // "0:04:00", "2-12:00:00"

// SLURM looks at its clock so rarely: it may send the signal so many seconds too early.
constexpr int64_t kSlurmTick = 60;

// Faults of the job, one message each, in the names of the flags.
std::vector<std::string> check_job(const SlurmJob& job);

ContainerRuntime container_runtime(const SlurmJob& job);  // Auto decided by the name of the image

// The name of the job as that of a file.
std::string job_file_name(const SlurmJob& job);
// Where the job writes, as sbatch reads it: "logs/name-%j.out"; with ".err" its messages.
std::string log_pattern(const SlurmJob& job, std::string_view ending = ".out");

// The script. `job` must have no faults. It asks for a signal before the time limit. On exit code 75 it queues the job
// again, and the run continues from its last checkpoint.
std::string sbatch_script(const SlurmJob& job);

// How every script begins, to recognise it.
inline constexpr std::string_view kScriptHeader = "#!/bin/bash\n# Written by 'octet submit'.";

}  // namespace octet
