#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace octet {

// A client of the Hugging Face hub and of its cache on disk. The cache has the layout of the huggingface_hub library:
// files downloaded by one are found by the other. See docs/datasets.md.

struct HubSettings {
  std::string endpoint = "https://huggingface.co";
  std::string token = {};
  std::string cache = {};       // holds models--org--name and datasets--org--name
  std::string read_cache = {};  // a second one, of others: what it has is used, and nothing is written to it
  bool offline = false;
  int retries = 5;                              // in a row without progress
  std::chrono::milliseconds retry_delay{1000};  // before the first retry; doubles each time
  int stall_timeout_s = 60;
};

// HF_ENDPOINT; HF_TOKEN or the token file of `hf auth login`; HF_HUB_CACHE, HF_HOME, OCTET_CACHE, XDG_CACHE_HOME;
// HF_HUB_OFFLINE.
HubSettings hub_settings_from_env();

enum class HubKind { Model, Dataset };

struct HubProgress {
  std::string file;
  int64_t done_bytes = 0, total_bytes = 0;  // of all requested files that were not in the cache
};

struct HubRequest {
  HubKind kind = HubKind::Model;
  std::string id;                       // "org/name", or a model's "name"
  std::string revision = "main";        // branch, tag or commit
  std::vector<std::string> files = {};  // globs whose * also matches '/'; empty: all files
  // Chooses among the paths that match the globs, from the repository or from the cache; may throw.
  std::function<std::vector<std::string>(const std::vector<std::string>&)> choose = {};
  std::function<bool(const HubProgress&)> on_progress = {};  // false stops the download; it can be resumed
  HubSettings settings = hub_settings_from_env();
};

struct HubSnapshot {
  std::string folder;              // of the revision; holds the files under their paths
  std::vector<std::string> files;  // the chosen ones, relative to the folder, sorted
};

// Downloads what octet's own cache does not have, unless the usual cache has everything, and checks it: SHA-256 for large
// files, git's object name for small ones. Offline, or when the hub cannot be reached, it uses what a cache has of the
// revision. Throws Error with the hub's refusal (token, name, revision), or with where to put the files by hand.
HubSnapshot hub_fetch(const HubRequest& request);

// The same for callers that read a folder, for example a model's config.json, *.safetensors and tokenizer files.
std::string hub_snapshot(const HubRequest& request);

// The files that octet reads of a model's repository.
const std::vector<std::string>& hub_model_files();

// The same of a tokenizer.
const std::vector<std::string>& hub_tokenizer_files();

// "org/name" or "name", as the hub allows them.
bool is_hub_id(const std::string& id);
// Whether a name that could also be a path is meant as a hub id: no such path exists, and it is "org/name" (but not in
// an existing folder org) or one of the GPT-2 models, which have no owner.
bool is_hub_name(const std::string& name);
bool matches_any_glob(const std::string& path, const std::vector<std::string>& globs);

}  // namespace octet
