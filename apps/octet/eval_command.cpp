#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_errors.h"
#include "base/log.h"
#include "base/print.h"
#include "checkpoint/model_weights.h"
#include "command.h"
#include "data/shards/manifest.h"
#include "device_options.h"
#include "eval_model.h"
#include "eval_tasks.h"
#include "plan/data_loaders.h"
#include "plan/data_prepare.h"
#include "plan/dataset_items.h"
#include "plan/device_choice.h"
#include "report/table.h"
#include "report/text.h"
#include "train/evaluate.h"

namespace octet {
namespace {

struct Options : DeviceOptions {
  std::string model, split, tokenizer, adapter_name_or_path;
  std::vector<DatasetPart> dataset;  // none: what the run holds out
  std::vector<std::string> task;
  std::string fewshot_dataset, output;
  int64_t num_fewshot = 0, max_samples = 0;
  bool best = false, json = false, verify = false;
  int64_t max_seq_length = 0, batch_size = 0, batches = kBatchesOfRun;
  // Without --batches: those of the run if its own data is read, otherwise all.
  static constexpr int64_t kBatchesOfRun = -1;
};

// A model to evaluate, and how.
struct LossWork {
  std::string dataset;  // as it is shown
  std::vector<EvalSet> sets;
  RunShape shape;
  int64_t batches = 0;
};

// Examples are read as the run read them: columns, chat template, packing.
DataKeys run_config(const Options& options, const ModelFolder& model, int64_t length) {
  DataKeys config = model.run.value_or(TrainedRun{});
  config.verify = options.verify;
  config.tokenizer = model.tokenizer;
  config.max_seq_length = length;
  return config;
}

// The tokenizer of the model. Null if only tokens are read: then it is not needed, and may be of a kind that octet does
// not know. Prepared folders are checked against it if it can be read.
std::unique_ptr<Tokenizer> tokenizer_for(const DataKeys& config, const ModelFolder& model) {
  if (has_eval_text(config)) {
    if (model.tokenizer.empty())
      fail_config("dataset '{}' is text, which needs a tokenizer; the model has none, so pass --tokenizer",
                  names_text(config.eval_dataset));
    return open_model_tokenizer(model);
  }
  const bool is_checked = std::ranges::any_of(expanded_eval_dataset(config), [](const DatasetPart& part) {
    return has_dataset_manifest(posix_env(), part.path);
  });
  if (!is_checked || model.tokenizer.empty()) return nullptr;
  try {
    return open_model_tokenizer(model);
  } catch (const Error& error) {
    log_warning("{}; so it is not known whether {} was prepared with this tokenizer", error.what(),
                names_text(config.eval_dataset));
    return nullptr;
  }
}

std::vector<EvalSet> open_dataset_of(const Options& options, const ModelFolder& model, int64_t length) {
  DataKeys config = run_config(options, model, length);
  config.eval_dataset = options.dataset;
  config.eval_dataset_split = options.split;
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_for(config, model);
  return make_eval_sets(loading_options(config), open_eval_parts(config, model.config.vocab, model.tokenizer, tokenizer.get()),
                        tokenizer.get());
}

// The data that the run holds out, in the same sequences.
std::vector<EvalSet> open_held_out(const Options& options, const ModelFolder& model, int64_t length) {
  if (!model.run) {
    fail_config("{} is not a run of octet, so there is no data of its own; pass --dataset", options.model);
  }
  if (!options.split.empty())
    fail_config("dataset_split is '{}', but the data is what the run holds out; pass --dataset, too",
                options.split);
  const std::unique_ptr<Tokenizer> tokenizer = open_model_tokenizer(model);
  const DataKeys config = run_config(options, model, length);
  try {
    return make_eval_sets(loading_options(config), open_parts(config, model.config.vocab, model.tokenizer, *tokenizer).eval,
                          tokenizer.get());
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    fail_config("the data of the run cannot be opened: {}; pass --dataset to say where the data is now",
                error.what());
  }
}

LossWork make_work(const Options& options, const ModelFolder& model) {
  LossWork work;
  const bool own = options.dataset.empty();
  int64_t length = options.max_seq_length;
  if (length == 0)
    length = model.run ? model.run->max_seq_length : std::min<int64_t>(model.config.max_positions, 1024);
  check_sequence_length(model.config, "--max_seq_length", length);
  work.sets = reading_input(
      [&] { return own ? open_held_out(options, model, length) : open_dataset_of(options, model, length); });
  work.dataset =
      own ? fmt::format("held out of {}", names_text(model.run->dataset)) : names_text(options.dataset);
  if (own && !model.run->eval_dataset.empty()) work.dataset = names_text(model.run->eval_dataset);
  if (std::ranges::none_of(work.sets,
                           [&](const EvalSet& set) { return set.make_loader(1, length) != nullptr; })) {
    if (own)
      fail_config("the run holds out no data, or less than a sequence of {} tokens; pass --dataset", length);
    fail_config("dataset '{}' has fewer tokens than one window of max_seq_length {} needs",
                names_text(options.dataset), length);
  }
  const int64_t rows = options.batch_size > 0 ? options.batch_size
                       : own                  ? model.run->per_device_train_batch_size
                                              : 8;
  work.shape = {.rows = rows, .length = length, .training = false};
  work.batches = options.batches != Options::kBatchesOfRun ? options.batches
                 : own                                     ? model.run->eval_batches
                                                           : 0;
  return work;
}

std::string report(const Options& options, const ModelFolder& model, const LossWork& work,
                   const std::string& precision, const Evaluation& e) {
  if (options.json) {
    const auto figures = [](const Evaluation& of) {
      return nlohmann::ordered_json{{"loss", of.loss},
                                    {"perplexity", std::exp(of.loss)},
                                    {"accuracy", of.accuracy},
                                    {"tokens", of.targets},
                                    {"windows", of.windows}};
    };
    nlohmann::ordered_json json = {{"model", model.folder}, {"dataset", work.dataset}};
    json.update(figures(e));
    json["max_seq_length"] = work.shape.length;
    json["precision"] = precision;
    for (const auto& [name, part] : e.parts) json["datasets"][name] = figures(part);
    if (model.adapter) json["adapter"] = model.adapter->folder;
    return json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  }
  std::string text = fmt::format(
      "{}\n"
      "dataset         {}\n"
      "loss            {:.6f}\n"
      "perplexity      {:.4f}\n"
      "token accuracy  {:.2f} %\n"
      "tokens          {} in {} windows of {}, {}\n",
      model.source, work.dataset, e.loss, std::exp(e.loss), 100 * e.accuracy, e.targets, e.windows,
      work.shape.length, precision);
  if (e.parts.empty()) return text;
  Table table({{"dataset"},
               {"loss", Align::Right},
               {"perplexity", Align::Right},
               {"token accuracy", Align::Right},
               {"tokens", Align::Right}});
  for (const auto& [name, part] : e.parts) {
    table.add_row({name, fmt::format("{:.6f}", part.loss), fmt::format("{:.4f}", std::exp(part.loss)),
                   fmt::format("{:.2f} %", 100 * part.accuracy), fmt::format("{}", part.targets)});
  }
  return text + "\n" + table.str();
}

EvalTaskOptions task_options(const Options& options) {
  EvalTaskOptions result;
  static_cast<DeviceOptions&>(result) = options;
  result.tasks = options.task;
  for (const DatasetPart& part : options.dataset) result.datasets.push_back(part.path);
  result.fewshot_dataset = options.fewshot_dataset;
  result.output = options.output;
  result.num_fewshot = options.num_fewshot;
  result.max_samples = options.max_samples;
  result.max_seq_length = options.max_seq_length;
  result.batch_size = options.batch_size;
  result.json = options.json;
  return result;
}

// Keys of the one kind of evaluation have no meaning in the other.
void check_kind(const Options& options) {
  const auto refuse = [](bool given, const char* key, const char* kind) {
    if (given) fail_config("--{} has no meaning {} --task", key, kind);
  };
  if (options.task.empty()) {
    refuse(options.num_fewshot > 0, "num_fewshot", "without");
    refuse(!options.fewshot_dataset.empty(), "fewshot_dataset", "without");
    refuse(options.max_samples > 0, "max_samples", "without");
    refuse(!options.output.empty(), "output", "without");
  } else {
    refuse(options.batches != Options::kBatchesOfRun, "batches", "with");
    refuse(!options.split.empty(), "dataset_split", "with");
    refuse(options.verify, "verify", "with");
    refuse(!options.fewshot_dataset.empty() && options.num_fewshot == 0, "fewshot_dataset",
           "without --num_fewshot, also with");
  }
}

int run(const Options& options) {
  check_kind(options);
  ModelFolder model =
      reading_input([&] { return find_model(options.model, options.best, options.adapter_name_or_path); });
  if (!options.tokenizer.empty()) model.tokenizer = options.tokenizer;
  if (!options.task.empty()) return evaluate_tasks(task_options(options), model);
  LossWork work = make_work(options, model);
  const std::unique_ptr<Device> device = make_device(options.device_spec());
  const std::string precision = options.precision_on(*device);
  Transformer transformer(model.config, work.shape, numerics_for(precision), *device);
  if (transformer.plan().peak_bytes() > device->memory_bytes()) {
    fail_config("[eval] this needs {}, but the device has {}; use a smaller --batch_size",
                human_bytes(static_cast<double>(transformer.plan().peak_bytes())),
                human_bytes(static_cast<double>(device->memory_bytes())));
  }
  transformer.allocate();
  reading_input([&] { load_weights(*device, transformer.parameters(), model); });
  transformer.weights_changed();
  const Evaluator evaluator(std::move(work.sets), work.batches);
  const std::optional<Evaluation> evaluation = evaluator.evaluate(transformer, precision == "fp8");
  require(evaluation && evaluation->targets > 0, "[eval] dataset '{}' has no targets", work.dataset);
  require(
      std::isfinite(evaluation->loss),
      "[eval] the loss is {}, expected a finite number: the weights or config.json of {} are damaged, or its "
      "training diverged",
      evaluation->loss, model.source);
  print_stdout("{}", report(options, model, work, precision, *evaluation));
  return kExitDone;
}

}  // namespace

Command eval_command() {
  CommandBuilder<Options> builder("eval",
                                  "Measure the loss of a model, or its score in HellaSwag and other tasks");
  builder.line.about =
      "Measures the mean loss, the perplexity and the token accuracy of a model on a dataset. For a run or a "
      "checkpoint, the default is the data that the run holds out, in the same sequences.\n"
      "With --task, measures the accuracy in multiple-choice tasks: hellaswag, arc_easy, arc_challenge, piqa, "
      "winogrande, mmlu, or any JSONL file with context, endings and label.";
  builder.word(&Options::model, {.name = "MODEL", .what = "model", .help = kModelHelp});
  KeyTable<Options>& keys = builder.keys;
  keys.add(
          "task", &Options::task,
          "Multiple-choice tasks, separated by commas: hellaswag, arc_easy, arc_challenge, piqa, winogrande, "
          "mmlu, multiple_choice, or a file. NAME=FILE says where the questions of a task are.")
      .alias("tasks")
      .value("NAME,...");
  keys.add("max_samples", &Options::max_samples, "With task: only the first questions. 0: all.")
      .alias("limit")
      .at_least(0)
      .at_most(1e12);
  keys.add("num_fewshot", &Options::num_fewshot, "With task: solved examples in front of each question.")
      .at_least(0)
      .at_most(1000);
  keys.add("fewshot_dataset", &Options::fewshot_dataset, "With num_fewshot: where the examples come from.")
      .value("DATA")
      .note("the training part of the dataset; for a file, other questions of that file");
  keys.add("output", &Options::output,
           "With task: write one line of JSON per question: choice, label and log-likelihoods.")
      .alias("output_path")
      .value("FILE.jsonl");
  keys.add("dataset", &Options::dataset, dataset_part_keys(),
           "Dataset, as 'octet train' takes it: text, token files, JSONL, Parquet, a prepared folder, demo, "
           "... Several are separated by commas. With task: the file of the questions, one per task.")
      .value("DATA")
      .note("what the run holds out, or its eval_dataset; with task: from the hub");
  keys.add("dataset_split", &Options::split, "Read only the files of this split, found by their names.")
      .alias("split_name")
      .value("NAME")
      .note("all files except validation and test");
  add_adapter_key(keys);
  keys.add("best", &Options::best, kBestHelp);
  keys.add("tokenizer", &Options::tokenizer, "bytes, a tokenizer file or folder, or a hub id.")
      .value("FILE_OR_FOLDER")
      .note("the tokenizer of the model");
  keys.add("max_seq_length", &Options::max_seq_length, "Tokens per window.")
      .at_least(1)
      .at_most(1 << 24)
      .alias("max_length")
      .alias("cutoff_len")
      .note(
          "max_seq_length of the run; else the positions of the model, at most 1024; with task: the positions of the model");
  keys.add("batch_size", &Options::batch_size,
           "Windows per batch. Changes the speed and the memory. The result depends on it only if batches "
           "limits what is read.")
      .at_least(1)
      .at_most(1 << 20)
      .note(
          "that of the run for its own data, else 8; with task: about 32768 tokens on a GPU, 2048 on a CPU");
  keys.add("batches", &Options::batches, "Maximum number of batches. 0: the whole dataset.")
      .alias("eval_batches")
      .at_least(0)
      .at_most(1e12)
      .note("eval_batches of the run for its own data, else 0");
  keys.add(
      "verify", &Options::verify,
      "Read and check all shards of a prepared dataset, even if they have not changed since the last check.");
  keys.add("json", &Options::json, "Print a JSON object.");
  add_device_keys(keys, {"fp32", "bf16", "fp8"});
  return builder.command(run);
}

}  // namespace octet
