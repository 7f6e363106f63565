#include "io/hub_client.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/checked.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha.h"
#include "base/text.h"
#include "io/env.h"
#include "io/hub_cache.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxRetryAfter_s = 120;

bool is_worth_retrying(long status) {
  return status == 408 || status == 429 || (status >= 500 && status <= 599);
}

std::string header(const HttpResponse& response, const std::string& name) {
  const auto found = response.headers.find(name);
  return found == response.headers.end() ? "" : found->second;
}

// <https://...>; rel="next"
std::string next_page(const HttpResponse& response) {
  const std::string link = header(response, "link");
  for (size_t begin = link.find('<'); begin != link.npos; begin = link.find('<', begin + 1)) {
    const size_t end = link.find('>', begin);
    if (end == link.npos) break;
    const std::string_view rest = std::string_view(link).substr(end, link.find(',', end) - end);
    if (rest.find("rel=\"next\"") != rest.npos) return link.substr(begin + 1, end - begin - 1);
  }
  return "";
}

bool is_hash(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

const json* member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

HubFile file_of(const json& entry, const std::string& url) {
  const auto text = [&](const json& object, const char* name) {
    const json* value = member(object, name);
    require(value && value->is_string(), "[{}] an entry without {}, expected the hub's list of files", url,
            name);
    return value->get<std::string>();
  };
  const auto number = [&](const json& object, const char* name) {
    const json* value = member(object, name);
    require(value && value->is_number_unsigned() && value->get<uint64_t>() <= INT64_MAX,
            "[{}] an entry without {}, expected the hub's list of files", url, name);
    return value->get<int64_t>();
  };
  HubFile file{text(entry, "path"), number(entry, "size"), text(entry, "oid")};
  if (const json* lfs = member(entry, "lfs"); lfs && lfs->is_object()) {
    file.hash = text(*lfs, "oid");
    file.size = number(*lfs, "size");
    require(is_hash(file.hash, 64), "[{}] {}: '{}', expected a SHA-256", url, file.path,
            printable(file.hash));
  } else {
    require(is_hash(file.hash, 40), "[{}] {}: '{}', expected a git object's name", url, file.path,
            printable(file.hash));
  }
  check_relative_path(file.path);
  return file;
}

std::string hash_of(const std::string& path, ShaHash& hash) {
  ReadableFile input = posix_env().open_read(path);
  std::vector<std::byte> buffer(size_t{1} << 20);
  while (const size_t count = input.read(buffer)) hash.update(std::span(buffer).first(count));
  return hash.hex();
}

// The hub's kind of hash: SHA-256 for a large file, git's object name (SHA-1) for a small one.
std::string hash_of(const std::string& path, const HubFile& file) {
  if (file.hash.size() != 40) {
    Sha256 hash;
    return hash_of(path, hash);
  }
  Sha1 git;
  git.update(fmt::format("blob {}", file.size));
  git.update(std::string_view("\0", 1));
  return hash_of(path, git);
}

int64_t size_on_disk(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  return error ? -1 : static_cast<int64_t>(size);
}

}  // namespace

std::string HubClient::api_url(const std::string& rest) const {
  return fmt::format("{}/api/{}/{}/{}", request_->settings.endpoint,
                     request_->kind == HubKind::Model ? "models" : "datasets", request_->id, rest);
}

void HubClient::refuse(const std::string& url, const HttpResponse& response) const {
  std::string detail = header(response, "x-error-message");
  if (detail.empty()) detail = response.body.substr(0, 200);
  std::string advice;
  const bool has_token = !request_->settings.token.empty();
  if (response.status == 401 || response.status == 403) {
    advice = has_token
                 ? "the token (HF_TOKEN) gives no access to it; check the name, and request access on the "
                   "hub's page"
                 : "it does not exist, or it needs a token: set HF_TOKEN (hub: settings, access tokens)";
  } else if (response.status == 404) {
    advice = fmt::format("no such {}, revision ({}) or file",
                         request_->kind == HubKind::Model ? "model" : "dataset", request_->revision);
  } else {
    advice = "the hub did not answer as expected; try again later, what was downloaded is kept";
  }
  const std::string message = fmt::format("[hub {}] {} gave status {}: {}. {}", request_->id, url,
                                          response.status, advice, printable(detail));
  // A hub that is down is treated like one that cannot be reached: the cache may be enough.
  if (is_worth_retrying(response.status)) throw NetworkError(message, NetworkFault::Passing);
  throw Error(message);
}

void HubClient::wait_before_retry(int attempt, const HttpResponse* response, const std::string& why) const {
  std::chrono::milliseconds delay = request_->settings.retry_delay * (int64_t{1} << std::min(attempt, 10));
  if (response) {
    const std::optional<int64_t> asked = parse_int(header(*response, "retry-after"));
    if (asked && *asked >= 0) delay = std::chrono::seconds(std::min(*asked, kMaxRetryAfter_s));
  }
  log_warning("hub: {}; trying again in {:.1f} s", why, static_cast<double>(delay.count()) / 1000);
  std::this_thread::sleep_for(delay);
}

HttpResponse HubClient::get_with_retries(const std::string& url) const {
  const HubSettings& settings = request_->settings;
  for (int attempt = 0;; ++attempt) {
    const bool is_last = attempt >= settings.retries;
    try {
      // The next page may be on another host, which must not see the token.
      const bool is_hub = url.starts_with(settings.endpoint + "/");
      const HttpResponse response = http_get(
          {.url = url, .token = is_hub ? settings.token : "", .stall_timeout_s = settings.stall_timeout_s});
      if (response.status == 200) return response;
      if (is_last || !is_worth_retrying(response.status)) refuse(url, response);
      wait_before_retry(attempt, &response, fmt::format("{} gave status {}", url, response.status));
    } catch (const NetworkError& error) {
      if (is_last || error.fault() != NetworkFault::Passing) throw;
      wait_before_retry(attempt, nullptr, error.what());
    }
  }
}

HubListing HubClient::list() const {
  const std::string revision_url = api_url(fmt::format("revision/{}", url_encode(request_->revision)));
  const json info = parse_json(get_with_retries(revision_url).body, revision_url);
  const json* sha = member(info, "sha");
  require(sha && sha->is_string() && is_commit(sha->get<std::string>()),
          "[{}] no commit in the answer, expected the hub's description of a repository", revision_url);
  HubListing listing{sha->get<std::string>(), {}};
  std::string url = api_url(fmt::format("tree/{}?recursive=true", listing.commit));
  for (int page = 0; !url.empty(); ++page) {
    require(page < 10000, "[{}] the list of files has no end", url);
    const HttpResponse response = get_with_retries(url);
    const json entries = parse_json(response.body, url);
    require(entries.is_array(), "[{}] {}, expected the hub's list of files", url, entries.type_name());
    for (const json& entry : entries) {
      const json* type = member(entry, "type");
      if (type && *type == "file") listing.files.push_back(file_of(entry, url));
    }
    url = next_page(response);
  }
  return listing;
}

// Appends the missing bytes to `part`. If the server sends the whole file, `part` starts over.
void HubClient::transfer(const HubFile& file, const std::string& url, const std::string& part,
                         HubProgress& progress) const {
  const HubSettings& settings = request_->settings;
  Env& env = posix_env();
  const int64_t done_before = progress.done_bytes;
  int attempt = 0;
  while (true) {
    int64_t have = std::max<int64_t>(size_on_disk(part), 0);
    if (have > file.size) {
      env.remove_file(part);
      have = 0;
    }
    progress.done_bytes = done_before + have;
    if (have == file.size && (have > 0 || size_on_disk(part) == 0)) return;
    std::optional<WritableFile> output;
    const int64_t start = have;
    bool is_stopped = false;
    const auto on_bytes = [&](const HttpResponse& response, std::span<const std::byte> bytes) {
      if (!output) {
        const bool goes_on = response.status == 206;
        const std::string range = header(response, "content-range");
        require(!goes_on || range.starts_with(fmt::format("bytes {}-", start)),
                "[{}] answered with the range '{}', asked for bytes from {} on", url, printable(range),
                start);
        if (!goes_on) have = 0;
        output = goes_on ? env.open_append(part) : create_anew(env, part);
      }
      have += static_cast<int64_t>(bytes.size());
      require(have <= file.size, "[{}] sent more than the {} bytes that the hub lists", url, file.size);
      output->append(bytes);
      progress.done_bytes = done_before + have;
      is_stopped = request_->on_progress && !request_->on_progress(progress);
      require(!is_stopped, "[hub {}] the download of {} was stopped; the next download continues it",
              request_->id, file.path);
    };
    const auto may_retry = [&] {
      if (have > start) attempt = 0;
      return attempt < settings.retries;
    };
    try {
      const HttpResponse response = http_get({.url = url,
                                              .token = settings.token,
                                              .first_byte = start,
                                              .on_bytes = on_bytes,
                                              .stall_timeout_s = settings.stall_timeout_s});
      if (response.status == 200 || response.status == 206) {
        if (!output) output = create_anew(env, part);  // an empty file
        output->sync();
        output->close();
        if (have == file.size) return;
        if (!may_retry()) fail("[{}] ended after {} of {} bytes", url, have, file.size);
        wait_before_retry(attempt++, nullptr,
                          fmt::format("{} ended after {} of {} bytes", url, have, file.size));
        continue;
      }
      if (response.status == 416 && start > 0) {  // the partial file is not a beginning of this file
        env.remove_file(part);
        ++attempt;
        if (attempt <= settings.retries) continue;
      }
      if (!is_worth_retrying(response.status) || !may_retry()) refuse(url, response);
      wait_before_retry(attempt++, &response, fmt::format("{} gave status {}", url, response.status));
    } catch (const NetworkError& error) {
      if (error.fault() == NetworkFault::Lasting || !may_retry()) throw;
      wait_before_retry(attempt++, nullptr, error.what());
    }
  }
}

void HubClient::download(const HubFile& file, const std::string& commit, const std::string& blob,
                         HubProgress& progress) const {
  const int64_t done_before = progress.done_bytes;
  if (size_on_disk(blob) == file.size) {  // from another revision with the same file, or from another process
    progress.done_bytes = done_before + file.size;
    return;
  }
  const std::string url = fmt::format("{}/{}{}/resolve/{}/{}", request_->settings.endpoint,
                                      request_->kind == HubKind::Model ? "" : "datasets/", request_->id,
                                      commit, url_encode(file.path, "/"));
  const std::string part = blob + ".incomplete";
  for (int tries = 0;; ++tries) {
    transfer(file, url, part, progress);
    const std::string found = hash_of(part, file);
    if (found == file.hash) break;
    posix_env().remove_file(part);  // continuing it would never help
    require(tries == 0, "[{}] checksum {}, expected {}: the file was damaged in transit, twice", url, found,
            file.hash);
    log_warning("hub: {}: checksum {}, expected {}; downloading it once more", file.path, found, file.hash);
    progress.done_bytes = done_before;
  }
  posix_env().rename(part, blob);
  progress.done_bytes = done_before + file.size;
}

}  // namespace octet
