#include "base/cpu_threads.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/cgroups.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// CPUs' worth of time that a cgroup may use.
std::optional<double> quota_in(const fs::path& folder, bool version2) {
  double quota = 0, period = 0;
  if (version2) {
    std::ifstream file(folder / "cpu.max");  // "150000 100000", or "max 100000"
    if (!(file >> quota >> period)) return std::nullopt;
  } else if (!(std::ifstream(folder / "cpu.cfs_quota_us") >> quota) ||  // -1: no limit
             !(std::ifstream(folder / "cpu.cfs_period_us") >> period)) {
    return std::nullopt;
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

std::optional<double> cpu_quota(const fs::path& root) {
  const CgroupFolders folders = cgroup_folders(root, "cpu");
  std::optional<double> least;
  const auto look = [&](const fs::path& folder, bool version2) {
    if (const auto quota = quota_in(folder, version2)) least = std::min(least.value_or(*quota), *quota);
  };
  for (const fs::path& folder : folders.version1) look(folder, false);
  for (const fs::path& folder : folders.version2) look(folder, true);
  return least;
}

// More threads than that for each core cannot be meant.
constexpr long kMostThreadsPerCore = 8;

long asked_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");  // may be a list, for nested loops
  return text == nullptr ? 0 : std::max(0L, std::strtol(text, nullptr, 10));
}

}  // namespace

CpuThreads default_threads(const std::string& root) {
  const int cores = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more than 1,024 cores.
  const int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : cores;
  if (const long asked = asked_threads(), most = kMostThreadsPerCore * allowed; asked > 0) {
    return {static_cast<int>(std::min(asked, most)),
            asked <= most ? "OMP_NUM_THREADS" : fmt::format("OMP_NUM_THREADS, limited to {}", most)};
  }
  const std::optional<double> quota = cpu_quota(root);
  const int by_quota = quota ? std::max(1, static_cast<int>(std::ceil(*quota - 1e-6))) : allowed;
  if (by_quota < allowed) {
    return {by_quota, fmt::format("the cgroup allows {:.3g} of {} cores", *quota, allowed)};
  }
  if (allowed < cores)
    return {allowed, fmt::format("the affinity mask allows {} of {} cores", allowed, cores)};
  return {allowed, allowed == 1 ? "the only core" : "all cores"};
}

}  // namespace octet
