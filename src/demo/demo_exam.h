#pragma once

#include <string>
#include <vector>

#include "generate/generate.h"

namespace octet {

// The built-in demo's exam: unseen stories whose last sentence the model must finish exactly.
class DemoExam {
 public:
  // Answers of the untrained model to the few stories that are shown.
  void before(Generator& generator);
  // The whole exam; returns what to show of it.
  std::string after(Generator& generator);
  double score() const { return score_; }  // share of the stories finished exactly

 private:
  std::vector<std::string> answers_before_;
  double score_ = 0;
};

}  // namespace octet
