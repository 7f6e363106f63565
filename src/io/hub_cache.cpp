#include "io/hub_cache.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/cache_folder.h"
#include "io/env.h"
#include "io/sealed_json.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListingCrc = "listing_crc32c";

bool env_flag(const char* name) {
  return parse_bool(env_value(name)).value_or(false);
}

std::string stripped(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::string first_line(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? stripped(posix_env().read_text(path, 1 << 16)) : "";
}

void write_text(const std::string& path, std::string_view text) {
  posix_env().make_directories(parent_path(path));
  posix_env().replace_file(path, text);
}

}  // namespace

HubSettings hub_settings_from_env() {
  HubSettings settings;
  if (const std::string endpoint = env_value("HF_ENDPOINT"); !endpoint.empty()) settings.endpoint = endpoint;
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();

  std::string home = env_value("HF_HOME");
  const std::string own = env_value("OCTET_CACHE");
  settings.cache = env_value("HF_HUB_CACHE");
  if (settings.cache.empty()) settings.cache = env_value("HUGGINGFACE_HUB_CACHE");
  // One variable moves everything, unless those of the hub say otherwise. The token stays where `hf auth login` puts it,
  // and what was downloaded earlier is still found.
  const bool is_moved = settings.cache.empty() && home.empty() && !own.empty();
  if (is_moved) settings.cache = join_path(own, "huggingface/hub");
  if (const std::string cache = user_cache_folder(); home.empty() && !cache.empty())
    home = join_path(cache, "huggingface");
  if (settings.cache.empty() && !home.empty()) settings.cache = join_path(home, "hub");
  if (is_moved && !home.empty()) settings.read_cache = join_path(home, "hub");

  settings.token = stripped(env_value("HF_TOKEN"));
  if (settings.token.empty()) settings.token = stripped(env_value("HUGGING_FACE_HUB_TOKEN"));
  if (settings.token.empty()) {
    std::string path = env_value("HF_TOKEN_PATH");
    if (path.empty() && !home.empty()) path = join_path(home, "token");
    settings.token = first_line(path);
  }
  settings.offline = env_flag("HF_HUB_OFFLINE") || env_flag("TRANSFORMERS_OFFLINE");
  return settings;
}

bool is_commit(const std::string& revision) {
  return revision.size() == 40 && revision.find_first_not_of("0123456789abcdef") == revision.npos;
}

void check_relative_path(const std::string& path) {
  bool is_inside = is_clean_utf8(path) && path.find('\\') == path.npos;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    is_inside = is_inside && !part.empty() && part != "." && part != "..";
    begin = end + 1;
  }
  require(is_inside, "[hub] path '{}', expected one below the repository", printable(path));
}

HubCache::HubCache(const std::string& cache, HubKind kind, const std::string& id) {
  std::string name = kind == HubKind::Model ? "models--" : "datasets--";
  for (const char c : id) name += c == '/' ? std::string("--") : std::string(1, c);
  folder_ = join_path(cache, name);
  locks_ = join_path(join_path(cache, ".locks"), name);
}

std::string HubCache::snapshot_folder(const std::string& commit) const {
  return join_path(join_path(folder_, "snapshots"), commit);
}
std::string HubCache::blob_path(const std::string& hash) const {
  return join_path(join_path(folder_, "blobs"), hash);
}
std::string HubCache::lock_path(const std::string& hash) const {
  return join_path(locks_, hash + ".lock");
}

std::optional<std::string> HubCache::find_commit(const std::string& revision) const {
  check_relative_path(revision);
  std::error_code ignored;
  if (is_commit(revision)) {
    return fs::is_directory(snapshot_folder(revision), ignored) ? std::optional(revision) : std::nullopt;
  }
  const std::optional<std::string> commit = ref(revision);
  return commit && fs::is_directory(snapshot_folder(*commit), ignored) ? commit : std::nullopt;
}

std::optional<std::string> HubCache::ref(const std::string& revision) const {
  check_relative_path(revision);
  const std::string commit = first_line(join_path(join_path(folder_, "refs"), revision));
  return is_commit(commit) ? std::optional(commit) : std::nullopt;
}

void HubCache::set_ref(const std::string& revision, const std::string& commit) const {
  if (is_commit(revision)) return;
  check_relative_path(revision);
  const std::string path = join_path(join_path(folder_, "refs"), revision);
  if (first_line(path) == commit) return;
  write_text(path, commit);
}

std::string HubCache::listing_path(const std::string& commit) const {
  return join_path(join_path(folder_, "octet"), fmt::format("{}.json", commit));
}

void HubCache::keep_listing(const std::string& commit, const std::vector<std::string>& paths) const {
  nlohmann::ordered_json listing = {{"commit", commit}, {"files", paths}};
  write_text(listing_path(commit), seal_json(listing, kListingCrc));
}

std::optional<std::vector<std::string>> HubCache::listing(const std::string& commit) const {
  const std::string path = listing_path(commit);
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  try {
    const nlohmann::json listing = parse_sealed_json(posix_env().read_text(path), path, kListingCrc);
    return listing.at("files").get<std::vector<std::string>>();
  } catch (const std::exception& error) {  // the list is optional: the hub's next answer rewrites it
    log_warning("hub: {}", error.what());
    return std::nullopt;
  }
}

std::vector<std::string> HubCache::snapshot_files(const std::string& commit) const {
  const std::string folder = snapshot_folder(commit);
  std::vector<std::string> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    // A link whose blob is gone counts as a missing file.
    if (entry.is_regular_file(ignored))
      files.push_back(fs::path(entry.path()).lexically_relative(folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

int64_t HubCache::blob_bytes(const std::string& hash, int64_t size) const {
  for (const std::string& path : {blob_path(hash), fmt::format("{}.incomplete", blob_path(hash))}) {
    std::error_code error;
    const uintmax_t found = fs::file_size(path, error);
    // A partial file that is longer belongs to another file and will be dropped.
    if (!error && std::cmp_less_equal(found, size)) return static_cast<int64_t>(found);
  }
  return 0;
}

bool HubCache::has_file(const std::string& commit, const std::string& path, int64_t size) const {
  const fs::path file = fs::path(snapshot_folder(commit)) / path;
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return false;
  const uintmax_t found = fs::file_size(file, error);
  return !error && std::cmp_equal(found, size);
}

void HubCache::link(const std::string& commit, const std::string& path, const std::string& hash) const {
  const fs::path file = fs::path(snapshot_folder(commit)) / path;
  posix_env().make_directories(file.parent_path().string());
  const fs::path target = fs::path(blob_path(hash)).lexically_relative(file.parent_path());
  // Created under another name and renamed, so that another process never sees it missing.
  const fs::path temporary = temporary_name(file.string());
  std::error_code error;
  fs::create_symlink(target, temporary, error);
  require(!error, "[{}] the link to {} could not be made: {}", file.string(), target.string(),
          error.message());
  try {
    posix_env().rename(temporary.string(), file.string());
  } catch (const IoError&) {
    fs::remove(temporary, error);
    throw;
  }
}

}  // namespace octet
