#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/model_folder.h"
#include "command.h"
#include "plan/data_prepare.h"
#include "plan/data_stage.h"
#include "run_arguments.h"

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
    "'octet train --help' describes them. Beside them:\n";

struct PrepareFlags {
  std::string output;
};

KeyTable<PrepareFlags> prepare_keys() {
  KeyTable<PrepareFlags> table;
  table.add("output", &PrepareFlags::output,
            "Folder of the dataset: new, empty, or of an earlier call with the same options.");
  return table;
}

}  // namespace

int prepare_command(std::span<const std::string> arguments) {
  const KeyTable<PrepareFlags> own = prepare_keys();
  PrepareFlags flags;
  const RunArguments parsed = parse_run_arguments("prepare", own, flags, arguments);
  if (parsed.help) {
    fmt::print("{}{}", kHelp, keys_help(own.keys()));
    return kExitDone;
  }
  const std::string& output = flags.output;
  const TrainConfig config = load_train_config(parsed.config_file, parsed.settings);
  if (config.is_demo())
    fail_config("octet prepare needs --dataset: a file, a folder, a glob, a preset or a hub id");
  if (output.empty()) fail_config("octet prepare needs --output DIR, the folder for shards and manifest");

  if (!config.is_set("tokenizer") && config.model_name_or_path.empty()) {
    log_warning("no --tokenizer is given: text is read as bytes");
  }
  const std::string tokenizer_name = choose_tokenizer(
      config, config.model_name_or_path.empty() ? "" : find_model(config.model_name_or_path).tokenizer);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(tokenizer_name);
  const PreparedFolder prepared = prepare_with_progress(config,
                                                        {.examples = train_examples(config),
                                                         .tokenizer = tokenizer_name,
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
