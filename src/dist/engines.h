#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/ranks.h"

namespace octet {

// A request to an engine for a group of processes. All members have the same name and members.
struct GroupRequest {
  HostChannel& host;  // of all ranks of the run; only members call it
  Progress& progress;
  int lane = 0;              // for Progress
  std::string name;          // "reduce 0"
  std::vector<int> members;  // ranks of the run, this one included
  std::string address;       // of this node's interface, numeric: "127.0.0.1"
};

// CPU processes. Error that names the package if the program was built without Gloo.
std::unique_ptr<Communicator> make_gloo_communicator(const GroupRequest& request);
std::string gloo_description();  // "Gloo", or why there is none

// CUDA processes. Error that names the package if there is no NCCL library.
std::unique_ptr<Communicator> make_nccl_communicator(Device& device, const GroupRequest& request);
std::string nccl_description();  // "NCCL 2.28.3", or why there is none

}  // namespace octet
