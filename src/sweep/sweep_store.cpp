#include "sweep/sweep_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/json_values.h"
#include "base/log.h"
#include "base/text.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Containers on one machine may have the same host name but count their processes apart.
std::string process_namespace() {
  std::error_code code;
  return fs::read_symlink("/proc/self/ns/pid", code).string();
}

// When a process started, in ticks since the machine did; empty if there is no such process. Tells a process from a later
// one with its number.
std::string start_of_process(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(file, text)) return "";
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream words(text.substr(name_end + 1));
  std::string word, state;
  for (int i = 0; i < 20 && words >> word; ++i)
    if (i == 0) state = word;
  return state == "Z" || state == "X" ? "" : word;
}

Json process_json(int64_t pid) {
  return {{"host", host_name()},
          {"namespace", process_namespace()},
          {"pid", pid},
          {"start", start_of_process(pid)}};
}

// Whether the process of such a record is known to be gone. False if it ran elsewhere.
bool is_gone(const Json& process) {
  if (text_in(process, "host") != host_name() || text_in(process, "namespace") != process_namespace())
    return false;
  const std::string start = text_in(process, "start").value_or("");
  return !start.empty() && start_of_process(integer_in(process, "pid").value_or(0)) != start;
}

// Empty if there is no such file, or it is just being written.
Json read_json(Env& env, const std::string& path) {
  try {
    const Json json = Json::parse(env.read_text(path), nullptr, false);
    return json.is_object() ? json : Json();
  } catch (const IoError&) {
    return {};
  }
}

std::string text_of(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<TrialState> state_called(std::string_view name) {
  for (const TrialState state : {TrialState::Finished, TrialState::Failed, TrialState::StoppedEarly})
    if (to_string(state) == name) return state;
  return std::nullopt;
}

std::optional<TrialResult> result_of(const Json& json) {
  const std::optional<TrialState> state = state_called(text_in(json, "state").value_or(""));
  if (!state) return std::nullopt;
  TrialResult result{.state = *state, .metric = {}, .reason = text_in(json, "reason").value_or("")};
  if (json.contains("metric") && json["metric"].is_number()) result.metric = json["metric"].get<double>();
  result.exit_code = static_cast<int>(integer_in(json, "exit_code").value_or(0));
  if (json.contains("seconds") && json["seconds"].is_number()) result.seconds = json["seconds"].get<double>();
  result.steps = integer_in(json, "steps").value_or(0);
  return result;
}

}  // namespace

std::string_view to_string(TrialState state) {
  return state == TrialState::Finished ? "finished"
         : state == TrialState::Failed ? "failed"
                                       : "stopped early";
}

SweepStore::SweepStore(Env& env, std::string folder, double lease_seconds)
    : env_(env), folder_(std::move(folder)), lease_seconds_(lease_seconds) {}

std::string SweepStore::run_name(int64_t index) {
  return fmt::format("run-{:04}", index);
}
std::string SweepStore::run_folder(int64_t index) const {
  return join_path(runs_folder(), run_name(index));
}
std::string SweepStore::path(int64_t index, std::string_view what) const {
  return fmt::format("{}/trials/{:04}.{}", folder_, index, what);
}
std::string SweepStore::output_file(int64_t index) const {
  return path(index, "txt");
}

bool SweepStore::exists() const {
  return env_.exists(folder_ + "/sweep.json");
}

// A file with this text, if there is no file of this name. False if there is one.
bool SweepStore::create_whole(const std::string& target, const std::string& text) {
  WritableFile file = create_temporary(env_, target);
  file.append(text);
  file.sync();
  file.close();
  const std::string temporary = file.path();
  int code = ::link(temporary.c_str(), target.c_str()) == 0 ? 0 : errno;
  if (code != 0) {
    // An answer of NFS that got lost: the second attempt finds our own link.
    struct stat status {};
    if (::stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2) code = 0;
  }
  if (code == EPERM || code == ENOTSUP || code == ENOSYS) {  // a file system without links
    const int fd = ::open(target.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    code = fd < 0 ? errno : 0;
    if (fd >= 0) {
      ::close(fd);
      try {
        env_.write_synced(target, text);
      } catch (const IoError&) {
        env_.sys_unlink(target);
        throw;
      }
    }
  }
  env_.sys_unlink(temporary);
  if (code != 0 && code != EEXIST) throw IoError("link", target, code);
  return code == 0;
}

std::string SweepStore::open(const std::string& identity, uint64_t seed, bool only_begins) {
  const std::string file = folder_ + "/sweep.json";
  if (!only_begins) {  // a look at the results writes nothing: the disk may be full, or the sweep another user's
    env_.make_directories(folder_ + "/trials");
    env_.make_directories(runs_folder());
    if (create_whole(file, text_of({{"format", 1}, {"seed", seed}, {"sweep", identity}}))) return identity;
  }
  const Json json = read_json(env_, file);
  const bool has_seed = json.contains("seed") && json["seed"].is_number_integer();
  if (integer_in(json, "format") != 1 || !has_seed || !text_in(json, "sweep"))
    fail_config("[{}] is not the description of a sweep; give another --folder", file);
  if (const auto old_seed = json["seed"].get<uint64_t>(); old_seed != seed)
    fail_config("[{}] this sweep has --sweep_seed {}, not {}; give another --folder for a new sweep", file,
                old_seed, seed);
  const std::string saved = *text_in(json, "sweep");
  std::istringstream before(saved), now(identity);
  std::string old_line, new_line;
  while (true) {
    const bool has_old = static_cast<bool>(std::getline(before, old_line));
    const bool has_new = static_cast<bool>(std::getline(now, new_line));
    if (!has_new && (!has_old || only_begins)) return saved;
    if (has_old && has_new && old_line == new_line) continue;
    fail_config("[{}] holds another sweep: it has '{}', expected '{}'; give another --folder for a new sweep",
                file, has_old ? printable(old_line) : "nothing more",
                has_new ? printable(new_line) : "nothing more");
  }
}

// Whether a file that says nothing has done so for longer than an agent may be silent. A file is complete when it appears,
// except on file systems without links.
bool SweepStore::is_damaged(const std::string& file) {
  try {
    env_.read_text(file);
  } catch (const IoError&) {  // it cannot be read now, which says nothing about what is in it
    return false;
  }
  const auto [since, is_new] = unreadable_since_.try_emplace(file, Clock::now());
  if (is_new || seconds_since(since->second) <= lease_seconds_) return false;
  if (warned_of_.insert(file).second)
    log_warning(
        "[{}] is damaged; its run counts as failed. To repeat the run, remove all files of its number", file);
  return true;
}

TrialResult SweepStore::failed_by_damage(int64_t index) const {
  return {.state = TrialState::Failed,
          .metric = {},
          .reason = fmt::format("a file of {} in {}/trials is damaged", run_name(index), folder_),
          .exit_code = 1};
}

std::vector<Trial> SweepStore::scan() {
  std::map<int64_t, Trial> found;
  std::map<int64_t, int64_t> freed;
  for (const std::string& name : env_.list(folder_ + "/trials")) {
    const size_t dot = name.find('.');
    const std::optional<int64_t> index = parse_int(name.substr(0, dot));
    if (!index || dot == std::string::npos || name.find(".tmp-") != std::string::npos) continue;
    const std::string what = name.substr(dot + 1);
    Trial& trial = found[*index];
    trial.index = *index;
    if (what == "json") {
      if (!values_.contains(*index)) {
        const Json json = read_json(env_, path(*index, "json"));
        if (!json.contains("values") || !json["values"].is_array()) {
          if (is_damaged(path(*index, "json"))) trial.result = failed_by_damage(*index);
          continue;
        }
        SweepValues values;
        for (const auto& value : json["values"]) {
          if (!value.is_string())
            fail("[{}] \"values\" holds {}, expected texts", path(*index, "json"), value.dump());
          values.push_back(value.get<std::string>());
        }
        values_[*index] = std::move(values);
      }
      trial.exists = true;
      trial.values = values_[*index];
    } else if (what == "result.json") {
      if (!results_.contains(*index)) {
        if (const auto result = result_of(read_json(env_, path(*index, "result.json")))) {
          results_[*index] = *result;
        } else if (is_damaged(path(*index, "result.json"))) {
          results_[*index] = failed_by_damage(*index);
        }
      }
      if (results_.contains(*index)) trial.result = results_[*index];
    } else if (what.starts_with("claim.")) {
      trial.claims = std::max(trial.claims, parse_int(what.substr(6)).value_or(-1) + 1);
    } else if (what.starts_with("free.")) {
      freed[*index] = std::max(freed[*index], parse_int(what.substr(5)).value_or(-1) + 1);
    }
  }
  std::vector<Trial> trials;
  for (auto& [index, trial] : found) {
    trial.is_free = trial.claims == 0 || freed[index] >= trial.claims;
    while (std::ssize(trials) < index)
      trials.push_back({.index = std::ssize(trials), .values = {}, .result = {}});
    trials.push_back(std::move(trial));
  }
  return trials;
}

bool SweepStore::create(int64_t index, const SweepValues& values) {
  return create_whole(path(index, "json"), text_of({{"index", index}, {"values", values}}));
}

bool SweepStore::is_dead(int64_t index, int64_t generation) {
  const Json claim = read_json(env_, path(index, fmt::format("claim.{}", generation)));
  if (claim.is_object() && is_gone(claim)) {
    // Its run gets a signal when it dies, and may still be saving.
    const Json child = read_json(env_, path(index, fmt::format("child.{}", generation)));
    if (!child.is_object() || is_gone(child)) return true;
  }
  std::string text;
  try {
    text = env_.read_text(path(index, fmt::format("beat.{}", generation)));
  } catch (const IoError&) {  // none yet
  }
  const auto [beat, is_new] = beats_.try_emplace({index, generation}, Beat{text, Clock::now()});
  if (!is_new && beat->second.text != text) beat->second = {text, Clock::now()};
  return seconds_since(beat->second.since) > lease_seconds_;
}

std::optional<Claim> SweepStore::try_claim(const Trial& trial) {
  if (!trial.exists || trial.result) return std::nullopt;
  if (!trial.is_free && !is_dead(trial.index, trial.claims - 1)) return std::nullopt;
  Claim claim{.index = trial.index, .generation = trial.claims};
  if (!create_whole(path(claim.index, fmt::format("claim.{}", claim.generation)),
                    text_of(process_json(::getpid()))))
    return std::nullopt;
  keep(claim);
  return claim;
}

bool SweepStore::keep(Claim& claim) {
  if (env_.exists(path(claim.index, fmt::format("claim.{}", claim.generation + 1)))) return false;
  env_.replace_file(path(claim.index, fmt::format("beat.{}", claim.generation)),
                    fmt::format("{}\n", ++claim.beat));
  return true;
}

void SweepStore::note_child(const Claim& claim, int pid) {
  env_.replace_file(path(claim.index, fmt::format("child.{}", claim.generation)), text_of(process_json(pid)));
}

void SweepStore::give_back(const Claim& claim) {
  create_whole(path(claim.index, fmt::format("free.{}", claim.generation)), "\n");
}

bool SweepStore::finish(const Claim& claim, const TrialResult& result) {
  Json json = {{"state", to_string(result.state)}, {"metric", nullptr}};
  if (result.metric) json["metric"] = *result.metric;
  if (!result.reason.empty()) json["reason"] = result.reason;
  json["exit_code"] = result.exit_code;
  json["seconds"] = result.seconds;
  json["steps"] = result.steps;
  json["claim"] = claim.generation;
  return create_whole(path(claim.index, "result.json"), text_of(json));
}

int64_t SweepStore::lost_claims(int64_t index) const {
  int64_t claims = 0, freed = 0;
  while (env_.exists(path(index, fmt::format("claim.{}", claims)))) {
    freed += env_.exists(path(index, fmt::format("free.{}", claims))) ? 1 : 0;
    ++claims;
  }
  return claims - freed;
}

int64_t SweepStore::retry_failed() {
  int64_t count = 0;
  for (const Trial& trial : scan()) {
    if (!trial.result || trial.result->state != TrialState::Failed) continue;
    env_.rename(path(trial.index, "result.json"), path(trial.index, fmt::format("failed.{}", trial.claims)));
    for (int64_t generation = 0; generation < trial.claims; ++generation)
      give_back({.index = trial.index, .generation = generation});
    results_.erase(trial.index);
    ++count;
  }
  return count;
}

}  // namespace octet
