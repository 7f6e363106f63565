// What launcher_test.cpp starts: `octet launch`, which starts this program once more for every rank.

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/signals.h"
#include "base/text.h"
#include "launcher.h"
#include "support/process.h"

namespace octet::test {
namespace {

using namespace std::chrono_literals;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void append(const std::string& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text << std::flush;
}

// A rank. Ends with the code that TEST_CODES has for it, killed by SIGKILL for "kill", waits for a signal for
// "wait", and for a second one for "stay".
[[noreturn]] void work() {
  const size_t rank = std::stoul(variable("OCTET_RANK"));
  append(variable("TEST_FOLDER") + "/started",
         fmt::format("{} of {} job {} threads {} progress {} secret {}\n", rank, variable("OCTET_RANKS"),
                     variable("OCTET_JOB"), variable("OMP_NUM_THREADS"),
                     !variable("OCTET_PROGRESS_FILE").empty(), variable("OCTET_SECRET").size()));
  fmt::print("words of rank {}\n", rank);
  fmt::print(stderr, "trouble of rank {}\n", rank);
  std::fflush(stdout);
  // The nth start writes the nth of TEST_STEPS as the last finished step.
  const std::vector<std::string> steps = split_list(variable("TEST_STEPS"));
  if (rank == 0 && !steps.empty()) {
    const std::string starts = variable("TEST_FOLDER") + "/starts";
    append(starts, "x");
    const size_t start = read_text(starts).size() - 1;
    std::ofstream(variable("OCTET_PROGRESS_FILE")) << steps.at(std::min(start, steps.size() - 1));
  }
  const std::string code = split_list(variable("TEST_CODES")).at(rank);
  if (code == "kill") raise(SIGKILL);
  if (code != "wait" && code != "stay") _exit(std::stoi(code));
  const StopSignal stop;
  append(variable("TEST_FOLDER") + "/waiting", "x");
  while (!stop.requested()) std::this_thread::sleep_for(5ms);
  append(variable("TEST_FOLDER") + "/signals", fmt::format("{} ", stop.number()));
  if (code == "stay") std::this_thread::sleep_for(120s);
  std::this_thread::sleep_for(200ms);  // a second signal would end it with another code
  _exit(75);
}

int launch() {
  LaunchPlan plan;
  plan.processes = std::stoi(variable("TEST_LAUNCH"));
  if (!variable("TEST_RESTARTS").empty()) plan.max_restarts = std::stoi(variable("TEST_RESTARTS"));
  return launch_processes(plan);
}

}  // namespace
}  // namespace octet::test

int main() {
  if (std::getenv("OCTET_RANK") != nullptr) octet::test::work();
  return octet::test::launch();
}
