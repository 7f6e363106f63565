#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "command.h"
#include "train/data_prepare.h"
#include "train/data_setup.h"
#include "train/model_folder.h"

namespace octet {
namespace {

constexpr const char* kHelp =
    "Usage: octet prepare [CONFIG.yaml] --dataset DATA --tokenizer FILE_OR_FOLDER --output DIR [--key "
    "value]...\n\n"
    "Reads a dataset, tokenizes it on all cores and writes token shards and a manifest.json into DIR, for\n"
    "'octet train --dataset DIR'. Stopped (Ctrl-C) and started again, it goes on behind the last whole shard "
    "and\n"
    "writes the same bytes. A DIR with other options or another tokenizer is refused.\n\n"
    "The keys are those of 'octet train', so that one file serves both; these count here:\n"
    "  dataset, dataset_split, dataset_subset, dataset_revision, dataset_dir, dataset_format, text_column,\n"
    "  prompt_column, completion_column, messages_column, chat_template,\n"
    "  default_system, train_on, on_error, max_samples   what is read, and how\n"
    "  tokenizer, num_threads, progress\n"
    "  eval_split, seed        the share of the examples, and the choice of them, for the validation split\n"
    "  shard_tokens            size of a shard\n"
    "'octet train --help' describes them.\n\n"
    "  --output DIR   Folder of the dataset: new, empty, or of an earlier call with the same options.\n"
    "  -h, --help     Print this.\n";

// Takes "--output DIR" or "--output=DIR" out of the arguments: it is no key of a run.
std::string take_output(std::vector<std::string>& arguments) {
  std::string output;
  for (size_t i = 0; i < arguments.size();) {
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    if (arguments[i].starts_with("--output=")) {
      output = arguments[i].substr(9);
      arguments.erase(at);
    } else if (arguments[i] == "--output") {
      if (i + 1 == arguments.size()) fail_config("--output needs the name of a folder");
      output = arguments[i + 1];
      arguments.erase(at, at + 2);
    } else {
      ++i;
    }
  }
  return output;
}

}  // namespace

int prepare_command(std::span<const std::string> given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  const std::string output = take_output(arguments);
  std::vector<std::string> errors;
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), arguments, errors);
  if (parsed.help) {
    fmt::print("{}", kHelp);
    return kExitDone;
  }
  throw_config_errors(errors);
  if (parsed.positionals.size() > 1) {
    fail_config("octet prepare takes one configuration file, got '{}' and '{}'",
                printable(parsed.positionals[0]), printable(parsed.positionals[1]));
  }
  TrainConfig config =
      load_train_config(parsed.positionals.empty() ? "" : parsed.positionals[0], parsed.settings);
  if (config.is_demo())
    fail_config("octet prepare needs --dataset: a file, a folder, a glob, a preset or a hub id");
  if (output.empty()) fail_config("octet prepare needs --output DIR, the folder for shards and manifest");

  if (!config.is_set("tokenizer") && config.model_name_or_path.empty()) {
    log_warning("no --tokenizer is given: text is read as bytes");
  }
  choose_tokenizer(config,
                   config.model_name_or_path.empty() ? "" : find_model(config.model_name_or_path).tokenizer);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(config.tokenizer);
  const PreparedFolder prepared = prepare_with_progress(config,
                                                        {.examples = train_examples(config),
                                                         .max_samples = config.max_samples,
                                                         .eval_split = config.eval_split,
                                                         .seed = static_cast<uint64_t>(config.seed),
                                                         .output = output},
                                                        *tokenizer);
  if (config.progress != TrainConfig::Progress::Quiet)
    fmt::print("{}", statistics_text(prepared.result.manifest));
  return kExitDone;
}

}  // namespace octet
