#include "io/hub.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/env.h"
#include "io/http.h"
#include "io/hub_cache.h"
#include "io/hub_client.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> chosen_paths(const HubRequest& request, const std::vector<std::string>& all) {
  std::vector<std::string> paths;
  for (const std::string& path : all) {
    if (request.files.empty() || matches_any_glob(path, request.files)) paths.push_back(path);
  }
  if (request.choose) paths = request.choose(paths);
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string wanted(const HubRequest& request) {
  return request.files.empty() ? "the repository's files" : fmt::format("{}", fmt::join(request.files, ", "));
}

// `why` ends a sentence: what kept the hub from being asked.
HubSnapshot from_cache(const HubRequest& request, const HubCache& cache, const std::string& why) {
  const std::optional<std::string> commit = cache.find_commit(request.revision);
  const std::vector<std::string> files =
      commit ? chosen_paths(request, cache.snapshot_files(*commit)) : std::vector<std::string>();
  if (!files.empty()) return {cache.snapshot_folder(*commit), files};
  fail(
      "[hub {}] not in the cache ({}), and {}. Put {} into a folder and name that folder instead, or run on "
      "a "
      "machine with network: hf download {}{}{}, and copy {} here",
      request.id, cache.folder(), why, wanted(request), request.id,
      request.kind == HubKind::Dataset ? " --repo-type dataset" : "",
      request.revision == "main" ? "" : fmt::format(" --revision {}", request.revision), cache.folder());
}

// Waits for another process that downloads the same file.
FileLock wait_for_lock(const std::string& path, const std::string& file) {
  posix_env().make_directories(parent_path(path));
  for (int tries = 0;; ++tries) {
    try {
      return posix_env().lock(path, "");
    } catch (const IoError& error) {
      if (error.code() != EWOULDBLOCK) throw;
    }
    if (tries == 0) log_info("hub: waiting for another process that downloads {}", file);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

void check_space(const std::string& folder, int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || std::cmp_greater_equal(space.available, bytes)) return;
  fail("[hub] {} needs {:.1f} GB more for the download, {:.1f} GB are free; HF_HOME names another place",
       folder, static_cast<double>(bytes) / 1e9, static_cast<double>(space.available) / 1e9);
}

}  // namespace

bool matches_any_glob(const std::string& path, const std::vector<std::string>& globs) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return fnmatch(glob.c_str(), path.c_str(), 0) == 0; });
}

bool is_hub_id(const std::string& id) {
  const auto is_part = [](std::string_view part) {
    constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    return !part.empty() && part.find_first_not_of(kAllowed) == part.npos && part[0] != '.' &&
           part[0] != '-' && part.back() != '.' && part.back() != '-' && part.find("--") == part.npos &&
           part.find("..") == part.npos;
  };
  const size_t slash = id.find('/');
  if (id.size() > 96) return false;
  if (slash == id.npos) return is_part(id);
  return is_part(std::string_view(id).substr(0, slash)) && is_part(std::string_view(id).substr(slash + 1));
}

const std::vector<std::string>& hub_model_files() {
  static const std::vector<std::string> kFiles = {
      "*.json", "*.safetensors", "tokenizer.model", "merges.txt", "vocab.txt", "*.tiktoken", "*.jinja"};
  return kFiles;
}

HubSnapshot hub_fetch(const HubRequest& request) {
  require(is_hub_id(request.id), "[hub] id '{}', expected org/name", printable(request.id));
  check_relative_path(request.revision);
  const HubSettings& settings = request.settings;
  require(!settings.cache.empty(), "[hub] no folder for the cache: set HF_HOME or HF_HUB_CACHE");
  const HubCache cache(settings, request.kind, request.id);
  if (settings.offline) return from_cache(request, cache, "HF_HUB_OFFLINE forbids to download");

  const HubClient client(request);
  HubListing listing;
  try {
    listing = client.list();
  } catch (const NetworkError& error) {
    const HubSnapshot snapshot =
        from_cache(request, cache, fmt::format("the hub was not reached: {}", error.what()));
    log_warning("hub: {}; taking the {} files that the cache has of {}", error.what(), snapshot.files.size(),
                request.id);
    return snapshot;
  }

  std::vector<std::string> all;
  for (const HubFile& file : listing.files) all.push_back(file.path);
  HubSnapshot snapshot{cache.snapshot_folder(listing.commit), chosen_paths(request, all)};
  require(!snapshot.files.empty(), "[hub {}] {} files at {}, but none matches {}", request.id, all.size(),
          request.revision, wanted(request));
  HubProgress progress;
  std::vector<const HubFile*> missing;
  for (const HubFile& file : listing.files) {
    if (!std::binary_search(snapshot.files.begin(), snapshot.files.end(), file.path)) continue;
    if (cache.has_file(listing.commit, file.path, file.size)) continue;
    missing.push_back(&file);
    progress.total_bytes += file.size;
  }
  if (!missing.empty()) {
    posix_env().make_directories(join_path(cache.folder(), "blobs"));
    check_space(cache.folder(), progress.total_bytes);
    log_info("hub: {}: {} of {} files to download, {:.1f} MB, into {}", request.id, missing.size(),
             snapshot.files.size(), static_cast<double>(progress.total_bytes) / 1e6, cache.folder());
  }
  for (const HubFile* file : missing) {
    progress.file = file->path;
    const FileLock lock = wait_for_lock(cache.lock_path(file->hash), file->path);
    client.download(*file, listing.commit, cache.blob_path(file->hash), progress);
    cache.link(listing.commit, file->path, file->hash);
  }
  cache.set_ref(request.revision, listing.commit);
  return snapshot;
}

std::string hub_snapshot(const HubRequest& request) {
  return hub_fetch(request).folder;
}

}  // namespace octet
