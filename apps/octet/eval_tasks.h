#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "data/tokenizer/tokenizer.h"
#include "device_options.h"
#include "model/transformer.h"

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

// fp32, bf16 or fp8, for a model that is only read.
Numerics numerics_for(const std::string& precision);
std::unique_ptr<Tokenizer> open_model_tokenizer(const ModelFolder& model);

}  // namespace octet
