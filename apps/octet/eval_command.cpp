#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/model_weights.h"
#include "command.h"
#include "data/datasets/dataset.h"
#include "device_options.h"
#include "plan/data_loaders.h"
#include "plan/device_choice.h"
#include "report/text.h"
#include "train/evaluate.h"

namespace octet {
namespace {

struct Options : DeviceOptions {
  std::string model, dataset, split, tokenizer, adapter_name_or_path;
  bool best = false, json = false;
  int64_t max_seq_length = 0, batch_size = 8, batches = 0;
};

EvalLoaderFactory open_data(const Options& options, const ModelFolder& model, const RunShape& shape) {
  if (model.tokenizer.empty()) {
    // Token files need no tokenizer.
    try {
      return stream_eval_loaders(open_tokens(options.dataset, model.config.vocab, nullptr), {});
    } catch (const Error& error) {
      if (std::string_view(error.what()).find("tokenizer") == std::string_view::npos) throw;
      fail_config("{}; the model has none, so pass --tokenizer", error.what());
    }
  }
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(model.tokenizer);
  if (tokenizer->vocab_size() > model.config.vocab) {
    fail_config(
        "tokenizer '{}' has {} ids, but the model has a vocabulary of {}; use the tokenizer of the model",
        model.tokenizer, tokenizer->vocab_size(), model.config.vocab);
  }
  // Examples are read as the run read them: columns, chat template, packing.
  TrainConfig config = model.run.value_or(TrainConfig{});
  config.eval_dataset = options.dataset;
  config.eval_dataset_split = options.split;
  config.tokenizer = model.tokenizer;
  config.max_seq_length = shape.length;
  return open_evaluation_data(config, model.config.vocab, *tokenizer);
}

RunShape shape_for(const Options& options, const ModelFolder& model) {
  int64_t length = options.max_seq_length;
  if (length == 0) length = std::min<int64_t>(model.config.max_positions, 1024);
  check_sequence_length(model.config, "--max_seq_length", length);
  return {.rows = options.batch_size, .length = length, .training = false};
}

Numerics numerics_for(const std::string& precision) {
  Numerics numerics;
  numerics.precision = precision == "fp32"   ? Precision::Fp32
                       : precision == "bf16" ? Precision::Bf16
                                             : Precision::Fp8;
  numerics.fp8.recipe = Fp8Recipe::Current;  // needs no history of a run
  return numerics;
}

std::string report(const Options& options, const ModelFolder& model, const RunShape& shape,
                   const std::string& precision, const Evaluation& e) {
  const double perplexity = std::exp(e.loss);
  if (options.json) {
    nlohmann::ordered_json json = {
        {"model", model.folder},    {"dataset", options.dataset},     {"loss", e.loss},
        {"perplexity", perplexity}, {"accuracy", e.accuracy},         {"tokens", e.targets},
        {"windows", e.windows},     {"max_seq_length", shape.length}, {"precision", precision}};
    if (model.adapter) json["adapter"] = model.adapter->folder;
    return json.dump(2) + "\n";
  }
  return fmt::format(
      "{}\n"
      "loss            {:.6f}\n"
      "perplexity      {:.4f}\n"
      "token accuracy  {:.2f} %\n"
      "tokens          {} in {} windows of {}, {}\n",
      model.source, e.loss, perplexity, 100 * e.accuracy, e.targets, e.windows, shape.length, precision);
}

int run(const Options& options) {
  ModelFolder model = find_model(options.model, options.best, options.adapter_name_or_path);
  if (!options.tokenizer.empty()) model.tokenizer = options.tokenizer;
  const RunShape shape = shape_for(options, model);
  EvalLoaderFactory data = open_data(options, model, shape);
  if (!data(1, shape.length)) {
    fail_config("dataset '{}' has fewer tokens than one window of max_seq_length {} needs", options.dataset,
                shape.length);
  }
  const std::unique_ptr<Device> device = make_device(options.config());
  const std::string precision = options.precision_on(*device);
  Transformer transformer(model.config, shape, numerics_for(precision), *device);
  if (transformer.plan().peak_bytes() > device->memory_bytes()) {
    fail("[eval] this needs {}, but the device has {}; use a smaller --batch_size",
         human_bytes(static_cast<double>(transformer.plan().peak_bytes())),
         human_bytes(static_cast<double>(device->memory_bytes())));
  }
  transformer.allocate();
  load_weights(*device, transformer.parameters(), model);
  transformer.weights_changed();
  const Evaluator evaluator(std::move(data), options.batches);
  const std::optional<Evaluation> evaluation = evaluator.evaluate(transformer, precision == "fp8");
  require(evaluation && evaluation->targets > 0, "[eval] dataset '{}' has no targets", options.dataset);
  fmt::print("{}", report(options, model, shape, precision, *evaluation));
  return kExitDone;
}

}  // namespace

Command eval_command() {
  CommandBuilder<Options> builder("eval",
                                  "Measure the loss, perplexity and accuracy of a model on a dataset");
  builder.line.about =
      "Measures the mean loss, the perplexity and the token accuracy of a model on a dataset.";
  builder.word(&Options::model, {.name = "MODEL", .what = "model", .help = kModelHelp});
  KeyTable<Options>& keys = builder.keys;
  keys.add("dataset", &Options::dataset,
           "Dataset, as 'octet train' takes it: text, token files, JSONL, Parquet, a prepared folder, demo, "
           "...")
      .value("DATA")
      .must_be_given();
  keys.add("dataset_split", &Options::split, "Read only the files of this split, found by their names.")
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
      .note("the positions of the model, at most 1024");
  keys.add("batch_size", &Options::batch_size,
           "Windows per batch. Changes the speed and the memory, not the result.")
      .at_least(1)
      .at_most(1 << 20);
  keys.add("batches", &Options::batches, "Maximum number of batches. 0: the whole dataset.")
      .alias("eval_batches")
      .at_least(0)
      .at_most(1e12);
  keys.add("json", &Options::json, "Print a JSON object.");
  add_device_keys(keys, {"fp32", "bf16", "fp8"});
  return builder.command(run);
}

}  // namespace octet
