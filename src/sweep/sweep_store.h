#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "io/env.h"
#include "sweep/sampler.h"

// The folder of a sweep. Agents on many machines share it and nothing else: no run is done twice, and the run of an agent
// that died is taken up by another.
//
//   sweep.json         what decides the runs, and the seed; all agents must agree
//   trials/0007.json             the values of run 7
//   trials/0007.claim.G          who works on it; G counts from 0, and the highest counts
//   trials/0007.beat.G           a number that the owner of claim G raises every few seconds
//   trials/0007.free.G           claim G is given back: the run was interrupted and can be continued
//   trials/0007.result.json      how it ended
//   trials/0007.txt              its console output
//   runs/run-0007/               the run, as octet train writes it
//
// A claim is taken by creating its file, which one agent alone can do, also on NFS: a file appears by link(2). No locks and
// no clocks of other machines are needed: an agent counts as dead if its beat has not changed for a while on the clock
// of whoever looks, or if it ran on this very machine and its process is gone.

namespace octet {

enum class TrialState { Finished, Failed, StoppedEarly };
std::string_view to_string(TrialState state);

struct TrialResult {
  TrialState state = TrialState::Finished;
  std::optional<double> metric;
  std::string reason;  // why it failed or was stopped
  int exit_code = 0;
  double seconds = 0;  // of the last start
  int64_t steps = 0;
};

// The folder's entry for a run.
struct Trial {
  int64_t index = 0;
  bool exists = false;  // its values are decided
  SweepValues values;
  int64_t claims = 0;  // generations so far
  bool is_free = true;
  std::optional<TrialResult> result;
};

struct Claim {
  int64_t index = 0, generation = 0;
  uint64_t beat = 0;
};

class SweepStore {
 public:
  SweepStore(Env& env, std::string folder, double lease_seconds);

  // Creates the folder, or checks that its sweep is this one. ConfigError with the first line that differs. With
  // `only_begins`, the sweep's identity may have more lines than this one. Returns the identity of the sweep.
  std::string open(const std::string& identity, uint64_t seed, bool only_begins = false);
  // Reads the seed and identity of an existing sweep; false if there is none.
  bool exists() const;

  // All runs up to the last one that exists, by index. Results and values are read once and remembered.
  std::vector<Trial> scan();

  // Decides the values of a run. False if another agent was first.
  bool create(int64_t index, const SweepValues& values);

  // Takes the run if nobody has it or its owner is dead. Nothing if somebody works on it.
  std::optional<Claim> try_claim(const Trial& trial);
  // Whether the claim still counts. To be called every few seconds.
  bool keep(Claim& claim);
  double beat_seconds() const { return lease_seconds_ / 6; }
  void note_child(const Claim& claim, int pid);
  void give_back(const Claim& claim);
  // False if the run was taken over and has a result already.
  bool finish(const Claim& claim, const TrialResult& result);
  // How many claims of the run ended without being given back: their agents died.
  int64_t lost_claims(int64_t index) const;
  // Forgets the results of failed runs. Returns how many.
  int64_t retry_failed();

  const std::string& folder() const { return folder_; }
  std::string runs_folder() const { return folder_ + "/runs"; }
  std::string run_folder(int64_t index) const;
  static std::string run_name(int64_t index);
  std::string output_file(int64_t index) const;

 private:
  std::string path(int64_t index, std::string_view what) const;
  bool create_whole(const std::string& path, const std::string& text);
  bool is_dead(int64_t index, int64_t generation);
  bool is_damaged(const std::string& file);
  TrialResult failed_by_damage(int64_t index) const;

  Env& env_;
  std::string folder_;
  double lease_seconds_;
  struct Beat {
    std::string text;
    Clock::time_point since;
  };
  std::map<std::pair<int64_t, int64_t>, Beat> beats_;
  std::map<std::string, Clock::time_point> unreadable_since_;
  std::set<std::string> warned_of_;
  std::map<int64_t, SweepValues> values_;
  std::map<int64_t, TrialResult> results_;
};

}  // namespace octet
