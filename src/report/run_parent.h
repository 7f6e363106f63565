#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "report/run_folder.h"

namespace octet {

// The run that another one was resumed from, under another name: the file resumed_from.json in the folder of the later one.
struct RunParent {
  std::string folder;
  int64_t step = 0;  // that the later run begins after
};

inline constexpr const char* kRunParent = "resumed_from.json";

// The text of the file in the folder `run`. The parent is named twice: runs may be moved together, or only one of them.
std::string run_parent_json(const std::string& run, const RunParent& parent);

// Nothing for a run that began by itself. Its folder is where the parent is now, or empty if it is not found. Error
// naming the file if it is broken.
std::optional<RunParent> read_run_parent(const std::string& run);

// Where the curve of a run comes from.
struct RunLineage {
  std::vector<std::string> parents;  // folders, the nearest first
  int64_t fork = 0;                  // the step after which the records are the run's own; 0: all are
  std::string missing;               // a parent whose records cannot be read; empty: there is none
};

// Puts the records of the runs that a run continues before its own, up to the step at which it begins, and counts their
// device time and energy.
RunLineage add_parents(RunFolder& run);

}  // namespace octet
