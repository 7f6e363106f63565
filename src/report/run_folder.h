#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/step_record.h"

namespace octet {

inline constexpr const char* kMetricsName = "metrics.jsonl";

using RunSettings = std::vector<std::pair<std::string, std::string>>;

// The records and settings of a run that is over or still going on, possibly on another machine.
struct RunFolder {
  std::string name;                 // of its folder
  std::string folder;               // empty where a metrics file of another name was given
  std::vector<StepRecord> records;  // by step; none before the first record
  // config.yaml as "key", "value as it is written there", in its order. Keys that follow from others are comments there,
  // and are in `decided`. Empty where the run has no such file.
  RunSettings settings, decided;

  // Empty if the run has no such key, or if it follows from another one.
  std::string setting(std::string_view key) const;
  // The same, with the value of a key that follows from another one.
  std::string value(std::string_view key) const;
};

// `path` is the folder of a run or its metrics file. ConfigError if it does not exist or is a folder without
// metrics.jsonl; Error naming file and line for what cannot be read. An incomplete last line is skipped.
RunFolder read_run_folder(const std::string& path);

// Reads config.yaml into both lists of settings, which are empty where there is no such file. Error naming file and line.
void read_run_settings(const std::string& path, RunFolder& run);

// Whether the folder holds the metrics of a run.
bool is_run_folder(const std::string& path);

}  // namespace octet
