#pragma once

#include <cstdint>
#include <string>

namespace octet {

// Bytes of host memory that this process can still take without being killed for it: what the kernel calls available,
// or what is left of the process's cgroup and of those above it, whichever is less. Page cache counts as free in both.
// `root` is the folder that /proc and /sys are read below; tests give one of their own.
int64_t available_host_memory(const std::string& root = "/");

}  // namespace octet
