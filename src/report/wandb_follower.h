#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/environment.h"
#include "report/tensorboard.h"

namespace octet {

// wandb_follower.py, embedded by cmake/embed_files.cmake.
extern const std::string_view kWandbFollowerScript;

// Whether W&B's client would find a key: "WANDB_API_KEY", the path of a netrc file with W&B's host, or "" if none.
std::string find_wandb_key(const EnvironmentValue& environment = environment_value);

struct WandbMode {
  std::string mode;  // online, offline or disabled
  std::string note;  // why, if the user should know
};
// `wanted` is the key wandb_mode, which may be empty: then WANDB_MODE and WANDB_DISABLED count, and then whether there
// is a key. Without a key, online becomes offline.
WandbMode choose_wandb_mode(const std::string& wanted,
                            const EnvironmentValue& environment = environment_value);

struct WandbJob {
  std::string folder;  // of the run
  std::string mode;    // online or offline
  std::string run_name;
  std::string project, entity, wandb_run_name;  // "": from the environment, or a default
  HParams config;
  bool live = true;       // the run is in this process
  bool again = false;     // as a new run, from the first step
  int64_t max_steps = 0;  // of a run that is not live: whether it has finished; 0: not known
};

// Sends a run to Weights & Biases through its Python client, in a process of its own that follows metrics.jsonl. Nothing
// here waits for that process before end(), and whatever happens to it does not touch the run. What the process says is
// logged, one line each; what it prints is in wandb.log of the run.
class WandbFollower {
 public:
  // Null, with a warning, if Python cannot be started (OCTET_PYTHON, or python3 on the PATH).
  static std::unique_ptr<WandbFollower> start(const WandbJob& job);
  ~WandbFollower();  // the run has failed, unless end() was called
  WandbFollower(const WandbFollower&) = delete;
  WandbFollower& operator=(const WandbFollower&) = delete;

  // The run has ended with this exit code: waits until the rest is sent, at most `limit`. A process that needs longer
  // goes on in the background; one that gives no sign of life is killed. A stop signal ends the waiting, and
  // nothing else. True if everything was handed over. The exit code counts only if the run is live: how another
  // run has ended is found in its folder.
  bool end(int exit_code, std::chrono::seconds limit);

  // How long end() waits after a run: a minute, or OCTET_WANDB_WAIT seconds. Less after a stop by a signal, because whoever
  // sent it may kill the job soon.
  static std::chrono::seconds patience(bool stopped);

  pid_t pid() const { return shared_->pid; }
  bool ended() const;  // the process, whatever the reason

 private:
  // Data of the thread that listens: it outlives this object if the process goes on in the background.
  struct Shared {
    pid_t pid = 0;
    int status = -1;
    std::string folder;
    bool live = true;
    std::mutex mutex;
    std::condition_variable changed;
    std::chrono::steady_clock::time_point last_sign;
    bool heard = false;      // anything at all
    bool explained = false;  // the user knows that nothing more is sent
    bool muted = false;      // octet is about to end
    bool ended = false;
    int exit_code = 0;

    void listen();
    void hear(std::string_view line);
    std::string advice() const;  // how to send the run after all
  };

  WandbFollower(pid_t pid, int control, int status, const WandbJob& job);

  int control_;  // -1 once end() was called
  const std::shared_ptr<Shared> shared_;
  std::thread listener_;
};

}  // namespace octet
