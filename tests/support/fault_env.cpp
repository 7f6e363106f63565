#include "support/fault_env.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/philox.h"

namespace octet {

FaultEnv::FaultEnv(std::string root) : root_(std::move(root)), root_node_(load(root_)) {}

void FaultEnv::arm(int64_t call, IoFault fault, bool lasting) {
  disarm();
  due_ = call;
  fault_ = fault;
  lasting_ = lasting;
}

void FaultEnv::disarm() {
  calls_ = due_ = 0;
  struck_ = dead_ = lasting_ = false;
}

bool FaultEnv::is_due() const {
  return due_ > 0 && (calls_ == due_ || (lasting_ && calls_ > due_));
}

void FaultEnv::die() {
  struck_ = dead_ = true;
  throw SimulatedKill{calls_};
}

int FaultEnv::begin_call(bool allocates, bool interruptible) {
  if (dead_) throw SimulatedKill{calls_};  // the kill happened in a destructor, which cannot throw it
  ++calls_;
  if (!is_due()) return 0;
  switch (fault_) {
    case IoFault::Kill:
      die();
    case IoFault::Exit:
      ::_exit(137);
    case IoFault::Eio:
      struck_ = true;
      return -EIO;
    case IoFault::Enospc:
      if (!allocates) return 0;
      struck_ = true;
      return -ENOSPC;
    case IoFault::Eintr:
      // A lasting interruption would loop forever, and no real signal lasts.
      if (!interruptible || struck_) return 0;
      struck_ = true;
      return -EINTR;
    case IoFault::Short:
    case IoFault::KillInside:
      return 0;
  }
  return 0;
}

void FaultEnv::end_call() {
  if (!dead_ && is_due() && fault_ == IoFault::KillInside) die();
}

int FaultEnv::sys_open(const std::string& path, int flags, mode_t mode) {
  if (const int error = begin_call((flags & O_CREAT) != 0, true)) return error;
  const int fd = Env::sys_open(path, flags, mode);
  if (fd < 0) return fd;
  NodePtr node = find(path);
  if (std::string name; !node && (flags & O_CREAT)) {
    if (const NodePtr directory = parent(path, name)) {
      node = std::make_shared<Node>();
      change(directory, {{name, node}});
    }
  }
  if (node && (flags & O_TRUNC)) node->bytes.clear();
  if (node) open_files_[fd] = {node, 0, (flags & O_APPEND) != 0};
  if (is_due() && fault_ == IoFault::KillInside) {
    open_files_.erase(fd);
    Env::sys_close(fd);
    die();
  }
  return fd;
}

ssize_t FaultEnv::sys_write(int fd, const void* data, size_t size) {
  if (const int error = begin_call(true, true)) return error;
  if (is_due() && (fault_ == IoFault::Short || fault_ == IoFault::KillInside) && size > 1) {
    size /= 2;
    struck_ = true;
  }
  const ssize_t written = Env::sys_write(fd, data, size);
  if (const auto open = open_files_.find(fd); written > 0 && open != open_files_.end()) {
    auto& [node, position, append] = open->second;
    if (append) position = node->bytes.size();
    node->bytes.resize(std::max(node->bytes.size(), position + static_cast<size_t>(written)));
    node->bytes.replace(position, static_cast<size_t>(written), static_cast<const char*>(data),
                        static_cast<size_t>(written));
    position += static_cast<size_t>(written);
  }
  end_call();
  return written;
}

ssize_t FaultEnv::sys_read(int fd, void* data, size_t size) {
  if (const int error = begin_call(false, true)) return error;
  if (is_due() && fault_ == IoFault::Short && size > 1) size /= 2, struck_ = true;
  return Env::sys_read(fd, data, size);
}

ssize_t FaultEnv::sys_pread(int fd, void* data, size_t size, off_t offset) {
  if (const int error = begin_call(false, true)) return error;
  if (is_due() && fault_ == IoFault::Short && size > 1) size /= 2, struck_ = true;
  return Env::sys_pread(fd, data, size, offset);
}

int FaultEnv::sys_fsync(int fd) {
  if (const int error = begin_call(true, true)) return error;
  if (const auto open = open_files_.find(fd); open != open_files_.end()) {
    Node& node = *open->second.node;
    node.synced_bytes = node.bytes;
    node.synced_entries = node.entries;
    node.changes.clear();
  }
  end_call();
  return 0;
}

int FaultEnv::sys_close(int fd) {
  // The descriptor is always closed, so that a killed Env leaks none and its locks are released.
  const auto release = [&] {
    open_files_.erase(fd);
    return Env::sys_close(fd);
  };
  if (dead_) return release();
  try {
    if (const int error = begin_call(false, true)) {
      release();
      return error;
    }
  } catch (const SimulatedKill&) {
    release();
    throw;
  }
  const int result = release();
  end_call();
  return result;
}

int FaultEnv::sys_flock(int fd, int operation) {
  if (const int error = begin_call(false, true)) return error;
  return Env::sys_flock(fd, operation);
}

int FaultEnv::sys_ftruncate(int fd, off_t size) {
  if (const int error = begin_call(true, true)) return error;
  const int result = Env::sys_ftruncate(fd, size);
  if (const auto open = open_files_.find(fd); result == 0 && open != open_files_.end()) {
    open->second.node->bytes.resize(static_cast<size_t>(size));
  }
  end_call();
  return result;
}

int FaultEnv::sys_rename(const std::string& from, const std::string& to) {
  if (const int error = begin_call(true, false)) return error;
  const int result = Env::sys_rename(from, to);
  std::string from_name, to_name;
  const NodePtr source = parent(from, from_name), target = parent(to, to_name);
  if (const NodePtr node = find(from); result == 0 && node && source && target) {
    if (source == target) {
      change(source, {{from_name, nullptr}, {to_name, node}});
    } else {
      change(source, {{from_name, nullptr}});
      change(target, {{to_name, node}});
    }
  }
  end_call();
  return result;
}

int FaultEnv::sys_unlink(const std::string& path) {
  if (const int error = begin_call(false, false)) return error;
  const int result = Env::sys_unlink(path);
  std::string name;
  if (const NodePtr directory = parent(path, name); result == 0 && directory)
    change(directory, {{name, nullptr}});
  end_call();
  return result;
}

int FaultEnv::sys_rmdir(const std::string& path) {
  if (const int error = begin_call(false, false)) return error;
  const int result = Env::sys_rmdir(path);
  std::string name;
  if (const NodePtr directory = parent(path, name); result == 0 && directory)
    change(directory, {{name, nullptr}});
  end_call();
  return result;
}

int FaultEnv::sys_mkdir(const std::string& path, mode_t mode) {
  if (const int error = begin_call(true, false)) return error;
  const int result = Env::sys_mkdir(path, mode);
  std::string name;
  if (const NodePtr directory = parent(path, name); result == 0 && directory) {
    const auto node = std::make_shared<Node>();
    node->directory = true;
    change(directory, {{name, node}});
  }
  end_call();
  return result;
}

FaultEnv::NodePtr FaultEnv::find(const std::string& path) const {
  if (path == root_) return root_node_;
  std::string name;
  const NodePtr directory = parent(path, name);
  if (!directory) return nullptr;
  const auto found = directory->entries.find(name);
  return found == directory->entries.end() ? nullptr : found->second;
}

FaultEnv::NodePtr FaultEnv::parent(const std::string& path, std::string& name) const {
  if (!path.starts_with(root_ + "/")) return nullptr;
  NodePtr node = root_node_;
  size_t begin = root_.size() + 1;
  for (size_t slash; (slash = path.find('/', begin)) != path.npos; begin = slash + 1) {
    const auto found = node->entries.find(path.substr(begin, slash - begin));
    if (found == node->entries.end()) return nullptr;
    node = found->second;
  }
  name = path.substr(begin);
  return node;
}

namespace {

template <class Entries, class Change>
void apply_change(Entries& entries, const Change& change) {
  for (const auto& [name, node] : change) {
    if (node) {
      entries[name] = node;
    } else {
      entries.erase(name);
    }
  }
}

}  // namespace

void FaultEnv::change(const NodePtr& directory, Change change) {
  apply_change(directory->entries, change);
  directory->changes.push_back(std::move(change));
}

FaultEnv::NodePtr FaultEnv::load(const std::string& path) const {
  auto node = std::make_shared<Node>();
  Env& disk = posix_env();
  node->directory = disk.is_directory(path);
  if (node->directory) {
    for (const std::string& name : disk.list(path)) node->entries[name] = load(join_path(path, name));
    node->synced_entries = node->entries;
  } else {
    node->bytes = node->synced_bytes = disk.read_text(path);
  }
  return node;
}

void FaultEnv::store(const std::string& path, const Node& node) const {
  Env& disk = posix_env();
  for (const auto& [name, child] : node.entries) {
    const std::string child_path = join_path(path, name);
    if (child->directory) {
      disk.make_directory(child_path);
      store(child_path, *child);
    } else {
      WritableFile file = disk.create(child_path);
      file.append(child->bytes);
      file.close();
    }
  }
}

void FaultEnv::settle(Node& node, Unsynced entries, Unsynced bytes, uint64_t seed, uint64_t& draw) {
  const auto below = [&](size_t bound) { return static_cast<size_t>(Philox(seed).below(draw++, bound)); };
  if (!node.directory) {
    const bool grown = node.bytes.starts_with(node.synced_bytes);
    if (bytes == Unsynced::Drop) {
      node.bytes = node.synced_bytes;
    } else if (bytes == Unsynced::Random && node.bytes != node.synced_bytes) {
      switch (below(4)) {
        case 0:
          node.bytes = node.synced_bytes;
          break;
        case 1:
          break;
        case 2: {  // length written, data not
          const size_t kept = grown ? node.synced_bytes.size() : 0;
          std::fill(node.bytes.begin() + static_cast<std::ptrdiff_t>(kept), node.bytes.end(), '\0');
          break;
        }
        default:
          const size_t kept = grown ? node.synced_bytes.size() : 0;
          node.bytes.resize(kept + below(node.bytes.size() - kept + 1));
      }
    }
    node.synced_bytes = node.bytes;
    return;
  }
  const size_t survive = entries == Unsynced::Drop   ? 0
                         : entries == Unsynced::Keep ? node.changes.size()
                                                     : below(node.changes.size() + 1);
  node.entries = node.synced_entries;
  for (size_t i = 0; i < survive; ++i) apply_change(node.entries, node.changes[i]);
  node.synced_entries = node.entries;
  node.changes.clear();
  for (const auto& [name, child] : node.entries) settle(*child, entries, bytes, seed, draw);
}

void FaultEnv::lose_power(Unsynced entries, Unsynced bytes, uint64_t seed) {
  uint64_t draw = 0;
  settle(*root_node_, entries, bytes, seed, draw);
  Env& disk = posix_env();
  for (const std::string& name : disk.list(root_)) disk.remove_tree(join_path(root_, name));
  store(root_, *root_node_);
}

}  // namespace octet
