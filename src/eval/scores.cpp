#include "eval/scores.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "eval/python_text.h"

namespace octet {
namespace {

int64_t first_largest(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

Accuracy accuracy(int64_t correct, int64_t count) {
  const auto n = static_cast<double>(count);
  Accuracy result{.mean = static_cast<double>(correct) / n, .standard_error = {}};
  // The standard deviation of zeros and ones, over n - 1.
  if (count > 1) result.standard_error = std::sqrt(result.mean * (1 - result.mean) / (n - 1));
  return result;
}

struct Counts {
  int64_t questions = 0, correct = 0, correct_norm = 0;
};

TaskScore score_of(const Task& task, const Counts& counts) {
  TaskScore score{.name = task.name,
                  .dataset = task.dataset,
                  .questions = counts.questions,
                  .examples = task.examples,
                  .acc = accuracy(counts.correct, counts.questions),
                  .acc_norm = {}};
  if (task.format->has_acc_norm) score.acc_norm = accuracy(counts.correct_norm, counts.questions);
  return score;
}

// The standard error of a mean over all questions, from the variances inside the groups.
void pool_standard_error(TaskScore& score) {
  double sum = 0, size = 0;
  for (const auto& [name, group] : score.groups) {
    if (!group.acc.standard_error) return;
    const auto n = static_cast<double>(group.questions);
    sum += (n - 1) * n * *group.acc.standard_error * *group.acc.standard_error;
    size += n;
  }
  score.acc.standard_error = std::sqrt(sum / (size - static_cast<double>(score.groups.size())) / size);
}

}  // namespace

std::vector<Answer> choose_answers(const Task& task, const std::vector<double>& log_likelihoods) {
  std::vector<Answer> answers;
  size_t at = 0;
  for (const TaskQuestion& question : task.questions) {
    Answer answer;
    std::vector<double> normed;
    for (const std::string& choice : question.choices) {
      require(at < log_likelihoods.size(), "[eval] {} log-likelihoods for more choices",
              log_likelihoods.size());
      answer.log_likelihoods.push_back(log_likelihoods[at++]);
      normed.push_back(answer.log_likelihoods.back() / static_cast<double>(count_characters(choice)));
    }
    answer.choice = first_largest(answer.log_likelihoods);
    answer.choice_norm = first_largest(normed);
    answers.push_back(std::move(answer));
  }
  require(at == log_likelihoods.size(), "[eval] {} log-likelihoods for {} choices", log_likelihoods.size(),
          at);
  return answers;
}

TaskScore score_answers(const Task& task, const std::vector<Answer>& answers) {
  Counts all;
  std::map<std::string, Counts> groups;
  for (size_t i = 0; i < answers.size(); ++i) {
    const TaskQuestion& question = task.questions[i];
    for (Counts* counts : {&all, &groups[question.group]}) {
      ++counts->questions;
      counts->correct += answers[i].choice == question.label;
      counts->correct_norm += answers[i].choice_norm == question.label;
    }
  }
  TaskScore score = score_of(task, all);
  if (groups.size() < 2) return score;
  for (const auto& [name, counts] : groups) score.groups.emplace_back(name, score_of(task, counts));
  pool_standard_error(score);
  return score;
}

std::string answers_jsonl(const Task& task, const std::vector<ScoredText>& texts,
                          const std::vector<Answer>& answers) {
  std::string lines;
  size_t at = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const TaskQuestion& question = task.questions[i];
    const Answer& answer = answers[i];
    nlohmann::ordered_json line = {{"task", task.name}, {"index", i}};
    if (!question.group.empty()) line["subject"] = question.group;
    line["label"] = question.label;
    line["choice"] = answer.choice;
    line["choice_norm"] = answer.choice_norm;
    line["correct"] = answer.choice == question.label;
    line["correct_norm"] = answer.choice_norm == question.label;
    line["log_likelihoods"] = answer.log_likelihoods;
    std::vector<int64_t> characters, tokens;
    for (const std::string& choice : question.choices) {
      characters.push_back(count_characters(choice));
      tokens.push_back(texts[at++].scored);
    }
    line["characters"] = characters;
    line["tokens"] = tokens;
    line["text"] = question.choices[static_cast<size_t>(answer.choice)];
    lines += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return lines;
}

}  // namespace octet
