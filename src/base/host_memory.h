#pragma once

#include <cstdint>
#include <string>

namespace octet {

// Bytes of host memory that this process can still use without being killed: what the kernel calls available, or what
// is left in the process's cgroup and its parents, whichever is less. Page cache counts as free in both. `root` is
// the folder that holds /proc and /sys; tests pass their own.
int64_t available_host_memory(const std::string& root = "/");

}  // namespace octet
