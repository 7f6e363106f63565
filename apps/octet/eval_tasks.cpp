#include "eval_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/clock.h"
#include "base/cpu_threads.h"
#include "base/error.h"
#include "base/exit_codes.h"
#include "base/input_errors.h"
#include "base/print.h"
#include "checkpoint/model_weights.h"
#include "data/tokenizer/tokenizer.h"
#include "eval_model.h"
#include "io/output_file.h"
#include "plan/device_choice.h"
#include "report/console.h"
#include "report/table.h"
#include "report/text.h"
#include "train/evaluate_tasks.h"

namespace octet {
namespace {

// Tokens per batch if nothing is said. More do not make a GPU faster.
constexpr int64_t kGpuTokens = 32768, kCpuTokens = 2048;

std::vector<TaskSource> task_sources(const EvalTaskOptions& options) {
  std::vector<TaskSource> sources;
  for (const std::string& task : options.tasks) sources.push_back(parse_task_source(task));
  if (options.datasets.empty()) return sources;
  if (options.datasets.size() != sources.size())
    fail_config("{} datasets for {} tasks, expected one per task; --task NAME=FILE also names a file",
                options.datasets.size(), sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].dataset.empty())
      fail_config("task '{}' names its file already, but dataset is '{}'", options.tasks[i],
                  options.datasets[i]);
    sources[i].dataset = options.datasets[i];
  }
  return sources;
}

std::vector<EncodedTask> load_tasks(const EvalTaskOptions& options, const Tokenizer& tokenizer,
                                    int64_t max_length) {
  const TaskOptions task_options{.max_samples = options.max_samples,
                                 .examples = options.num_fewshot,
                                 .example_dataset = options.fewshot_dataset};
  const int threads =
      options.num_threads > 0 ? static_cast<int>(options.num_threads) : default_threads().count;
  std::vector<EncodedTask> tasks;
  for (const TaskSource& source : task_sources(options)) {
    Task task = load_task(source, task_options);
    std::vector<ScoredText> texts = encode_task(task, tokenizer, max_length, threads);
    tasks.push_back({std::move(task), std::move(texts)});
  }
  return tasks;
}

struct Work {
  int64_t texts = 0, tokens = 0, longest = 0;
};

Work work_of(const std::vector<EncodedTask>& tasks) {
  Work work;
  for (const EncodedTask& task : tasks) {
    work.texts += std::ssize(task.texts);
    for (const ScoredText& text : task.texts) {
      work.tokens += std::ssize(text.ids) - 1;
      work.longest = std::max<int64_t>(work.longest, std::ssize(text.ids) - 1);
    }
  }
  return work;
}

// Packed rows of the longest text's length, as many as the device can use, and no more than there is to do.
RunShape shape_for(const EvalTaskOptions& options, const Work& work, int64_t max_length,
                   const Device& device) {
  const int64_t length = std::min(round_up(work.longest, 16), std::max(max_length, work.longest));
  const int64_t tokens = device.capabilities().separate_memory ? kGpuTokens : kCpuTokens;
  const int64_t wanted = options.batch_size > 0 ? options.batch_size : std::max<int64_t>(1, tokens / length);
  return {.rows = std::min(wanted, div_up(work.tokens, length) + 1),
          .length = length,
          .training = false,
          .head_chunk_bytes = 2 * device.capabilities().logits_bytes,  // fp32 instead of bf16
          .scoring = true};
}

// If a batch is too large for the device, half of it is tried, unless the user has chosen the size.
std::unique_ptr<Transformer> make_model(const EvalTaskOptions& options, const ModelConfig& config,
                                        RunShape shape, const Numerics& numerics, Device& device) {
  while (true) {
    auto model = std::make_unique<Transformer>(config, shape, numerics, device);
    const int64_t bytes = model->plan().peak_bytes();
    if (bytes <= device.memory_bytes()) return model;
    if (shape.rows == 1 || options.batch_size > 0)
      fail_config("[eval] this needs {}, but the device has {}; use a smaller --{}",
                  human_bytes(static_cast<double>(bytes)),
                  human_bytes(static_cast<double>(device.memory_bytes())),
                  shape.rows == 1 ? "max_seq_length" : "batch_size");
    shape.rows /= 2;
  }
}

std::string percent(const Accuracy& accuracy) {
  std::string text = fmt::format("{:.2f} %", 100 * accuracy.mean);
  if (accuracy.standard_error) text += fmt::format(" +- {:.2f}", 100 * *accuracy.standard_error);
  return text;
}

std::string table_text(const std::vector<TaskScore>& scores) {
  Table table({{"task"},
               {"questions", Align::Right},
               {"examples", Align::Right},
               {"acc", Align::Right},
               {"acc_norm", Align::Right}});
  const auto add = [&](const std::string& name, const TaskScore& score) {
    table.add_row({name, fmt::format("{}", score.questions), fmt::format("{}", score.examples),
                   percent(score.acc), score.acc_norm ? percent(*score.acc_norm) : "-"});
  };
  for (const TaskScore& score : scores) {
    add(score.name, score);
    for (const auto& [name, group] : score.groups) add("  " + (name.empty() ? "(no subject)" : name), group);
  }
  return table.str();
}

nlohmann::ordered_json score_json(const TaskScore& score) {
  nlohmann::ordered_json json = {{"questions", score.questions}};
  const auto add = [&](const std::string& name, const Accuracy& accuracy) {
    json[name] = accuracy.mean;
    if (accuracy.standard_error) {
      json[name + "_stderr"] = *accuracy.standard_error;
    } else {
      json[name + "_stderr"] = nullptr;
    }
  };
  add("acc", score.acc);
  if (score.acc_norm) add("acc_norm", *score.acc_norm);
  return json;
}

std::string report(const EvalTaskOptions& options, const ModelFolder& model, const std::string& precision,
                   const std::vector<TaskScore>& scores, const Work& work, double seconds) {
  if (!options.json) {
    std::string datasets;
    for (const TaskScore& score : scores)
      datasets += fmt::format("questions of {}: {}\n", score.name, score.dataset);
    return fmt::format("{}\n\n{}\n{}{} texts, {} tokens in {:.2f} s, {}\n", model.source, table_text(scores),
                       datasets, work.texts, work.tokens, seconds, precision);
  }
  nlohmann::ordered_json json = {{"model", model.folder}, {"precision", precision}};
  for (const TaskScore& score : scores) {
    nlohmann::ordered_json result = score_json(score);
    result["num_fewshot"] = score.examples;
    result["dataset"] = score.dataset;
    for (const auto& [name, group] : score.groups) result["subjects"][name] = score_json(group);
    json["results"][score.name] = result;
  }
  json["texts"] = work.texts;
  json["tokens"] = work.tokens;
  json["seconds"] = seconds;
  if (model.adapter) json["adapter"] = model.adapter->folder;
  return json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

// Two tasks of one name would have one place in the results.
void check_names(const std::vector<EncodedTask>& tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (tasks[i].task.name == tasks[k].task.name)
        fail_config("task '{}' is given twice, expected tasks with different names", tasks[i].task.name);
    }
  }
}

}  // namespace

int evaluate_tasks(const EvalTaskOptions& options, const ModelFolder& model) {
  if (model.tokenizer.empty())
    fail_config("the model '{}' has no tokenizer, which tasks need; pass --tokenizer", model.folder);
  const std::unique_ptr<Tokenizer> tokenizer = reading_input([&] { return open_model_tokenizer(model); });
  int64_t max_length = model.config.max_positions;
  if (options.max_seq_length > 0) {
    check_sequence_length(model.config, "--max_seq_length", options.max_seq_length);
    max_length = options.max_seq_length;
  }
  const std::vector<EncodedTask> tasks =
      reading_input([&] { return load_tasks(options, *tokenizer, max_length); });
  check_names(tasks);
  const Work work = work_of(tasks);

  const std::unique_ptr<Device> device = make_device(options.device_spec());
  const std::string precision = options.precision_on(*device);
  const std::unique_ptr<Transformer> transformer = make_model(
      options, model.config, shape_for(options, work, max_length, *device), numerics_for(precision), *device);
  transformer->allocate();
  reading_input([&] { load_weights(*device, transformer->parameters(), model); });
  transformer->weights_changed();

  const auto start = Clock::now();
  std::vector<TaskScore> scores;
  std::string answers;
  {
    Console console(ConsoleMode::Auto, stderr);
    console.begin(0, work.texts);
    int64_t before = 0;
    for (const EncodedTask& task : tasks) {
      const auto progress = [&](size_t done) {
        const int64_t all = before + static_cast<int64_t>(done);
        console.advance(all, fmt::format("{}: {} of {} texts", task.task.name, all, work.texts), 0);
      };
      const std::vector<Answer> chosen = choose_answers(
          task.task,
          log_likelihoods(*transformer, task.texts, precision == "fp8", {.on_progress = progress}));
      scores.push_back(score_answers(task.task, chosen));
      if (!options.output.empty()) answers += answers_jsonl(task.task, task.texts, chosen);
      before += std::ssize(task.texts);
    }
    console.finish();
  }
  const double seconds = seconds_since(start);
  if (!options.output.empty()) write_output_file(options.output, answers);
  print_stdout("{}", report(options, model, precision, scores, work, seconds));
  return kExitDone;
}

}  // namespace octet
