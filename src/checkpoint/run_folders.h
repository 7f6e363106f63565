#pragma once

#include <string>

namespace octet {

// Where a run keeps its files.
struct RunFolders {
  std::string output_dir;
  std::string run_name;        // "": not named yet
  std::string checkpoint_dir;  // "": a folder of the run

  // <output_dir>/<run_name>
  std::string run() const;
  // checkpoint_dir, or else a folder of the run; FP8 runs have one of their own.
  std::string checkpoints(bool fp8) const;
};

}  // namespace octet
