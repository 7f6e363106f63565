#pragma once

#include <string>
#include <vector>

#include "config/common_keys.h"

namespace octet {

// Where the figures of a run are sent.
struct ReportKeys {
  bool use_tensorboard = true;
  bool use_wandb = false;
  std::string wandb_project, wandb_entity, wandb_run_name;
  std::string wandb_mode;              // online, offline or disabled; "": decided by choose_wandb_mode
  std::vector<std::string> report_to;  // sets use_tensorboard and use_wandb
};

// report_to sets use_wandb and use_tensorboard. A flag overrides what the file sets.
void apply_report_to(ReportKeys& keys, KeyOrigins& origins, std::vector<std::string>& errors);

}  // namespace octet
