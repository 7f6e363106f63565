#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/network_interfaces.h"
#include "dist/ranks.h"

namespace octet {

// Looks an environment variable up. An empty variable counts as not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;
EnvironmentLookup process_environment();

// The launcher's variables about the run that this process belongs to.
struct LaunchEnvironment {
  std::string launcher;  // "octet launch", "torchrun", "mpirun", "srun"; empty: none
  RankPlace place;
  std::string job;          // the same text in all processes of the run, another one in other runs
  std::string master_host;  // where rank 0 listens; 127.0.0.1 if all ranks are on one node
  int base_port = 0;        // first port to try; 0: follows from `job`
  std::optional<std::string> secret;
  InterfaceWish interface;  // for the traffic between nodes
  bool is_alone() const { return place.ranks == 1; }
};

// Reads the variables of the first launcher that applies: octet launch, torchrun, OpenMPI's mpirun, srun. Without one of
// them the process is alone. ConfigError, with the variable and its value, if they do not fit together, and also if
// they describe nodes instead of processes: then the user needs `octet launch`.
LaunchEnvironment read_launch_environment(const EnvironmentLookup& environment);

// Variables that describe nodes: what `octet launch` takes where its flags are not given.
struct NodeDefaults {
  std::optional<int> nodes, node_rank, processes;  // `processes` per node
  std::optional<std::string> master_host;
  std::optional<int> master_port;
};
NodeDefaults read_node_defaults(const EnvironmentLookup& environment);

// GLOO_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME. NCCL reads its own itself.
InterfaceWish read_interface_wish(const EnvironmentLookup& environment);

// OCTET_SECRET, or the content of the file OCTET_SECRET_FILE. None if neither is set.
std::optional<std::string> read_secret(const EnvironmentLookup& environment);

// "host:29500", "[fe80::1]:29500" or only a host (port 0). ConfigError names `what`.
struct HostAndPort {
  std::string host;
  int port = 0;
  bool operator==(const HostAndPort&) const = default;
};
HostAndPort parse_host_and_port(const std::string& text, std::string_view what);

// SLURM's lists: the first of "n[01-04,7],login" is n01, and "4(x2),3" is 4, 4, 3.
std::string first_host_of(const std::string& node_list, std::string_view what);
std::vector<int> tasks_per_node(const std::string& text, std::string_view what);

constexpr int kMostRanks = 16384;

}  // namespace octet
