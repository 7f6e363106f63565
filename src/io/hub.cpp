#include "io/hub.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/cache_folder.h"
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

std::string advice(const HubRequest& request, const HubCache& cache, const std::string& why) {
  return fmt::format(
      "{}. Put {} into a folder and pass that folder instead. Or run on a machine with network: hf download "
      "{}{}{}, and copy {} to this machine",
      why, wanted(request), request.id, request.kind == HubKind::Dataset ? " --repo-type dataset" : "",
      request.revision == "main" ? "" : fmt::format(" --revision {}", request.revision), cache.folder());
}

// The files of a request that one of the caches has.
struct Cached {
  const HubCache* cache = nullptr;
  std::string commit;
  std::vector<std::string> files, missing;  // of those that are wanted
  bool is_listed = false;                   // the hub has said which files there are
  std::string problem = {};                 // of choosing the files
  bool is_whole() const { return problem.empty() && !files.empty() && missing.empty(); }
  bool is_empty() const { return problem.empty() && missing.size() == files.size(); }
};

// The caches in the order in which they are asked: octet's own first.
using Caches = std::vector<HubCache>;

std::optional<Cached> find_in(const HubRequest& request, const Caches& caches, const HubCache& cache) {
  // The hub's answer to octet counts more than what another program has noted in the usual cache.
  std::optional<std::string> commit;
  if (const auto told = caches.front().ref(request.revision)) commit = cache.find_commit(*told);
  if (!commit) commit = cache.find_commit(request.revision);
  if (!commit) return std::nullopt;
  Cached found{.cache = &cache, .commit = *commit, .files = {}, .missing = {}};
  const std::vector<std::string> there = cache.snapshot_files(*commit);
  // The hub's last list of files shows whether the cache has all files or only some. Octet keeps it in its own cache.
  std::optional<std::vector<std::string>> listed = cache.listing(*commit);
  if (!listed && &cache != &caches.front()) listed = caches.front().listing(*commit);
  found.is_listed = listed.has_value();
  try {
    found.files = chosen_paths(request, listed ? *listed : there);
  } catch (const Error& error) {
    found.problem = error.what();
    return found;
  }
  std::set_difference(found.files.begin(), found.files.end(), there.begin(), there.end(),
                      std::back_inserter(found.missing));
  return found;
}

std::string folders_of(const Caches& caches) {
  std::vector<std::string> folders;
  for (const HubCache& cache : caches) folders.push_back(cache.folder());
  return fmt::format("{}", fmt::join(folders, " or "));
}

// `why` says why the hub was not asked; it ends a sentence.
HubSnapshot from_cache(const HubRequest& request, const Caches& caches, const std::string& why) {
  std::optional<Cached> found;
  for (const HubCache& cache : caches) {
    std::optional<Cached> other = find_in(request, caches, cache);
    // The first that is whole; else the first that has something.
    if (other && (!found || other->is_whole() || (found->is_empty() && !other->is_empty())))
      found = std::move(other);
    if (found && found->is_whole()) break;
  }
  if (!found || found->is_empty()) {
    fail("[hub {}] not in the cache ({}), and {}", request.id, folders_of(caches),
         advice(request, caches.front(), why));
  }
  if (!found->problem.empty()) {
    fail("{}. Only the cache ({}) was searched, because {}", found->problem, folders_of(caches),
         advice(request, caches.front(), why));
  }
  const std::vector<std::string>& missing = found->missing;
  if (!missing.empty()) {
    fail("[hub {}] {} of {} files are not in the cache ({}): {}{}; and {}", request.id, missing.size(),
         found->files.size(), found->cache->folder(), missing[0], missing.size() > 1 ? ", ..." : "",
         advice(request, *found->cache, why));
  }
  const std::string taken =
      fmt::format("hub: {}: {}; using {} file{} from the cache for {}", request.id, why, found->files.size(),
                  found->files.size() == 1 ? "" : "s", wanted(request));
  if (found->is_listed && request.settings.offline) {
    log_info("{}", taken);
  } else if (found->is_listed) {
    log_warning("{}", taken);
  } else {
    log_warning("{}; files may be missing, because the cache has no list of the repository's files", taken);
  }
  return {found->cache->snapshot_folder(found->commit), found->files};
}

void check_space(const std::string& folder, int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || std::cmp_greater_equal(space.available, bytes)) return;
  fail("[hub] {} needs {:.1f} GB more for the download, {:.1f} GB are free; set HF_HOME to use another place",
       folder, static_cast<double>(bytes) / 1e9, static_cast<double>(space.available) / 1e9);
}

// Missing files go into octet's own cache.
HubSnapshot download(const HubRequest& request, const Caches& caches, const HubClient& client,
                     const HubListing& listing) {
  const HubCache& cache = caches.front();
  std::vector<std::string> all;
  for (const HubFile& file : listing.files) all.push_back(file.path);
  HubSnapshot snapshot{cache.snapshot_folder(listing.commit), chosen_paths(request, all)};
  require(!snapshot.files.empty(), "[hub {}] {} files at {}, but none matches {}", request.id, all.size(),
          request.revision, wanted(request));
  std::sort(all.begin(), all.end());
  std::vector<const HubFile*> chosen;
  for (const HubFile& file : listing.files) {
    if (std::binary_search(snapshot.files.begin(), snapshot.files.end(), file.path)) chosen.push_back(&file);
  }
  const auto has_all = [&](const HubCache& each) {
    return std::ranges::all_of(
        chosen, [&](const HubFile* file) { return each.has_file(listing.commit, file->path, file->size); });
  };
  cache.keep_listing(listing.commit, all);
  for (const HubCache& each : caches) {
    if (&each == &cache || has_all(cache) || !has_all(each)) continue;
    // So that the next start without the hub finds this commit, and no older one.
    cache.set_ref(request.revision, listing.commit);
    return {each.snapshot_folder(listing.commit), snapshot.files};
  }
  HubProgress progress;
  std::vector<const HubFile*> missing;
  int64_t to_download = 0;
  for (const HubFile* file : chosen) {
    if (cache.has_file(listing.commit, file->path, file->size)) continue;
    missing.push_back(file);
    progress.total_bytes += file->size;
    to_download += file->size - cache.blob_bytes(file->hash, file->size);
  }
  if (!missing.empty()) {
    posix_env().make_directories(join_path(cache.folder(), "blobs"));
    check_space(cache.folder(), to_download);
    log_info("hub: {}: {} of {} files to download, {:.1f} MB, into {}", request.id, missing.size(),
             snapshot.files.size(), static_cast<double>(to_download) / 1e6, cache.folder());
  }
  for (const HubFile* file : missing) {
    progress.file = file->path;
    const std::string lock_path = cache.lock_path(file->hash);
    posix_env().make_directories(parent_path(lock_path));
    const auto lock = wait_for_lock(posix_env(), lock_path, "", [&] {
      log_info("hub: waiting for another process that downloads {}", file->path);
    });
    client.download(*file, listing.commit, cache.blob_path(file->hash), progress);
    cache.link(listing.commit, file->path, file->hash);
  }
  cache.set_ref(request.revision, listing.commit);
  return snapshot;
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

const std::vector<std::string>& hub_tokenizer_files() {
  static const std::vector<std::string> kFiles = {"tokenizer.json",
                                                  "tokenizer.model",
                                                  "tokenizer_config.json",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "merges.txt",
                                                  "*.tiktoken",
                                                  "*.jinja"};
  return kFiles;
}

bool is_hub_name(const std::string& name) {
  if (!is_hub_id(name) || posix_env().exists(name)) return false;
  const size_t slash = name.find('/');
  // A bare word is more often a mistyped folder than one of the hub's few models without an owner.
  if (slash == std::string::npos) return name.starts_with("gpt2");
  // A name that starts with an existing folder is a path with a mistake.
  return !posix_env().is_directory(name.substr(0, slash));
}

HubSnapshot hub_fetch(const HubRequest& request) {
  require(is_hub_id(request.id), "[hub] id '{}', expected org/name", printable(request.id));
  check_relative_path(request.revision);
  const HubSettings& settings = request.settings;
  require(!settings.cache.empty(), "[hub] no folder for the cache: set HF_HOME or HF_HUB_CACHE");
  Caches caches = {HubCache(settings.cache, request.kind, request.id)};
  if (!settings.read_cache.empty()) caches.emplace_back(settings.read_cache, request.kind, request.id);
  if (settings.offline) return from_cache(request, caches, "HF_HUB_OFFLINE forbids downloads");

  const HubClient client(request);
  HubListing listing;
  try {
    listing = client.list();
  } catch (const NetworkError& error) {
    return from_cache(request, caches,
                      fmt::format("{}: {}",
                                  error.fault() == NetworkFault::Lasting ? "the hub cannot be used"
                                                                         : "the hub was not reached",
                                  error.what()));
  }
  try {
    return download(request, caches, client, listing);
  } catch (const IoError& error) {
    const std::string note = cache_note(caches.front().folder());
    if (note.empty()) throw;
    fail("{}{}", error.what(), note);
  }
}

std::string hub_snapshot(const HubRequest& request) {
  return hub_fetch(request).folder;
}

}  // namespace octet
