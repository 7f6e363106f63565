#include "base/cgroups.h"

#include <fmt/format.h>

#include <fstream>

namespace octet {
namespace {

namespace fs = std::filesystem;

// In a container the path may be the host's and not exist; then the folder of the mount is the container's own.
std::vector<fs::path> with_parents(const fs::path& mount, const std::string& path) {
  std::vector<fs::path> folders = {mount};
  for (const fs::path& part : fs::path(path).relative_path()) {
    if (part == "..") break;  // outside what this process can see
    folders.push_back(folders.back() / part);
  }
  return folders;
}

}  // namespace

CgroupFolders cgroup_folders(const fs::path& root, const std::string& controller) {
  // Lines "number:controllers:path"; that of version 2 has no controllers.
  std::string path1 = "/", path2 = "/";
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (controllers == ",,") path2 = line.substr(second + 1);
    if (controllers.find(fmt::format(",{},", controller)) != controllers.npos)
      path1 = line.substr(second + 1);
  }
  return {.version1 = with_parents(root / "sys/fs/cgroup" / controller, path1),
          .version2 = with_parents(root / "sys/fs/cgroup", path2)};
}

}  // namespace octet
