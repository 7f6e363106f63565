#pragma once

#include <string>

namespace octet {

struct CpuThreads {
  int count = 1;
  std::string reason;  // "all cores", "OMP_NUM_THREADS", "the affinity mask allows 4 of 64 cores", ...
};

// How many threads a program of this process should use: OMP_NUM_THREADS where it is set; else the cores that the process
// may use (affinity mask), but not more than the CPU time that its cgroups allow. `root` is the folder that holds /proc
// and /sys; tests pass their own.
CpuThreads default_threads(const std::string& root = "/");

}  // namespace octet
