#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/hub.h"

namespace octet {

// One repository in the cache:
//   models--org--name/refs/main              the commit that a branch was last seen at
//   models--org--name/snapshots/COMMIT/PATH  links to
//   models--org--name/blobs/HASH             the files themselves
//   models--org--name/octet/COMMIT.json      the paths that the hub lists, octet's own
//   .locks/models--org--name/HASH.lock       held while HASH is downloaded
class HubCache {
 public:
  HubCache(const std::string& cache, HubKind kind, const std::string& id);

  const std::string& folder() const { return folder_; }
  std::string snapshot_folder(const std::string& commit) const;
  std::string blob_path(const std::string& hash) const;
  std::string lock_path(const std::string& hash) const;

  // The commit that the cache has for a revision, if any.
  std::optional<std::string> find_commit(const std::string& revision) const;
  void set_ref(const std::string& revision, const std::string& commit) const;
  std::optional<std::string> ref(const std::string& revision) const;  // also without a snapshot of the commit
  std::vector<std::string> snapshot_files(const std::string& commit) const;  // whole ones, relative, sorted
  // All paths that the hub lists for a commit, whether cached or not; nothing if the hub was not asked.
  std::optional<std::vector<std::string>> listing(const std::string& commit) const;
  void keep_listing(const std::string& commit, const std::vector<std::string>& paths) const;
  // How many bytes of a file are already here, as a blob or as a part of it.
  int64_t blob_bytes(const std::string& hash, int64_t size) const;
  bool has_file(const std::string& commit, const std::string& path, int64_t size) const;
  void link(const std::string& commit, const std::string& path, const std::string& hash) const;

 private:
  std::string listing_path(const std::string& commit) const;

  std::string folder_, locks_;
};

bool is_commit(const std::string& revision);  // 40 hexadecimal digits
// Throws unless the path stays inside the folder it is relative to, because it comes from a server.
void check_relative_path(const std::string& path);

}  // namespace octet
