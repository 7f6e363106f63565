#include "base/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>

#include "base/cgroups.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The number that a file consists of; nothing if the file does not exist or says "max".
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value && value >= 0 ? std::optional(value) : std::nullopt;
}

// The sum of the numbers after these names, in a file of lines "name number [unit]".
std::optional<int64_t> sum_in(const fs::path& path, std::span<const std::string_view> names) {
  std::ifstream file(path);
  std::optional<int64_t> sum;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && std::find(names.begin(), names.end(), name) != names.end())
      sum = sum.value_or(0) + value;
  }
  return sum;
}

// How the two versions of cgroups name their files.
struct CgroupFiles {
  const char* limit;
  const char* usage;
  std::array<std::string_view, 2> page_cache;  // lines of memory.stat
};
constexpr CgroupFiles kVersion2 = {"memory.max", "memory.current", {"inactive_file", "active_file"}};
constexpr CgroupFiles kVersion1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};

int64_t left_in_folder(const fs::path& folder, const CgroupFiles& files) {
  const std::optional<int64_t> limit = number_in(folder / files.limit);
  if (!limit) return kNoLimit;
  const int64_t usage = number_in(folder / files.usage).value_or(0);
  const int64_t cache = sum_in(folder / "memory.stat", files.page_cache).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, usage - cache));
}

int64_t left_in_own_cgroups(const fs::path& root) {
  const CgroupFolders folders = cgroup_folders(root, "memory");
  int64_t left = kNoLimit;
  for (const fs::path& folder : folders.version1) left = std::min(left, left_in_folder(folder, kVersion1));
  for (const fs::path& folder : folders.version2) left = std::min(left, left_in_folder(folder, kVersion2));
  return left;
}

}  // namespace

int64_t available_host_memory(const std::string& root) {
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)};
  constexpr std::string_view kName[] = {"MemAvailable:"};
  const std::optional<int64_t> kib = sum_in(fs::path(root) / "proc/meminfo", kName);
  return std::min({physical, kib ? *kib * 1024 : kNoLimit, left_in_own_cgroups(root)});
}

}  // namespace octet
