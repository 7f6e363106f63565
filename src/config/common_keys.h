#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "config/device_key.h"
#include "report/console_mode.h"

namespace octet {

// Where each key was set: "--lr", "max_steps in run.yaml:3". Absent: the default.
struct KeyOrigins {
  std::map<std::string, std::string, std::less<>> origins;

  bool is_set(std::string_view key) const { return origins.find(key) != origins.end(); }
  // Not in a file.
  bool is_set_by_flag(std::string_view key) const {
    const auto found = origins.find(key);
    return found != origins.end() && found->second.starts_with("--");
  }
};

// The keys that more than one stage of a run reads: where it is, and where its files are.
struct CommonKeys : KeyOrigins {
  std::string output_dir = "runs";
  std::string run_name;        // "": made from the time and the model
  std::string checkpoint_dir;  // "": a folder of the run
  std::string resume;          // "latest" or a path; "": a new run
  int64_t seed = 42;
  DeviceKey device = DeviceKey::Auto;
  int64_t num_threads = 0;  // 0: all
  ConsoleMode progress = ConsoleMode::Auto;
  bool dry_run = false;
  bool list_checkpoints = false;
};

}  // namespace octet
