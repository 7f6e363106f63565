#include "sweep/sweep_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>

#include "base/error.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/log_silencer.h"
#include "base/process.h"
#include "base/signals.h"
#include "base/text.h"
#include "report/metrics.h"
#include "report/text.h"
#include "sweep/hyperband.h"

namespace octet {
namespace {

constexpr int64_t kMostLostClaims = 3;  // a run whose agents die so often is not tried again
constexpr double kLookSeconds = 1;      // at the metrics of running runs, for early termination

// Variables by which a launcher tells a process that it is a rank. A sweep's agents must not pass them on to the runs that
// they start.
bool is_of_launcher(std::string_view variable) {
  static constexpr std::string_view kNames[] = {
      "RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
      "MASTER_PORT", "NNODES",     "NODE_RANK",  "GPU_NUM",          "NPROC_PER_NODE"};
  static constexpr std::string_view kPrefixes[] = {
      "OCTET_RANK", "OCTET_LOCAL_RANK", "OCTET_MASTER", "OCTET_JOB",     "OMPI_",       "PMIX_",
      "PMI_",       "SLURM_STEP",       "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"};
  return std::ranges::find(kNames, variable) != std::end(kNames) ||
         std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return variable.starts_with(prefix); });
}

std::string values_text(const SweepSpec& spec, const SweepValues& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!spec.parameters[i].distribution.is_searched()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", spec.parameters[i].name, values[i]);
  }
  return text.empty() ? "no searched parameter" : text;
}

// The last error that a run wrote, or else its last line.
std::string last_message(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string error, last;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    last = line;
    if (line.starts_with("error: ")) error = line.substr(7);
  }
  return printable(error.empty() ? last : error);
}

class Agent {
 public:
  Agent(const SweepSpec& spec, const SweepPlan& plan, SweepStore& store)
      : spec_(spec), plan_(plan), store_(store), slots_(plan.slots.size()) {}

  int run() {
    bool is_done = false;
    while (!is_done) {
      if (const int number = signals_.next(100); number != 0 && number != SIGCHLD) stop(number);
      collect();
      tend();
      if (!is_stopping()) fill();
      is_done = active() == 0 && (is_stopping() || nothing_left_);
    }
    if (signal_ != 0) {
      log_info("the sweep was stopped; the same command continues it");
      return kExitRequeue;
    }
    if (failures_ < plan_.failures_in_a_row || nothing_left_) return 0;
    log_warning(
        "{} failed in a row, so the sweep stops. The last one: {}. Their output is in {}/trials. The same "
        "command continues with the next run; --retry_failed repeats those that failed",
        counted(failures_, "run"), last_reason_, store_.folder());
    return 1;
  }

 private:
  struct Slot {
    pid_t pid = 0;  // 0: free
    Claim claim;
    Clock::time_point begin, last_beat;
    std::optional<HyperbandVerdict> verdict;  // asked to stop
    bool is_lost = false;                     // another agent has the run
    bool was_asked = false;
  };

  int64_t active() const {
    return std::ranges::count_if(slots_, [](const Slot& slot) { return slot.pid != 0; });
  }
  bool is_stopping() const { return signal_ != 0 || failures_ >= plan_.failures_in_a_row; }

  void stop(int number) {
    if (signal_ != 0) {  // the second one: at once
      for (const Slot& slot : slots_)
        if (slot.pid != 0) kill(slot.pid, SIGKILL);
      return;
    }
    signal_ = number;
    log_info("stopping: {} will save and end; a second signal ends them at once", counted(active(), "run"));
    for (Slot& slot : slots_)
      if (slot.pid != 0) ask(slot);
  }
  static void ask(Slot& slot) {
    slot.was_asked = true;
    kill(slot.pid, SIGTERM);
  }

  // --- starting

  void fill() {
    // Beats of other agents are looked at even if all slots are taken, so that a dead one is noticed early.
    if (active() == std::ssize(slots_) && seconds_since(last_scan_) < kLookSeconds) return;
    if (active() < std::ssize(slots_) && seconds_since(last_scan_) < kLookSeconds / 5) return;
    last_scan_ = Clock::now();
    for (Slot& slot : slots_) {
      if (slot.pid != 0) continue;
      if (!start_next(slot)) return;
    }
  }

  // False if there is nothing to start now.
  bool start_next(Slot& slot) {
    while (true) {
      std::vector<Trial> trials = store_.scan();
      int64_t open = 0;
      for (Trial& trial : trials) {
        if (trial.index >= plan_.runs || trial.result) continue;
        if (!trial.exists && !decide(trial.index, trials)) break;
        ++open;
        if (!trial.exists) continue;  // read in the next round
        const std::optional<Claim> claim = store_.try_claim(trial);
        if (!claim) continue;
        if (store_.lost_claims(trial.index) > kMostLostClaims) {
          fail_claim(*claim, fmt::format("{} agents died while they worked on it", kMostLostClaims));
          return true;
        }
        try {
          start(slot, trial, *claim);
        } catch (const Error& error) {  // the other runs of this agent go on
          fail_claim(*claim, error.what());
        }
        return true;
      }
      const int64_t next = std::ssize(trials);
      if (next < plan_.runs && !reached_target(trials)) {
        if (decide(next, trials)) continue;
      }
      nothing_left_ = open == 0;
      if (open > 0 && active() == 0 && !std::exchange(said_waiting_, true))
        log_info("waiting for {} of other agents; a run whose agent has died is taken up",
                 counted(open, "run"));
      return false;
    }
  }

  // Decides the values of a run, unless another agent was first. False if there is no such run.
  bool decide(int64_t index, const std::vector<Trial>& trials) {
    std::vector<KnownRun> known;
    for (const Trial& trial : trials) {
      if (!trial.exists || trial.index >= index) continue;
      known.push_back({.values = trial.values,
                       .result = trial.result && trial.result->state != TrialState::Failed
                                     ? trial.result->metric
                                     : std::nullopt,
                       .is_over = trial.result.has_value()});
    }
    const std::optional<SweepValues> values = propose(spec_, plan_.seed, index, known);
    if (!values) return false;
    store_.create(index, *values);
    return true;
  }

  bool reached_target(const std::vector<Trial>& trials) {
    const std::optional<double> target = spec_.metric->target;
    if (!target) return false;
    const auto reached = std::ranges::find_if(trials, [&](const Trial& trial) {
      return trial.result && trial.result->metric && !spec_.metric->is_better(*target, *trial.result->metric);
    });
    if (reached == trials.end()) return false;
    if (!std::exchange(said_target_, true))
      log_info("{} has reached the target {:g}: no new runs", SweepStore::run_name(reached->index), *target);
    return true;
  }

  void fail_claim(const Claim& claim, const std::string& reason) {
    const TrialResult result{.state = TrialState::Failed, .metric = {}, .reason = reason, .exit_code = 1};
    store_.finish(claim, result);
    log_warning("{} failed: {}", SweepStore::run_name(claim.index), result.reason);
  }

  void start(Slot& slot, const Trial& trial, const Claim& claim) {
    const auto place = static_cast<size_t>(&slot - slots_.data());
    slot = {.pid = 0, .claim = claim, .begin = Clock::now(), .last_beat = Clock::now(), .verdict = {}};
    OctetStart child{.arguments = run_words(spec_, plan_, store_, trial), .signal_mask = &signals_.before()};
    child.environment = environment_entries([&](std::string_view name) {
      return (name == "CUDA_VISIBLE_DEVICES" && !plan_.slots[place].empty()) ||
             (name == "OMP_NUM_THREADS" && !plan_.threads.empty()) || is_of_launcher(name);
    });
    if (!plan_.slots[place].empty())
      child.environment.push_back(fmt::format("CUDA_VISIBLE_DEVICES={}", plan_.slots[place]));
    if (!plan_.threads.empty()) child.environment.push_back(fmt::format("OMP_NUM_THREADS={}", plan_.threads));
    const Descriptor output = open_output(store_.output_file(trial.index), O_APPEND);
    child.output = child.messages = output.get();
    slot.pid = start_octet(std::move(child));
    store_.note_child(claim, slot.pid);
    log_info("{} of {} {}: {}{}", SweepStore::run_name(trial.index), plan_.runs,
             claim.generation > 0 ? "is taken up" : "starts", values_text(spec_, trial.values),
             plan_.slots[place].empty() ? "" : fmt::format(" (GPU {})", plan_.slots[place]));
  }

  // --- while they run

  void tend() {
    for (Slot& slot : slots_) {
      if (slot.pid == 0 || slot.is_lost || seconds_since(slot.last_beat) < store_.beat_seconds()) continue;
      slot.last_beat = Clock::now();
      if (store_.keep(slot.claim)) continue;
      slot.is_lost = true;
      log_warning(
          "{} was taken over by another agent, because this one was silent for too long; its run here is stopped",
          SweepStore::run_name(slot.claim.index));
      ask(slot);
    }
    if (!spec_.hyperband || seconds_since(last_look_) < kLookSeconds) return;
    last_look_ = Clock::now();
    judge();
  }

  void judge() {
    std::map<int64_t, std::vector<double>> histories;
    for (const Trial& trial : store_.scan())
      histories[trial.index] = metric_history(*spec_.metric, records_of_run(store_, trial.index));
    std::vector<std::vector<double>> all;
    for (const auto& [index, history] : histories) all.push_back(history);
    for (Slot& slot : slots_) {
      if (slot.pid == 0 || slot.was_asked) continue;
      slot.verdict = judge_run(*spec_.hyperband, spec_.metric->maximize, histories[slot.claim.index], all);
      if (slot.verdict) ask(slot);
    }
  }

  // --- their end

  void collect() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      const auto slot = std::ranges::find(slots_, pid, &Slot::pid);
      if (slot == slots_.end()) continue;
      slot->pid = 0;
      last_scan_ = {};
      ended(*slot, exit_code_of(status));
    }
  }

  void ended(const Slot& slot, int code) {
    if (slot.is_lost) return;
    const int64_t index = slot.claim.index;
    const std::vector<StepRecord> records = records_of_run(store_, index);
    TrialResult result{.metric = metric_result(*spec_.metric, records), .reason = {}, .exit_code = code};
    result.seconds = seconds_since(slot.begin);
    result.steps = records.empty() ? 0 : records.back().step;
    const bool interrupted = code == kExitRequeue || (slot.was_asked && code >= 128);
    if (code == 0) {
      result.state = result.metric ? TrialState::Finished : TrialState::Failed;
      if (!result.metric) result.reason = fmt::format("it ended without a finite {}", spec_.metric->label());
    } else if (interrupted && slot.verdict) {
      result.state = TrialState::StoppedEarly;
      result.reason = fmt::format("{} was {:.6g} at rung {}, expected {} {:.6g}", spec_.metric->label(),
                                  slot.verdict->value, slot.verdict->rung,
                                  spec_.metric->maximize ? "at least" : "at most", slot.verdict->threshold);
    } else if (interrupted && (slot.was_asked || slot.claim.generation + 1 < kMostLostClaims)) {
      store_.give_back(slot.claim);
      if (!slot.was_asked)
        log_warning("{} was stopped by a signal from elsewhere; it is continued",
                    SweepStore::run_name(index));
      return;
    } else {
      result.state = TrialState::Failed;
      const std::string message = last_message(store_.output_file(index));
      result.reason = code >= 128
                          ? fmt::format("killed by signal {}", code - 128)
                          : fmt::format("exit code {}{}{}", code, message.empty() ? "" : ": ", message);
    }
    if (!store_.finish(slot.claim, result)) return;
    tell(index, result);
  }

  void tell(int64_t index, const TrialResult& result) {
    const std::string name = SweepStore::run_name(index);
    if (result.state == TrialState::Failed) {
      ++failures_;
      last_reason_ = result.reason;
      log_warning("{} failed: {}", name, result.reason);
      return;
    }
    failures_ = 0;
    const Trial* best = nullptr;
    const std::vector<Trial> trials = store_.scan();
    for (const Trial& trial : trials) {
      if (!trial.result || !trial.result->metric || trial.result->state == TrialState::Failed) continue;
      if (!best || spec_.metric->is_better(*trial.result->metric, *best->result->metric)) best = &trial;
    }
    log_info("{} {}: {} {}, {} steps in {}{}", name, to_string(result.state), spec_.metric->label(),
             result.metric ? fmt::format("{:.6g}", *result.metric) : "-", result.steps,
             human_duration(result.seconds),
             best == nullptr        ? ""
             : best->index == index ? "; the best so far"
                                    : fmt::format("; best so far: {:.6g} of {}", *best->result->metric,
                                                  SweepStore::run_name(best->index)));
  }

  const SweepSpec& spec_;
  const SweepPlan& plan_;
  SweepStore& store_;
  WaitingSignals signals_;
  std::vector<Slot> slots_;
  int signal_ = 0;
  int64_t failures_ = 0;
  std::string last_reason_;
  bool nothing_left_ = false, said_waiting_ = false, said_target_ = false;
  Clock::time_point last_scan_{}, last_look_{};
};

}  // namespace

std::vector<std::string> run_words(const SweepSpec& spec, const SweepPlan& plan, const SweepStore& store,
                                   const Trial& trial) {
  std::vector<std::string> words;
  if (plan.ranks > 1) words = {"launch", "-n", fmt::format("{}", plan.ranks)};
  words.emplace_back("train");
  words.insert(words.end(), plan.base_words.begin(), plan.base_words.end());
  for (size_t i = 0; i < trial.values.size(); ++i)
    words.push_back(fmt::format("--{}={}", spec.parameters[i].name, trial.values[i]));
  words.push_back(fmt::format("--output_dir={}", store.runs_folder()));
  words.push_back(fmt::format("--run_name={}", SweepStore::run_name(trial.index)));
  words.emplace_back("--resume=latest");
  return words;
}

std::vector<StepRecord> records_of_run(const SweepStore& store, int64_t index) {
  const std::string path = join_path(store.run_folder(index), "metrics.jsonl");
  std::error_code code;
  if (!std::filesystem::exists(path, code)) return {};
  // The last line of a run that goes on may be incomplete. That is no news.
  const LogSilencer silence;
  try {
    return drop_superseded(read_metrics(path));
  } catch (const Error&) {  // being written
    return {};
  }
}

int run_sweep(const SweepSpec& spec, const SweepPlan& plan, SweepStore& store) {
  survive_broken_pipes();
  return Agent(spec, plan, store).run();
}

}  // namespace octet
