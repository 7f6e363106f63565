#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compare/comparison.h"

namespace octet {

struct ChecklistItem {
  std::string name;  // "loss at most 1 % higher"
  bool passed = false;
  std::string text;  // what was found
  std::string remedy = {};
};

struct Checklist {
  std::vector<ChecklistItem> items;
  bool is_ready() const;
};

// A sample that a trained variant has made.
struct SampleCheck {
  std::string variant;
  std::string text;   // empty: none came
  std::string error;  // why not
};

// A run that continued from a checkpoint of another one, step by step next to it.
struct ResumeCheck {
  int64_t checkpoint_step = 0;
  int64_t steps = 0;           // that both have
  double largest_percent = 0;  // difference of the loss; NaN: a loss is not finite, which no later step mends
  std::string error;           // why it could not be tried

  // The steps after the checkpoint that both have.
  void compare(const std::vector<StepRecord>& whole, const std::vector<StepRecord>& resumed);
};

// Checks that guides recommend before a long run. The first variant of the comparison is the reference (BF16), the second
// one is that of the long run.
Checklist make_checklist(const Comparison& comparison, const std::vector<SampleCheck>& samples,
                         const ResumeCheck& resume);

// One line per item, then "ready" or what is missing.
std::string checklist_text(const Checklist& checklist, bool colour);
nlohmann::ordered_json checklist_json(const Checklist& checklist);

}  // namespace octet
