#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// One question of a multiple-choice task. The answer is the choice whose text the model finds most likely.
struct TaskQuestion {
  std::string place;                 // "hellaswag.jsonl] line 12", without the opening bracket
  std::string group = {};            // MMLU: the subject
  std::string description = {};      // in front of the examples
  std::string question = {};         // in front of the choices
  std::vector<std::string> choices;  // their lengths normalise acc_norm
  // WinoGrande: the choices stand in front of one text that continues all of them.
  bool choices_first = false;
  std::string continuation = {};
  int64_t label = 0;
  nlohmann::json record = {};  // as it was read; kept to tell a question from its copies
};

// How the examples of a few-shot prompt are chosen.
enum class ExampleChoice {
  Random,          // drawn
  RandomNotSelf,   // one more is drawn, and the question itself is skipped
  FirstOfSubject,  // the first ones of the same subject
};

struct TaskFormat {
  std::string_view name;
  std::string_view hub_id, subset, split, example_split;  // on the hub; empty: not there
  std::string_view columns;                               // for messages
  bool has_acc_norm;
  ExampleChoice example_choice;
  // Throws ConfigError that names the place for a record that is not of this format.
  TaskQuestion (*read)(const nlohmann::json& record, const std::string& place);
  // Whether a record has the columns that only this format has.
  bool (*has_columns)(const nlohmann::json& record);
};

std::span<const TaskFormat> task_formats();
// ConfigError that lists the tasks where there is none of this name.
const TaskFormat& find_task_format(std::string_view name);
// The format of a file by the columns of its first record.
const TaskFormat& guess_task_format(const nlohmann::json& record, const std::string& place);

}  // namespace octet
