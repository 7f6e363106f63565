#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/host_channel.h"
#include "support/process.h"

namespace octet::test {

// One of several processes of this test program that run together.
struct RankProcess {
  int rank = 0, ranks = 1;
  std::string folder;  // shared by all of them
  HostChannel& host;   // through files in `folder`
};

// Names what a process does. Call it before main (from the initialiser of a global), so that the processes know it too.
bool add_rank_process(const std::string& name, std::function<void(RankProcess&)> work);

// Starts this program once per rank to do that work, and waits until all have ended. The work that throws ends with exit
// code 1 and its message in `err`. `environment` gives "NAME=value" lines for a rank.
std::vector<ProcessResult> run_rank_processes(
    const std::string& name, int ranks,
    const std::function<std::vector<std::string>(int)>& environment = [](int) {
      return std::vector<std::string>{};
    });

}  // namespace octet::test
