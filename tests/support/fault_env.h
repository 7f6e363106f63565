#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/env.h"

namespace octet {

enum class IoFault {
  Enospc,      // calls that may need space: creating, writing, syncing, renaming, mkdir
  Eio,         // any call
  Eintr,       // calls that a signal can interrupt
  Short,       // a write or read moves half of its bytes
  Kill,        // SimulatedKill instead of the call
  KillInside,  // the same, half way through a write; elsewhere after the call's effect
  Exit,        // _exit(137) instead of the call, for tests that run it in a child
};

// Thrown where the process would have died, and by every later call. No error handler catches it.
struct SimulatedKill {
  int64_t call;
};

enum class Unsynced { Drop, Keep, Random };

// An Env whose disk fails on command. It counts system calls and makes the chosen one fail. It knows which bytes and
// directory entries below `root` are synced, so that lose_power() can remove the others. It does not really sync,
// because nothing here must outlive the machine.
class FaultEnv : public Env {
 public:
  explicit FaultEnv(std::string root);  // what already exists counts as synced

  int64_t calls() const { return calls_; }  // since the last arm()
  bool struck() const { return struck_; }   // the chosen call suffered the fault

  // From now on: call number `call` (counted from 1) suffers `fault`; when `lasting`, so does every later one.
  void arm(int64_t call, IoFault fault, bool lasting = false);
  // Removes the fault; a killed Env works again, like a restarted process.
  void disarm();

  // What a power failure leaves. Entries of a directory survive as a prefix of the changes since its last
  // sync (Drop: none of them, Keep: all); a file's bytes since its last sync are lost, kept, or cut short or zeroed.
  void lose_power(Unsynced entries, Unsynced bytes, uint64_t seed = 0);
  void drop_unsynced() { lose_power(Unsynced::Drop, Unsynced::Drop); }

  int sys_open(const std::string& path, int flags, mode_t mode) override;
  ssize_t sys_write(int fd, const void* data, size_t size) override;
  ssize_t sys_read(int fd, void* data, size_t size) override;
  ssize_t sys_pread(int fd, void* data, size_t size, off_t offset) override;
  int sys_fsync(int fd) override;
  int sys_close(int fd) override;
  int sys_flock(int fd, int operation) override;
  int sys_ftruncate(int fd, off_t size) override;
  int sys_rename(const std::string& from, const std::string& to) override;
  int sys_unlink(const std::string& path) override;
  int sys_rmdir(const std::string& path) override;
  int sys_mkdir(const std::string& path, mode_t mode) override;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Entries = std::map<std::string, NodePtr>;
  using Change =
      std::vector<std::pair<std::string, NodePtr>>;  // one atomic change; no node: the name is removed

  struct Node {
    bool directory = false;
    std::string bytes, synced_bytes;  // of a file
    Entries entries, synced_entries;  // of a directory
    std::vector<Change> changes;      // from synced_entries to entries
  };
  struct OpenFile {
    NodePtr node;
    size_t position = 0;
    bool append = false;
  };

  int begin_call(bool allocates, bool interruptible);  // counts; 0, or the -errno to return
  void end_call();                                     // KillInside
  [[noreturn]] void die();
  bool is_due() const;

  NodePtr find(const std::string& path) const;  // nullptr: not below root, or not there
  NodePtr parent(const std::string& path, std::string& name) const;
  void change(const NodePtr& directory, Change change);
  NodePtr load(const std::string& path) const;
  void store(const std::string& path, const Node& node) const;
  void settle(Node& node, Unsynced entries, Unsynced bytes, uint64_t seed, uint64_t& draw);

  std::string root_;
  NodePtr root_node_;
  std::map<int, OpenFile> open_files_;
  int64_t calls_ = 0;
  int64_t due_ = 0;  // 0: no fault
  IoFault fault_ = IoFault::Eio;
  bool lasting_ = false, struck_ = false, dead_ = false;
};

}  // namespace octet
