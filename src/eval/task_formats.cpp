#include "eval/task_formats.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json_values.h"
#include "base/keys.h"
#include "base/text.h"
#include "data/records/record_reader.h"
#include "eval/python_text.h"

namespace octet {
namespace {

using nlohmann::json;

// The columns of one record, with errors that say where and what.
class Columns {
 public:
  Columns(const json& record, const std::string& place, std::string_view task)
      : record_(record), place_(place), task_(task) {}

  bool has(std::string_view name) const { return record_.contains(name) && !record_[name].is_null(); }

  const json& at(std::string_view name) const {
    if (has(name)) return record_[name];
    fail_config("[{}: no column '{}'; a row of {} has {} (this one has {})", place_, name, task_,
                find_task_format(task_).columns, list_columns(columns_of(record_)));
  }

  std::string text(std::string_view name) const { return text(at(name), name); }

  std::vector<std::string> texts(std::string_view name) const { return texts(at(name), name); }

  std::string text(const json& value, std::string_view name) const {
    if (!value.is_string()) fail_config("[{}: '{}' is {}, expected a text", place_, name, short_text(value));
    return value.get<std::string>();
  }

  std::vector<std::string> texts(const json& value, std::string_view name) const {
    if (!value.is_array())
      fail_config("[{}: '{}' is {}, expected a list of texts", place_, name, short_text(value));
    std::vector<std::string> result;
    for (const json& element : value) result.push_back(text(element, name));
    if (result.size() < 2)
      fail_config("[{}: '{}' has {} choice{}, expected at least 2", place_, name, result.size(),
                  result.size() == 1 ? "" : "s");
    return result;
  }

  // A label below `choices`: a number from `first`, or also as text, or with `letters` A, B, ...
  int64_t label(std::string_view name, size_t choices, int64_t first, bool letters) const {
    const json& value = at(name);
    int64_t label = -1;
    if (const std::optional<int64_t> given = integer_of(value)) {
      label = *given < first ? -1 : *given - first;
    } else if (value.is_string()) {
      const auto written = value.get<std::string>();
      const std::string_view word = strip(written);
      if (letters && word.size() == 1 && word[0] >= 'A' && word[0] <= 'Z') {
        label = word[0] - 'A';
      } else if (!word.empty() && word.size() <= 9 &&
                 std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; })) {
        label = std::stoll(std::string(word)) - first;
      }
    }
    if (label >= 0 && label < static_cast<int64_t>(choices)) return label;
    fail_config(
        "[{}: '{}' is {}, expected a number from {} to {}{}", place_, name, short_text(value), first,
        first + static_cast<int64_t>(choices) - 1,
        letters ? fmt::format(" or a letter from A to {}", static_cast<char>('A' + choices - 1)) : "");
  }

  template <class... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> format, Args&&... args) const {
    fail_config("[{}: {}", place_, fmt::format(format, std::forward<Args>(args)...));
  }

  TaskQuestion question() const { return {.place = place_, .choices = {}, .record = record_}; }

 private:
  static std::string short_text(const json& value) {
    std::string text = printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return text;
  }

  const json& record_;
  const std::string& place_;
  std::string_view task_;
};

// The texts of WikiHow contain marks in brackets.
std::string hellaswag_text(std::string_view text) {
  return replace_all(remove_brackets(replace_all(std::string(strip(text)), " [title]", ". ")), "  ", " ");
}

TaskQuestion read_hellaswag(const json& record, const std::string& place) {
  const Columns columns(record, place, "hellaswag");
  TaskQuestion result = columns.question();
  result.question = hellaswag_text(columns.text("activity_label") + ": " + columns.text("ctx_a") + " " +
                                   capitalize(columns.text("ctx_b")));
  for (const std::string& ending : columns.texts("endings")) result.choices.push_back(hellaswag_text(ending));
  result.label = columns.label("label", result.choices.size(), 0, false);
  return result;
}

// {"question", "choices": {"text": [...], "label": [...]}, "answerKey"}, or as AI2 publishes it
// {"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}.
TaskQuestion read_arc(const json& record, const std::string& place, std::string_view task) {
  const Columns columns(record, place, task);
  TaskQuestion result = columns.question();
  std::vector<std::string> labels;
  std::string stem;
  if (columns.at("question").is_object()) {
    const json& question = columns.at("question");
    if (!question.contains("stem") || !question.contains("choices") || !question["choices"].is_array())
      columns.fail_here("'question' has no 'stem' or no list 'choices'");
    stem = columns.text(question["stem"], "question.stem");
    for (const json& choice : question["choices"]) {
      if (!choice.is_object() || !choice.contains("text") || !choice.contains("label"))
        columns.fail_here("a choice has no 'text' or no 'label'");
      result.choices.push_back(columns.text(choice["text"], "choices.text"));
      labels.push_back(columns.text(choice["label"], "choices.label"));
    }
  } else {
    stem = columns.text("question");
    const json& choices = columns.at("choices");
    if (!choices.is_object() || !choices.contains("text") || !choices.contains("label"))
      columns.fail_here("'choices' is not an object with the lists 'text' and 'label'");
    result.choices = columns.texts(choices["text"], "choices.text");
    labels = columns.texts(choices["label"], "choices.label");
  }
  if (result.choices.size() != labels.size() || labels.size() < 2)
    columns.fail_here("{} choices with {} labels, expected equally many and at least 2",
                      result.choices.size(), labels.size());
  const json& key = columns.at("answerKey");
  const std::string answer =
      key.is_number_integer() ? std::to_string(key.get<int64_t>()) : columns.text("answerKey");
  const auto found = std::ranges::find(labels, answer);
  if (found == labels.end())
    columns.fail_here("'answerKey' is '{}', expected one of {}", printable(answer),
                      printable(fmt::format("{}", fmt::join(labels, ", "))));
  result.label = found - labels.begin();
  result.question = "Question: " + stem + "\nAnswer:";
  return result;
}

TaskQuestion read_arc_easy(const json& record, const std::string& place) {
  return read_arc(record, place, "arc_easy");
}

TaskQuestion read_arc_challenge(const json& record, const std::string& place) {
  return read_arc(record, place, "arc_challenge");
}

TaskQuestion read_piqa(const json& record, const std::string& place) {
  const Columns columns(record, place, "piqa");
  TaskQuestion result = columns.question();
  result.question = "Question: " + columns.text("goal") + "\nAnswer:";
  result.choices = {columns.text("sol1"), columns.text("sol2")};
  result.label = columns.label("label", 2, 0, false);
  return result;
}

TaskQuestion read_winogrande(const json& record, const std::string& place) {
  const Columns columns(record, place, "winogrande");
  TaskQuestion result = columns.question();
  const std::string sentence = columns.text("sentence");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) columns.fail_here("'sentence' has no blank '_'");
  const std::string front = sentence.substr(0, blank);
  result.choices = {front + columns.text("option1"), front + columns.text("option2")};
  result.choices_first = true;
  result.continuation = strip(std::string_view(sentence).substr(blank + 1));
  result.label = columns.label("answer", 2, 1, false);
  return result;
}

TaskQuestion read_mmlu(const json& record, const std::string& place) {
  const Columns columns(record, place, "mmlu");
  TaskQuestion result = columns.question();
  const std::vector<std::string> texts = columns.texts("choices");
  if (texts.size() > 26) columns.fail_here("{} choices, expected at most 26", texts.size());
  result.question = strip(columns.text("question"));
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string letter(1, static_cast<char>('A' + i));
    result.question += "\n" + letter + ". " + texts[i];
    result.choices.push_back(letter);
  }
  result.question += "\nAnswer:";
  result.label = columns.label("answer", texts.size(), 0, true);
  if (columns.has("subject")) {
    result.group = columns.text("subject");
    result.description = "The following are multiple choice questions (with answers) about " +
                         replace_all(result.group, "_", " ") + ".\n\n";
  }
  return result;
}

TaskQuestion read_multiple_choice(const json& record, const std::string& place) {
  const Columns columns(record, place, "multiple_choice");
  const auto named = [&](std::string_view name, std::string_view other) {
    return columns.has(name) || !columns.has(other) ? name : other;
  };
  TaskQuestion result = columns.question();
  result.question = columns.text(named("context", "question"));
  result.choices = columns.texts(named("endings", "choices"));
  result.label = columns.label(named("label", "answer"), result.choices.size(), 0, true);
  return result;
}

bool has_all(const json& record, std::initializer_list<const char*> names) {
  return std::ranges::all_of(names, [&](const char* name) { return record.contains(name); });
}

constexpr TaskFormat kFormats[] = {
    {"hellaswag", "Rowan/hellaswag", "", "validation", "train",
     "activity_label, ctx_a, ctx_b, endings and label", true, ExampleChoice::RandomNotSelf, read_hellaswag,
     [](const json& record) {
       return has_all(record, {"activity_label", "ctx_a", "ctx_b", "endings"});
     }},
    {"arc_easy", "allenai/ai2_arc", "ARC-Easy", "test", "train",
     "question, choices (with text and label) and answerKey", true, ExampleChoice::Random, read_arc_easy,
     [](const json& record) {
       return has_all(record, {"question", "answerKey"});
     }},
    {"arc_challenge", "allenai/ai2_arc", "ARC-Challenge", "test", "train",
     "question, choices (with text and label) and answerKey", true, ExampleChoice::Random, read_arc_challenge,
     [](const json&) { return false; }},
    {"piqa", "baber/piqa", "", "validation", "train", "goal, sol1, sol2 and label", true,
     ExampleChoice::RandomNotSelf, read_piqa,
     [](const json& record) {
       return has_all(record, {"goal", "sol1", "sol2"});
     }},
    {"winogrande", "allenai/winogrande", "winogrande_xl", "validation", "train",
     "sentence, option1, option2 and answer", false, ExampleChoice::RandomNotSelf, read_winogrande,
     [](const json& record) {
       return has_all(record, {"sentence", "option1", "option2"});
     }},
    {"mmlu", "cais/mmlu", "all", "test", "dev", "question, choices, answer and subject", false,
     ExampleChoice::FirstOfSubject, read_mmlu,
     [](const json& record) {
       return has_all(record, {"question", "choices", "answer", "subject"});
     }},
    {"multiple_choice", "", "", "", "", "context, endings and label", true, ExampleChoice::RandomNotSelf,
     read_multiple_choice,
     [](const json& record) {
       return has_all(record, {"context", "endings"}) || has_all(record, {"context", "choices"}) ||
              has_all(record, {"question", "endings"}) || has_all(record, {"question", "choices"});
     }},
};

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const TaskFormat& format : kFormats) names.emplace_back(format.name);
  return names;
}

}  // namespace

std::span<const TaskFormat> task_formats() {
  return kFormats;
}

const TaskFormat& find_task_format(std::string_view name) {
  std::string wanted(name);
  for (char& c : wanted) c = c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  for (const TaskFormat& format : kFormats) {
    if (format.name == wanted) return format;
  }
  const std::string near = nearest_name(wanted, format_names());
  fail_config("unknown task '{}'; {}tasks are {}, or a JSONL file with context, endings and label",
              printable(name), near.empty() ? "" : fmt::format("did you mean '{}'? ", near),
              fmt::join(format_names(), ", "));
}

const TaskFormat& guess_task_format(const json& record, const std::string& place) {
  for (const TaskFormat& format : kFormats) {
    if (format.has_columns(record)) return format;
  }
  fail_config(
      "[{}: no task has the columns {}; a row of a multiple-choice file has context, endings and label",
      place, list_columns(columns_of(record)));
}

}  // namespace octet
