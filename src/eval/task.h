#pragma once

#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "eval/task_formats.h"

namespace octet {

// Which task, and where its questions are.
struct TaskSource {
  const TaskFormat* format = nullptr;  // null: by the columns of the file
  std::string name;                    // in reports
  std::string dataset;                 // file, folder, glob or hub id; empty: where the task is usually found
};
// "hellaswag", "hellaswag=FILE" or "FILE". ConfigError for anything else.
TaskSource parse_task_source(const std::string& text);

struct TaskOptions {
  int64_t max_samples = 0;           // the first ones; 0: all
  int64_t examples = 0;              // solved questions in front of each
  std::string example_dataset = {};  // where they come from; empty: from the part of the dataset that is
                                     // made for it, else from the questions themselves
};

// A task that can be scored: its questions with the texts in front of them.
struct Task {
  std::string name;
  const TaskFormat* format = nullptr;
  std::string dataset;  // as it is shown
  std::vector<TaskQuestion> questions;
  std::vector<std::string> prompts;  // per question: description and examples
  int64_t examples = 0;              // per prompt
};
// Errors name the file and the line. ConfigError if there are no questions.
Task load_task(const TaskSource& source, const TaskOptions& options);

// One text whose last `scored` tokens are scored. Their sum is the log-likelihood of a choice.
struct ScoredText {
  std::vector<int32_t> ids;  // at least two; the first one is never scored
  int64_t scored = 0;
};
// One per choice of every question, in order. Texts of more than `max_length` + 1 tokens lose their front, because the
// model reads all tokens but the last. ConfigError where a choice alone is too long. Uses `threads` threads.
std::vector<ScoredText> encode_task(const Task& task, const Tokenizer& tokenizer, int64_t max_length,
                                    int threads);

}  // namespace octet
