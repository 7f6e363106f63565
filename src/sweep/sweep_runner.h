#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sweep/sweep_spec.h"
#include "sweep/sweep_store.h"

namespace octet {

// How an agent runs the runs of a sweep.
struct SweepPlan {
  // Where each of the runs that go on at once has its place: a value of CUDA_VISIBLE_DEVICES; "": as it is.
  std::vector<std::string> slots = {""};
  int64_t ranks = 1;                    // processes per run: octet launch -n
  int64_t runs = 0;                     // in all
  int64_t failures_in_a_row = 3;        // after which the agent gives up
  uint64_t seed = 0;                    // of the draws
  std::string threads;                  // OMP_NUM_THREADS of a run; "": as it is
  std::vector<std::string> base_words;  // arguments of octet train that all runs have: CONFIG.yaml and flags
};

// The arguments of octet for a run: train, those of all runs, and the values of this one.
std::vector<std::string> run_words(const SweepSpec& spec, const SweepPlan& plan, const SweepStore& store,
                                   const Trial& trial);

// The records that a run has logged so far; none if it has not logged anything yet.
std::vector<StepRecord> records_of_run(const SweepStore& store, int64_t index);

// Works on the sweep until all its runs have results, also those of other agents. SIGINT, SIGTERM and SIGUSR1 stop the runs
// of this agent, which save; the sweep can then be continued. Returns the exit code: 0, 75 after a signal, 1 after too many
// failures.
int run_sweep(const SweepSpec& spec, const SweepPlan& plan, SweepStore& store);

}  // namespace octet
