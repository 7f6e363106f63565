#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace octet {

// The folders of the cgroups that limit this process: its own and all their parents, as far as it can see them. The two
// versions of cgroups name their files differently.
struct CgroupFolders {
  std::vector<std::filesystem::path> version1, version2;
};
// `controller`: of version 1, such as "memory" or "cpu". `root` is the folder that holds /proc and /sys.
CgroupFolders cgroup_folders(const std::filesystem::path& root, const std::string& controller);

}  // namespace octet
