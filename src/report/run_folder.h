#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/step_record.h"

namespace octet {

// What is read of a run that is over or still going on, possibly on another machine.
struct RunFolder {
  std::string name;                 // of its folder
  std::string folder;               // empty where a metrics file of another name was given
  std::vector<StepRecord> records;  // by step; none before the first record
  // config.yaml as "key", "value as it is written there", in its order. Empty where the run has no such file.
  std::vector<std::pair<std::string, std::string>> settings;

  // Empty if the run has no such key.
  std::string setting(std::string_view key) const;
};

// `path` is the folder of a run or its metrics file. ConfigError if it does not exist or is a folder without
// metrics.jsonl; Error naming file and line for what cannot be read. An incomplete last line is skipped.
RunFolder read_run_folder(const std::string& path);

// config.yaml as in RunFolder::settings; none where there is no such file. Error naming file and line.
std::vector<std::pair<std::string, std::string>> read_run_settings(const std::string& path);

// Whether the folder holds the metrics of a run.
bool is_run_folder(const std::string& path);

}  // namespace octet
