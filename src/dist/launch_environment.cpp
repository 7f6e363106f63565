#include "dist/launch_environment.h"

#include <cstdlib>

#include "base/error.h"
#include "base/text.h"

namespace octet {
namespace {

// The variables of one launcher.
class Variables {
 public:
  Variables(const EnvironmentLookup& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  bool has(const std::string& name) const { return find(name).has_value(); }
  std::optional<std::string> find(const std::string& name) const {
    std::optional<std::string> value = environment_(name);
    if (value && value->empty()) value.reset();
    return value;
  }
  std::string text(const std::string& name, std::string_view expected) const {
    std::optional<std::string> value = find(name);
    if (!value) {
      fail_config("[launch] {} is not set, but other variables of {} are; expected {}", name, launcher_,
                  expected);
    }
    return *value;
  }
  int number(const std::string& name, int low, int high) const {
    return parsed(name, text(name, "a number"), low, high);
  }
  std::optional<int> find_number(const std::string& name, int low, int high) const {
    const std::optional<std::string> value = find(name);
    if (!value) return std::nullopt;
    return parsed(name, *value, low, high);
  }
  const std::string& launcher() const { return launcher_; }

 private:
  static int parsed(const std::string& name, const std::string& value, int low, int high) {
    const std::optional<int64_t> number = parse_int(value);
    if (!number || *number < low || *number > high) {
      fail_config("[launch] {} is '{}'; expected a number from {} to {}", name, printable(value), low, high);
    }
    return static_cast<int>(*number);
  }

  const EnvironmentLookup& environment_;
  std::string launcher_;
};

struct PlaceNames {
  std::string rank, ranks, local_rank, local_ranks;
};

RankPlace checked_place(const RankPlace& place, const PlaceNames& names) {
  if (place.rank >= place.ranks) {
    fail_config("[launch] {} is {} and {} is {}; expected a rank from 0 to {}", names.rank, place.rank,
                names.ranks, place.ranks, place.ranks - 1);
  }
  if (place.local_rank >= place.local_ranks) {
    fail_config("[launch] {} is {} and {} is {}; expected a rank from 0 to {}", names.local_rank,
                place.local_rank, names.local_ranks, place.local_ranks, place.local_ranks - 1);
  }
  if (place.ranks % place.local_ranks != 0) {
    fail_config("[launch] {} is {} and {} is {}; expected equally many ranks on all nodes", names.ranks,
                place.ranks, names.local_ranks, place.local_ranks);
  }
  if (place.rank % place.local_ranks != place.local_rank) {
    fail_config(
        "[launch] {} is {} and {} is {} with {} ranks per node; expected consecutive ranks on each node "
        "(srun --distribution=block, mpirun --map-by slot)",
        names.rank, place.rank, names.local_rank, place.local_rank, place.local_ranks);
  }
  return place;
}

RankPlace read_place(const Variables& variables, const PlaceNames& names) {
  return checked_place({.rank = variables.number(names.rank, 0, kMostRanks - 1),
                        .ranks = variables.number(names.ranks, 1, kMostRanks),
                        .local_rank = variables.number(names.local_rank, 0, kMostRanks - 1),
                        .local_ranks = variables.number(names.local_ranks, 1, kMostRanks)},
                       names);
}

LaunchEnvironment own_launch(const Variables& variables) {
  LaunchEnvironment launch{.launcher = variables.launcher()};
  launch.place =
      read_place(variables, {"OCTET_RANK", "OCTET_RANKS", "OCTET_LOCAL_RANK", "OCTET_LOCAL_RANKS"});
  launch.job = variables.text("OCTET_JOB", "a text that is the same in all processes of the run");
  const HostAndPort master =
      parse_host_and_port(variables.text("OCTET_MASTER", "host:port of rank 0"), "OCTET_MASTER");
  launch.master_host = master.host;
  launch.base_port = master.port;
  return launch;
}

LaunchEnvironment torchrun(const Variables& variables) {
  LaunchEnvironment launch{.launcher = variables.launcher()};
  launch.place = read_place(variables, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  launch.master_host = variables.text("MASTER_ADDR", "the host of rank 0");
  // torchrun's agent keeps its own store on MASTER_PORT.
  const int port = variables.number("MASTER_PORT", 1, 65534);
  launch.base_port = port + 1;
  // The id is "none" unless the user gave one, so the address is a part of the key.
  launch.job =
      fmt::format("torchrun {} restart {} at {}:{}", variables.find("TORCHELASTIC_RUN_ID").value_or("none"),
                  variables.find("TORCHELASTIC_RESTART_COUNT").value_or("0"), launch.master_host, port);
  return launch;
}

LaunchEnvironment open_mpi(const Variables& variables) {
  LaunchEnvironment launch{.launcher = variables.launcher()};
  launch.place = read_place(variables, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OCTET_JOB"}) {
    if (launch.job.empty() && variables.has(name)) launch.job = "mpirun " + *variables.find(name);
  }
  if (launch.job.empty())
    variables.text("PMIX_NAMESPACE", "the id of the job (or pass one with mpirun -x OCTET_JOB=...)");
  if (launch.place.nodes() > 1) {
    launch.master_host = variables.text(
        "MASTER_ADDR", "the host of rank 0, because there are several nodes: mpirun -x MASTER_ADDR=...");
    launch.base_port = variables.find_number("MASTER_PORT", 1, 65535).value_or(0);
  }
  return launch;
}

LaunchEnvironment srun(const Variables& variables) {
  LaunchEnvironment launch{.launcher = variables.launcher()};
  const std::string tasks_name = "SLURM_STEP_TASKS_PER_NODE";
  const std::string tasks_text = variables.text(tasks_name, "the tasks per node");
  const std::vector<int> tasks = tasks_per_node(tasks_text, tasks_name);
  for (const int count : tasks) {
    if (count != tasks.front()) {
      fail_config("[launch] {} is '{}'; expected equally many ranks on all nodes (srun --ntasks-per-node)",
                  tasks_name, printable(tasks_text));
    }
  }
  const PlaceNames names = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", tasks_name};
  launch.place = checked_place({.rank = variables.number(names.rank, 0, kMostRanks - 1),
                                .ranks = variables.number(names.ranks, 1, kMostRanks),
                                .local_rank = variables.number(names.local_rank, 0, kMostRanks - 1),
                                .local_ranks = tasks.front()},
                               names);
  if (static_cast<int64_t>(tasks.size()) * tasks.front() != launch.place.ranks) {
    fail_config("[launch] {} is {} and {} is '{}'; expected the same number of tasks", names.ranks,
                launch.place.ranks, tasks_name, printable(tasks_text));
  }
  const std::string job = variables.find("SLURM_JOB_ID").value_or(variables.find("SLURM_JOBID").value_or(""));
  if (job.empty()) variables.text("SLURM_JOB_ID", "the id of the job");
  launch.job = fmt::format("slurm {}.{}.{}", job, variables.text("SLURM_STEP_ID", "the id of the step"),
                           variables.find("SLURM_RESTART_COUNT").value_or("0"));
  if (launch.place.nodes() > 1) {
    const std::string name = "SLURM_STEP_NODELIST";
    launch.master_host = first_host_of(variables.text(name, "the nodes of the step"), name);
  }
  return launch;
}

// Nodes that no launcher has turned into processes. Training on one of the GPUs would surprise the user.
void refuse_nodes(const EnvironmentLookup& environment) {
  const NodeDefaults defaults = read_node_defaults(environment);
  const int nodes = defaults.nodes.value_or(1), processes = defaults.processes.value_or(1);
  if (!defaults.nodes || nodes * processes == 1) return;
  const Variables variables(environment, "");
  std::string given;
  for (const char* name : {"NNODES", "NODE_RANK", "NPROC_PER_NODE", "GPU_NUM", "WORLD_SIZE", "RANK"}) {
    const std::optional<std::string> value = variables.find(name);
    if (value) given += fmt::format("{}{}={}", given.empty() ? "" : ", ", name, printable(*value));
  }
  fail_config(
      "[launch] the environment describes nodes ({}), not processes; expected 'octet launch{} train ...' on "
      "every node, which reads these variables and starts one process per GPU. To train in one process, "
      "unset them",
      given, defaults.processes ? "" : " -n GPUS_PER_NODE");
}

}  // namespace

EnvironmentLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

NodeDefaults read_node_defaults(const EnvironmentLookup& environment) {
  const Variables variables(environment, "the node");
  NodeDefaults defaults;
  defaults.nodes = variables.find_number("NNODES", 1, kMostRanks);
  defaults.node_rank = variables.find_number("NODE_RANK", 0, kMostRanks - 1);
  for (const char* name : {"NPROC_PER_NODE", "GPU_NUM"}) {
    if (!defaults.processes) defaults.processes = variables.find_number(name, 1, kMostRanks);
  }
  // Without LOCAL_RANK, WORLD_SIZE and RANK count nodes.
  if (!variables.has("LOCAL_RANK")) {
    if (!defaults.nodes) defaults.nodes = variables.find_number("WORLD_SIZE", 1, kMostRanks);
    if (!defaults.node_rank) defaults.node_rank = variables.find_number("RANK", 0, kMostRanks - 1);
  }
  defaults.master_host = variables.find("MASTER_ADDR");
  defaults.master_port = variables.find_number("MASTER_PORT", 1, 65535);
  return defaults;
}

InterfaceWish read_interface_wish(const EnvironmentLookup& environment) {
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const std::string value = environment(name).value_or("");
    if (!value.empty()) return {name, value};
  }
  return {};
}

LaunchEnvironment read_launch_environment(const EnvironmentLookup& environment) {
  const auto has = [&](const char* name) { return !environment(name).value_or("").empty(); };
  LaunchEnvironment launch;
  if (has("OCTET_RANK") || has("OCTET_RANKS")) {
    launch = own_launch({environment, "octet launch"});
  } else if (has("RANK") && has("WORLD_SIZE") && has("LOCAL_RANK")) {
    launch = torchrun({environment, "torchrun"});
  } else if (has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")) {
    launch = open_mpi({environment, "mpirun"});
  } else if (has("SLURM_STEP_ID") && has("SLURM_PROCID") && has("SLURM_STEP_NUM_TASKS")) {
    // A batch script without srun has SLURM_NTASKS tasks on paper and is one process.
    launch = srun({environment, "srun"});
  } else {
    refuse_nodes(environment);
    return launch;
  }
  if (launch.place.nodes() == 1) launch.master_host = "127.0.0.1";
  if (!launch.is_alone()) launch.secret = read_secret(environment);
  if (launch.place.nodes() > 1) launch.interface = read_interface_wish(environment);
  return launch;
}

}  // namespace octet
