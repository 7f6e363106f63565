#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/model_folder.h"
#include "command.h"
#include "config/config.h"
#include "data/datasets/prepared_list.h"
#include "plan/data_prepare.h"
#include "plan/data_stage.h"
#include "plan/dataset_items.h"

namespace octet {
namespace {

struct Options {
  std::string output;
  RunArguments run;
};

// A folder for a list must not hold anything else.
void check_folder(const std::string& folder, const std::vector<DatasetPart>& list) {
  Env& env = posix_env();
  env.make_directories(folder);
  for (const std::string& name : env.list(folder)) {
    const bool is_part = std::ranges::find(list, name, &DatasetPart::path) != list.end();
    if (!is_part && name != kPreparedListName && name != fmt::format(".tmp-{}", kPreparedListName)) {
      fail_config("{} holds '{}', which is no dataset of this list; expected an empty or a new folder",
                  folder, name);
    }
  }
}

int run(const Options& options) {
  const TrainConfig config = load_train_config(options.run.config_file, options.run.settings);
  std::vector<std::string> errors;
  if (config.is_demo())
    errors.emplace_back("octet prepare needs --dataset: a file, a folder, a glob, a preset or a hub id");
  if (options.output.empty())
    errors.emplace_back("octet prepare needs --output DIR, the folder for shards and manifest");
  throw_config_errors(errors);

  if (!config.is_set("tokenizer") && config.model_name_or_path.empty()) {
    log_warning("no --tokenizer is given: text is read as bytes");
  }
  const std::string tokenizer_name = choose_tokenizer(
      config, config.model_name_or_path.empty() ? "" : find_start(config.model_name_or_path).tokenizer);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(tokenizer_name);
  const std::vector<DatasetPart> parts = expanded_dataset(config);
  throw_config_errors(idle_choices(config));
  const auto prepare = [&](const DatasetPart& part, const std::string& output) {
    const PreparedFolder prepared =
        prepare_with_progress(config,
                              {.examples = train_examples(config, part),
                               .tokenizer = tokenizer_name,
                               .max_samples = part.max_samples > 0 ? part.max_samples : config.max_samples,
                               .eval_split = config.eval_split,
                               .seed = static_cast<uint64_t>(config.seed),
                               .output = output},
                              *tokenizer);
    if (config.progress == TrainConfig::Progress::Quiet) return;
    if (parts.size() > 1) fmt::print("{}\n", part.path);
    fmt::print("{}{}", statistics_text(prepared.result.manifest), parts.size() > 1 ? "\n" : "");
  };
  if (parts.size() == 1) {
    prepare(parts[0], options.output);
    return kExitDone;
  }
  std::vector<DatasetPart> list;
  for (std::string& name : part_names(parts)) {
    std::ranges::replace(name, '/', '-');
    list.push_back({.path = std::move(name), .weight = parts[list.size()].weight});
  }
  check_folder(options.output, list);
  for (size_t i = 0; i < parts.size(); ++i) prepare(parts[i], join_path(options.output, list[i].path));
  write_prepared_list(posix_env(), options.output, list);
  return kExitDone;
}

}  // namespace

Command prepare_command() {
  CommandBuilder<Options> builder("prepare",
                                  "Turn a dataset into token shards, so that training starts at once");
  builder.line.usage =
      "[CONFIG.yaml] --dataset DATA --tokenizer FILE_OR_FOLDER --output DIR [--key value]...";
  builder.line.about =
      "Reads a dataset, tokenizes it on all cores and writes token shards and a manifest.json into DIR. "
      "Train on the result with 'octet train --dataset DIR'. If dataset is a list, DIR gets one folder per "
      "item, and datasets.json, which lists them with their weights.\n"
      "If it is stopped (Ctrl-C), start it again with the same options: it continues after the last "
      "complete shard and writes the same bytes. It refuses a DIR that was made with other options or "
      "another tokenizer.";
  builder.line.notes =
      "Only these keys have an effect here. What is read: dataset, dataset_split, dataset_subset, "
      "dataset_revision, dataset_dir, dataset_format, text_column, prompt_column, completion_column, "
      "messages_column, max_samples, on_error. How it becomes tokens: tokenizer, chat_template, "
      "default_system, train_on. The validation split: eval_split, seed. The work: shard_tokens, "
      "num_threads, progress.";
  builder.keys
      .add("output", &Options::output,
           "Folder for the prepared dataset. It must be new, empty, or made by an earlier call with the same "
           "options.")
      .value("DIR")
      .short_flag('o')
      .note("none; must be given");
  builder.run_arguments(&Options::run);
  return builder.command(run);
}

}  // namespace octet
