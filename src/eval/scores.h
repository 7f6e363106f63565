#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/task.h"

namespace octet {

// The model's choice for one question.
struct Answer {
  std::vector<double> log_likelihoods;  // of the choices
  int64_t choice = 0;                   // the most likely one; the first of several that are equal
  int64_t choice_norm = 0;              // the same after division by the lengths of the choices in characters
};

struct Accuracy {
  double mean = 0;
  std::optional<double> standard_error;  // of the mean; absent for a single question
};

struct TaskScore {
  std::string name, dataset;
  int64_t questions = 0;
  int64_t examples = 0;              // few-shot examples per question
  Accuracy acc;                      // by `choice`
  std::optional<Accuracy> acc_norm;  // by `choice_norm`; absent if the task does not have it
  // By subject, if there are several.
  std::vector<std::pair<std::string, TaskScore>> groups = {};

  // The figure that stands for the task where there is room for one.
  const char* main_metric() const { return acc_norm ? "acc_norm" : "acc"; }
  double main_score() const { return acc_norm ? acc_norm->mean : acc.mean; }
};

// `log_likelihoods`: one per choice of every question, in the order of encode_task.
std::vector<Answer> choose_answers(const Task& task, const std::vector<double>& log_likelihoods);
TaskScore score_answers(const Task& task, const std::vector<Answer>& answers);

// One JSON object per line and question, for --output.
std::string answers_jsonl(const Task& task, const std::vector<ScoredText>& texts,
                          const std::vector<Answer>& answers);

}  // namespace octet
