#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "device_options.h"

namespace octet {

// Multiple-choice tasks of 'octet eval'.
struct EvalTaskOptions : DeviceOptions {
  std::vector<std::string> tasks;     // as parse_task_source takes them
  std::vector<std::string> datasets;  // none, or one per task
  std::string fewshot_dataset, output;
  int64_t num_fewshot = 0, max_samples = 0;
  int64_t max_seq_length = 0;  // 0: the positions of the model
  int64_t batch_size = 0;      // texts of the longest length per batch; 0: by the device
  bool json = false;
};

// Measures and prints the scores. Returns the exit code.
int evaluate_tasks(const EvalTaskOptions& options, const ModelFolder& model);

}  // namespace octet
