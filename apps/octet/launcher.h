#pragma once

#include <optional>
#include <string>
#include <vector>

namespace octet {

// The processes that `octet launch` starts on this node.
struct LaunchPlan {
  std::vector<std::string> command;  // of octet, with its arguments
  int processes = 1;                 // on this node; equally many on every node
  int nodes = 1, node_rank = 0;
  std::string master;                 // host:port of node 0; empty with one node
  std::string job;                    // the same on all nodes; empty: follows from the rest
  std::optional<std::string> secret;  // none: a new one; only with one node
  int max_restarts = 0;
};

// Starts this very program, once per process, with the variables that read_launch_environment reads. Also set:
// OCTET_PROGRESS_FILE, a file where rank 0 may write the number of its last finished step as text. It decides whether
// a restart has helped. Waits for the processes and returns the exit code of all.
int launch_processes(const LaunchPlan& plan);

// How a process ended.
struct ProcessEnd {
  int code = 0;    // if it exited
  int signal = 0;  // that killed it
};
// The code for all: see the notes of `octet launch --help`. `ends` are in the order in which they ended.
int combined_exit_code(const std::vector<ProcessEnd>& ends);

}  // namespace octet
